//! The listening socket, and the life of every connection.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::app::App;
use super::routes::router;

/// A server that listens and does not serve yet.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
}

impl Server {
    /// Take the address.
    ///
    /// # Errors
    /// It is taken, or is none of this machine's.
    pub async fn bind(app: App) -> std::io::Result<Self> {
        let address = SocketAddr::new(app.options.host, app.options.port);
        Ok(Self { listener: TcpListener::bind(address).await?, app: Arc::new(app) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What every request sees.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Serve until somebody ends it.
    ///
    /// # Errors
    /// The system's.
    pub async fn run(self) -> std::io::Result<()> {
        axum::serve(self.listener, router(&self.app)).await
    }
}

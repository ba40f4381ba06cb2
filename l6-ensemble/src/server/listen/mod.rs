//! The listening socket: from the first connection to the end of the process.
//!
//! ```text
//! accept -> connection -> router          one task a connection, at most so many
//! signals --\
//! engine ----+-> run: serving -> draining -> everybody has his answer, or the grace is over -> closing -> the end
//! ```

mod accept;
mod connection;
mod departure;
mod signals;
mod stall;
#[cfg(test)]
mod tests;
mod waiting;
pub mod watchdog;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use l5_scheduler::{Engine, EngineError, EngineHandle};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

pub use connection::Client;
pub use waiting::Upload;

use super::LOG;
use super::app::App;
use super::life::State;
use super::middleware::access::AccessLogger;
use super::routes::router;
use accept::Door;
use signals::Signals;

/// How long a server whose engine has failed still answers: time for errors to be read, and for a probe to see it.
const AFTER_A_FAILURE: Duration = Duration::from_secs(2);

/// How long answers that were ended may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long connections may take to close.
const GOODBYE: Duration = Duration::from_secs(1);

/// Connections that the system keeps until they are taken, if it may. With the usual 128, a few hundred clients that come
/// at the same moment make it reset some.
const BACKLOG: u32 = 4096;

/// A server that listens and does not serve yet.
pub struct Server {
    listener: TcpListener,
    signals: Signals,
    log: AccessLogger,
    app: Arc<App>,
}

/// Why a server did not serve to its proper end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The system's.
    #[error("the server cannot listen: {0}")]
    Io(#[from] std::io::Error),
    /// There is no engine any more, and nobody had asked it to end.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine was told to end, and its last step did not.
    #[error("the engine's last step did not end within {0:?}: the server exits without it")]
    Stuck(Duration),
}

impl Server {
    /// Take the address.
    ///
    /// # Errors
    /// It is taken, or is none of this machine's; or the access log cannot be written.
    pub async fn bind(app: App) -> std::io::Result<Self> {
        let address = SocketAddr::new(app.options.host, app.options.port);
        let log = AccessLogger::open(&app.options.access_log)?;
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Connections of a server that has just ended do not keep the next one from its address. On Windows it would let
        // two servers have the same one.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        // Before anybody is told that it listens: who knows where it is may also end it.
        let signals = Signals::install()?;
        Ok(Self { listener, signals, log, app: Arc::new(app) })
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

    /// Serve until SIGTERM or SIGINT, and then until what was under way is done. A second signal ends the process at once.
    ///
    /// # Errors
    /// [`ServeError`]: the engine has ended by itself. Everybody was told, and there is nothing left to serve with.
    pub async fn run(self) -> Result<(), ServeError> {
        let Self { listener, mut signals, log, app } = self;
        let router: Router = router(&app).layer(Extension(log.clone()));
        let (closing, _) = watch::channel(false);
        let door = Door { listener, router, app: app.clone(), closing: closing.clone() };
        let door = tokio::spawn(door.stand_open());
        let mut ended = watch_over(app.engine.clone())?;
        let outcome = tokio::select! {
            signal = signals.next() => {
                let requests = app.life.requests().now();
                let grace = app.options.shutdown_grace.as_secs_f64();
                tracing::info!(
                    target: LOG,
                    "{signal}: {requests} requests in flight; draining for up to {grace} s"
                );
                signals.exit_at_the_next();
                drain(&app, &mut ended).await;
                Ok(())
            }
            why = &mut ended => {
                let why = why.unwrap_or(EngineError::ShutDown);
                tracing::error!("server: {why}");
                app.life.set(State::Failed);
                sleep(AFTER_A_FAILURE).await;
                Err(why.into())
            }
        };
        door.abort();
        closing.send_replace(true);
        // Whoever does not read what he asked for cannot keep the process from ending.
        let _ = timeout(GOODBYE, app.life.connections().none()).await;
        log.close();
        tracing::info!(target: LOG, "shut down");
        outcome
    }
}

/// Nothing new is taken from here on. Returns when nothing is under way, or the grace is over and the rest has been ended.
async fn drain(app: &Arc<App>, ended: &mut oneshot::Receiver<EngineError>) {
    app.life.set(State::Draining);
    tokio::select! {
        () = app.life.requests().none() => return,
        () = sleep(app.options.shutdown_grace) => {}
        _ = ended => {}
    }
    tracing::warn!("server: {} requests did not end in time", app.life.requests().now());
    let engine = app.engine.clone();
    // All answers end with it, and their tasks tell so. A step that never ends must not hold anybody up: nobody joins.
    std::thread::spawn(move || engine.shutdown());
    let _ = timeout(LAST_WORDS, app.life.requests().none()).await;
}

/// End an engine. A step that never ends is not waited for: the process that ends next takes its thread along.
///
/// # Errors
/// [`ServeError::Engine`], if it failed before; [`ServeError::Stuck`].
pub fn shut_down_within(engine: Engine, patience: Duration) -> Result<(), ServeError> {
    let (tell, ended) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("strata-end".into());
    // Without a thread the engine is dropped, which waits.
    thread.spawn(move || tell.send(engine.shutdown()))?;
    match ended.recv_timeout(patience) {
        Ok(ended) => Ok(ended?),
        Err(_) => Err(ServeError::Stuck(patience)),
    }
}

/// A thread that waits for the engine's end: it is the only one who would notice while nobody asks.
fn watch_over(engine: EngineHandle) -> std::io::Result<oneshot::Receiver<EngineError>> {
    let (tell, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("strata-watch".into());
    thread.spawn(move || {
        // The server may be gone before its engine.
        let _ = tell.send(engine.wait_for_the_end());
    })?;
    Ok(ended)
}

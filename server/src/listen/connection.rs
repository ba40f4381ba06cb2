//! Serves one connection: requests one after another, each with a deadline for its head, until it is closed.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::ServiceExt;

use super::connections::Registered;
use super::disconnect::DisconnectDetector;
use super::write_timeout::WriteTimeout;
use crate::lifecycle::Counted;
use crate::options::Limits;

/// Maximum time for which a client may read nothing of its response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);

/// Minimum size of a connection's buffer, in bytes.
const MIN_BUFFER_BYTES: usize = 64 << 10;

/// Address of the client: an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub SocketAddr);

/// An accepted connection, with the parts of the server that it uses.
pub(super) struct Connection {
    pub peer: SocketAddr,
    pub router: Router,
    pub limits: Limits,
    pub closing: watch::Receiver<bool>,
    pub counted: Counted,
    pub registered: Registered,
}

impl Connection {
    /// Serves its requests until it is closed.
    ///
    /// hyper detects a disconnect by reading, which it does not do while it has unread bytes of a next request. So
    /// while a response is pending, the socket is polled ([`DisconnectDetector`]). Either way the future of the
    /// response is dropped, and its requests are aborted.
    pub async fn serve(self, stream: TcpStream) {
        let Self { peer, router, limits, mut closing, counted, registered } = self;
        let registered = Arc::new(registered);
        let own = registered.clone();
        let detector = DisconnectDetector::of(&stream);
        let pending = detector.pending();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let upload = own.serve();
            request.extensions_mut().insert(Client(peer));
            request.extensions_mut().insert(upload.clone());
            let response = router.clone().oneshot(request.map(Body::new));
            let pending = pending.begin(upload);
            async move { response.await.map(|response| response.map(|body| pending.until_read(body))) }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // Also how long a connection may be idle between two requests.
            .header_read_timeout(limits.head_timeout)
            .max_header_size(limits.head_bytes)
            // Larger than the limit, so that a head that is too long differs from one that is incomplete.
            .max_buf_size(limits.head_bytes.saturating_mul(2).max(MIN_BUFFER_BYTES));
        let io = TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT));
        let mut served = pin!(builder.serve_connection(io, service));
        let closed = async { closing.wait_for(|closing| *closing).await.map(drop) };
        let ended = async {
            tokio::select! {
                ended = served.as_mut() => ended,
                _ = closed => {
                    served.as_mut().graceful_shutdown();
                    served.await
                }
            }
        };
        let ended = tokio::select! {
            ended = ended => ended,
            () = registered.closed() => {
                tracing::debug!("server: closed the connection of {peer}, which was idle, for another one");
                Ok(())
            }
            () = detector.disconnected() => {
                tracing::debug!("server: {peer} has disconnected");
                Ok(())
            }
        };
        if let Err(why) = ended {
            // Clients disconnect at any time, and send bytes that are not HTTP: neither is an error of the server.
            tracing::debug!("server: {peer}: {why}");
        }
        drop(counted);
    }
}

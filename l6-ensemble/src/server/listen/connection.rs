//! One connection: requests one after another, each with a deadline for its head, until somebody closes it.

use std::net::SocketAddr;
use std::pin::pin;
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

use super::stall::Stall;
use crate::server::life::Counted;
use crate::server::options::Limits;

/// How long a client may take to read anything at all of what is written for it.
const READING_PATIENCE: Duration = Duration::from_secs(120);

/// The least that a connection's buffer may hold.
const LEAST_BUFFER: usize = 64 << 10;

/// Who asks: an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub SocketAddr);

/// One connection, and what it needs.
pub(super) struct Connection {
    pub peer: SocketAddr,
    pub router: Router,
    pub limits: Limits,
    pub closing: watch::Receiver<bool>,
    pub counted: Counted,
}

impl Connection {
    /// Answer its requests until it ends.
    ///
    /// hyper closes a connection whose client has gone while a response is awaited, and drops what would have made it: so
    /// an answer that nobody waits for is aborted.
    pub async fn serve(self, stream: TcpStream) {
        let Self { peer, router, limits, mut closing, counted } = self;
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Client(peer));
            router.clone().oneshot(request.map(Body::new))
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // Also how long a connection may be idle between two requests.
            .header_read_timeout(limits.head_timeout)
            .max_header_size(limits.head_bytes)
            // A little more, so that what is too long is told from what is not complete.
            .max_buf_size(limits.head_bytes.saturating_mul(2).max(LEAST_BUFFER));
        let io = TokioIo::new(Stall::new(stream, READING_PATIENCE));
        let mut served = pin!(builder.serve_connection(io, service));
        let closed = async { closing.wait_for(|closing| *closing).await.map(drop) };
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            _ = closed => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(why) = ended {
            // Clients vanish, and send what is no HTTP: that is their business.
            tracing::debug!("server: {peer}: {why}");
        }
        drop(counted);
    }
}

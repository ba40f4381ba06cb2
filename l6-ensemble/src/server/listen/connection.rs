//! One connection: requests one after another, each with a deadline for its head, until somebody closes it.

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

use super::departure::Departure;
use super::stall::Stall;
use super::waiting::Registered;
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
    pub registered: Registered,
}

impl Connection {
    /// Answer its requests until it ends.
    ///
    /// hyper notices a client that has gone by reading, which it does not do while bytes of a next request are there
    /// already. So while a response is awaited, the socket is asked ([`Departure`]). Either way what would have made the
    /// response is dropped, and its requests are aborted.
    pub async fn serve(self, stream: TcpStream) {
        let Self { peer, router, limits, mut closing, counted, registered } = self;
        let registered = Arc::new(registered);
        let own = registered.clone();
        let departure = Departure::of(&stream);
        let awaited = departure.awaited();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let upload = own.serve();
            request.extensions_mut().insert(Client(peer));
            request.extensions_mut().insert(upload.clone());
            let response = router.clone().oneshot(request.map(Body::new));
            let awaited = awaited.begin(upload);
            async move { response.await.map(|response| response.map(|body| awaited.until_read(body))) }
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
                tracing::debug!("server: {peer} is closed for another one: it sent nothing");
                Ok(())
            }
            () = departure.noticed() => {
                tracing::debug!("server: {peer} has gone");
                Ok(())
            }
        };
        if let Err(why) = ended {
            // Clients vanish, and send what is no HTTP: that is their business.
            tracing::debug!("server: {peer}: {why}");
        }
        drop(counted);
    }
}

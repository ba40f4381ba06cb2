//! Detects a client that disconnects while its response is pending.
//!
//! hyper detects a closed connection by reading, and does not read while it has unread bytes: after a single byte too
//! many, a stream would be computed to its end in vain. The socket's state shows it, whatever is left to read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::connections::Upload;

/// Time between two checks of the socket: about a step or two of a model.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Detects whether the client of one connection disconnects.
pub(super) struct DisconnectDetector {
    socket: Socket,
    /// Responses that are not written yet: 0 or 1, since HTTP/1.1 sends one after the other.
    pending: PendingResponses,
}

/// Counts the pending responses of a connection.
#[derive(Clone, Default)]
pub(super) struct PendingResponses(Arc<AtomicUsize>);

/// A pending response, until it is dropped.
pub(super) struct PendingResponse {
    count: Arc<AtomicUsize>,
    upload: Upload,
}

impl DisconnectDetector {
    pub fn of(stream: &TcpStream) -> Self {
        Self { socket: Socket::of(stream), pending: PendingResponses::default() }
    }

    /// Counter of pending responses.
    pub fn pending(&self) -> PendingResponses {
        self.pending.clone()
    }

    /// Waits until the client disconnects while a response is pending. The stream must stay open for as long as this
    /// is polled.
    pub async fn disconnected(self) {
        loop {
            sleep(CHECK_INTERVAL).await;
            if self.pending.0.load(Ordering::Relaxed) > 0 && self.socket.has_hung_up() {
                return;
            }
        }
    }
}

impl PendingResponses {
    /// Counts the response of a request. When it is written, the connection waits for its client again.
    pub fn begin(&self, upload: Upload) -> PendingResponse {
        self.0.fetch_add(1, Ordering::Relaxed);
        PendingResponse { count: self.0.clone(), upload }
    }
}

impl PendingResponse {
    /// Attaches itself to the body of the response, which is pending until it is read to the end.
    pub fn until_read(self, body: Body) -> Body {
        Body::new(PendingBody { body, _pending: self })
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.upload.wait();
    }
}

/// Body of a pending response.
struct PendingBody {
    body: Body,
    _pending: PendingResponse,
}

impl HttpBody for PendingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket whose state can be polled.
#[cfg(target_os = "linux")]
struct Socket(std::os::fd::RawFd);

#[cfg(target_os = "linux")]
impl Socket {
    fn of(stream: &TcpStream) -> Self {
        use std::os::fd::AsRawFd;
        Self(stream.as_raw_fd())
    }

    /// Whether the peer has closed its end, or the connection is broken.
    fn has_hung_up(&self) -> bool {
        let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let mut entry = libc::pollfd { fd: self.0, events: gone, revents: 0 };
        // SAFETY: `entry` is one entry, and lives through the call, which does not wait. For a number that is no open
        // file, the kernel returns POLLNVAL, which is not among the events.
        let n = unsafe { libc::poll(&raw mut entry, 1, 0) };
        n > 0 && entry.revents & gone != 0
    }
}

/// Other systems have hyper's detection only.
#[cfg(not(target_os = "linux"))]
struct Socket;

#[cfg(not(target_os = "linux"))]
impl Socket {
    fn of(_: &TcpStream) -> Self {
        Self
    }

    fn has_hung_up(&self) -> bool {
        false
    }
}

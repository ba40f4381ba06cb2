//! Whether a client has gone while it is owed a response.
//!
//! A peer that closes its end is seen by reading, and a server that has unread bytes of it does not read on: one byte
//! too many, and a stream would be computed to its end in vain. The socket itself knows, whatever is left to read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::waiting::Upload;

/// How often the socket is asked. A step or two of a model take as long.
const EVERY: Duration = Duration::from_millis(100);

/// Watches one connection.
pub(super) struct Departure {
    socket: Socket,
    /// Responses that are not written yet: 0 or 1, since HTTP/1.1 has one after the other.
    awaited: Awaited,
}

/// Counts the responses that a connection is owed.
#[derive(Clone, Default)]
pub(super) struct Awaited(Arc<AtomicUsize>);

/// A response that is owed, until it is dropped.
pub(super) struct Owed {
    count: Arc<AtomicUsize>,
    upload: Upload,
}

impl Departure {
    pub fn of(stream: &TcpStream) -> Self {
        Self { socket: Socket::of(stream), awaited: Awaited::default() }
    }

    pub fn awaited(&self) -> Awaited {
        self.awaited.clone()
    }

    /// Returns when the client has gone while it was owed a response. The stream must be open for as long as this is
    /// polled.
    pub async fn noticed(self) {
        loop {
            sleep(EVERY).await;
            if self.awaited.0.load(Ordering::Relaxed) > 0 && self.socket.has_hung_up() {
                return;
            }
        }
    }
}

impl Awaited {
    /// A request is there. When its response is written, it is the client's turn again.
    pub fn begin(&self, upload: Upload) -> Owed {
        self.0.fetch_add(1, Ordering::Relaxed);
        Owed { count: self.0.clone(), upload }
    }
}

impl Owed {
    /// The response is owed until its body is read to the end.
    pub fn until_read(self, body: Body) -> Body {
        Body::new(OwedBody { body, _owed: self })
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.upload.wait();
    }
}

struct OwedBody {
    body: Body,
    _owed: Owed,
}

impl HttpBody for OwedBody {
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

/// A socket that is asked about its other end.
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
        let mut asked = libc::pollfd { fd: self.0, events: gone, revents: 0 };
        // SAFETY: `asked` is one entry, and lives through the call, which does not wait. Of a number that is no open
        // file, the kernel says so (POLLNVAL), which is not among the events.
        let n = unsafe { libc::poll(&raw mut asked, 1, 0) };
        n > 0 && asked.revents & gone != 0
    }
}

/// Elsewhere hyper's own way has to do.
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

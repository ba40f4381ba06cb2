//! A stream whose other end has to read: what is written is taken in time, or the connection is over.
//!
//! Without it, a client that asks and never reads would keep its connection for as long as it likes.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream that gives up a write which makes no progress for too long.
pub(super) struct Stall<S> {
    stream: S,
    patience: Duration,
    /// Runs while something waits to be written.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Stall<S> {
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, timer: None }
    }

    /// What became of a write: done, or not yet, or too late.
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stall<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn a_client_that_does_not_read_is_given_up() {
        run(async {
            let (ours, _theirs) = duplex(4);
            let mut stream = Stall::new(ours, Duration::from_millis(20));
            let why = stream.write_all(b"more than four").await.unwrap_err();
            assert_eq!(why.kind(), ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_client_that_reads_a_little_is_not() {
        run(async {
            let (ours, mut theirs) = duplex(1);
            let mut stream = Stall::new(ours, Duration::from_secs(60));
            let write = async {
                stream.write_all(b"slowly").await.unwrap();
                drop(stream);
            };
            let mut read = String::new();
            let (_, read_all) = tokio::join!(write, theirs.read_to_string(&mut read));
            read_all.unwrap();
            assert_eq!(read, "slowly");
        });
    }
}

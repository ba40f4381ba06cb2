//! The thread of a tier: it works off a queue and sends back what it has done.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::queue::Queue;

/// A tier's end of its thread. When it is dropped, the thread gives up what waits in the queue, and nobody waits for it.
pub(super) struct Worker<Op, News> {
    queue: Arc<Queue<Op>>,
    news: Receiver<News>,
    thread: Option<JoinHandle<()>>,
}

impl<Op: Send + 'static, News: Send + 'static> Worker<Op, News> {
    /// Starts a thread of this name. `execute` returns what the tier must know of an operation, if anything.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(
        name: &str,
        mut execute: impl FnMut(Op) -> Option<News> + Send + 'static,
    ) -> io::Result<Self> {
        let (send, news): (Sender<News>, _) = channel();
        let queue: Arc<Queue<Op>> = Arc::default();
        let ops = Arc::clone(&queue);
        let run = move || {
            while let Some(op) = ops.pop() {
                if let Some(done) = execute(op) {
                    // A tier that is gone has no use for it.
                    let _ = send.send(done);
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { queue, news, thread: Some(thread) })
    }
}

impl<Op, News> Worker<Op, News> {
    /// Operations that wait for the thread.
    pub(super) fn queue(&self) -> &Queue<Op> {
        &self.queue
    }

    /// The next result that has arrived.
    pub(super) fn news(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Waits until everything is done, and ends the thread.
    pub(super) fn close(mut self) {
        self.queue.close(false);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and there is nothing left to save.
            let _ = thread.join();
        }
    }
}

impl<Op, News> Drop for Worker<Op, News> {
    fn drop(&mut self) {
        self.queue.close(true);
    }
}

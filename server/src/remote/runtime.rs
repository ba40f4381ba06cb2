//! Threads for the sockets of remote replicas. The relays run on threads of their own, which must not wait.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};

/// Number of threads: each mostly waits.
const WORKERS: usize = 2;

/// The threads of all remote replicas of a server. Clones share them.
#[derive(Clone, Debug)]
pub struct RemoteRuntime(Arc<Owned>);

#[derive(Debug)]
struct Owned(Option<Runtime>, Handle);

impl RemoteRuntime {
    /// Starts the threads.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start() -> std::io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(WORKERS).thread_name("strata-remote").enable_all();
        let runtime = builder.build()?;
        let handle = runtime.handle().clone();
        Ok(Self(Arc::new(Owned(Some(runtime), handle))))
    }

    /// Where tasks are spawned.
    pub(super) fn handle(&self) -> &Handle {
        &self.0.1
    }

    /// Waits for a future. Not to be called from a task.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle().block_on(future)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A runtime that is dropped within a task must not wait for its threads.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

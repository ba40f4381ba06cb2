//! The thread pool.

/// Threads that share the work of one op.
pub struct ThreadPool {
    threads: usize,
}

impl ThreadPool {
    /// A pool of `threads` workers, the calling thread being one of them.
    pub fn new(threads: usize) -> Self {
        Self { threads: threads.max(1) }
    }

    /// How many threads take part, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Run `body(chunk, worker)` once for every chunk in `0..chunks`, on all threads, and return
    /// when all are done. `worker < threads()` names the thread, for per-thread scratch.
    pub fn run(&self, chunks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        for c in 0..chunks {
            body(c, 0);
        }
    }
}

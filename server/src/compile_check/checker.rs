//! The queue of checks, and the threads that work it off.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::compiler::Compiler;
use super::verdict::Verdict;
use super::{CompileCheckError, CompileCheckOptions, SandboxMode};
use crate::background::lower_priority;

/// A response to check.
pub struct CompileJob {
    /// Text of the response, with its fenced code blocks.
    pub response: String,
    /// Called with the verdict on a worker thread. Not called if the job is dropped.
    pub done: Box<dyn FnOnce(Verdict) + Send>,
}

impl fmt::Debug for CompileJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompileJob").field("bytes", &self.response.len()).finish_non_exhaustive()
    }
}

/// Numbers of jobs since the start. `checked` is the sum of `passed`, `failed`, `no_code` and `inconclusive`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileCounts {
    /// Jobs with a verdict.
    pub checked: u64,
    /// Verdicts [`Verdict::Pass`].
    pub passed: u64,
    /// Verdicts [`Verdict::Fail`].
    pub failed: u64,
    /// Verdicts [`Verdict::NoCode`].
    pub no_code: u64,
    /// Verdicts [`Verdict::Inconclusive`], and responses that were cut off or are too long.
    pub inconclusive: u64,
    /// Jobs without a verdict: the queue was full.
    pub dropped: u64,
}

/// Checks responses in the background.
///
/// Dropping it kills compilers that run and waits for its threads, which takes milliseconds. Queued jobs are dropped.
///
/// # Example
///
/// ```no_run
/// use std::sync::mpsc;
///
/// use server::compile_check::{CompileCheckOptions, CompileChecker, CompileJob, Verdict};
///
/// let checker = CompileChecker::new(&CompileCheckOptions::default())?;
/// let (send, verdicts) = mpsc::channel();
/// let response = "```cpp\nint twice(int x) { return 2 * x; }\n```".to_owned();
/// let job = CompileJob { response, done: Box::new(move |verdict| send.send(verdict).unwrap()) };
/// assert!(checker.submit(job), "the queue has room");
/// assert_eq!(verdicts.recv()?, Verdict::Pass);
/// assert_eq!(checker.counts().passed, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CompileChecker {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    compiler: Compiler,
    queue: Mutex<Queue>,
    /// Signalled when a job arrives, and at the end.
    changed: Condvar,
    stop: AtomicBool,
    max_jobs: usize,
    max_bytes: usize,
    passed: AtomicU64,
    failed: AtomicU64,
    no_code: AtomicU64,
    inconclusive: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<CompileJob>,
    /// Size of all responses in `jobs`.
    bytes: usize,
}

impl CompileChecker {
    /// Finds the compiler, tries it in its sandbox, and starts the workers.
    ///
    /// # Errors
    /// [`CompileCheckError`].
    pub fn new(options: &CompileCheckOptions) -> Result<Self, CompileCheckError> {
        Self::with(Compiler::open(options)?, options)
    }

    /// As [`new`](Self::new), with a compiler that has been tried.
    pub(super) fn with(
        compiler: Compiler,
        options: &CompileCheckOptions,
    ) -> Result<Self, CompileCheckError> {
        let shared = Arc::new(Shared {
            compiler,
            queue: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            max_jobs: options.max_queued_jobs,
            max_bytes: options.max_queued_bytes,
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            no_code: AtomicU64::new(0),
            inconclusive: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let mut checker = Self { shared, workers: Vec::new() };
        for number in 0..options.workers.max(1) {
            let shared = checker.shared.clone();
            let thread = std::thread::Builder::new().name(format!("compile-check-{number}"));
            let worker = thread.spawn(move || shared.work()).map_err(CompileCheckError::Thread)?;
            checker.workers.push(worker);
        }
        Ok(checker)
    }

    /// Queues a response, without waiting. `false`: the queue is full, and the job is dropped and counted.
    pub fn submit(&self, job: CompileJob) -> bool {
        let shared = &self.shared;
        let mut queue = shared.lock();
        let bytes = queue.bytes.saturating_add(job.response.len());
        if queue.jobs.len() >= shared.max_jobs || bytes > shared.max_bytes {
            drop(queue);
            shared.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        queue.bytes = bytes;
        queue.jobs.push_back(job);
        drop(queue);
        shared.changed.notify_one();
        true
    }

    /// Counts a response that is not checked, since it was cut off or is too long: inconclusive.
    pub fn count_inconclusive(&self) {
        self.shared.inconclusive.fetch_add(1, Ordering::Relaxed);
    }

    /// Numbers of jobs since the start.
    pub fn counts(&self) -> CompileCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.shared;
        let (passed, failed) = (of(&shared.passed), of(&shared.failed));
        let (no_code, inconclusive) = (of(&shared.no_code), of(&shared.inconclusive));
        let checked = passed + failed + no_code + inconclusive;
        CompileCounts {
            checked,
            passed,
            failed,
            no_code,
            inconclusive,
            dropped: of(&shared.dropped),
        }
    }

    /// Layers of the sandbox.
    pub fn mode(&self) -> SandboxMode {
        self.shared.compiler.mode()
    }

    /// Path of the compiler.
    pub fn program(&self) -> &Path {
        self.shared.compiler.program()
    }
}

impl Drop for CompileChecker {
    fn drop(&mut self) {
        // Under the lock, so that no worker misses it between its look and its wait.
        let queue = self.shared.lock();
        self.shared.stop.store(true, Ordering::Release);
        drop(queue);
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches panics of what it calls.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        lower_priority();
        while let Some(job) = self.next() {
            let verdict = self.compiler.check(&job.response, &self.stop);
            let counter = match verdict {
                Verdict::Pass => &self.passed,
                Verdict::Fail { .. } => &self.failed,
                Verdict::NoCode => &self.no_code,
                Verdict::Inconclusive { .. } => &self.inconclusive,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            let done = job.done;
            if catch_unwind(AssertUnwindSafe(|| done(verdict))).is_err() {
                tracing::error!(target: crate::LOG, "the receiver of a compile check's verdict panicked");
            }
        }
    }

    /// The next job, or `None` at the end.
    fn next(&self) -> Option<CompileJob> {
        let mut queue = self.lock();
        loop {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                queue.bytes -= job.response.len();
                return Some(job);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

//! What is told of a request when it is over: figures that its answers leave behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use l5_scheduler::engine::AnswerTimes;

tokio::task_local! {
    /// The record of the request that a task answers.
    pub(super) static RECORD: Record;
}

/// What is known of a request's answers so far. Clones write to the same record.
#[derive(Clone, Debug)]
pub struct Record(Arc<Mutex<Figures>>);

/// The figures of a request's answers, all of them together.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// When the request's head was there.
    pub began: Instant,
    /// How long its first answer waited for its first step.
    pub queue: Option<Duration>,
    /// From the request's head to the first token.
    pub ttft: Option<Duration>,
    /// Tokens of prompts.
    pub prompt_tokens: usize,
    /// Tokens of answers.
    pub completion_tokens: usize,
    /// Tokens of prompts that were in the cache, of answers that have ended.
    pub cached_tokens: usize,
}

impl Record {
    pub(super) fn begin() -> Self {
        Self(Arc::new(Mutex::new(Figures {
            began: Instant::now(),
            queue: None,
            ttft: None,
            prompt_tokens: 0,
            completion_tokens: 0,
            cached_tokens: 0,
        })))
    }

    /// The record of the request that this task answers, while its handler runs.
    pub fn current() -> Option<Self> {
        RECORD.try_with(Clone::clone).ok()
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prompts of so many tokens were taken.
    pub fn submitted(&self, prompt_tokens: usize) {
        self.lock().prompt_tokens += prompt_tokens;
    }

    /// So many tokens of an answer came, or its end.
    pub fn piece(&self, tokens: usize, times: &AnswerTimes, ended: bool) {
        let mut figures = self.lock();
        figures.completion_tokens += tokens;
        if ended {
            figures.cached_tokens += times.cached;
        }
        let began = figures.began;
        if let Some(at) = times.scheduled {
            figures.queue.get_or_insert(at.saturating_duration_since(times.submitted));
        }
        if let Some(at) = times.first {
            figures.ttft.get_or_insert(at.saturating_duration_since(began));
        }
    }

    /// All of it.
    pub fn figures(&self) -> Figures {
        *self.lock()
    }
}

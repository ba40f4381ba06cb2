//! Masks that are computed while the model runs.
//!
//! What a guide allows next depends on the last token only; so does the model's next row of logits. Both can be
//! computed at the same time, in this order for each sequence with a guide:
//!
//! 1. its token is sampled: [`Guide::advance`] (microseconds);
//! 2. [`MaskAhead::start`]: the guide and the buffer of its mask move to the mask thread, which begins;
//! 3. the forward pass of the batch runs, with that token;
//! 4. [`MaskPending::wait`]: both come back, with the mask filled in, and the row is sampled with it.
//!
//! A sequence with drafts needs a mask behind each of them too: the thread follows the guide along the drafts and takes
//! it back. Guide and buffers move back and forth, so a step allocates no masks. Sequences without a guide are not
//! involved.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{Guide, GuideError};
use crate::TokenMask;

/// A thread that computes masks.
pub struct MaskAhead {
    /// Taken when this is dropped, which ends the thread.
    jobs: Option<Sender<Arc<Slot>>>,
    thread: Option<JoinHandle<()>>,
}

/// Masks that are being computed, and their guide.
#[must_use = "the guide comes back from `wait`"]
pub struct MaskPending {
    slot: Arc<Slot>,
}

/// Computed masks, and their guide.
#[derive(Debug)]
pub struct MaskReady {
    /// The guide, unchanged.
    pub guide: Guide,
    /// Buffers of the masks.
    pub masks: DraftMasks,
    /// Whether the first mask was computed.
    pub outcome: Result<(), GuideError>,
}

/// What is allowed next, and behind each draft. The memory is reused.
#[derive(Clone, Debug, Default)]
pub struct DraftMasks {
    drafts: Vec<u32>,
    masks: Vec<TokenMask>,
    /// Number of masks that were computed.
    computed: usize,
}

impl DraftMasks {
    /// Mask behind the first `drafts` drafts. `None` if they cannot follow under the guide, or if the guide gave up on the
    /// way there: whatever is sampled there does not count.
    pub fn after(&self, drafts: usize) -> Option<&TokenMask> {
        self.masks[..self.computed].get(drafts)
    }

    /// Forgets the masks; their memory stays.
    pub(crate) fn clear(&mut self) {
        self.computed = 0;
    }

    /// Computes the masks along the drafts. If that fails for a draft, only the first mask is there.
    fn fill(&mut self, guide: &mut Guide) -> Result<(), GuideError> {
        let Self { drafts, masks, computed } = self;
        *computed = 0;
        let along = guide.masks_along(drafts, masks);
        if along.is_err() && !drafts.is_empty() {
            guide.masks_along(&[], masks)?;
        } else {
            along?;
        }
        *computed = masks.len();
        Ok(())
    }
}

/// State of one mask: waiting, taken by the thread that computes it, or done.
struct Slot {
    state: Mutex<State>,
    done: Condvar,
}

enum State {
    Waiting(Box<(Guide, DraftMasks)>),
    Taken,
    Done(Box<MaskReady>),
}

impl MaskAhead {
    /// Starts the thread. If the system has no thread to give, masks are computed by the callers of
    /// [`MaskPending::wait`]: later, but correctly.
    pub fn new() -> Self {
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new().name("masks".into()).spawn(move || work(&queue));
        Self { jobs: Some(jobs), thread: thread.ok() }
    }

    /// Gives a guide to the thread, and buffers for the masks along these drafts. Returns at once.
    pub fn start(&self, guide: Guide, drafts: &[u32], mut masks: DraftMasks) -> MaskPending {
        masks.drafts.clear();
        masks.drafts.extend_from_slice(drafts);
        let state = Mutex::new(State::Waiting(Box::new((guide, masks))));
        let slot = Arc::new(Slot { state, done: Condvar::new() });
        if let Some(jobs) = &self.jobs {
            // Without a thread the send fails, and `wait` finds the mask waiting.
            let _ = jobs.send(Arc::clone(&slot));
        }
        MaskPending { slot }
    }
}

impl MaskPending {
    /// Whether [`MaskPending::wait`] would return at once.
    pub fn is_ready(&self) -> bool {
        matches!(*self.slot.lock(), State::Done(_))
    }

    /// Returns the guide and its masks. If the thread has not begun, the caller computes them: the forward pass was
    /// faster than the queue.
    pub fn wait(self) -> MaskReady {
        self.slot.compute(DraftMasks::fill);
        let mut state = self.slot.lock();
        loop {
            match std::mem::replace(&mut *state, State::Taken) {
                State::Done(ready) => return *ready,
                other => *state = other,
            }
            state = self.slot.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Slot {
    /// Computes the masks, unless another thread does.
    fn compute(&self, fill: impl FnOnce(&mut DraftMasks, &mut Guide) -> Result<(), GuideError>) {
        let job = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Taken) {
                State::Waiting(job) => job,
                other => {
                    *state = other;
                    return;
                }
            }
        };
        let (mut guide, mut masks) = *job;
        // The guide stays here, even if the computation panics.
        let outcome = catch_unwind(AssertUnwindSafe(|| fill(&mut masks, &mut guide)));
        let outcome = outcome.unwrap_or_else(|_| {
            Err(GuideError::TooComplex { why: "its mask could not be computed".to_owned() })
        });
        *self.lock() = State::Done(Box::new(MaskReady { guide, masks, outcome }));
        self.done.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loop of the thread: until the sender is dropped.
fn work(queue: &Receiver<Arc<Slot>>) {
    while let Ok(slot) = queue.recv() {
        // A mask without a waiter need not be computed.
        if Arc::strong_count(&slot) > 1 {
            slot.compute(DraftMasks::fill);
        }
    }
}

impl Default for MaskAhead {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MaskAhead {
    /// Waits for the thread. Pending masks can still be waited for.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for MaskPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskPending").field("ready", &self.is_ready()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use l2_model::tokenizer::Tokenizer;

    use super::*;
    use crate::guide::{GuideSpec, Guides};

    #[test]
    fn a_panic_on_the_way_loses_neither_guide_nor_buffer_and_hangs_nobody() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama/tokenizer.json");
        let tokenizer = Tokenizer::from_file(path).unwrap();
        let guides = Guides::new(&tokenizer, tokenizer.vocab_size(), &[]).unwrap();
        let guide = guides.guide(&GuideSpec::Json).unwrap();
        let buffers = DraftMasks { masks: vec![TokenMask::none(7)], ..DraftMasks::default() };
        let job = Box::new((guide, buffers));
        let slot = Arc::new(Slot { state: Mutex::new(State::Waiting(job)), done: Condvar::new() });
        let pending = MaskPending { slot: Arc::clone(&slot) };
        let waiting = std::thread::spawn(move || {
            slot.compute(|_, _| panic!("this panic is part of the test"));
            pending.wait()
        });
        let mut ready = waiting.join().unwrap();
        let failed = matches!(ready.outcome, Err(GuideError::TooComplex { .. }));
        assert!(failed, "the outcome of a job that panicked: {:?}", ready.outcome);
        assert_eq!(ready.masks.masks[0].words().len(), 1, "words of the buffer that was lent");
        ready.masks.fill(&mut ready.guide).unwrap();
        assert!(ready.masks.after(0).unwrap().count() > 0, "the guide goes on");
    }
}

//! Drafting by lookup: the next tokens are guessed from text that is there already (speculative decoding).
//!
//! Many outputs repeat what stands before them: an edit of a program quotes the program, a summary quotes its source,
//! an agent calls the same tools again. So the last tokens of a request are looked up earlier in its text, and the
//! tokens that followed them there are the draft. No model is needed. A bad draft costs time and changes no token of
//! the output, since every draft is verified ([`crate::verify`]).
//!
//! * [`NgramDrafter`] looks into the request's own prompt and output, and takes the earliest occurrence of the longest
//!   match (Saxena, *Prompt Lookup Decoding*, 2023; vLLM's method `ngram`);
//! * [`SuffixDrafter`] also looks into the outputs of other requests, and takes the continuation that most occurrences
//!   agree on (Oliaro and others, *SuffixDecoding*, arXiv 2411.04975; vLLM's method `suffix`).
//!
//! ```
//! use l4_sampler::draft::{DraftRow, Drafter, Drafts, NgramDrafter};
//!
//! let mut drafter = NgramDrafter::new(2, 4)?;
//! drafter.begin(7, &[1, 2, 3, 4, 5], None, 100);
//! drafter.extend(7, &[9, 2, 3]); // the last two tokens are in the prompt
//!
//! let mut drafts = Drafts::default();
//! drafter.propose(&[DraftRow { slot: 7, most: 3 }], &mut drafts);
//! assert_eq!(drafts.row(0).0, [4, 5, 9]);
//! # Ok::<(), l4_sampler::draft::DraftError>(())
//! ```

mod drafts;
mod drawn;
mod error;
mod ngram;
mod positions;
mod suffix;

use l1_tensor::TensorRef;

pub use drafts::{CLASSES, DraftRow, Drafts, HiddenSpan};
pub use drawn::{DraftSampling, Drafted, Drawn, MAX_DRAWN_FROM};
pub use error::DraftError;
pub use ngram::{MAX_NGRAM, NgramDrafter, NgramIndex, NgramMatch};
pub use suffix::{MAX_CACHED_TOKENS, MAX_TREE_DEPTH, SuffixDrafter, SuffixOptions};

/// Output tokens for which a drafter reserves memory when a request begins, at most. An output that gets longer than
/// this allocates when it does.
pub const MAX_RESERVED_TOKENS: usize = 4096;

/// A source of drafts for running requests.
///
/// A request begins with its prompt, is extended by its output tokens, and ends. Between steps its drafts are proposed
/// from what it has so far. Slots are chosen by the caller, as the engine's seats are.
pub trait Drafter: Send {
    /// Begins a request: `slot` names it until [`Drafter::end`]. A request that has the slot already is ended first.
    ///
    /// Only requests of the same `tenant` may learn from each other; requests without one form a tenant of their own.
    /// The output has at most `max_new` tokens. Memory for them is reserved here ([`MAX_RESERVED_TOKENS`] at most), so
    /// that [`Drafter::extend`] allocates nothing.
    fn begin(&mut self, slot: u32, prompt: &[u32], tenant: Option<&str>, max_new: usize);

    /// Sets how the drafts of a request are drawn; without this call they are the likeliest tokens. Called once, behind
    /// [`Drafter::begin`]. Such drafts are appended by [`Drafts::push_drawn`], each drawn with the
    /// [`DraftSampling::row`] of its own position. Their number must not depend on what was drawn (no stop at a low
    /// confidence), or outputs have another distribution. A drafter without a network ignores the call: its drafts are
    /// not drawn.
    fn set_sampling(&mut self, slot: u32, how: DraftSampling) {
        let _ = (slot, how);
    }

    /// Appends output tokens. An unknown slot is ignored.
    fn extend(&mut self, slot: u32, tokens: &[u32]);

    /// Reads hidden rows of the model: `hidden` has those of all tokens of the step that just ran, float `[T, H]` for
    /// each place of the model that the drafter reads, and `spans` says which of them belong to which request. They are
    /// rows of tokens that are part of the output, not of drafts that were rejected. A drafter without a network of its
    /// own reads none.
    ///
    /// Called once a step, behind [`Drafter::extend`] and before [`Drafter::propose`]. A request whose rows were not
    /// handed over in some step has a gap: the drafter goes on with the rows behind it.
    fn read(&mut self, spans: &[HiddenSpan], hidden: &[TensorRef<'_>]) {
        let _ = (spans, hidden);
    }

    /// Proposes drafts for every row, one list a row in the order of `rows`, appended to `out`, which the caller has
    /// cleared. A list has at most [`DraftRow::most`] tokens, and may be empty; that of an unknown slot is.
    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts);

    /// Ends a request. An unknown slot is ignored.
    fn end(&mut self, slot: u32);

    /// Number of tokens of a request that the drafter has to compute before it can propose for it: 0 but for a model of
    /// its own.
    fn num_unread(&self, slot: u32) -> usize {
        let _ = slot;
        0
    }

    /// Whether a proposal takes a noticeable part of a step, as that of a model does. Such a drafter is asked only for
    /// drafts that are going to be verified.
    fn costs_time(&self) -> bool {
        false
    }
}

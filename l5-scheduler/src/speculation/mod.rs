//! Speculation: an engine that verifies drafts.
//!
//! ```text
//! drafter     proposes tokens that may follow, behind each step          l4_sampler::draft
//! window      decides how many of them the next step verifies            Window
//! scheduler   gives them what no request needs: tokens and free blocks   Scheduler
//! runner      samples each position by its own random number, and keeps the tokens that equal their drafts
//! ```
//!
//! Drafts change no token. Each position of a row is sampled as it would be without drafts, with the logits, the
//! history, the guide's mask and the random number of its position; a draft only decides whether the logits behind it
//! are already there. A token is accepted with the probability that the model gives it, which is the acceptance rate of
//! speculative sampling for a draft that was chosen without chance ([`l4_sampler::verify`]), and unlike there the
//! tokens themselves are those of the same seed without drafts.
//!
//! A drafter with a network may draw its drafts instead ([`DraftSampleMethod::Probabilistic`]). Then they are verified
//! by the rule of speculative sampling: outputs have the same distribution, and not the same tokens. This needs the
//! number of drafts to be decided before they are drawn, because a choice that looks at a draft changes the
//! distribution.

mod arrays;
mod check;
mod chooser;
mod config;
mod curve;
mod draft_model;
mod eagle;
#[cfg(test)]
mod head_tests;
mod medusa;
mod sequences;
mod window;

pub(crate) use check::check_vocabulary;
pub use config::{DraftMethod, DraftSampleMethod, SpeculationError, SpeculativeConfig, WindowMode};
pub(crate) use draft_model::{DraftMemory, ModelDrafter};
pub(crate) use eagle::EagleDrafter;
pub(crate) use medusa::MedusaDrafter;
pub(crate) use window::{Acceptance, Candidates, Window};

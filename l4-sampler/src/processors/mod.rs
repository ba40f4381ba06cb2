//! Each stage of sampling as a function of its own, as papers describe it.
//!
//! A processor changes a row in place. A token that it removes gets a logit of -inf, so later stages do not see it. A
//! processor that is off, or has nothing to do, leaves every bit of the row as it was.
//!
//! [`bans`] and [`penalties`] touch few tokens, and the [`Sampler`](crate::Sampler) calls them as they are. The filters
//! sort, take sums in f64 and allocate: they are references, in the order of [`process_reference`], and the sampler,
//! which does none of that, is tested against them.
//!
//! # What a logit counts as
//!
//! Models sometimes return infinities or NaN. Everywhere in this crate [`logit`] decides what they mean: NaN is -inf
//! (never sampled), +inf is the largest finite number (so that two of them share the probability). Of two tokens with
//! equal logits the one with the lower id counts as more likely.

pub mod bans;
mod min_p;
pub mod penalties;
mod reference;
mod row;
mod temperature;
mod top_k;
mod top_p;
mod typical_p;

pub use min_p::min_p;
pub use reference::{ban_reference, process_reference};
pub use row::{by_rank, largest, logit, softmax};
pub use temperature::temperature;
pub use top_k::top_k;
pub use top_p::top_p;
pub use typical_p::typical_p;

/// Logit of a token that must not be sampled.
pub const REMOVED: f32 = f32::NEG_INFINITY;

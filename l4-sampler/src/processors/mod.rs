//! Each change to a row of logits on its own, as one reads it in a paper.
//!
//! A processor is a function that takes a row and changes it in place. A token that it removes gets a logit of -inf, so
//! the next one no longer sees it. One that is off, or has nothing to do, leaves every bit of the row as it was.
//!
//! [`bans`] and [`penalties`] touch few tokens, and the [`Sampler`](crate::Sampler) calls them as they are. The filters
//! sort, take sums in f64 and allocate: they say what is meant, in the order of [`process_reference`], and the sampler,
//! which may do none of that, is tested against them.
//!
//! # What a logit counts as
//!
//! Models are not supposed to give infinities or NaN, and do. Everywhere on this floor [`logit`] decides what they mean:
//! NaN is the worst of all (-inf: never chosen), +inf is the largest finite number (so that a row with two of them
//! has something to share between them). And everywhere, of two tokens with equal logits the one with the
//! lower id is the likelier.

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

/// The logit of a token that is not to be chosen.
pub const REMOVED: f32 = f32::NEG_INFINITY;

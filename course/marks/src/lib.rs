//! The exercises of the course: how they are marked in the reference source, what the catalogue of a
//! layer says about them, and how their bodies are taken out and put back.
//!
//! There is one source. An exercise is the text between two comments in it:
//!
//! ```text
//! pub fn rms_norm_reference(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
//!     // exercise l1.rms_norm
//!     ..
//!     // end of exercise
//! }
//! ```
//!
//! [`marks`] finds them, [`Layer`] reads what `exercises.toml` beside the source says of them, and
//! [`sources`] holds the two together: a mark without an entry, an entry without a mark or without a
//! hint is an error, and since every layer's build script calls [`check_in_build_script`], such a
//! layer does not build. Everything a learner sees is made from these: [`edit::blank`] makes the
//! starter, [`edit::splice`] puts the reference back, [`schemata`] makes the copy in which the proof
//! switches blanks and [mutants](Mutant) on at run time.

mod build_script;
mod catalogue;
pub mod edit;
mod error;
mod language;
pub mod marks;
mod mutant;
mod nudge;
pub mod schemata;
pub mod sources;

pub use build_script::check_in_build_script;
pub use catalogue::{CATALOGUE, Exercise, Gate, Layer};
pub use error::{CourseError, MarkProblem};
pub use language::Language;
pub use mutant::Mutant;
pub use nudge::Nudge;
pub use sources::Sources;

/// The folder at the top of a learner's workspace that holds what the tools know about it.
pub const LEARNER_DIR: &str = ".strata";

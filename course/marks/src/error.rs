//! What can be wrong with the material of the course.

use std::io;
use std::path::PathBuf;

/// An error in a catalogue, a mark, a mutant, or in reading one of them.
#[derive(Debug, thiserror::Error)]
pub enum CourseError {
    /// A file that must be there cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A TOML file is malformed, or lacks a field.
    #[error("{}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What and where.
        source: Box<toml::de::Error>,
    },
    /// A catalogue or a mutant says something that cannot be.
    #[error("{}: {what}", path.display())]
    Catalogue {
        /// The file.
        path: PathBuf,
        /// What, and what to do.
        what: String,
    },
    /// A mark in the source is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Mark {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: MarkProblem,
    },
}

/// What can be wrong with a pair of marks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkProblem {
    /// `// exercise` without an id that looks like one.
    #[error("`{0}` is no exercise id; they look like `l1.rms_norm`")]
    BadId(String),
    /// An exercise begins inside of another.
    #[error(
        "exercise {inner} begins inside of {outer}: end that one first with `// end of exercise`"
    )]
    Nested {
        /// The one that is open.
        outer: String,
        /// The one that begins.
        inner: String,
    },
    /// The file ends, the exercise does not.
    #[error("exercise {0} is never ended; write `// end of exercise` behind its last line")]
    Open(String),
    /// An end without a beginning.
    #[error("`// end of exercise`, but no exercise is open")]
    NotOpen,
    /// Nothing between the two marks.
    #[error("exercise {0} is empty: there is nothing to write")]
    Empty(String),
    /// The id is in no catalogue.
    #[error("exercise {0} is not in exercises.toml: add it there, or correct the id")]
    Unknown(String),
}

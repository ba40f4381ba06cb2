//! What a check says about a response.

use std::fmt;

/// The result of checking one response.
///
/// Only [`Verdict::Pass`] and [`Verdict::Fail`] say something about the code. A pass rate is passes over passes and
/// fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The code compiles.
    Pass,
    /// The code does not compile.
    Fail {
        /// The compiler's first error, shortened, without control characters. It may quote names from the code. Where
        /// the operating system does not restrict which files the compiler reads, it is only the line's number.
        error: String,
    },
    /// The response has no C++ code.
    NoCode,
    /// The check could not decide. It counts as neither pass nor fail.
    Inconclusive {
        /// What prevented a decision.
        why: Inconclusive,
    },
}

/// Why a check could not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inconclusive {
    /// The compiler reached the limit of wall-clock or processor time.
    TimedOut,
    /// The compiler reached the limit of memory.
    OutOfMemory,
    /// Compiling needs deeper templates, deeper `constexpr` calls or more `constexpr` steps than are allowed.
    TooDeep,
    /// The code is larger than `max_source_bytes`.
    TooLarge,
    /// The response ends within the code: it was cut.
    Truncated,
    /// The code names a file in a way that is not allowed, so it was not compiled; or the sandbox denied a file.
    Refused(String),
    /// The code includes a header that this machine lacks, such as a header of the user's project.
    MissingHeader,
    /// A fragment uses names that are declared elsewhere.
    MissingContext,
    /// The compiler crashed, or reported no error that can be attributed to the code.
    CompilerFailed,
    /// The sandbox could not start the compiler.
    Sandbox(String),
    /// The checker was dropped.
    Stopped,
}

impl From<Inconclusive> for Verdict {
    fn from(why: Inconclusive) -> Self {
        Self::Inconclusive { why }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::Fail { error } => write!(f, "fail: {error}"),
            Self::NoCode => f.write_str("no code"),
            Self::Inconclusive { why } => write!(f, "inconclusive: {why}"),
        }
    }
}

impl fmt::Display for Inconclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "the compiler reached its time limit",
            Self::OutOfMemory => "the compiler reached its memory limit",
            Self::TooDeep => "templates or constexpr evaluation reached their limit",
            Self::TooLarge => "the code is larger than the limit",
            Self::Truncated => "the response ends within the code",
            Self::Refused(what) => return write!(f, "refused: {what}"),
            Self::MissingHeader => "a header is not installed",
            Self::MissingContext => "the fragment uses names that are declared elsewhere",
            Self::CompilerFailed => "the compiler failed",
            Self::Sandbox(why) => return write!(f, "the sandbox failed: {why}"),
            Self::Stopped => "the checker was stopped",
        })
    }
}

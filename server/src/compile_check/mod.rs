//! Checks whether C++ code in a model's responses compiles, with `g++` or `clang++` and `-fsyntax-only`.
//!
//! ```text
//! response -> extract -> directives -> sandboxed compiler -> classify -> Verdict
//!             the block   textual       limits, Landlock,      only a clear error of the code is a Fail
//!                         pre-check     namespaces, filter
//! ```
//!
//! The code is hostile input: a model writes what a client asks for, and a compiler opens files that the code names,
//! and computes what its templates say. [`directives`] rejects code that names files by other ways than `#include` of a
//! system header. [`sandbox`] bounds what the compiler may read, use and reach even when that check is wrong, and even
//! when the compiler itself is exploited. Nothing that is compiled is ever run.
//!
//! [`CompileChecker`] owns a bounded queue and threads of low priority, so that no request waits for a check. A verdict
//! that says nothing about the code (a limit, a missing header) is [`Verdict::Inconclusive`] and counts as neither pass
//! nor fail.

use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

mod checker;
mod classify;
mod compiler;
pub mod directives;
pub mod extract;
pub mod sandbox;
mod verdict;

#[cfg(test)]
mod tests;

pub use checker::{CompileChecker, CompileCounts, CompileJob};
pub use compiler::{Compiler, CompilerKind};
pub use sandbox::{RunsAs, SandboxLimits, SandboxMode};
pub use verdict::{Inconclusive, Verdict};

/// Options of a [`CompileChecker`].
#[derive(Clone, Debug, PartialEq)]
pub struct CompileCheckOptions {
    /// The compiler: a name that is looked up in `PATH`, or a path.
    pub compiler: PathBuf,
    /// Language standard, the value of `-std=`.
    pub standard: String,
    /// Limits of one run of the compiler.
    pub limits: SandboxLimits,
    /// Directory in which each run gets an empty directory of its own.
    pub directory: PathBuf,
    /// Number of worker threads, and so of compilers that run at once.
    pub workers: usize,
    /// Maximum number of jobs that wait. Further jobs are dropped.
    pub max_queued_jobs: usize,
    /// Maximum size in bytes of the responses that wait, together. Further jobs are dropped.
    pub max_queued_bytes: usize,
    /// Maximum size in bytes of code that is compiled. Larger code is [`Inconclusive::TooLarge`].
    pub max_source_bytes: usize,
}

impl Default for CompileCheckOptions {
    /// `g++` with `-std=gnu++20`, the system's temporary directory, one worker, 64 jobs or 8 MiB in the queue, and
    /// sources of at most 1 MiB.
    fn default() -> Self {
        Self {
            compiler: PathBuf::from("g++"),
            standard: "gnu++20".to_owned(),
            limits: SandboxLimits::default(),
            directory: std::env::temp_dir(),
            workers: 1,
            max_queued_jobs: 64,
            max_queued_bytes: 8 << 20,
            max_source_bytes: 1 << 20,
        }
    }
}

/// Why the compile check cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum CompileCheckError {
    /// There is no such program.
    #[error(
        "compile check: there is no compiler {0:?} in PATH: install g++ or clang++, give its path, or turn the check off"
    )]
    NotFound(PathBuf),
    /// The compiler's version could not be read.
    #[error(
        "compile check: {program:?} --version failed ({why}): give the path of a working g++ or clang++"
    )]
    NotACompiler {
        /// Path of the program.
        program: PathBuf,
        /// What happened.
        why: String,
    },
    /// A program that is valid was not accepted, or one that is not was.
    #[error(
        "compile check: in the sandbox, {program:?} reports for {what}: {verdict}. Run it by hand on such a program; if \
         it works there, raise the sandbox's limits"
    )]
    SelfTest {
        /// Path of the compiler.
        program: PathBuf,
        /// The program that was compiled.
        what: &'static str,
        /// The verdict on it.
        verdict: Verdict,
    },
    /// The sandbox cannot be set up.
    #[error("compile check: {0}")]
    Sandbox(#[from] sandbox::SandboxError),
    /// A worker thread cannot be started.
    #[error(
        "compile check: cannot start a thread ({0}): raise the limit of threads, or turn the check off"
    )]
    Thread(std::io::Error),
}

/// Whether the response with this digest is in a sample of `fraction` of all responses.
///
/// The decision depends on the digest only, so it is the same after a restart and on every replica. It is independent of
/// other samples that are drawn from the same digest.
///
/// # Example
///
/// ```
/// use server::compile_check::sampled;
///
/// let digests = || (0..10_000_u32).map(u32::to_be_bytes);
/// let sample = digests().filter(|digest| sampled(digest, 0.05)).count();
/// assert!((400..600).contains(&sample));
/// assert!(digests().all(|digest| sampled(&digest, 1.0) && !sampled(&digest, 0.0)));
/// ```
pub fn sampled(digest: &[u8], fraction: f64) -> bool {
    let hash =
        Sha256::new().chain_update(b"strata compile check\0").chain_update(digest).finalize();
    let mut first = [0; 4];
    first.copy_from_slice(&hash[..4]);
    // Uniform in [0, 1), with steps that a double holds exactly.
    f64::from(u32::from_be_bytes(first)) / 4_294_967_296.0 < fraction
}

//! Runs a program that reads hostile input: layers of the Linux kernel, each of which may be missing.
//!
//! | layer | denies | needs |
//! |---|---|---|
//! | session, limits, deadline | use without bound: time, memory, files, writing | nothing |
//! | user | rights of root, if the server has them | the right to change users |
//! | [`landlock`] | files outside of the include roots and the compiler; TCP; signals to others | Linux 5.13 |
//! | namespaces | every network; processes beyond a few; a life longer than the compiler's | unprivileged user namespaces, or root |
//! | [`seccomp`] | sockets, leaving the process group, tracing, mounting | x86-64 or AArch64 |
//!
//! [`Sandbox::new`] tries all layers, and leaves out those that this machine does not grant (in containers often the
//! namespaces). [`Sandbox::mode`] says which are there. Without Landlock only the user and the textual check protect
//! files, so verdicts then quote no message.
//!
//! The program gets an empty environment but for `PATH` and `LC_ALL`, a working directory of its own that is empty and
//! removed afterwards, its input as stdin, and one pipe for stdout and stderr.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub mod landlock;
mod pipes;
mod process;
mod scratch;
pub mod seccomp;

pub use process::Step;

use landlock::Ruleset;
use process::{Launch, SpawnError};
use scratch::Scratch;

/// User and group of the program if the server is root: numbers that no distribution gives to a user, so that no other
/// process counts against the limit of processes.
const SANDBOX_ID: u32 = 65_533;

/// Maximum number of bytes of output that are kept. The rest is read and dropped, so that the program does not block.
const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// Limits of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxLimits {
    /// Wall-clock time, after which all processes of the run are killed.
    pub wall: Duration,
    /// Processor time of one process in seconds (`RLIMIT_CPU`).
    pub cpu_seconds: u64,
    /// Address space of one process in bytes (`RLIMIT_AS`).
    pub memory_bytes: u64,
    /// Number of open files of one process (`RLIMIT_NOFILE`).
    pub open_files: u64,
    /// Number of processes and threads (`RLIMIT_NPROC`). The kernel counts them by user, so it is set only where the run
    /// has a user of its own: in namespaces, or if the server is root.
    pub processes: u64,
}

impl Default for SandboxLimits {
    /// 30 s, 5 s of processor time, 512 MiB, 64 files, 32 processes. A check has low priority: beside an engine that uses
    /// all processors it may get a tenth of one, so that a second of work takes ten.
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(30),
            cpu_seconds: 5,
            memory_bytes: 512 << 20,
            open_files: 64,
            processes: 32,
        }
    }
}

/// User of the sandboxed program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsAs {
    /// The server's user, which is not root.
    Server,
    /// An unused user, because the server is root.
    Unprivileged,
    /// Root, which the server is and may not cease to be.
    Root,
}

/// Layers of a sandbox that this machine grants. Session, limits and deadline always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxMode {
    /// User of the program.
    pub user: RunsAs,
    /// Version of Landlock's interface, if the kernel restricts files.
    pub landlock: Option<u32>,
    /// Whether the program has user, process, network and IPC namespaces of its own.
    pub namespaces: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

impl SandboxMode {
    /// Whether the kernel keeps the program from files outside of the include roots and the compiler.
    pub fn restricts_files(&self) -> bool {
        self.landlock.is_some()
    }

    /// Whether the kernel keeps the program from every network.
    pub fn restricts_network(&self) -> bool {
        self.namespaces || self.seccomp
    }
}

impl fmt::Display for SandboxMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.user {
            RunsAs::Server => "limits, the server's user",
            RunsAs::Unprivileged => "limits, an unprivileged user",
            RunsAs::Root => "limits, ROOT",
        })?;
        match self.landlock {
            Some(version) => write!(f, ", Landlock {version}")?,
            None => f.write_str(", NO Landlock")?,
        }
        f.write_str(if self.namespaces { ", namespaces" } else { ", NO namespaces" })?;
        f.write_str(if self.seccomp { ", seccomp" } else { ", NO seccomp" })
    }
}

/// Why a sandboxed program did not run.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The temporary directory cannot be made.
    #[error(
        "cannot create a directory in {parent:?} ({reason}): set TMPDIR to a directory that the server may write"
    )]
    Directory {
        /// Directory for temporary files.
        parent: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
    /// A path or argument has a NUL byte.
    #[error("{0:?} has a NUL byte, which no path or argument may have")]
    Nul(OsString),
    /// A step between the start of the process and that of the program failed.
    #[error(
        "the sandbox failed at the step {step:?} ({reason}): allow it in the container or service, or use a smaller limit"
    )]
    Step {
        /// The step.
        step: Step,
        /// The system's reason.
        reason: io::Error,
    },
    /// Pipes cannot be made or read.
    #[error("the sandbox cannot exchange data with the compiler: {0}")]
    Pipe(io::Error),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program ended with this status.
    Exited(i32),
    /// A signal killed the program.
    Signalled(i32),
    /// The run was killed at its deadline.
    TimedOut,
    /// The run was killed because the checker stops.
    Stopped,
}

/// A run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// How it ended.
    pub end: End,
    /// The first bytes that it wrote to stdout and stderr.
    pub output: Vec<u8>,
    /// Whether the pipe to its stdin took all of the input.
    pub input_written: bool,
}

/// A way to run programs.
#[derive(Debug)]
pub struct Sandbox {
    limits: SandboxLimits,
    /// Directory in which each run gets its own.
    directory: PathBuf,
    mode: SandboxMode,
    ruleset: Option<Ruleset>,
}

impl Sandbox {
    /// Creates a sandbox with all layers that this machine grants, but without Landlock: see
    /// [`restrict_files`](Self::restrict_files). `program --version` is run to try them. Runs get a directory within
    /// `directory`. From then on, this process reaps all orphans among its descendants that are in a run.
    ///
    /// # Errors
    /// [`SandboxError`] if the program does not start even without any layer.
    pub fn new(
        program: &Path,
        limits: SandboxLimits,
        directory: &Path,
    ) -> Result<Self, SandboxError> {
        process::adopt_orphans();
        // SAFETY: the call has no arguments and cannot fail.
        let root = unsafe { libc::geteuid() } == 0;
        let user = if root { RunsAs::Unprivileged } else { RunsAs::Server };
        let mode =
            SandboxMode { user, landlock: None, namespaces: true, seccomp: seccomp::is_known() };
        let mut sandbox = Self { limits, directory: directory.to_owned(), mode, ruleset: None };
        sandbox.leave_out_what_fails(program)?;
        Ok(sandbox)
    }

    /// Creates a sandbox with the given layers, untried.
    #[cfg(test)]
    pub(super) fn with_mode(mode: SandboxMode, limits: SandboxLimits, directory: &Path) -> Self {
        Self { limits, directory: directory.to_owned(), mode, ruleset: None }
    }

    /// Restricts the program to reading and executing files below `roots`, where the kernel has Landlock. Roots that do
    /// not exist are skipped. `program --version` is run to try it.
    ///
    /// # Errors
    /// [`SandboxError`], as [`new`](Self::new).
    pub fn restrict_files(
        &mut self,
        program: &Path,
        roots: &[PathBuf],
    ) -> Result<(), SandboxError> {
        self.ruleset = Ruleset::new(roots).ok();
        self.mode.landlock = self.ruleset.as_ref().map(Ruleset::version);
        self.leave_out_what_fails(program)
    }

    /// Layers of this sandbox.
    pub fn mode(&self) -> SandboxMode {
        self.mode
    }

    /// Runs the program until every layer that the kernel refuses is left out.
    fn leave_out_what_fails(&mut self, program: &Path) -> Result<(), SandboxError> {
        loop {
            let tried = self.run(program, &["--version".into()], &[], &AtomicBool::new(false));
            let Err(SandboxError::Step { step, reason }) = tried else { return tried.map(drop) };
            match step {
                Step::Namespaces if self.mode.namespaces => self.mode.namespaces = false,
                Step::User if self.mode.user == RunsAs::Unprivileged => {
                    self.mode.user = RunsAs::Root
                }
                Step::Landlock if self.ruleset.is_some() => {
                    self.ruleset = None;
                    self.mode.landlock = None;
                }
                Step::Seccomp if self.mode.seccomp => self.mode.seccomp = false,
                _ => return Err(SandboxError::Step { step, reason }),
            }
        }
    }

    /// Runs a program with the input, which is given in parts, until it ends, its deadline has passed, or `stop` is set.
    /// Afterwards no process and no directory of the run is left.
    ///
    /// # Errors
    /// [`SandboxError`] if the program did not start.
    pub fn run(
        &self,
        program: &Path,
        arguments: &[OsString],
        input: &[&[u8]],
        stop: &AtomicBool,
    ) -> Result<Run, SandboxError> {
        let owner = (self.mode.user == RunsAs::Unprivileged).then_some(SANDBOX_ID);
        let scratch = Scratch::new(&self.directory, owner)?;
        let mut search = OsString::from("PATH=");
        if let Some(directory) =
            program.parent().filter(|parent| !parent.as_os_str().as_bytes().contains(&b':'))
        {
            search.push(directory);
            search.push(":");
        }
        search.push("/usr/bin:/bin");
        let launch = Launch {
            program,
            arguments,
            environment: &[search, "LC_ALL=C".into()],
            directory: scratch.path(),
            limits: self.limits,
            user: owner,
            namespaces: self.mode.namespaces,
            landlock: self.ruleset.as_ref(),
            seccomp: self.mode.seccomp,
        };
        let (theirs, ours) = pipes::pair().map_err(SandboxError::Pipe)?;
        let started = launch.start(&theirs);
        drop(theirs);
        let group = started.map_err(|why| match why {
            SpawnError::Nul(text) => SandboxError::Nul(text),
            SpawnError::Step { step, reason } => SandboxError::Step { step, reason },
        })?;
        let run = ours.exchange(group, input, self.limits.wall, stop);
        drop(scratch);
        run.map_err(SandboxError::Pipe)
    }
}

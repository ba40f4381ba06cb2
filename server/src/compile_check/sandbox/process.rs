//! Starts the program in its sandbox, and ends all of its processes.
//!
//! `std::process::Command` cannot start a process in new namespaces, and with a `pre_exec` hook it forks: a server with
//! gigabytes of KV cache would copy its page tables and then pay for a fault on every page that it writes meanwhile. So
//! the process starts as in glibc's `posix_spawn`: `clone` with `CLONE_VM | CLONE_VFORK`, on a stack of its own, while
//! this thread waits until the program is executed. Until then the process shares this memory. It makes system calls on
//! prepared data, allocates nothing, and takes no lock.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::pid_t;

use super::landlock::Ruleset;
use super::pipes::Theirs;
use super::{End, SandboxLimits, seccomp};

/// Size of the stack until the program is executed.
const STACK_BYTES: usize = 64 << 10;

/// Steps from the start of the process to that of the program, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creating the process.
    Clone,
    /// Creating the process in new namespaces.
    Namespaces,
    /// A session and process group of its own.
    Session,
    /// Connecting stdin, stdout and stderr.
    Pipes,
    /// Entering the empty directory.
    Directory,
    /// Becoming an unprivileged user.
    User,
    /// Setting the limits.
    Limits,
    /// Giving up the right to gain privileges; dying with the server.
    Privileges,
    /// Restricting files.
    Landlock,
    /// Closing the server's descriptors.
    Descriptors,
    /// Filtering system calls.
    Seccomp,
    /// Executing the program.
    Execute,
}

/// A resource and its limit.
///
/// C libraries differ in the type of a resource, not in the numbers.
type Limit = (c_int, u64);

/// What the new process is told, and what it reports.
struct Shared {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    directory: *const c_char,
    stdin: c_int,
    output: c_int,
    user: Option<u32>,
    limits: [Limit; 7],
    landlock: Option<c_int>,
    filter: Option<libc::sock_fprog>,
    /// The step at which it is.
    step: AtomicI32,
    /// The error of that step; 0 while there is none.
    error: AtomicI32,
}

/// What to run, and how.
pub struct Launch<'a> {
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    pub environment: &'a [OsString],
    pub directory: &'a Path,
    pub limits: SandboxLimits,
    pub user: Option<u32>,
    pub namespaces: bool,
    pub landlock: Option<&'a Ruleset>,
    pub seccomp: bool,
}

/// Why a program did not start.
#[derive(Debug)]
pub enum SpawnError {
    Nul(OsString),
    Step { step: Step, reason: io::Error },
}

impl Launch<'_> {
    /// Starts the program.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn start(&self, pipes: &Theirs) -> Result<Group, SpawnError> {
        let program = c_string(self.program.as_os_str())?;
        let directory = c_string(self.directory.as_os_str())?;
        let strings = |texts: &[OsString]| {
            texts.iter().map(|text| c_string(text)).collect::<Result<Vec<_>, _>>()
        };
        let (arguments, environment) = (strings(self.arguments)?, strings(self.environment)?);
        let list = |first: Option<&CString>, rest: &[CString]| -> Vec<*const c_char> {
            let all = first.into_iter().chain(rest).map(|text| text.as_ptr());
            all.chain([ptr::null()]).collect()
        };
        let (argv, envp) = (list(Some(&program), &arguments), list(None, &environment));
        let mut filter = seccomp::filter();
        let filter = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        let mut shared = Shared {
            program: program.as_ptr(),
            arguments: argv.as_ptr(),
            environment: envp.as_ptr(),
            directory: directory.as_ptr(),
            stdin: pipes.stdin.as_raw_fd(),
            output: pipes.output.as_raw_fd(),
            user: self.user,
            limits: self.limits(),
            landlock: self.landlock.map(Ruleset::raw),
            filter: self.seccomp.then_some(filter),
            step: AtomicI32::new(Step::Clone as i32),
            error: AtomicI32::new(0),
        };
        let mut stack = vec![MaybeUninit::<u128>::uninit(); STACK_BYTES / size_of::<u128>()];
        let top = stack.as_mut_ptr_range().end.cast::<c_void>();
        let mut flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        if self.namespaces {
            flags |= libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
            // Root needs no user namespace for the others, and could not change its user within one.
            if self.user.is_none() {
                flags |= libc::CLONE_NEWUSER;
            }
        }
        // SAFETY: the stack is aligned, large enough, and outlives the process's use of it, as do `shared` and what it
        // points to: CLONE_VFORK suspends this thread until the process executes the program or ends. With all signals
        // blocked, no handler of the server runs in the process.
        let pid = unsafe {
            let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let pid = libc::clone(child, top, flags, (&raw mut shared).cast());
            let error = *libc::__errno_location();
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            if pid < 0 { -error } else { pid }
        };
        if pid < 0 {
            let step = if self.namespaces { Step::Namespaces } else { Step::Clone };
            return Err(SpawnError::Step { step, reason: io::Error::from_raw_os_error(-pid) });
        }
        let group = Group { pid, reaped: false };
        match shared.error.load(Ordering::Acquire) {
            0 => Ok(group),
            error => {
                drop(group);
                let step = step(shared.step.load(Ordering::Acquire));
                Err(SpawnError::Step { step, reason: io::Error::from_raw_os_error(error) })
            }
        }
    }

    /// Resources and their limits.
    fn limits(&self) -> [Limit; 7] {
        let own_user = self.namespaces || self.user.is_some();
        [
            // A second more until SIGKILL: SIGXCPU lets g++ report what ended its compiler.
            (libc::RLIMIT_CPU as c_int, self.limits.cpu_seconds),
            (libc::RLIMIT_AS as c_int, self.limits.memory_bytes),
            (libc::RLIMIT_FSIZE as c_int, 0),
            (libc::RLIMIT_CORE as c_int, 0),
            (libc::RLIMIT_NOFILE as c_int, self.limits.open_files),
            (libc::RLIMIT_MEMLOCK as c_int, 0),
            (libc::RLIMIT_NPROC as c_int, if own_user { self.limits.processes } else { u64::MAX }),
        ]
    }
}

fn c_string(text: &OsStr) -> Result<CString, SpawnError> {
    CString::new(text.as_bytes()).map_err(|_| SpawnError::Nul(text.to_owned()))
}

/// The step with this number.
fn step(number: i32) -> Step {
    use Step::*;
    let steps = [
        Clone,
        Namespaces,
        Session,
        Pipes,
        Directory,
        User,
        Limits,
        Privileges,
        Landlock,
        Descriptors,
        Seccomp,
        Execute,
    ];
    steps.into_iter().find(|step| *step as i32 == number).unwrap_or(Execute)
}

/// The new process, until it executes the program. It never returns.
extern "C" fn child(shared: *mut c_void) -> c_int {
    // SAFETY: `start` passes a `Shared` that lives until this process has executed the program or ended.
    let shared = unsafe { &*shared.cast::<Shared>() };
    // SAFETY: as for the whole function, see `prepare`.
    unsafe {
        prepare(shared);
        shared.error.store(*libc::__errno_location(), Ordering::Release);
        libc::_exit(127)
    }
}

/// Takes all steps. Returns only if one fails, with the reason in `errno`.
///
/// # Safety
/// Runs in a process that shares the server's memory: no allocation, no lock, no panic, only system calls on valid data.
unsafe fn prepare(shared: &Shared) {
    let at = |step: Step| shared.step.store(step as i32, Ordering::Release);
    // SAFETY: pointers in `shared` are valid, strings end with NUL and lists with null. Changes of user, groups and
    // limits are raw system calls because glibc's functions would signal the server's threads, which it takes for this
    // process's.
    unsafe {
        at(Step::Session);
        if libc::setsid() < 0 {
            return;
        }
        at(Step::Pipes);
        // The pipes' numbers are above 2: the standard library opens 0 to 2 before `main`.
        for (from, to) in [(shared.stdin, 0), (shared.output, 1), (shared.output, 2)] {
            if libc::dup2(from, to) < 0 {
                return;
            }
        }
        at(Step::Directory);
        if libc::chdir(shared.directory) != 0 {
            return;
        }
        at(Step::User);
        if let Some(id) = shared.user
            && (libc::syscall(libc::SYS_setgroups, 0_usize, ptr::null::<libc::gid_t>()) != 0
                || libc::syscall(libc::SYS_setresgid, id, id, id) != 0
                || libc::syscall(libc::SYS_setresuid, id, id, id) != 0)
        {
            return;
        }
        at(Step::Limits);
        for (resource, limit) in shared.limits {
            let more = u64::from(resource == libc::RLIMIT_CPU as c_int);
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit.saturating_add(more) };
            if limit.rlim_max != u64::MAX && libc::setrlimit(resource as _, &raw const limit) != 0 {
                return;
            }
        }
        at(Step::Privileges);
        // After the change of user, which would clear the signal.
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64) != 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64) != 0
        {
            return;
        }
        at(Step::Landlock);
        if let Some(ruleset) = shared.landlock
            && libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0_u32) != 0
        {
            return;
        }
        at(Step::Descriptors);
        // Most are closed by the exec anyway. Without the system call (Linux 5.9) the first ones are closed by number.
        if libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) != 0 {
            for descriptor in 3..4096 {
                libc::close(descriptor);
            }
        }
        // An ignored signal stays ignored, and a blocked one blocked, in the program.
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        at(Step::Seccomp);
        if let Some(filter) = &shared.filter
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER as u64,
                ptr::from_ref(filter),
            ) != 0
        {
            return;
        }
        at(Step::Execute);
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::execve(shared.program, shared.arguments, shared.environment);
    }
}

/// Makes this process the parent of orphans among its descendants (`PR_SET_CHILD_SUBREAPER`), which it already is if it
/// is the first process of a container. So a run's processes are reaped when the run ends, and not when another process
/// finds the time: until then they would count against the limit of processes.
pub fn adopt_orphans() {
    // SAFETY: no memory is involved. Every Linux that has the other layers has this call.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1_u64, 0_u64, 0_u64, 0_u64);
    }
}

/// The process group of a run. Dropping it kills and reaps all of its processes.
#[derive(Debug)]
pub struct Group {
    /// Id of the first process, and of its session and group.
    pid: pid_t,
    reaped: bool,
}

impl Group {
    /// Whether the program has ended. It is not reaped, so that its group's id cannot be given to others.
    pub fn has_ended(&self) -> bool {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is writable; zeroed, it says that no process has ended.
        unsafe {
            libc::waitid(libc::P_PID, self.pid as libc::id_t, info.as_mut_ptr(), options) != 0
                || info.assume_init().si_pid() != 0
        }
    }

    /// Kills what still runs, reaps it, and returns how the program ended.
    pub fn end(mut self) -> End {
        self.kill_and_reap()
    }

    fn kill_and_reap(&mut self) -> End {
        self.reaped = true;
        let mut status = 0;
        // SAFETY: the first process is not reaped, so the id still names this group and no other. Before the exec
        // the process may have no group yet.
        unsafe {
            libc::kill(-self.pid, libc::SIGKILL);
            libc::kill(self.pid, libc::SIGKILL);
            while libc::waitpid(self.pid, &raw mut status, 0) < 0 {
                if *libc::__errno_location() != libc::EINTR {
                    break;
                }
            }
            // Children of the program that outlive it have become this process's, see `adopt_orphans`.
            let mut ignored = 0;
            while libc::waitpid(-self.pid, &raw mut ignored, 0) > 0
                || *libc::__errno_location() == libc::EINTR
            {}
        }
        match libc::WIFSIGNALED(status) {
            true => End::Signalled(libc::WTERMSIG(status)),
            false => End::Exited(libc::WEXITSTATUS(status)),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill_and_reap();
        }
    }
}

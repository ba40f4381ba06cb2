//! Landlock: a process gives up the right to files outside of given directories, without any privilege.
//!
//! System calls and constants are from the kernel's `include/uapi/linux/landlock.h` and its documentation,
//! `Documentation/userspace-api/landlock.rst`. A ruleset names the kinds of access that it handles; all of these are
//! denied but for what its rules allow. Which kinds there are depends on the version of the interface.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// All kinds of access to files of the first version: execute, write, read, remove and make.
const FILES: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// Binding and connecting of TCP.
const NET: u64 = 0b11;
/// Abstract unix sockets, and signals, out of the sandbox.
const SCOPES: u64 = 0b11;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// A set of rules, which any number of processes can put on themselves.
#[derive(Debug)]
pub struct Ruleset {
    fd: OwnedFd,
    version: u32,
}

impl Ruleset {
    /// Creates rules that allow reading and executing below `roots`, and reading and writing `/dev/null`. Roots that do
    /// not exist are skipped.
    ///
    /// # Errors
    /// The system's error: usually the kernel has no Landlock, or it is off.
    pub fn new(roots: &[PathBuf]) -> io::Result<Self> {
        // SAFETY: with the version flag, the call takes a null pointer and size 0.
        let version = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::null::<RulesetAttr>(),
                0,
                CREATE_RULESET_VERSION,
            )
        };
        let version = u32::try_from(version).map_err(|_| io::Error::last_os_error())?;
        let since = |least: u32, access: u64| if version >= least { access } else { 0 };
        let attr = RulesetAttr {
            handled_access_fs: FILES | since(2, REFER) | since(3, TRUNCATE) | since(5, IOCTL_DEV),
            handled_access_net: since(4, NET),
            scoped: since(6, SCOPES),
        };
        // SAFETY: `attr` lives through the call. Older kernels accept the longer struct because its tail is 0.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attr,
                size_of::<RulesetAttr>(),
                0_u32,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and closes it on exec.
        let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) };
        let ruleset = Self { fd, version };
        for root in roots {
            ruleset.allow(root, EXECUTE | READ_FILE | READ_DIR)?;
        }
        ruleset.allow(Path::new("/dev/null"), READ_FILE | WRITE_FILE)?;
        Ok(ruleset)
    }

    /// Version of the kernel's interface.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Descriptor for `landlock_restrict_self`.
    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn allow(&self, path: &Path, access: u64) -> io::Result<()> {
        let opened =
            OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path);
        let file = match opened {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(why) => return Err(why),
        };
        // A rule for a file has no rights that only directories have.
        let access = if file.metadata()?.is_dir() { access } else { access & !READ_DIR };
        let rule = PathBeneathAttr { allowed_access: access, parent_fd: file.as_raw_fd() };
        // SAFETY: `rule` and the descriptor in it live through the call.
        let added = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.raw(),
                RULE_PATH_BENEATH,
                &raw const rule,
                0_u32,
            )
        };
        if added == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

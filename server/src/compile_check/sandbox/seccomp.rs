//! A filter of system calls: what a compiler never needs fails with `EPERM`.
//!
//! It is a list of what is denied, so that compilers of any version run. Files are Landlock's part. The filter denies
//! the network, and what could outlive the run: a process cannot leave its group, so killing the group kills everything.
//! The program is classic BPF over `struct seccomp_data` (`Documentation/userspace-api/seccomp_filter.rst`).

use libc::sock_filter;

/// Identifier of the architecture in `seccomp_data` (`include/uapi/linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// First number of x86-64's x32 calls, which have other numbers. Other architectures have no numbers so high.
const X32: u32 = 0x4000_0000;

/// Calls that are denied.
const DENIED: [libc::c_long; 22] = [
    // The network, and sockets of this machine.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_io_uring_setup,
    // Leaving the group, the session or the namespaces.
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    // Mounting.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    // Parts of the kernel with a history of errors.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_quotactl,
];

/// Number of instructions.
const LENGTH: usize = DENIED.len() + 7;

/// Whether the filter can be made for this architecture.
pub fn is_known() -> bool {
    ARCHITECTURE.is_some()
}

/// The filter.
pub(super) fn filter() -> [sock_filter; LENGTH] {
    let code = |bits: u32| bits as u16;
    let load = |offset: u32| sock_filter {
        code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS),
        jt: 0,
        jf: 0,
        k: offset,
    };
    let jump = |how: u32, k: u32, jt: u8, jf: u8| sock_filter {
        code: code(libc::BPF_JMP | how | libc::BPF_K),
        jt,
        jf,
        k,
    };
    let end = |k: u32| sock_filter { code: code(libc::BPF_RET | libc::BPF_K), jt: 0, jf: 0, k };
    let deny = end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut filter = [deny; LENGTH];
    // Another architecture has other numbers: 32-bit calls on a 64-bit kernel.
    filter[0] = load(4);
    filter[1] = jump(libc::BPF_JEQ, ARCHITECTURE.unwrap_or_default(), 1, 0);
    filter[2] = deny;
    filter[3] = load(0);
    // The distance to the last instruction, which denies.
    let to_end = |at: usize| (LENGTH - 1 - at - 1) as u8;
    filter[4] = jump(libc::BPF_JGE, X32, to_end(4), 0);
    for (at, number) in (5..).zip(DENIED) {
        filter[at] = jump(libc::BPF_JEQ, number as u32, to_end(at), 0);
    }
    filter[LENGTH - 2] = end(libc::SECCOMP_RET_ALLOW);
    filter
}

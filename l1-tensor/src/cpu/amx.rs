//! Whether this processor multiplies tiles (Intel's AMX), and the kernel's permission to do so.
//!
//! A tile register holds 1 KiB, so the state of a thread grows by 8 KiB. Linux saves it on every switch of threads that
//! use it, and therefore wants to be asked: once in a process, for all its threads. The first question about the
//! instruction set asks it.

/// Whether the processor has tiles and multiplies bf16 in them, and this process may use them.
pub(super) fn is_available() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        use std::sync::OnceLock;

        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| processor_has_it() && permitted())
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

/// Bits 22 (bf16) and 24 (tiles) of EDX in leaf 7, as Intel's manual has them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn processor_has_it() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    const BITS: u32 = 1 << 22 | 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BITS == BITS
}

/// Asks for component 18 of a thread's state, the data of tiles. An older system does not know the question, a sandbox
/// may refuse it, and so does Linux while a thread has a signal stack that is too small for the larger state.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: this operation reads and writes no memory of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

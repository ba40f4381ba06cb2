//! CUDA for Strata. Today this crate answers one question honestly: is there a CUDA device that
//! could be used, and if not, why not? The kernels themselves come with the CUDA floor.
//!
//! CUDA is loaded at run time: a build of Strata needs no toolkit, and the same binary runs on a
//! machine with a GPU and on one without.
//!
//! ```
//! match kernels::probe() {
//!     Ok(cuda) => println!("{cuda}"),
//!     Err(why) => println!("no CUDA: {why}"),
//! }
//! ```

use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::result;

/// What the CUDA driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuda {
    /// Number of devices, at least 1.
    pub device_count: usize,
    /// The driver's CUDA version, as (major, minor).
    pub driver_version: (u32, u32),
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.driver_version;
        let s = if self.device_count == 1 { "" } else { "s" };
        write!(f, "{} CUDA device{s} (driver CUDA {major}.{minor})", self.device_count)
    }
}

/// Why CUDA cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// `libcuda` could not be loaded.
    #[error("no CUDA driver library was found (libcuda.so or nvcuda.dll)")]
    NoDriver,
    /// The driver is there but does not work.
    #[error(
        "the CUDA driver does not start (error {0}); check that the kernel module is loaded with nvidia-smi"
    )]
    DriverFails(u32),
    /// The driver works and sees no device.
    #[error("the CUDA driver sees no device; check CUDA_VISIBLE_DEVICES")]
    NoDevice,
}

/// Look for CUDA, once per process: later calls return the first answer.
///
/// # Errors
/// [`ProbeError`] says which step failed. Nothing panics on a machine without CUDA.
pub fn probe() -> Result<Cuda, ProbeError> {
    static FOUND: OnceLock<Result<Cuda, ProbeError>> = OnceLock::new();
    FOUND.get_or_init(probe_now).clone()
}

fn probe_now() -> Result<Cuda, ProbeError> {
    // cudarc panics on its first call when the library is missing, so ask before calling.
    // SAFETY: only tries to open the driver library.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(ProbeError::NoDriver);
    }
    let code = |e: result::DriverError| ProbeError::DriverFails(e.0 as u32);
    result::init().map_err(code)?;
    let device_count = result::device::get_count().map_err(code)?;
    if device_count <= 0 {
        return Err(ProbeError::NoDevice);
    }
    let mut version = 0;
    // SAFETY: the driver is loaded and initialised; it writes one int.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }.result().map_err(code)?;
    let version = version as u32;
    Ok(Cuda {
        device_count: device_count as usize,
        driver_version: (version / 1000, version % 1000 / 10),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_told_in_words() {
        let found = |device_count| Cuda { device_count, driver_version: (13, 0) }.to_string();
        assert_eq!(found(1), "1 CUDA device (driver CUDA 13.0)");
        assert_eq!(found(8), "8 CUDA devices (driver CUDA 13.0)");
    }

    #[test]
    fn every_reason_says_what_is_missing_or_what_to_check() {
        assert!(ProbeError::NoDriver.to_string().contains("libcuda"));
        assert!(ProbeError::DriverFails(999).to_string().contains("999"));
        assert!(ProbeError::NoDevice.to_string().contains("CUDA_VISIBLE_DEVICES"));
    }

    #[test]
    fn probing_never_panics_and_says_the_same_twice() {
        let first = probe();
        assert_eq!(first, probe());
        if let Ok(cuda) = first {
            assert!(cuda.device_count > 0);
        }
    }
}

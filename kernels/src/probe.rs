//! Is there a CUDA device that could be used, and if not, why not?

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;

use crate::error::Error;
use crate::shim;

/// What the CUDA driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuda {
    /// Number of devices, at least 1.
    pub device_count: usize,
    /// The driver's CUDA version, as (major, minor).
    pub driver_version: (u32, u32),
    /// Whether the device is a CPU that stands in for one: see [`emulate`](crate::emulate).
    pub emulated: bool,
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.driver_version;
        let s = if self.device_count == 1 { "" } else { "s" };
        let emulated = if self.emulated { ", emulated on the CPU" } else { "" };
        write!(f, "{} CUDA device{s}{emulated} (driver CUDA {major}.{minor})", self.device_count)
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
    /// `STRATA_CUDA=emulated` asked for a CPU in its place, which could not be had.
    #[error("STRATA_CUDA=emulated: {0}")]
    NotEmulated(String),
}

type Answer = Result<Cuda, ProbeError>;

/// Result of the probe, once it is known. The lock also keeps two threads from probing at once.
static ANSWER: Mutex<Option<Answer>> = Mutex::new(None);

fn answer() -> MutexGuard<'static, Option<Answer>> {
    ANSWER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Look for CUDA, once per process: later calls return the first answer. Where the environment has
/// `STRATA_CUDA=emulated`, a CPU is put in its place first.
///
/// # Errors
/// [`ProbeError`] says which step failed. Nothing panics on a machine without CUDA.
pub fn probe() -> Result<Cuda, ProbeError> {
    let mut answer = answer();
    if let Some(known) = &*answer {
        return known.clone();
    }
    let asked = std::env::var_os("STRATA_CUDA").is_some_and(|how| how == "emulated");
    let found = if asked && let Err(e) = shim::load_once() {
        Err(ProbeError::NotEmulated(e.to_string()))
    } else {
        probe_now()
    };
    answer.insert(found).clone()
}

/// Put a CPU in the place of the driver, if the driver has not been found yet. That none was found is no
/// reason against it: then the answer is asked for again.
pub(crate) fn emulate() -> crate::Result<()> {
    let mut answer = answer();
    match &*answer {
        Some(Ok(cuda)) if cuda.emulated => return Ok(()),
        None | Some(Err(ProbeError::NoDriver)) => {}
        _ => {
            return Err(Error::State(
                "CUDA itself is in use, so no CPU can stand in for it".into(),
            ));
        }
    }
    shim::load_once()?;
    *answer = None;
    Ok(())
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
        emulated: shim::is_emulated(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_told_in_words() {
        let found = |device_count, emulated| {
            Cuda { device_count, driver_version: (13, 0), emulated }.to_string()
        };
        assert_eq!(found(1, false), "1 CUDA device (driver CUDA 13.0)");
        assert_eq!(found(8, false), "8 CUDA devices (driver CUDA 13.0)");
        assert_eq!(found(1, true), "1 CUDA device, emulated on the CPU (driver CUDA 13.0)");
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

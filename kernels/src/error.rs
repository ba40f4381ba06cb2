//! What can go wrong on a device.

use std::path::PathBuf;

use crate::ProbeError;

/// The result of everything fallible in `kernels`.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of devices, of their memory, of compiling kernels and of launching them.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no CUDA here.
    #[error(transparent)]
    Unavailable(#[from] ProbeError),
    /// There is CUDA, but not this device.
    #[error("there is no CUDA device {ordinal}: {count} were found, counted from 0")]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A device from before tensor cores knew bf16.
    #[error(
        "{name} is of compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or later"
    )]
    TooOld {
        /// Its name.
        name: String,
        /// Of its compute capability.
        major: i32,
        /// Of its compute capability.
        minor: i32,
    },
    /// The driver refused a call.
    #[error("{call} failed with CUDA error {code} ({name}){hint}")]
    Driver {
        /// What was called.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// The driver's name for it.
        name: String,
        /// What to do, where something can be done; from a CPU that stands in for the device, what
        /// happened.
        hint: String,
    },
    /// Too little device memory.
    #[error(
        "no {bytes} bytes of device memory: {free} are free; use a smaller context, batch or KV pool"
    )]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// What there is.
        free: usize,
    },
    /// Arguments of a launcher that do not fit each other.
    #[error("{op}: {why}")]
    Shape {
        /// The kernel.
        op: &'static str,
        /// What does not fit, with the numbers.
        why: String,
    },
    /// No compiler for the kernels.
    #[error("the CUDA kernels cannot be compiled: {why}")]
    NoCompiler {
        /// What was looked for, where, and what to install.
        why: String,
    },
    /// A source that the compiler refused.
    #[error("{file} does not compile:\n{log}")]
    Compile {
        /// The file in `cu/`.
        file: String,
        /// The compiler's words.
        log: String,
    },
    /// A file of the cache.
    #[error("{path}: {why}")]
    Cache {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// The cuBLASLt library refused a call.
    #[error("{call} failed with cuBLAS status {code}")]
    Blas {
        /// What was called.
        call: &'static str,
        /// The library's number.
        code: u32,
    },
    /// Something that must be done before, or must not be done now.
    #[error("{0}")]
    State(String),
}

impl Error {
    /// A driver's answer.
    pub(crate) fn driver(call: &'static str, e: cudarc::driver::result::DriverError) -> Self {
        let code = e.0 as u32;
        let name = e.error_name().map(|n| n.to_string_lossy().into_owned());
        let hint = match code {
            2 => ": the device's memory is full",
            209 | 218 => ": the kernels were compiled for another device; remove the cache",
            200 | 222 => {
                ": the kernels were compiled by an NVRTC newer than the driver; STRATA_NVRTC names another"
            }
            700 | 716 => {
                ": a kernel read or wrote outside of its memory; run it under compute-sanitizer"
            }
            719 => ": a kernel failed; run it under compute-sanitizer",
            _ => "",
        };
        // A CPU that stands in for the device knows what its kernel did.
        let report = crate::shim_report().map(|report| format!(": {report}"));
        Self::Driver {
            call,
            code,
            name: name.unwrap_or_else(|_| "unknown".into()),
            hint: report.unwrap_or_else(|| hint.into()),
        }
    }

    /// Arguments that do not fit.
    pub(crate) fn shape(op: &'static str, why: impl Into<String>) -> Self {
        Self::Shape { op, why: why.into() }
    }
}

/// Name the call that failed.
pub(crate) trait Called<T> {
    fn called(self, call: &'static str) -> Result<T>;
}

impl<T> Called<T> for std::result::Result<T, cudarc::driver::result::DriverError> {
    fn called(self, call: &'static str) -> Result<T> {
        self.map_err(|e| Error::driver(call, e))
    }
}

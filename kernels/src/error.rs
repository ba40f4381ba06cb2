//! Errors of devices.

use std::path::PathBuf;

use crate::ProbeError;

/// The result of everything fallible in `kernels`.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of devices, of their memory, of compiling kernels and of launching them.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// CUDA is not available on this machine.
    #[error(transparent)]
    Unavailable(#[from] ProbeError),
    /// CUDA is available, but this device does not exist.
    #[error("there is no CUDA device {ordinal}: {count} were found, counted from 0")]
    NoSuchDevice {
        /// Ordinal of the requested device.
        ordinal: usize,
        /// Number of devices.
        count: usize,
    },
    /// The device is too old: its tensor cores do not support bf16.
    #[error(
        "{name} is of compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or later"
    )]
    TooOld {
        /// Name of the device.
        name: String,
        /// Major number of its compute capability.
        major: i32,
        /// Minor number of its compute capability.
        minor: i32,
    },
    /// The driver refused a call.
    #[error("{call} failed with CUDA error {code} ({name}){hint}")]
    Driver {
        /// Name of the function.
        call: &'static str,
        /// Error code of the driver.
        code: u32,
        /// Name of that error.
        name: String,
        /// What to do, if something can be done; on an emulated device, a description of the error.
        hint: String,
    },
    /// Too little device memory.
    #[error(
        "no {bytes} bytes of device memory: {free} are free; use a smaller context, batch or KV pool"
    )]
    OutOfMemory {
        /// Number of bytes requested.
        bytes: usize,
        /// Number of bytes that are free.
        free: usize,
    },
    /// The arguments of a launcher do not match.
    #[error("{op}: {why}")]
    Shape {
        /// The kernel.
        op: &'static str,
        /// Description of the mismatch, with the numbers.
        why: String,
    },
    /// There is no compiler for the kernels.
    #[error("the CUDA kernels cannot be compiled: {why}")]
    NoCompiler {
        /// What was looked for, where, and what to install.
        why: String,
    },
    /// A source does not compile.
    #[error("{file} does not compile:\n{log}")]
    Compile {
        /// The file in `cu/`.
        file: String,
        /// Messages of the compiler.
        log: String,
    },
    /// A file of the cache cannot be read or written.
    #[error("{path}: {why}")]
    Cache {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        why: String,
    },
    /// The cuBLASLt library refused a call.
    #[error("{call} failed with cuBLAS status {code}")]
    Blas {
        /// What was called.
        call: &'static str,
        /// Error code of the library.
        code: u32,
    },
    /// A call that requires another call before it, or is not allowed now.
    #[error("{0}")]
    State(String),
}

impl Error {
    /// Converts an error code of the driver.
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
        // An emulated device has a description of the error in its kernel.
        let report = crate::shim_report().map(|report| format!(": {report}"));
        Self::Driver {
            call,
            code,
            name: name.unwrap_or_else(|_| "unknown".into()),
            hint: report.unwrap_or_else(|| hint.into()),
        }
    }

    /// Creates the error of arguments that do not match.
    pub(crate) fn shape(op: &'static str, why: impl Into<String>) -> Self {
        Self::Shape { op, why: why.into() }
    }
}

/// Adds the name of the call that failed.
pub(crate) trait Called<T> {
    fn called(self, call: &'static str) -> Result<T>;
}

impl<T> Called<T> for std::result::Result<T, cudarc::driver::result::DriverError> {
    fn called(self, call: &'static str) -> Result<T> {
        self.map_err(|e| Error::driver(call, e))
    }
}

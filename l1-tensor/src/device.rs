//! The device that runs ops, chosen at run time: one build runs on every machine.

use std::fmt;
use std::str::FromStr;

use kernels::Gpu;

use crate::{Error, Result};

/// Device that stores a tensor and runs an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host's processors.
    Cpu,
    /// The CUDA device of this ordinal.
    Cuda(usize),
}

/// Requested device: a certain one, or the best one available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DeviceRequest {
    /// CUDA if it can run the model, else the CPU.
    #[default]
    Auto,
    /// Exactly this device, or an error.
    Exactly(Device),
}

impl DeviceRequest {
    /// Chooses the device. Returns it, and the reason for a log line.
    ///
    /// A CUDA device is available if its driver starts, it is new enough, and its kernels can be compiled (or are in
    /// the cache). An emulated device is slow and for tests only, so it must be requested explicitly.
    ///
    /// # Errors
    /// [`Error::Device`] when a device was named that cannot be used here.
    pub fn resolve(self) -> Result<(Device, String)> {
        match self {
            DeviceRequest::Exactly(Device::Cpu) => Ok((Device::Cpu, "asked for".into())),
            DeviceRequest::Auto => Ok(match kernels::probe() {
                Err(why) => (Device::Cpu, format!("no CUDA: {why}")),
                Ok(found) if found.emulated => {
                    (Device::Cpu, format!("{found}: only taken by --device cuda"))
                }
                Ok(found) => match usable(0) {
                    Ok(()) => (Device::Cuda(0), found.to_string()),
                    Err(why) => (Device::Cpu, format!("{found}, but it cannot be used: {why}")),
                },
            }),
            DeviceRequest::Exactly(device @ Device::Cuda(ordinal)) => match usable(ordinal) {
                Ok(()) if kernels::is_emulated() => {
                    Ok((device, "asked for; emulated on the CPU, which is slow".into()))
                }
                Ok(()) => Ok((device, "asked for".into())),
                Err(why) => Err(Error::Device {
                    device: device.to_string(),
                    why: format!("{why}; use --device cpu"),
                }),
            },
        }
    }
}

/// Checks that a model can run on a CUDA device: the device opens, its kernels compile, and the driver loads them. Only
/// the smallest file of kernels is tried.
fn usable(ordinal: usize) -> kernels::Result<()> {
    Gpu::open(ordinal)?.try_kernels()
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

impl FromStr for DeviceRequest {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let ordinal = |n: &str| n.parse().map(|n| Self::Exactly(Device::Cuda(n)));
        match s {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Exactly(Device::Cpu)),
            "cuda" => Ok(Self::Exactly(Device::Cuda(0))),
            _ => match s.strip_prefix("cuda:").map(ordinal) {
                Some(Ok(device)) => Ok(device),
                _ => Err(format!("`{s}` is not a device: use auto, cpu, cuda or cuda:N")),
            },
        }
    }
}

//! A device is a value: one build runs everywhere and chooses at run time.

use std::fmt;
use std::str::FromStr;

use kernels::{Gpu, compile};

use crate::{Error, Result};

/// Where a tensor lives and an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host's processors.
    Cpu,
    /// The CUDA device of this ordinal.
    Cuda(usize),
}

/// What a user asks for: a device, or the best one there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DeviceRequest {
    /// CUDA when it can run the model, else the CPU.
    #[default]
    Auto,
    /// Exactly this one, or an error.
    Exactly(Device),
}

impl DeviceRequest {
    /// Choose the device, and say why in words fit for a log line.
    ///
    /// A CUDA device counts when its driver starts, it is new enough, and its kernels can be compiled
    /// (or are there already). One that is emulated by the CPU is never chosen unasked: it is there to be
    /// tested, not to be fast.
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

/// Whether a model can run on a CUDA device: it opens, and it gets kernels. The smallest file of them
/// stands for all.
fn usable(ordinal: usize) -> kernels::Result<()> {
    let gpu = Gpu::open(ordinal)?;
    compile::image("elementwise", gpu.properties().capability, gpu.is_emulated()).map(|_| ())
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

//! A device is a value: one build runs everywhere and chooses at run time.

use std::fmt;
use std::str::FromStr;

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
    /// # Errors
    /// [`Error::Device`] when a device was named that cannot be used here.
    pub fn resolve(self) -> Result<(Device, String)> {
        match self {
            DeviceRequest::Exactly(Device::Cpu) => Ok((Device::Cpu, "asked for".into())),
            DeviceRequest::Auto => Ok((
                Device::Cpu,
                match kernels::probe() {
                    Ok(found) => {
                        format!("{found}, but the CUDA kernels are not part of this version")
                    }
                    Err(why) => format!("no CUDA: {why}"),
                },
            )),
            DeviceRequest::Exactly(device @ Device::Cuda(ordinal)) => {
                let why = match kernels::probe() {
                    Err(why) => why.to_string(),
                    Ok(found) if ordinal >= found.device_count => {
                        format!("{found}: there is no device {ordinal}")
                    }
                    Ok(found) => {
                        format!("{found}, but the CUDA kernels are not part of this version")
                    }
                };
                Err(Error::Device {
                    device: device.to_string(),
                    why: format!("{why}; use --device cpu"),
                })
            }
        }
    }
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

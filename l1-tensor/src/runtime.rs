//! What an op runs on: device, instruction set, threads, and the precision of activations.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::cpu::{Isa, ThreadPool};
use crate::{DType, Device, DeviceRequest, Result};

/// How activations enter a matmul. Weights are bf16 and sums are f32 in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Inputs of a matmul and the KV cache stay f32: the parity mode.
    F32,
    /// Inputs of a matmul and the KV cache are rounded to bf16: the speed mode.
    Bf16,
}

/// The precision a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PrecisionRequest {
    /// bf16 where the processor multiplies bf16 pairs itself, else f32.
    #[default]
    Auto,
    /// Exactly this one (bf16 works on every processor, it is only not faster on all).
    Exactly(Precision),
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

impl FromStr for PrecisionRequest {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "f32" => Ok(Self::Exactly(Precision::F32)),
            "bf16" => Ok(Self::Exactly(Precision::Bf16)),
            _ => Err(format!("`{s}` is not a precision: use auto, f32 or bf16")),
        }
    }
}

/// What to build a [`Runtime`] from. The default is: best device, best precision, all cores, the
/// widest instruction set (or the one `STRATA_CPU` names).
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeOptions {
    /// Where to run.
    pub device: DeviceRequest,
    /// How activations enter a matmul.
    pub precision: PrecisionRequest,
    /// Threads that work on one forward pass; `None` or 0 is one for each available core.
    pub threads: Option<usize>,
    /// The instruction set; `None` lets `STRATA_CPU` or the processor decide.
    pub isa: Option<Isa>,
}

/// A device with its threads, ready to run ops. Cheap to clone; clones share the threads.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    why: String,
    isa: Isa,
    precision: Precision,
    pool: ThreadPool,
}

impl Runtime {
    /// Resolve the request into something that runs.
    ///
    /// # Errors
    /// [`crate::Error::Device`] for a device that is not here, [`crate::Error::BadParameter`] for
    /// an instruction set this processor lacks (the message lists those it has).
    pub fn new(options: RuntimeOptions) -> Result<Self> {
        let (device, why) = options.device.resolve()?;
        let isa = match options.isa {
            Some(isa) => isa.require()?,
            None => Isa::from_env()?,
        };
        let precision = match options.precision {
            PrecisionRequest::Exactly(p) => p,
            PrecisionRequest::Auto if isa.has_bf16_dot() => Precision::Bf16,
            PrecisionRequest::Auto => Precision::F32,
        };
        let threads = match options.threads {
            None | Some(0) => std::thread::available_parallelism().map_or(1, |n| n.get()),
            Some(n) => n,
        };
        let pool = ThreadPool::new(threads);
        Ok(Self { inner: Arc::new(Inner { device, why, isa, precision, pool }) })
    }

    /// The device in use.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// Why this device was taken, in words.
    pub fn device_reason(&self) -> &str {
        &self.inner.why
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.inner.isa
    }

    /// How activations enter a matmul.
    pub fn precision(&self) -> Precision {
        self.inner.precision
    }

    /// The dtype of buffers that feed a matmul: [`Precision`] said as a [`DType`].
    pub fn activation_dtype(&self) -> DType {
        match self.inner.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }

    /// The threads.
    pub fn pool(&self) -> &ThreadPool {
        &self.inner.pool
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = &*self.inner;
        write!(
            f,
            "{} ({}), {} threads, {} activations",
            i.device,
            i.isa,
            i.pool.threads(),
            i.precision
        )
    }
}

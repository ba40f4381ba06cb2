//! What an op runs on: device, instruction set, threads, and the precision of activations.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::ops::Arithmetic;
use kernels::{Gpu, Uploader};

use crate::cpu::{Isa, ThreadPool};
use crate::{DType, Device, DeviceRequest, Result, Tensor};

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
    /// bf16 on CUDA, and where the processor multiplies bf16 pairs itself; else f32.
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
    /// On CUDA: take sums in one order for each element, whatever the batch, where that is slower. The
    /// CPU never does otherwise.
    pub batch_invariant: bool,
}

impl RuntimeOptions {
    /// The default on the CPU, whatever else there is: for what compares or measures the CPU itself.
    pub fn cpu() -> Self {
        Self { device: DeviceRequest::Exactly(Device::Cpu), ..Self::default() }
    }
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
    batch_invariant: bool,
    cuda: Option<Cuda>,
}

/// What a runtime on CUDA has beside the device.
struct Cuda {
    gpu: Arc<Gpu>,
    /// The way of weights to the device: made by the first, used by all.
    uploader: Mutex<Option<Uploader>>,
    /// Where answers wait that the host asked for: grows to the most that was ever asked for.
    answers: Mutex<Option<Tensor>>,
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
            PrecisionRequest::Auto if device != Device::Cpu => Precision::Bf16,
            PrecisionRequest::Auto if isa.has_bf16_dot() => Precision::Bf16,
            PrecisionRequest::Auto => Precision::F32,
        };
        let threads = match options.threads {
            None | Some(0) => std::thread::available_parallelism().map_or(1, |n| n.get()),
            Some(n) => n,
        };
        let pool = ThreadPool::new(threads);
        let cuda = match device {
            Device::Cpu => None,
            Device::Cuda(n) => Some(Cuda {
                gpu: Gpu::open(n)?,
                uploader: Mutex::default(),
                answers: Mutex::default(),
            }),
        };
        let batch_invariant = options.batch_invariant;
        let inner = Inner { device, why, isa, precision, pool, batch_invariant, cuda };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device in use.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// The CUDA device, where this is one: ops then run on it, over tensors that lie there.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.inner.cuda.as_ref().map(|cuda| &cuda.gpu)
    }

    /// How sums are taken on CUDA: see [`RuntimeOptions::batch_invariant`].
    pub fn arithmetic(&self) -> Arithmetic {
        if self.inner.batch_invariant { Arithmetic::BatchInvariant } else { Arithmetic::Fast }
    }

    /// The way to the device for something of so many bytes; `None` on a CPU.
    pub(crate) fn uploader(
        &self,
        bytes: usize,
    ) -> Result<Option<MutexGuard<'_, Option<Uploader>>>> {
        let Some(cuda) = &self.inner.cuda else { return Ok(None) };
        let mut uploader = cuda.uploader.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = bytes.min(Uploader::LARGEST);
        if uploader.as_ref().is_none_or(|uploader| uploader.most() < wanted) {
            *uploader = Some(Uploader::with_room_for(&cuda.gpu, wanted.next_power_of_two())?);
        }
        Ok(Some(uploader))
    }

    /// Where an op leaves what the host asked for; `None` on a CPU.
    pub(crate) fn answers(&self) -> Option<MutexGuard<'_, Option<Tensor>>> {
        let cuda = self.inner.cuda.as_ref()?;
        Some(cuda.answers.lock().unwrap_or_else(PoisonError::into_inner))
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
        write!(f, "{} (", i.device)?;
        match &i.cuda {
            Some(cuda) => f.write_str(&cuda.gpu.properties().name)?,
            None => write!(f, "{}", i.isa)?,
        }
        write!(f, "), {} threads, {} activations", i.pool.threads(), i.precision)
    }
}

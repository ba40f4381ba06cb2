//! The runtime of ops: device, instruction set, threads, and the precision of activations.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::ops::Arithmetic;
use kernels::{Gpu, Uploader};

use crate::cpu::{Isa, ThreadPool};
use crate::{DType, Device, DeviceRequest, Error, Profile, Result, Tensor};

/// Precision of the activations that enter a matmul. It multiplies by bf16 weights, and sums are f32, in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Inputs of a matmul and the KV cache stay f32: the parity mode.
    F32,
    /// Inputs of a matmul and the KV cache are rounded to bf16: the speed mode.
    Bf16,
}

/// Requested precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PrecisionRequest {
    /// bf16 on CUDA, and where the processor multiplies bf16 pairs itself; else f32.
    #[default]
    Auto,
    /// This precision. (bf16 works on every processor, but is not faster on all.)
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

/// Memory of the matrices of a block-quantised checkpoint. All give the same bits, for finite scales: others are an error
/// of blocks that are kept. On CUDA only weights in NVFP4 can stay packed; others are bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum WeightStorage {
    /// The faster one for one row: `Packed` where the processor multiplies bf16 pairs itself, and on CUDA for bf16
    /// activations unless sums are batch invariant (there is no kernel for these cases: rows would be expanded for each
    /// matmul); else `Bf16`.
    #[default]
    Auto,
    /// Codes and scales as the checkpoint has them, dequantized whenever they are used ([`crate::PackedBlocks`]): about
    /// the size of the file.
    Packed,
    /// Expanded to bf16 when the model is loaded: 2 bytes a weight.
    Bf16,
}

impl fmt::Display for WeightStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WeightStorage::Auto => "auto",
            WeightStorage::Packed => "packed",
            WeightStorage::Bf16 => "bf16",
        })
    }
}

impl FromStr for WeightStorage {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "packed" => Ok(Self::Packed),
            "bf16" => Ok(Self::Bf16),
            _ => Err(format!("`{s}` is not a weight storage: use auto, packed or bf16")),
        }
    }
}

/// Options of a [`Runtime`]. The default is: best device, best precision, all cores, and the widest
/// instruction set (or the one that `STRATA_CPU` names).
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeOptions {
    /// Requested device.
    pub device: DeviceRequest,
    /// Precision of activations that enter a matmul.
    pub precision: PrecisionRequest,
    /// Number of threads for one forward pass; `None` or 0: one per available core.
    pub threads: Option<usize>,
    /// Instruction set; `None`: decided by `STRATA_CPU` or the processor.
    pub isa: Option<Isa>,
    /// Whether sums on CUDA have the same order for each element in every batch, which is slower. The CPU
    /// is always batch invariant.
    pub batch_invariant: bool,
    /// Memory of the matrices of a block-quantised checkpoint.
    pub weights: WeightStorage,
}

impl RuntimeOptions {
    /// Default options on the CPU, even if a GPU is available.
    pub fn cpu() -> Self {
        Self { device: DeviceRequest::Exactly(Device::Cpu), ..Self::default() }
    }
}

/// A device and its threads, ready to run ops. Cheap to clone; clones share the threads.
///
/// ```
/// use l1_tensor::{DType, Precision, PrecisionRequest, Runtime, RuntimeOptions};
///
/// let options = RuntimeOptions {
///     threads: Some(2),
///     precision: PrecisionRequest::Exactly(Precision::F32),
///     ..RuntimeOptions::cpu()
/// };
/// let rt = Runtime::new(options)?;
/// assert_eq!(rt.pool().threads(), 2);
/// assert_eq!(rt.activation_dtype(), DType::F32);
/// # Ok::<(), l1_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
    /// Where ops add their times.
    profile: Option<Arc<Profile>>,
}

struct Inner {
    device: Device,
    why: String,
    isa: Isa,
    precision: Precision,
    pool: ThreadPool,
    batch_invariant: bool,
    weights: WeightStorage,
    cuda: Option<Cuda>,
}

/// Additional state of a runtime on CUDA.
struct Cuda {
    gpu: Arc<Gpu>,
    /// Uploader of weights, created by the first upload.
    uploader: Mutex<Option<Uploader>>,
    /// Buffer of results that the host reads back: grows to the largest request.
    answers: Mutex<Option<Tensor>>,
}

impl Runtime {
    /// Creates a runtime for these options.
    ///
    /// # Errors
    /// [`crate::Error::Device`] for a device that is not available, [`crate::Error::BadParameter`] for
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
        let RuntimeOptions { batch_invariant, weights, .. } = options;
        let inner = Inner { device, why, isa, precision, pool, batch_invariant, weights, cuda };
        Ok(Self { inner: Arc::new(inner), profile: None })
    }

    /// The same device and threads; ops that are called with the returned runtime add their times to `profile`. Ops of
    /// other threads that use the same threads at the same time make the waits inexact.
    ///
    /// # Errors
    /// [`Error::Device`] on CUDA: ops only enqueue there, and are not done when they return.
    pub fn profiled(&self, profile: &Arc<Profile>) -> Result<Self> {
        if self.gpu().is_some() {
            let why = "ops on CUDA only enqueue work, so the time that a call takes is not the op's: use `cargo x gpu` \
                       for times of kernels, or --device cpu";
            return Err(Error::Device { device: self.device().to_string(), why: why.into() });
        }
        Ok(Self { inner: Arc::clone(&self.inner), profile: Some(Arc::clone(profile)) })
    }

    /// Where ops add their times, if anywhere.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        self.profile.as_deref()
    }

    /// Device in use.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// CUDA device, if the runtime uses one: ops then run on it, over tensors in its memory.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.inner.cuda.as_ref().map(|cuda| &cuda.gpu)
    }

    /// Order of sums on CUDA: see [`RuntimeOptions::batch_invariant`].
    pub fn arithmetic(&self) -> Arithmetic {
        if self.inner.batch_invariant { Arithmetic::BatchInvariant } else { Arithmetic::Fast }
    }

    /// Uploader to the device, for data of so many bytes; `None` on a CPU.
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

    /// Buffer of results that the host reads back; `None` on a CPU.
    pub(crate) fn answers(&self) -> Option<MutexGuard<'_, Option<Tensor>>> {
        let cuda = self.inner.cuda.as_ref()?;
        Some(cuda.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reason why this device was chosen, as text.
    pub fn device_reason(&self) -> &str {
        &self.inner.why
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.inner.isa
    }

    /// Precision of activations that enter a matmul.
    pub fn precision(&self) -> Precision {
        self.inner.precision
    }

    /// Dtype of the inputs of a matmul: the [`Precision`] as a [`DType`].
    pub fn activation_dtype(&self) -> DType {
        match self.inner.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }

    /// Whether block-quantised weights keep their blocks in memory, if the device has kernels for their format: see
    /// [`WeightStorage`].
    pub fn keeps_blocks(&self) -> bool {
        let inner = &*self.inner;
        match inner.weights {
            WeightStorage::Auto if inner.cuda.is_some() => {
                inner.precision == Precision::Bf16 && !inner.batch_invariant
            }
            WeightStorage::Auto => inner.isa.has_bf16_dot(),
            WeightStorage::Packed => true,
            WeightStorage::Bf16 => false,
        }
    }

    /// Thread pool.
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

//! Context of checks and benchmarks: the device, a CPU for comparison, and the fixtures.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use kernels::Gpu;
use l1_tensor::{
    DType, Device, DeviceRequest, Precision, PrecisionRequest, RowOrder, Runtime, RuntimeOptions,
    Tensor, Weight, bf16,
};
use l2_model::{Decoder, ModelConfig};

/// Size of the checks and benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Small sizes only: under compute-sanitizer, and on an emulated device.
    Tiny,
    /// All sizes.
    Full,
}

/// The device, and the CPU runtime that it is compared with.
pub struct Context {
    /// The device.
    pub gpu: Arc<Gpu>,
    /// How much is tried.
    pub size: Size,
    /// Path of the directory `fixtures`: tiny models, and configs of large ones.
    pub fixtures: PathBuf,
    cpu: Runtime,
    /// Model with random weights that was made last, and its config: to make a large one takes seconds.
    random: Mutex<Option<(String, Arc<Decoder>)>>,
    /// Runtimes of the device: f32 and bf16, each with the fastest order of sums and with the batch-invariant one.
    runtimes: [[Runtime; 2]; 2],
}

impl Context {
    /// Opens the first device; with `emulated`, the emulated one.
    ///
    /// # Errors
    /// No device, or no fixtures: the program must be run where the directory `fixtures` is, or
    /// `STRATA_FIXTURES` say where.
    pub fn new(emulated: bool, size: Size) -> Result<Self> {
        if emulated {
            kernels::emulate()?;
        }
        let gpu = Gpu::open(0)?;
        let of = |precision, batch_invariant| runtime(Device::Cuda(0), precision, batch_invariant);
        let both = |precision| -> Result<_> { Ok([of(precision, false)?, of(precision, true)?]) };
        let runtimes = [both(Precision::F32)?, both(Precision::Bf16)?];
        let cpu = runtime(Device::Cpu, Precision::F32, false)?;
        let random = Mutex::default();
        Ok(Self { gpu, size, fixtures: fixtures()?, cpu, runtimes, random })
    }

    /// Config of a model, from a file in `fixtures`.
    ///
    /// # Errors
    /// No such file, or one that cannot be read.
    pub fn config(&self, name: &str) -> Result<ModelConfig> {
        let path = self.fixtures.join(name);
        ModelConfig::from_hf_file(&path).with_context(|| path.display().to_string())
    }

    /// Model with random weights on the device, in bf16, from a config in `fixtures`. The last one is kept.
    ///
    /// # Errors
    /// No such config; too little memory.
    pub fn random(&self, config: &str) -> Result<Arc<Decoder>> {
        let mut kept = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, decoder)) = &*kept
            && name == config
        {
            return Ok(Arc::clone(decoder));
        }
        // Before the next one is made: there may not be room for both.
        *kept = None;
        let parsed = self.config(config)?;
        let rt = self.device(Precision::Bf16, false);
        let decoder = Arc::new(Decoder::random(rt, parsed, 1)?);
        *kept = Some((config.into(), Arc::clone(&decoder)));
        Ok(decoder)
    }

    /// Frees the model that [`Context::random`] keeps.
    pub fn forget_random(&self) {
        *self.random.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The CPU, in full precision.
    pub fn cpu(&self) -> &Runtime {
        &self.cpu
    }

    /// The device's runtime of a precision, with the fastest order of sums or with the batch-invariant one.
    pub fn device(&self, precision: Precision, batch_invariant: bool) -> &Runtime {
        let [f32s, bf16s] = &self.runtimes;
        let of_precision = if precision == Precision::F32 { f32s } else { bf16s };
        &of_precision[usize::from(batch_invariant)]
    }

    /// Whether only small sizes are run.
    pub fn tiny(&self) -> bool {
        self.size == Size::Tiny
    }
}

fn runtime(device: Device, precision: Precision, batch_invariant: bool) -> Result<Runtime> {
    // The CPU computes what the device is held against, and nothing here waits for a device's threads.
    let threads = if device == Device::Cpu { None } else { Some(1) };
    Ok(Runtime::new(RuntimeOptions {
        device: DeviceRequest::Exactly(device),
        precision: PrecisionRequest::Exactly(precision),
        threads,
        batch_invariant,
        ..RuntimeOptions::default()
    })?)
}

fn fixtures() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("STRATA_FIXTURES") {
        return Ok(given.into());
    }
    let beside =
        |dir: &Path| Some(dir.join("fixtures")).filter(|path| path.join("configs").is_dir());
    let here = std::env::current_dir().context("the current directory")?;
    let program = std::env::current_exe().context("where is this program?")?;
    let found = here.ancestors().chain(program.ancestors().skip(1)).find_map(beside);
    match found {
        Some(path) => Ok(path),
        None => bail!(
            "there is no directory `fixtures` in {} or above: run this where it is, or let STRATA_FIXTURES name it",
            here.display()
        ),
    }
}

/// Creates a tensor of these numbers on a runtime's device, rounded to its dtype: F32 or BF16.
///
/// # Errors
/// Another type, a shape that does not fit, no memory.
pub fn tensor(rt: &Runtime, values: &[f32], shape: &[usize], dtype: DType) -> Result<Tensor> {
    let host = match dtype {
        DType::F32 => Tensor::from_slice(values, shape)?,
        DType::BF16 => {
            let rounded: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
            Tensor::from_slice(&rounded, shape)?
        }
        _ => bail!("a tensor of {dtype}"),
    };
    Ok(host.to_device(rt.device())?)
}

/// Creates a tensor of zeros on a runtime's device.
///
/// # Errors
/// Too little memory.
pub fn zeros(rt: &Runtime, shape: &[usize], dtype: DType) -> Result<Tensor> {
    Ok(Tensor::zeros(shape, dtype, rt.device())?)
}

/// Creates a weight `[n, k]` of these numbers (rounded to bf16), in the layout of a runtime's matmuls.
///
/// # Errors
/// A shape that does not fit, no memory.
pub fn weight(rt: &Runtime, values: &[f32], n: usize, k: usize, order: RowOrder) -> Result<Weight> {
    let row = |i: usize, out: &mut [f32]| -> l1_tensor::Result<()> {
        out.copy_from_slice(&values[i * k..(i + 1) * k]);
        Ok(())
    };
    Ok(Weight::load(rt, n, k, order, &row)?)
}

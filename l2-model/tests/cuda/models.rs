//! Tiny models, runtimes, and steps over them.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use l1_tensor::{
    Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions, WeightStorage,
    cuda,
};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, Result, SequenceState, Workspace, WorkspaceSpec,
};

use crate::golden::Golden;

fn runtime_on(
    device: Device,
    precision: Precision,
    batch_invariant: bool,
    weights: WeightStorage,
) -> Runtime {
    Runtime::new(RuntimeOptions {
        weights,
        device: DeviceRequest::Exactly(device),
        precision: PrecisionRequest::Exactly(precision),
        threads: Some(1),
        batch_invariant,
        ..Default::default()
    })
    .unwrap()
}

/// A runtime on the device, while one test has it: what a test launches while another one records would
/// be recorded with it.
pub struct OnDevice {
    rt: Runtime,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for OnDevice {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        &self.rt
    }
}

/// The device under test: emulated, unless `STRATA_TEST_DEVICE` is `cuda`.
pub fn device(precision: Precision, batch_invariant: bool) -> OnDevice {
    device_with(precision, batch_invariant, WeightStorage::Auto)
}

/// The same with a storage of weights.
pub fn device_with(
    precision: Precision,
    batch_invariant: bool,
    weights: WeightStorage,
) -> OnDevice {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::env::var_os("STRATA_TEST_DEVICE").is_none_or(|device| device != "cuda") {
        cuda::emulate().unwrap_or_else(|e| panic!("no CPU can stand in for a device: {e}"));
    }
    let rt = runtime_on(Device::Cuda(0), precision, batch_invariant, weights);
    OnDevice { rt, _turn: turn }
}

/// What it is compared with.
pub fn host(precision: Precision) -> Runtime {
    runtime_on(Device::Cpu, precision, false, WeightStorage::Auto)
}

/// The directories of every family, and files whose weights are stored otherwise. (What a file's
/// rows become is the same for every device: see `tests/tiny_models.rs` for all of them.)
pub const MODELS: [&str; 11] = [
    "tiny-llama",
    "tiny-llama-linear",
    "tiny-llama-nvfp4",
    "tiny-llama-untied",
    "tiny-llama-yarn",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen3-modelopt-nvfp4",
    "tiny-gguf/llama-q4_0.gguf",
    "tiny-gguf/qwen2-q8_0.gguf",
];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

pub fn golden_path(name: &str) -> PathBuf {
    let path = fixture(name);
    match path.is_dir() {
        true => path.join("golden.safetensors"),
        false => path.with_extension("golden.safetensors"),
    }
}

pub fn load(name: &str, rt: &Runtime) -> Decoder {
    ModelFiles::open(&fixture(name)).unwrap().decoder(rt).unwrap()
}

/// What transformers made of a prompt.
pub fn golden(name: &str) -> Golden {
    Golden::open(&golden_path(name))
}

/// The slices of a batch.
pub struct Step {
    pub tokens: Vec<u32>,
    pub positions: Vec<i32>,
    pub cu: Vec<i32>,
    pub slots: Vec<u32>,
    pub rows: Vec<u32>,
}

impl Step {
    /// These tokens for these slots, each behind what it holds; the logits of all.
    pub fn of(state: &dyn SequenceState, parts: &[(u32, &[u32])]) -> Self {
        let (mut tokens, mut positions, mut cu, mut slots) = (vec![], vec![], vec![0], vec![]);
        for (slot, part) in parts {
            let from = state.len(*slot) as i32;
            positions.extend(from..from + part.len() as i32);
            tokens.extend_from_slice(part);
            cu.push(tokens.len() as i32);
            slots.push(*slot);
        }
        let rows = (0..tokens.len() as u32).collect();
        Self { tokens, positions, cu, slots, rows }
    }

    pub fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cu_seqlens_q: &self.cu,
            state_slots: &self.slots,
            logit_rows: &self.rows,
            ..Batch::default()
        }
    }
}

/// A model with the state and the buffers of its steps: three slots of 40 tokens.
pub struct Bench<'a> {
    pub decoder: &'a Decoder,
    pub state: ContiguousState,
    pub ws: Workspace,
}

impl<'a> Bench<'a> {
    pub fn new(rt: &Runtime, decoder: &'a Decoder) -> Self {
        let config = decoder.config();
        let spec = WorkspaceSpec { max_tokens: 32, max_rows: 32, max_context: 40 };
        let dtype = rt.activation_dtype();
        Self {
            decoder,
            state: ContiguousState::new_on(rt.device(), config, 3, 40, dtype).unwrap(),
            ws: Workspace::new(rt, config, spec).unwrap(),
        }
    }

    /// The logits after each of these tokens.
    pub fn step(&mut self, parts: &[(u32, &[u32])]) -> Result<Vec<f32>> {
        let step = Step::of(&self.state, parts);
        let logits = self.decoder.forward(&step.batch(), &mut self.state, &mut self.ws)?;
        Ok(logits.to_vec_f32()?)
    }
}

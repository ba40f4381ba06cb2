//! A tiny model on the device, and steps through it over any state.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use l1_tensor::{
    Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions, cuda,
};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, Result, SequenceState, Workspace, WorkspaceSpec,
};
use l3_paged_kv::{PagedOptions, PagedState};

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

fn runtime_on(device: Device, precision: Precision) -> Runtime {
    Runtime::new(RuntimeOptions {
        device: DeviceRequest::Exactly(device),
        precision: PrecisionRequest::Exactly(precision),
        threads: Some(1),
        batch_invariant: true,
        ..Default::default()
    })
    .unwrap()
}

/// The device under test, with sums in one order for each element: emulated, unless `STRATA_TEST_DEVICE` is
/// `cuda`.
pub fn device(precision: Precision) -> OnDevice {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::env::var_os("STRATA_TEST_DEVICE").is_none_or(|device| device != "cuda") {
        cuda::emulate().unwrap_or_else(|e| panic!("no CPU can stand in for a device: {e}"));
    }
    OnDevice { rt: runtime_on(Device::Cuda(0), precision), _turn: turn }
}

pub fn host(precision: Precision) -> Runtime {
    runtime_on(Device::Cpu, precision)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

pub fn load(name: &str, rt: &Runtime) -> Decoder {
    ModelFiles::open(&fixture(name)).unwrap().decoder(rt).unwrap()
}

/// A made-up text: scattered over any vocabulary, the same for the same seed.
pub fn text(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + seed * 101 + i * i * seed) % 300).collect()
}

/// The most tokens of a sequence here.
pub const LEN: usize = 24;

/// A model with the buffers of its steps.
pub struct Model<'a> {
    pub decoder: &'a Decoder,
    pub rt: &'a Runtime,
    pub ws: Workspace,
}

impl<'a> Model<'a> {
    pub fn new(decoder: &'a Decoder, rt: &'a Runtime) -> Self {
        let spec = WorkspaceSpec { max_tokens: 48, max_rows: 48, max_context: LEN };
        Self { decoder, rt, ws: Workspace::new(rt, decoder.config(), spec).unwrap() }
    }

    pub fn vocab(&self) -> usize {
        self.decoder.config().vocab
    }

    /// Three slots of one run of memory each.
    pub fn contiguous(&self) -> ContiguousState {
        let (rt, config) = (self.rt, self.decoder.config());
        ContiguousState::new_on(rt.device(), config, 3, LEN, rt.activation_dtype()).unwrap()
    }

    /// Three slots over blocks of this size.
    pub fn paged(&self, block_size: usize) -> PagedState {
        let (rt, config) = (self.rt, self.decoder.config());
        let options = PagedOptions::new(3, LEN, block_size, rt.activation_dtype());
        PagedState::new_on(rt.device(), config, options).unwrap()
    }

    /// Feed these tokens to these slots, each behind what it holds: the logits after every token.
    pub fn step(
        &mut self,
        state: &mut dyn SequenceState,
        parts: &[(u32, &[u32])],
    ) -> Result<Vec<f32>> {
        let (mut tokens, mut positions, mut cu, mut slots) = (vec![], vec![], vec![0], vec![]);
        for (slot, part) in parts {
            let from = state.len(*slot) as i32;
            positions.extend(from..from + part.len() as i32);
            tokens.extend_from_slice(part);
            cu.push(tokens.len() as i32);
            slots.push(*slot);
        }
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            cu_seqlens_q: &cu,
            state_slots: &slots,
            logit_rows: &rows,
            ..Batch::default()
        };
        Ok(self.decoder.forward(&batch, state, &mut self.ws)?.to_vec_f32()?)
    }
}

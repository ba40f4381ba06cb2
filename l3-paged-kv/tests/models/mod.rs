//! Tiny models, and steps through them over any state.
#![allow(dead_code, unused_imports)]

#[path = "../../../l1-tensor/tests/support/runtime.rs"]
mod support;

use std::path::{Path, PathBuf};

use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{DType, Runtime};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, Result, SequenceState, Workspace, WorkspaceSpec,
};

pub use support::runtime;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

pub fn load(name: &str, rt: &Runtime) -> Decoder {
    ModelFiles::open(&fixture(name)).unwrap().decoder(rt).unwrap()
}

/// Every tiny model with its golden file.
pub fn all() -> Vec<(String, PathBuf)> {
    let mut all = Vec::new();
    let names = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    for name in names(&fixture("")) {
        if name == "tiny-gguf" {
            for file in names(&fixture(&name)).iter().filter_map(|n| n.strip_suffix(".gguf")) {
                let path = |end: &str| format!("tiny-gguf/{file}.{end}");
                all.push((path("gguf"), fixture(&path("golden.safetensors"))));
            }
        } else if name.starts_with("tiny-") {
            let golden = fixture(&name).join("golden.safetensors");
            all.push((name, golden));
        }
    }
    all.sort();
    assert!(all.len() >= 15, "only {} tiny models found", all.len());
    all
}

/// Token ids of a golden file.
pub fn ids(golden: &Path, name: &str) -> Vec<u32> {
    let tensor = SafetensorsFile::open(golden).unwrap().tensor(name).unwrap();
    let ids = tensor.view().as_slice::<i64>("golden").unwrap().to_vec();
    ids.iter().map(|id| *id as u32).collect()
}

/// A model with the buffers of its steps.
pub struct Model<'a> {
    pub decoder: &'a Decoder,
    pub rt: Runtime,
    ws: Workspace,
}

impl<'a> Model<'a> {
    /// For steps of at most `max_tokens` tokens over sequences of at most `max_len`.
    pub fn new(decoder: &'a Decoder, rt: &Runtime, max_tokens: usize, max_len: usize) -> Self {
        let spec = WorkspaceSpec { max_tokens, max_rows: max_tokens, max_context: max_len };
        let ws = Workspace::new(rt, decoder.config(), spec).unwrap();
        Self { decoder, rt: rt.clone(), ws }
    }

    pub fn vocab(&self) -> usize {
        self.decoder.config().vocab
    }

    /// Feed these tokens to these slots, each behind what it holds: the logits after every token.
    pub fn step(
        &mut self,
        state: &mut dyn SequenceState,
        parts: &[(u32, &[u32])],
    ) -> Result<Vec<f32>> {
        let step = Step::of(state, parts);
        let rows: Vec<u32> = (0..step.tokens.len() as u32).collect();
        let batch = Batch { logit_rows: &rows, ..step.batch() };
        Ok(self.decoder.forward(&batch, state, &mut self.ws)?.to_vec_f32()?)
    }

    /// The logits after every token of a text, fed at once to a state of one run of memory.
    pub fn truth(&mut self, tokens: &[u32], dtype: DType) -> Vec<f32> {
        let config = self.decoder.config();
        let mut state = ContiguousState::new(config, 1, tokens.len(), dtype).unwrap();
        self.step(&mut state, &[(0, tokens)]).unwrap()
    }
}

/// The slices of a batch.
pub struct Step {
    pub tokens: Vec<u32>,
    pub positions: Vec<i32>,
    pub cu: Vec<i32>,
    pub slots: Vec<u32>,
}

impl Step {
    pub fn of(state: &dyn SequenceState, parts: &[(u32, &[u32])]) -> Self {
        let mut step = Self { tokens: vec![], positions: vec![], cu: vec![0], slots: vec![] };
        for (slot, part) in parts {
            let from = state.len(*slot) as i32;
            step.positions.extend(from..from + part.len() as i32);
            step.tokens.extend_from_slice(part);
            step.cu.push(step.tokens.len() as i32);
            step.slots.push(*slot);
        }
        step
    }

    pub fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cu_seqlens_q: &self.cu,
            state_slots: &self.slots,
            ..Batch::default()
        }
    }
}

/// A made-up text: scattered over any vocabulary, the same for the same seed.
pub fn text(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + seed * 101 + i * i * seed) % 300).collect()
}

//! Heads, targets and goldens of the fixtures; a head's step over one sequence.

use std::path::{Path, PathBuf};

use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{Runtime, Tensor, TensorRef};
use l2_model::draft_head::{EagleHead, EagleWorkspace, Hidden};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, SequenceState, Tap, Workspace, WorkspaceSpec,
};
use tempfile::TempDir;

pub use crate::runtime::runtime;

/// (directory of an EAGLE head, its target).
pub const EAGLES: [(&str, &str); 2] = [("eagle", "tiny-qwen2"), ("eagle3", "tiny-llama-untied")];

/// Rows of a golden whose hidden rows are the target's; the head's own output continues them.
pub const CHUNK: usize = 24;

/// A step that any test here fits.
pub const SPEC: WorkspaceSpec = WorkspaceSpec { max_tokens: 48, max_rows: 48, max_context: 48 };

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

pub fn head_dir(name: &str) -> PathBuf {
    fixtures().join("draft-heads").join(name)
}

pub fn target(rt: &Runtime, name: &str) -> Decoder {
    ModelFiles::open(&fixtures().join(name)).unwrap().decoder(rt).unwrap()
}

pub fn eagle(rt: &Runtime, head: &str, target_name: &str) -> EagleHead {
    EagleHead::open(rt, &head_dir(head), &target(rt, target_name)).unwrap()
}

pub fn golden(of: &Path) -> SafetensorsFile {
    SafetensorsFile::open(of.join("golden.safetensors")).unwrap()
}

pub fn ids(file: &SafetensorsFile, name: &str) -> Vec<u32> {
    let tensor = file.tensor(name).unwrap();
    tensor.view().as_slice::<i64>("golden").unwrap().iter().map(|id| *id as u32).collect()
}

/// The target's rows that a head reads, as transformers computed them.
pub fn rows_of_transformers(head: &EagleHead, target_name: &str) -> Vec<Tensor> {
    let golden = golden(&fixtures().join(target_name));
    head.taps().iter().map(|tap| golden.tensor(&tap.to_string()).unwrap()).collect()
}

/// A head with the memory of its steps: one sequence in slot 0.
pub struct Drafting<'a> {
    pub head: &'a EagleHead,
    pub state: ContiguousState,
    pub ws: EagleWorkspace,
}

impl<'a> Drafting<'a> {
    pub fn new(rt: &Runtime, head: &'a EagleHead) -> Self {
        let slots = 3;
        let state =
            ContiguousState::new(head.config(), slots, SPEC.max_context, rt.activation_dtype());
        let ws = EagleWorkspace::new(rt, head, SPEC).unwrap();
        Self { head, state: state.unwrap(), ws }
    }

    /// Feeds tokens after those there are; the logits of every one of them.
    pub fn feed(&mut self, tokens: &[u32], hidden: Hidden, taps: &[Tap]) -> Vec<f32> {
        let (from, n) = (self.state.len(0) as i32, tokens.len() as i32);
        let batch = Batch {
            tokens,
            positions: &(from..from + n).collect::<Vec<_>>(),
            cu_seqlens_q: &[0, n],
            state_slots: &[0],
            logit_rows: &(0..n as u32).collect::<Vec<_>>(),
            taps,
            ..Batch::default()
        };
        let logits = self.head.forward(&batch, hidden, &mut self.state, &mut self.ws).unwrap();
        logits.to_vec_f32().unwrap()
    }
}

/// Rows `from..from + n` of each tensor.
pub fn cut<'a>(tensors: &'a [Tensor], from: usize, n: usize) -> Vec<TensorRef<'a>> {
    tensors.iter().map(|t| t.view().narrow(0, from, n).unwrap()).collect()
}

/// The target's own step over a prompt, with the head's taps kept.
pub fn target_step(rt: &Runtime, decoder: &Decoder, tokens: &[u32], taps: &[Tap]) -> Workspace {
    let mut ws = Workspace::new(rt, decoder.config(), SPEC).unwrap();
    let dtype = rt.activation_dtype();
    let mut state = ContiguousState::new(decoder.config(), 1, SPEC.max_context, dtype).unwrap();
    let batch = Batch {
        tokens,
        positions: &(0..tokens.len() as i32).collect::<Vec<_>>(),
        cu_seqlens_q: &[0, tokens.len() as i32],
        state_slots: &[0],
        taps,
        ..Batch::default()
    };
    decoder.forward(&batch, &mut state, &mut ws).unwrap();
    ws
}

/// A copy of a head's directory with another config, as `edit` makes it.
pub fn with_config(name: &str, edit: impl FnOnce(&mut serde_json::Value)) -> TempDir {
    let dir = copy_of(name);
    let path = dir.path().join("config.json");
    let mut config = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    dir
}

/// A stored tensor: name, (dtype, shape, bytes).
pub type Stored = (String, (safetensors::Dtype, Vec<usize>, Vec<u8>));

/// A copy of a head's directory with other tensors, as `edit` makes them.
pub fn with_tensors(name: &str, edit: impl FnOnce(&mut Vec<Stored>)) -> TempDir {
    let dir = copy_of(name);
    let path = weights(dir.path());
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let stored = |(name, t): (String, safetensors::tensor::TensorView)| -> Stored {
        (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec()))
    };
    let mut tensors: Vec<Stored> = file.tensors().into_iter().map(stored).collect();
    edit(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    dir
}

/// The file of a head's weights.
pub fn weights(dir: &Path) -> PathBuf {
    let medusa = dir.join("medusa_lm_head.safetensors");
    if medusa.exists() { medusa } else { dir.join("model.safetensors") }
}

/// A copy of a head's directory.
pub fn copy_of(name: &str) -> TempDir {
    let (from, to) = (head_dir(name), TempDir::new().unwrap());
    for file in [from.join("config.json"), weights(&from)] {
        std::fs::copy(&file, to.path().join(file.file_name().unwrap())).unwrap();
    }
    to
}

//! LoRA adapters: small additions to the projections of a decoder.
//!
//! A fine-tuned model differs from its base by a matrix for each projection. LoRA (Hu et al. 2021, arXiv 2106.09685)
//! trains that difference as a product of two thin matrices, so an adapter has a few percent of the model's size or less,
//! and one model in memory serves many of them:
//!
//! ```text
//! y = x W^T + scale (x A^T) B^T        A [r, K], B [N, r], scale = alpha / r, or alpha / sqrt(r) (rsLoRA)
//! ```
//!
//! [`LoraAdapter::open`] reads a directory as PEFT writes it. [`Workspace::set_adapter`](crate::Workspace::set_adapter)
//! gives it an index, and [`Batch::adapters`](crate::Batch::adapters) names that index for each sequence of a step.
//! Sequences of different adapters, and of none, share a step: the model's own matmuls run once over all rows, and each
//! adapter's over its rows (`adapter/apply.rs`). So a row without an adapter has the same bits whatever runs beside it,
//! on a CPU and on a device in invariant mode.
//!
//! Sources: PEFT 0.21 (`peft/tuners/lora/`), whose names, defaults and scales these are; Kalajdzievski 2023, "A Rank
//! Stabilization Scaling Factor for Fine-Tuning with LoRA", arXiv 2312.03732; Chen et al. 2023, "Punica", arXiv
//! 2310.18547, for adapters that share a step.

pub(crate) mod apply;
mod config;
mod error;
mod load;
mod names;

use l1_tensor::{LowRank, Weight};

pub use error::AdapterError;

use crate::ModelConfig;

/// A projection that an adapter can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Projection {
    /// `q_proj`: the queries.
    Q,
    /// `k_proj`: the keys.
    K,
    /// `v_proj`: the values.
    V,
    /// `o_proj`: the output of attention.
    O,
    /// `gate_proj` of the MLP.
    Gate,
    /// `up_proj` of the MLP.
    Up,
    /// `down_proj` of the MLP.
    Down,
}

/// A LoRA adapter, loaded for one model. Immutable: any number of workspaces can share it.
///
/// ```
/// # use std::path::Path;
/// # use std::sync::Arc;
/// use l1_tensor::{Runtime, RuntimeOptions};
/// use l2_model::adapter::LoraAdapter;
/// use l2_model::{Batch, ContiguousState, ModelFiles, Workspace, WorkspaceSpec};
///
/// # let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures"));
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// let decoder = ModelFiles::open(&fixtures.join("tiny-llama"))?.decoder(&rt)?;
/// let config = decoder.config();
/// let adapter = LoraAdapter::open(&rt, &fixtures.join("adapters/tiny-llama-all"), config, 16)?;
/// assert_eq!(adapter.rank(), 4);
///
/// let spec = WorkspaceSpec { max_tokens: 4, max_rows: 2, max_context: 16 };
/// let mut workspace = Workspace::new(&rt, config, spec)?;
/// workspace.allow_adapters(16)?;
/// workspace.set_adapter(0, Some(Arc::new(adapter)))?;
/// // The same two tokens twice: with the adapter, and without.
/// let mut state = ContiguousState::new(config, 2, 16, rt.activation_dtype())?;
/// let batch = Batch {
///     tokens: &[384, 10, 384, 10],
///     positions: &[0, 1, 0, 1],
///     cu_seqlens_q: &[0, 2, 4],
///     state_slots: &[0, 1],
///     adapters: &[0, -1],
///     logit_rows: &[1, 3],
///     ..Batch::default()
/// };
/// let logits = decoder.forward(&batch, &mut state, &mut workspace)?.to_vec_f32()?;
/// assert_ne!(logits[..config.vocab], logits[config.vocab..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LoraAdapter {
    /// Side terms of each layer, by projection.
    layers: Vec<[Option<LowRank>; Projection::ALL.len()]>,
    /// Configuration of the model that it was loaded for.
    model: ModelConfig,
    rank: usize,
    digest: [u8; 32],
}

impl Projection {
    /// All projections, in the order of their use.
    pub const ALL: [Self; 7] =
        [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// Name of the module in a Hugging Face model, within its layer.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }
}

impl LoraAdapter {
    /// Maximum rank of its side terms.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Sha256 of its files: two adapters with the same digest compute the same.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The digest in hexadecimal.
    pub fn digest_hex(&self) -> String {
        crate::digest::hex(&self.digest)
    }

    /// Whether it was loaded for a model of this configuration. Its matrices then have the shapes of the model's.
    pub fn fits(&self, model: &ModelConfig) -> bool {
        self.model == *model
    }

    /// Size of its matrices in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let sides = self.layers.iter().flatten().flatten();
        sides.map(|side| side.a.bytes() + side.b.bytes()).sum()
    }

    /// Number of parameters of its matrices.
    pub fn parameters(&self) -> usize {
        let size = |w: &Weight| w.n() * w.k();
        self.layers.iter().flatten().flatten().map(|side| size(&side.a) + size(&side.b)).sum()
    }

    /// Projections that it changes in at least one layer.
    pub fn projections(&self) -> Vec<Projection> {
        let changes = |p: &Projection| self.layers.iter().any(|l| l[*p as usize].is_some());
        Projection::ALL.into_iter().filter(changes).collect()
    }

    /// Side term of a projection, if the adapter has one.
    fn side(&self, layer: usize, projection: Projection) -> Option<&LowRank> {
        self.layers.get(layer)?[projection as usize].as_ref()
    }
}

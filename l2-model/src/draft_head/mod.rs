//! Draft heads: small networks that propose tokens from a target model's hidden rows.
//!
//! A draft model of its own computes what the target has computed already: a representation of the text. A head
//! starts from the target's, a hidden row for each token, and is one layer or less:
//!
//! | head | input | network | KV cache | reads of the target |
//! |---|---|---|---|---|
//! | EAGLE-1 ([`EagleHead`]) | next token, hidden row | `fc`, one decoder layer without input norm | yes | [`Tap::FinalNorm`] |
//! | EAGLE-3 ([`EagleHead`]) | next token, three hidden rows | `fc`, one layer over embedding and hidden row, norm | yes | three residual rows |
//! | Medusa ([`MedusaHead`]) | hidden row | for each position residual blocks and a projection | no | [`Tap::FinalNorm`] |
//!
//! [`DraftHead::open`] reads a Hugging Face directory (`config.json` and safetensors) beside the target, and lends from
//! the target what the checkpoint does not have: the embedding and the output projection. Layers run through the
//! decoder's own code, and keys and values go through [`SequenceState`](crate::SequenceState), so a head's KV cache is
//! contiguous or paged as the target's is.
//!
//! A head only proposes. Whether its tokens are kept is decided by the target's logits.
//!
//! Sources: Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", arXiv 2401.15077; Li
//! et al. 2025, "EAGLE-3", arXiv 2503.01840; Cai et al. 2024, "Medusa", arXiv 2401.10774. Names and layouts of tensors
//! are those of the repositories SafeAILab/EAGLE and FasterDecoding/Medusa, and of vLLM's `llama_eagle.py` and
//! `llama_eagle3.py`.

mod config;
mod eagle;
mod error;
mod medusa;
mod vocabulary;

use std::path::Path;

use l1_tensor::Runtime;

pub use eagle::{EagleHead, EagleKind, EagleWorkspace, Hidden};
pub use error::DraftHeadError;
pub use medusa::{MedusaHead, MedusaWorkspace};

use eagle::EagleFiles;
use medusa::MedusaFiles;

use crate::{Decoder, ModelConfig, Result, Tap};

/// A draft head of any kind, loaded for one target.
// There is one of these for each engine; the difference in size costs nothing.
#[allow(clippy::large_enum_variant)]
pub enum DraftHead {
    /// EAGLE-1 or EAGLE-3.
    Eagle(EagleHead),
    /// Medusa.
    Medusa(MedusaHead),
}

/// Kind of a draft head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftHeadKind {
    /// An EAGLE head.
    Eagle(EagleKind),
    /// Medusa heads: their number.
    Medusa(usize),
}

impl DraftHeadKind {
    /// Kind of the head in a Hugging Face directory, which is checked as [`DraftHead::open`] does, without reading its
    /// weights. `target`: config of the model that the head is for.
    ///
    /// # Errors
    /// As [`DraftHead::open`].
    pub fn of(path: &Path, target: &ModelConfig) -> Result<Self> {
        Ok(if is_medusa(path)? {
            Self::Medusa(MedusaFiles::open(path, target)?.heads)
        } else {
            Self::Eagle(EagleFiles::open(path, target)?.kind())
        })
    }
}

/// Whether the directory has Medusa heads.
fn is_medusa(path: &Path) -> Result<bool> {
    Ok(config::read(path)?.get(config::MEDUSA_HEADS).is_some())
}

impl DraftHead {
    /// Kind of the head.
    pub fn kind(&self) -> DraftHeadKind {
        match self {
            Self::Eagle(head) => DraftHeadKind::Eagle(head.kind()),
            Self::Medusa(heads) => DraftHeadKind::Medusa(heads.heads()),
        }
    }

    /// Loads the head in a Hugging Face directory for `target`. A `config.json` with `medusa_num_heads` belongs to a
    /// Medusa head; EAGLE-1 and EAGLE-3 are told apart by their tensors.
    ///
    /// # Errors
    /// As [`EagleHead::open`] and [`MedusaHead::open`].
    pub fn open(rt: &Runtime, path: &Path, target: &Decoder) -> Result<Self> {
        Ok(if is_medusa(path)? {
            Self::Medusa(MedusaHead::open(rt, path, target)?)
        } else {
            Self::Eagle(EagleHead::open(rt, path, target)?)
        })
    }

    /// Taps of the target whose rows the head reads, for [`Batch::taps`](crate::Batch::taps).
    pub fn taps(&self) -> &[Tap] {
        match self {
            Self::Eagle(head) => head.taps(),
            Self::Medusa(head) => head.taps(),
        }
    }

    /// Size of the head's own weights in memory, in bytes, without what it shares with the target.
    pub fn weight_bytes(&self) -> usize {
        match self {
            Self::Eagle(head) => head.weight_bytes(),
            Self::Medusa(head) => head.weight_bytes(),
        }
    }
}

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
//! the target what the checkpoint does not have: the embedding and the output projection. [`DraftHeadFiles`] is the
//! same in two parts, for a caller that has more to check before weights are read. Layers run through the decoder's own
//! code, and keys and values go through [`SequenceState`](crate::SequenceState), so a head's KV cache is contiguous or
//! paged as the target's is.
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

/// Files of a draft head of any kind, opened and checked. No weights are read.
pub struct DraftHeadFiles(Files);

enum Files {
    Eagle(Box<EagleFiles>),
    Medusa(MedusaFiles),
}

impl DraftHeadFiles {
    /// Opens the head in a Hugging Face directory, and checks that it was made for a model of config `target`. A
    /// `config.json` with `medusa_num_heads` belongs to a Medusa head; EAGLE-1 and EAGLE-3 are told apart by their
    /// tensors.
    ///
    /// # Errors
    /// As [`EagleHead::open`] and [`MedusaHead::open`].
    pub fn open(path: &Path, target: &ModelConfig) -> Result<Self> {
        let config = config::read(path)?;
        Ok(Self(if config.get(config::MEDUSA_HEADS).is_some() {
            Files::Medusa(MedusaFiles::open(path, &config, target)?)
        } else {
            Files::Eagle(Box::new(EagleFiles::open(path, &config, target)?))
        }))
    }

    /// Kind of the head.
    pub fn kind(&self) -> DraftHeadKind {
        match &self.0 {
            Files::Eagle(files) => DraftHeadKind::Eagle(files.kind()),
            Files::Medusa(files) => DraftHeadKind::Medusa(files.heads),
        }
    }

    /// Loads the weights. `target` is the model of the config that the files were opened for.
    ///
    /// # Errors
    /// Errors of the checkpoint and of the runtime's device.
    pub fn load(self, rt: &Runtime, target: &Decoder) -> Result<DraftHead> {
        Ok(match self.0 {
            Files::Eagle(files) => DraftHead::Eagle(files.load(rt, target)?),
            Files::Medusa(files) => DraftHead::Medusa(files.load(rt, target)?),
        })
    }
}

impl DraftHead {
    /// Opens the [files](DraftHeadFiles::open) of a head, and [loads](DraftHeadFiles::load) it for `target`.
    ///
    /// # Errors
    /// As [`DraftHeadFiles::open`] and [`DraftHeadFiles::load`].
    pub fn open(rt: &Runtime, path: &Path, target: &Decoder) -> Result<Self> {
        DraftHeadFiles::open(path, target.config())?.load(rt, target)
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

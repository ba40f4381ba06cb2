//! The drafter of an engine, from its configuration.

use std::path::Path;

use l2_model::draft_head::DraftHead;
use l2_model::tokenizer::Tokenizer;
use l2_model::{ModelConfig, Tap};
use l3_paged_kv::sizing::Bytes;
use l4_sampler::draft::Drafter;

use super::{EngineModel, StartError};
use crate::SchedulerConfig;
use crate::speculation::{
    DraftMemory, DraftMethod, EagleDrafter, MedusaDrafter, ModelDrafter, SpeculationError,
    SpeculativeConfig, check_vocabulary,
};

/// A drafter, and what it reads of the model.
pub(super) struct DraftSource {
    pub drafter: Box<dyn Drafter>,
    pub taps: Vec<Tap>,
    /// Size of its weights and of its KV cache, in bytes.
    memory: Option<[usize; 2]>,
}

impl EngineModel {
    /// Creates the drafter of a configuration, for an engine of these limits. Returns it with a description.
    pub(super) fn drafter(
        &self,
        config: &SpeculativeConfig,
        limits: &SchedulerConfig,
    ) -> Result<(DraftSource, String), StartError> {
        config.validate()?;
        let mut what = format!("{}, at most {} drafts", config.method.name(), config.num_drafts());
        if config.draws() {
            what += ", drawn for requests that sample (a seed gives them no reproducible text)";
        }
        let path = config.model.as_deref().map(Path::new);
        let source = match (config.method, path) {
            (DraftMethod::DraftModel, Some(path)) => self.draft_model(path, limits)?,
            (DraftMethod::Eagle | DraftMethod::Eagle3 | DraftMethod::Medusa, Some(path)) => {
                self.draft_head(config, path, limits)?
            }
            _ => DraftSource { drafter: config.lookup()?, taps: Vec::new(), memory: None },
        };
        if let Some(memory) = source.memory {
            let [weights, kv] = memory.map(|bytes| Bytes(bytes as u64));
            what += &format!("; {weights} of weights, {kv} of KV cache");
        }
        Ok((source, what))
    }

    fn draft_model(
        &self,
        path: &Path,
        limits: &SchedulerConfig,
    ) -> Result<DraftSource, StartError> {
        let draft = Self::open_on(path, &self.rt)
            .map_err(|e| SpeculationError::unreadable_model(path, self.decoder.config(), e))?;
        check_vocabulary(draft.vocabulary(), self.vocabulary())?;
        let weights = draft.decoder.weight_bytes();
        let drafter = ModelDrafter::new(&self.rt, draft.decoder, memory(limits))?;
        let memory = Some([weights, drafter.kv_bytes()]);
        Ok(DraftSource { drafter: Box::new(drafter), taps: Vec::new(), memory })
    }

    /// What [`check_vocabulary`] compares.
    fn vocabulary(&self) -> (&ModelConfig, Option<&Tokenizer>) {
        (self.decoder.config(), self.tokenizer.as_ref())
    }

    fn draft_head(
        &self,
        config: &SpeculativeConfig,
        path: &Path,
        limits: &SchedulerConfig,
    ) -> Result<DraftSource, StartError> {
        let files = config.open_head(path, self.decoder.config())?;
        let head = files
            .load(&self.rt, &self.decoder)
            .map_err(|e| SpeculationError::unreadable_head(path, e))?;
        let taps = head.taps().to_vec();
        let weights = head.weight_bytes();
        let (drafter, kv): (Box<dyn Drafter>, usize) = match head {
            DraftHead::Eagle(head) => {
                let max_tokens = limits.max_num_batched_tokens.max(limits.max_num_seqs);
                let drafter = EagleDrafter::new(&self.rt, head, memory(limits), max_tokens)?;
                let kv = drafter.kv_bytes();
                (Box::new(drafter), kv)
            }
            DraftHead::Medusa(heads) => {
                let hidden = self.decoder.config().hidden;
                (Box::new(MedusaDrafter::new(&self.rt, heads, hidden, limits.max_num_seqs)?), 0)
            }
        };
        Ok(DraftSource { drafter, taps, memory: Some([weights, kv]) })
    }
}

/// Memory of a drafter's own KV cache: as many tokens as the pool of the model itself has.
fn memory(limits: &SchedulerConfig) -> DraftMemory {
    DraftMemory {
        seqs: limits.max_num_seqs,
        max_len: limits.max_model_len,
        blocks: limits.num_gpu_blocks,
        block_size: limits.block_size,
    }
}

//! The drafter of an engine, from its configuration.

use std::path::Path;

use l2_model::Tap;
use l2_model::draft_head::{DraftHead, EagleKind};
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
}

impl EngineModel {
    /// Creates the drafter of a configuration, for an engine of these limits. Returns it with a description.
    pub(super) fn drafter(
        &self,
        config: &SpeculativeConfig,
        limits: &SchedulerConfig,
    ) -> Result<(DraftSource, String), StartError> {
        config.validate()?;
        let what = format!("{}, at most {} drafts", config.method.name(), config.num_drafts());
        let path = config.model.as_deref().map(Path::new);
        let source = match (config.method, path) {
            (DraftMethod::DraftModel, Some(path)) => self.draft_model(path, limits)?,
            (DraftMethod::Eagle | DraftMethod::Eagle3 | DraftMethod::Medusa, Some(path)) => {
                self.draft_head(config, path, limits)?
            }
            _ => DraftSource { drafter: config.lookup()?, taps: Vec::new() },
        };
        Ok((source, what))
    }

    fn draft_model(
        &self,
        path: &Path,
        limits: &SchedulerConfig,
    ) -> Result<DraftSource, StartError> {
        let draft = Self::open_on(path, &self.rt)?;
        let facts = |model: &Self| (model.decoder.config().vocab, model.tokenizer.clone());
        let (own, target) = (facts(&draft), facts(self));
        check_vocabulary((own.0, own.1.as_ref()), (target.0, target.1.as_ref()))?;
        let drafter = ModelDrafter::new(&self.rt, draft.decoder, memory(limits))?;
        Ok(DraftSource { drafter: Box::new(drafter), taps: Vec::new() })
    }

    fn draft_head(
        &self,
        config: &SpeculativeConfig,
        path: &Path,
        limits: &SchedulerConfig,
    ) -> Result<DraftSource, StartError> {
        let head = DraftHead::open(&self.rt, path, &self.decoder)?;
        let taps = head.taps().to_vec();
        let found = match &head {
            DraftHead::Eagle(head) if head.kind() == EagleKind::Eagle1 => DraftMethod::Eagle,
            DraftHead::Eagle(_) => DraftMethod::Eagle3,
            DraftHead::Medusa(_) => DraftMethod::Medusa,
        };
        let unfit = |why: String| StartError::Speculation(SpeculationError::Head(why));
        if found != config.method {
            let (found, method) = (found.name(), config.method.name());
            return Err(unfit(format!(
                "{} is of method {found}, and the method is {method}: set method to {found}",
                path.display()
            )));
        }
        let drafter: Box<dyn Drafter> = match head {
            DraftHead::Eagle(head) => {
                let max_tokens = limits.max_num_batched_tokens.max(limits.max_num_seqs);
                Box::new(EagleDrafter::new(&self.rt, head, memory(limits), max_tokens)?)
            }
            DraftHead::Medusa(heads) => {
                let (most, wanted) = (heads.heads(), config.num_drafts());
                if wanted > most {
                    return Err(unfit(format!(
                        "{} has {most} heads, one for each draft: set num_speculative_tokens to at most {most}, got \
                         {wanted}",
                        path.display()
                    )));
                }
                let hidden = self.decoder.config().hidden;
                Box::new(MedusaDrafter::new(&self.rt, heads, hidden, limits.max_num_seqs)?)
            }
        };
        Ok(DraftSource { drafter, taps })
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

//! Metrics of speculation, under vLLM's names. An engine that does not speculate has none of them.

use l5_scheduler::{Scheduler, SchedulerConfig, SchedulerStats};

use super::registry::{Counter, Registry};
use super::state::Speculation;

/// Metrics of the drafts of one engine. Those of shadows count: drafts take part of a step.
#[derive(Debug)]
pub struct SpeculationFamilies {
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    cut_tokens: Counter,
    /// By the position of a draft in its row.
    accepted_at: Vec<Counter>,
}

impl SpeculationFamilies {
    /// Registers all of them, at 0. `None`: the engine does not speculate.
    pub fn new(
        registry: &Registry,
        model: &str,
        engine: &str,
        config: &SchedulerConfig,
    ) -> Option<Self> {
        let own: &[(&str, &str)] = &[("model_name", model), ("engine", engine)];
        let counter = |name, help| registry.counter(name, help, own);
        let accepted_at = |position: usize| {
            let position = position.to_string();
            let labels = [("model_name", model), ("engine", engine), ("position", &*position)];
            let help =
                "Number of accepted draft tokens, by position: 0 for the first one of a draft.";
            registry.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total", help, &labels)
        };
        (config.num_speculative_tokens > 0).then(|| Self {
            drafts: counter(
                "vllm:spec_decode_num_drafts_total",
                "Number of drafts: each is one or more tokens that a step verified for a request.",
            ),
            draft_tokens: counter(
                "vllm:spec_decode_num_draft_tokens_total",
                "Number of draft tokens that steps verified.",
            ),
            accepted_tokens: counter(
                "vllm:spec_decode_num_accepted_tokens_total",
                "Number of draft tokens that were accepted: they became tokens of an output.",
            ),
            cut_tokens: counter(
                "strata:spec_decode_num_cut_draft_tokens_total",
                "Number of draft tokens that were proposed and not verified, because the step had no tokens or no KV \
                 blocks left for them.",
            ),
            accepted_at: (0..config.num_speculative_tokens).map(accepted_at).collect(),
        })
    }

    /// Sets all of them to what the scheduler has counted.
    pub fn set(&self, scheduler: &Scheduler) {
        let SchedulerStats {
            drafted_rows, draft_tokens, accepted_tokens, cut_draft_tokens, ..
        } = scheduler.stats();
        let own = [
            (&self.drafts, drafted_rows),
            (&self.draft_tokens, draft_tokens),
            (&self.accepted_tokens, accepted_tokens),
            (&self.cut_tokens, cut_draft_tokens),
        ];
        let by_position = scheduler.accepted_by_position().iter().copied();
        for (counter, count) in own.into_iter().chain(self.accepted_at.iter().zip(by_position)) {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// Adds them to those of other replicas.
    pub fn add_to(&self, sum: &mut Speculation) {
        sum.drafts += self.drafts.get();
        sum.draft_tokens += self.draft_tokens.get();
        sum.accepted_tokens += self.accepted_tokens.get();
    }
}

//! What an ensemble reports at its start: each model once, and a line for each lane.

use l5_scheduler::Engine;
use l6_ensemble::{EnsembleConfig, SpecialistConfig};
use server::model::GenerationDefaults;

use super::start::{LOG, log_sampling};
use server::words::count;

/// Phases of an engine's start that are about the model, not about one engine of it.
const OF_THE_MODEL: [&str; 4] = ["device", "runner", "weights", "kv"];

/// Reports a model, by the first engine that has it; `None`: only other machines have its weights.
pub fn model(name: &str, engine: Option<&Engine>, defaults: &GenerationDefaults) {
    let steps = engine.map(|engine| engine.startup().steps.as_slice()).unwrap_or_default();
    let phases = OF_THE_MODEL.iter().filter_map(|phase| {
        let step = steps.iter().find(|step| step.name == *phase)?;
        Some(format!("{phase} {}", step.what.lines().next()?.trim()))
    });
    let mut parts: Vec<String> = phases.collect();
    if parts.is_empty() {
        parts.push("no weights are read here".to_owned());
    }
    tracing::info!(target: LOG, "model {name}: {}", parts.join("; "));
    log_sampling(&format!("model {name}: "), defaults);
}

/// Reports a lane: its engines here, its remotes, and what serves in its place.
pub fn lane(own: &SpecialistConfig, engines: &[Engine]) {
    let mut parts = vec![format!("model {}", own.model)];
    if own.replicas > 0
        && let Some(first) = engines.first()
    {
        let config = first.handle().config();
        // Block 0 is never handed out.
        let tokens = config.num_gpu_blocks.saturating_sub(1) * config.block_size;
        parts.push(format!(
            "{} with {tokens} tokens of KV cache in blocks of {}, max_num_seqs {}, \
             max_num_batched_tokens {}, max_model_len {}",
            count(own.replicas, "engine"),
            config.block_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.max_model_len
        ));
        let drafter = first.startup().steps.iter().find(|step| step.name == "drafter");
        parts.extend(drafter.map(|step| format!("drafter {}", step.what)));
    }
    if !own.remotes.is_empty() {
        let urls: Vec<&str> = own.remotes.iter().map(|remote| remote.url.as_str()).collect();
        parts.push(format!("remotes {}", urls.join(" ")));
    }
    parts.push(own.policy.to_string());
    parts.push(format!("fallback {}", own.fallback.as_deref().unwrap_or("none")));
    tracing::info!(target: LOG, "lane {}: {}", own.name, parts.join("; "));
}

/// Reports the router, and what serves requests that fit no class.
pub fn router(config: &EnsembleConfig) {
    let rejected = "none: such requests are rejected";
    tracing::info!(
        target: LOG,
        "ensemble {}: {}; classifier {}, min_score {}; fallback of requests that fit no class {}",
        config.name,
        count(config.specialists.len(), "specialist"),
        config.router.classifier,
        config.router.min_score,
        config.fallback.as_deref().unwrap_or(rejected)
    );
}

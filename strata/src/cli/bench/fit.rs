//! `strata bench --fit-cost FILE`: fits the cost model of a step for `strata simulate`.
//!
//! Real steps of the engine are measured, from planning to the last token: prompts of several lengths, a piece at a
//! time, and steps that only decode, of several widths over several lengths of context. Four coefficients are fitted to
//! them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{
    ChoiceJob, CostModel, EngineCore, Fit, ModelRunner, OutputEnd, OutputSink, RequestId,
    Scheduler, SchedulerConfig, StepLoad, StepObserver, StepResult, StepView, TokenDelta,
};

use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::kv::KvArgs;
use crate::cli::load::Loaded;
use crate::cli::out;
use server::words::count;

/// Numbers of concurrent requests and of tokens of their prompts.
const GRID: [(usize, usize); 10] = [
    (1, 16),
    (1, 128),
    (1, 1024),
    (4, 64),
    (4, 512),
    (8, 16),
    (8, 256),
    (16, 128),
    (32, 16),
    (32, 96),
];

/// Tokens of every completion.
const ANSWER: usize = 12;

/// Maximum number of tokens of a step: long prompts are computed in chunks, over contexts of several lengths.
const STEP_TOKENS: usize = 256;

/// Measures, fits, writes the model and prints how well it fits.
///
/// # Errors
/// No memory, a model that fails, a file that cannot be written.
pub fn run(
    loaded: Loaded,
    kv: &KvArgs,
    file: &Path,
    eager: bool,
    context: &Context,
) -> anyhow::Result<()> {
    let Loaded { rt, decoder, .. } = loaded;
    let spec = kv.spec(decoder.config(), &rt)?;
    let longest = GRID.iter().map(|(_, prompt)| prompt + ANSWER).max().unwrap_or(0) + 1;
    let room = decoder.config().max_context;
    ensure!(
        longest <= room,
        "prompts have up to {longest} tokens, but the context of this model holds {room}"
    );
    let blocks =
        GRID.iter().map(|(n, prompt)| n * (prompt + ANSWER).div_ceil(kv.blocks.block_size));
    let config = SchedulerConfig {
        max_num_seqs: 32,
        max_num_batched_tokens: STEP_TOKENS,
        max_model_len: longest,
        enable_prefix_caching: false,
        ..SchedulerConfig::new(blocks.max().unwrap_or(0) + 1, kv.blocks.block_size)
    };
    let vocab = decoder.config().vocab;
    let mut runner = ModelRunner::new(Arc::new(decoder), None, &rt, &config, spec.dtype())?;
    if !eager {
        runner.capture()?;
    }
    let mut core = EngineCore::new(Scheduler::new(config)?, runner);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut next = 0;
    // The first requests only wake threads and touch memory.
    for (n, (requests, prompt)) in [GRID[1]].into_iter().chain(GRID).enumerate() {
        context.say(format_args!(
            "measuring {} of {}",
            count(requests, "request"),
            count(prompt, "token")
        ));
        for _ in 0..requests {
            let id = RequestId(next);
            next += 1;
            let job = job(next as usize, prompt, vocab);
            core.add_request(job.request(id, core.now()), job)?;
        }
        if n == 1 {
            core.set_observer(Some(Box::new(Watch { load: None, seen: seen.clone() })));
        }
        while core.has_unfinished() {
            core.step()?;
        }
    }
    let steps = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let fit = CostModel::fit(&steps, spec.bytes_per_token() as f64)
        .context("the steps took less time than this machine's clock can measure")?;
    let json = serde_json::to_string_pretty(&fit.cost)? + "\n";
    std::fs::write(file, json)
        .map_err(|reason| CliError::Output { path: file.to_owned(), reason })?;
    out::text(&describe(&fit))?;
    Ok(())
}

fn describe(fit: &Fit) -> String {
    let c = &fit.cost;
    format!(
        "base               {:>9.3} ms per step\n\
         per_prefill_token  {:>9.3} ms\n\
         per_decode_token   {:>9.3} ms\n\
         per_kv_byte        {:>9.3} ms per MB ({:.0} bytes per token)\n\
         {} steps, error {:.1}% (root mean square)\n",
        c.base * 1e3,
        c.per_prefill_token * 1e3,
        c.per_decode_token * 1e3,
        c.per_kv_byte * 1e9,
        c.kv_bytes_per_token,
        fit.steps,
        100.0 * fit.error
    )
}

/// A prompt of synthetic tokens, and a completion that does not end early.
fn job(seed: usize, prompt: usize, vocab: usize) -> ChoiceJob {
    let stop = StopRules { max_tokens: ANSWER, ignore_eos: true, ..StopRules::default() };
    let token = |i: usize| ((seed * 7919 + i * 104_729) % vocab) as u32;
    let prompt: Vec<u32> = (0..prompt).map(token).collect();
    ChoiceJob::new(prompt, SamplingParams::greedy(), stop, Box::new(DiscardOutput))
}

/// Does not listen.
struct DiscardOutput;

impl OutputSink for DiscardOutput {
    fn push(&mut self, _: &TokenDelta<'_>) {}
    fn end(&mut self, _: &OutputEnd) {}
}

/// Notes what every step does and takes.
struct Watch {
    load: Option<StepLoad>,
    seen: Arc<Mutex<Vec<(StepLoad, f64)>>>,
}

impl StepObserver for Watch {
    fn planned(&mut self, step: &StepView<'_>, _: &Scheduler) {
        self.load = (!step.step().is_empty()).then(|| StepLoad::of(step.step()));
    }

    fn applied(&mut self, result: &StepResult, _: &Scheduler) {
        if let Some(load) = self.load.take() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push((load, result.phases.total().as_secs_f64()));
        }
    }
}

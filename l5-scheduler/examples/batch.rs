//! Three prompts through the loop, and what each step was made of:
//!
//! ```text
//! cargo run -p l5-scheduler --example batch
//! ```

use std::path::Path;
use std::sync::Arc;

use l1_tensor::{Runtime, RuntimeOptions};
use l2_model::ModelFiles;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{
    ChoiceJob, EngineCore, ModelRunner, OutputEnd, OutputSink, RequestId, Scheduler,
    SchedulerConfig, StepObserver, StepResult, StepView, Time, TokenDelta,
};

/// Prints what it hears.
struct Voice(char);

impl OutputSink for Voice {
    fn push(&mut self, news: &TokenDelta<'_>) {
        println!("      {} says {:?} {:?}", self.0, news.tokens, news.text);
    }

    fn end(&mut self, end: &OutputEnd) {
        println!("      {} is done: {}", self.0, end.finish);
    }
}

/// Prints what is planned.
struct Steps;

impl StepObserver for Steps {
    fn planned(&mut self, step: &StepView<'_>, scheduler: &Scheduler) {
        let free = scheduler.blocks().num_free();
        let rows: Vec<_> = step.rows().map(|row| (row.row.id.0, row.row.len)).collect();
        println!("step {}: (request, tokens) {rows:?}, {free} blocks free", step.step().number);
    }

    fn applied(&mut self, _result: &StepResult, _scheduler: &Scheduler) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let rt = Runtime::new(RuntimeOptions::default())?;
    let files = ModelFiles::open(&path)?;
    let (decoder, tokenizer) = (Arc::new(files.decoder(&rt)?), files.tokenizer()?);
    // Prompts in pieces of 6, so that a long one does not keep the others waiting.
    let config = SchedulerConfig {
        long_prefill_token_threshold: 6,
        max_model_len: 64,
        ..SchedulerConfig::new(32, 4)
    };
    let dtype = rt.activation_dtype();
    let runner = ModelRunner::new(decoder, Some(tokenizer), &rt, &config, dtype)?;
    let mut core = EngineCore::new(Scheduler::new(config)?, runner);
    core.set_observer(Some(Box::new(Steps)));
    for (id, (name, len)) in [('A', 5), ('B', 16), ('C', 2)].into_iter().enumerate() {
        let prompt: Vec<u32> = (0..len).map(|i| 10 * (id as u32 + 1) + i).collect();
        let stop = StopRules { max_tokens: 4, ..StopRules::default() };
        let job = ChoiceJob::new(prompt, SamplingParams::greedy(), stop, Box::new(Voice(name)));
        core.add_request(job.request(RequestId(id as u64), Time(0.0)), job)?;
    }
    while core.has_unfinished() {
        core.step()?;
    }
    Ok(())
}

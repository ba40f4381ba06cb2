//! SmolLM2-135M-Instruct: thirty-two real prompts at once, over a pool that is too small for them, each answered to the
//! last bit as it is alone.
//!
//! This test needs the model's file: `cargo x test --full` fetches it and names it in `STRATA_SMOLLM2`. Without that
//! variable it says so and passes.

#[path = "../../l2-model/tests/support/smollm2.rs"]
mod real;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::sync::{Arc, Mutex};

use l1_tensor::{Precision, Runtime};
use l2_model::chat_template::Message;
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, ModelFiles, chat_template};
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams, TokenLogprobs};
use l5_scheduler::{
    ChoiceJob, EngineCore, ModelRunner, OutputEnd, OutputSink, RequestId, Scheduler,
    SchedulerConfig, StepObserver, StepResult, StepView, Time, TokenDelta,
};
use runtime::runtime;
use serde_json::Map;

const MAX_LEN: usize = 512;
const ASKED: [&str; 8] = [
    "Name three rivers of Europe.",
    "What is the capital of Norway, and how many people live there?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "Translate to French: good morning, how are you?",
    "What is seventeen times twenty-three? Think about it step by step.",
    "List the planets of the solar system in the order of their distance from the sun.",
    "Give me a recipe for a simple soup with potatoes, leeks and a little cream.",
];
const BEFORE: &str = "You are a patient teacher. You answer in plain words, you never guess, and where something \
                      is not known you say so. You know that the reader is learning, and you give an example wherever \
                      one helps. Keep it short, please, and be kind.";

#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    end: Option<OutputEnd>,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Told>>);

impl OutputSink for Ear {
    fn push(&mut self, news: &TokenDelta<'_>) {
        let mut told = self.0.lock().unwrap();
        told.tokens.extend_from_slice(news.tokens);
        told.text.push_str(news.text);
        told.logprobs.extend_from_slice(news.logprobs);
    }

    fn end(&mut self, end: &OutputEnd) {
        self.0.lock().unwrap().end = Some(end.clone());
    }
}

struct SmolLm2 {
    rt: Runtime,
    decoder: Arc<Decoder>,
    tokenizer: Tokenizer,
    ends: Vec<u32>,
}

impl SmolLm2 {
    fn core(&self, config: SchedulerConfig) -> EngineCore<ModelRunner> {
        let (decoder, tokenizer) = (Arc::clone(&self.decoder), Some(self.tokenizer.clone()));
        let dtype = self.rt.activation_dtype();
        let runner = ModelRunner::new(decoder, tokenizer, &self.rt, &config, dtype).unwrap();
        EngineCore::new(Scheduler::new(config).unwrap(), runner)
    }

    /// The `i`-th of many requests: short ones and long ones, some that begin alike, some drawn.
    fn job(&self, i: usize, ear: &Ear) -> ChoiceJob {
        let asked = Message::new("user", ASKED[i % ASKED.len()]);
        let template = chat_template(&self.tokenizer).unwrap().unwrap();
        let messages = match i / ASKED.len() {
            0 => vec![asked],
            1 => vec![Message::new("system", BEFORE), asked],
            2 => vec![Message::new("system", &BEFORE.repeat(3)), asked],
            _ => vec![Message::new("system", &format!("Speaker {i}. {BEFORE}")), asked],
        };
        let rendered = template.render(&messages, true, &Map::new()).unwrap();
        let prompt = self.tokenizer.encode(&rendered, false).unwrap();
        let logprobs = Some(LogprobsRequest { top: 2, of: LogprobsOf::Raw });
        let params = match i % 3 {
            0 => SamplingParams { logprobs, ..SamplingParams::greedy() },
            1 => SamplingParams { logprobs, temperature: 0.8, top_p: 0.95, ..Default::default() },
            _ => SamplingParams {
                logprobs,
                repetition_penalty: 1.1,
                top_k: 40,
                ..Default::default()
            },
        };
        let max_tokens = 12 + 5 * (i % 7);
        let stop = StopRules { eos: self.ends.clone(), max_tokens, ..StopRules::default() };
        let job = ChoiceJob::new(prompt, params, stop, Box::new(ear.clone()));
        ChoiceJob { seed: i as u64, ..job }
    }
}

/// Counts steps in which somebody's prompt and somebody's answer are computed together.
#[derive(Clone, Default)]
struct Mixed(Arc<Mutex<usize>>);

impl StepObserver for Mixed {
    fn planned(&mut self, step: &StepView<'_>, _scheduler: &Scheduler) {
        let rows = &step.step().rows;
        let prefill = rows.iter().any(|row| row.len > 1);
        let decode = rows.iter().any(|row| row.len == 1 && row.computed > 0);
        *self.0.lock().unwrap() += usize::from(prefill && decode);
    }

    fn applied(&mut self, _result: &StepResult, _scheduler: &Scheduler) {}
}

#[test]
fn thirty_two_real_prompts_at_once_are_each_answered_as_alone() {
    let Some(path) = real::file() else { return };
    let rt = runtime(Precision::Bf16, 2);
    let files = ModelFiles::open(&path).unwrap();
    let (decoder, tokenizer) = files.decoder_and_tokenizer(&rt);
    let (decoder, tokenizer) = (Arc::new(decoder.unwrap()), tokenizer.unwrap());
    let model = SmolLm2 { rt, decoder, tokenizer, ends: files.stop_tokens().to_vec() };
    let config = SchedulerConfig {
        max_num_seqs: 32,
        max_num_batched_tokens: 256,
        long_prefill_token_threshold: 96,
        max_model_len: MAX_LEN,
        ..SchedulerConfig::new(128, 16)
    };
    let run = |core: &mut EngineCore<ModelRunner>, jobs: Vec<(usize, ChoiceJob)>| {
        for (i, job) in jobs {
            core.add_request(job.request(RequestId(i as u64), Time(i as f64)), job).unwrap();
        }
        while core.has_unfinished() {
            core.step().unwrap();
        }
    };
    let mixed = Mixed::default();
    let ears: Vec<_> = (0..32).map(|_| Ear::default()).collect();
    let jobs = ears.iter().enumerate().map(|(i, ear)| (i, model.job(i, ear))).collect();
    let mut core = model.core(SchedulerConfig { num_gpu_blocks: 90, ..config.clone() });
    core.set_observer(Some(Box::new(mixed.clone())));
    run(&mut core, jobs);
    let stats = core.scheduler().stats();
    assert!(stats.preemptions > 0, "a pool that is too small: {stats:?}");
    assert!(stats.cached_tokens > 0, "prompts that begin alike: {stats:?}");
    assert!(*mixed.0.lock().unwrap() > 0, "steps with a prefill and a decode");
    // Alone: nothing of anybody else is cached.
    for (i, ear) in ears.iter().enumerate() {
        let alone = Ear::default();
        let whole = SchedulerConfig {
            long_prefill_token_threshold: 0,
            max_num_batched_tokens: MAX_LEN,
            enable_prefix_caching: false,
            ..config.clone()
        };
        run(&mut model.core(whole), vec![(i, model.job(i, &alone))]);
        let (together, alone) = (ear.0.lock().unwrap(), alone.0.lock().unwrap());
        assert!(!alone.tokens.is_empty(), "request {i} has an answer");
        assert_eq!(
            together.tokens, alone.tokens,
            "tokens of request {i}, with the others and alone"
        );
        assert_eq!(together.logprobs, alone.logprobs, "log probabilities of request {i}");
        assert_eq!(*together, *alone, "request {i}");
    }
}

//! What speculation gains and costs: SmolLM2-135M-Instruct with drafts and without, alternated in one run.
//!
//! ```text
//! STRATA_SMOLLM2=SmolLM2-135M-Instruct.Q4_1.gguf cargo bench -p l5-scheduler --bench speculation [-- FILTER]
//! ```
//!
//! `STRATA_SMOLLM2_EAGLE=DIR` adds a variant with the EAGLE head in that directory.
//!
//! A workload is a queue of requests for so many seats: when one ends, the next one begins. Prompts are computed within
//! the measured time, as in a server. Each round runs all variants, each with a new engine. There are two ratios to the
//! variant without drafts, both the median of the rounds: of the output tokens a second of the whole run, and of those
//! of the steps without prompts, since drafts speed up decoding only. Outputs are compared: they must be equal.

mod texts;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use l1_tensor::RuntimeOptions;
use l2_model::chat_template;
use l2_model::chat_template::Message;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::{EngineModel, EngineOptions};
use l5_scheduler::speculation::SpeculativeConfig;
use l5_scheduler::{
    ChoiceJob, EngineCore, ModelRunner, OutputEnd, OutputSink, RequestId, TokenDelta,
};

const ROUNDS: usize = 3;
const MAX_TOKENS: usize = 128;
const NGRAM: &str = r#"{"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 5}"#;
const SUFFIX: &str = r#"{"method": "suffix", "num_speculative_tokens": 16}"#;

/// Keeps the tokens.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u32>>>);

impl OutputSink for Sink {
    fn push(&mut self, delta: &TokenDelta<'_>) {
        self.0.lock().unwrap().extend_from_slice(delta.tokens);
    }

    fn end(&mut self, _: &OutputEnd) {}
}

/// A request.
#[derive(Clone)]
struct Ask {
    prompt: Vec<u32>,
    params: SamplingParams,
}

/// Requests, and how many of them run at once.
struct Workload {
    name: String,
    seats: usize,
    asks: Vec<Ask>,
}

/// What a run of a workload took.
#[derive(Default)]
struct Run {
    time: Duration,
    tokens: usize,
    /// Of the steps without prompts.
    decode_time: Duration,
    decode_tokens: usize,
    steps: u64,
    drafts: u64,
    accepted: u64,
    outputs: Vec<Vec<u32>>,
}

impl Run {
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64()
    }

    /// Tokens a second of the steps without prompts.
    fn decode_rate(&self) -> f64 {
        self.decode_tokens as f64 / self.decode_time.as_secs_f64()
    }
}

fn run(mut core: EngineCore<ModelRunner>, workload: &Workload) -> Run {
    let sinks: Vec<Sink> = workload.asks.iter().map(|_| Sink::default()).collect();
    for (i, (ask, sink)) in workload.asks.iter().zip(&sinks).enumerate() {
        let stop = StopRules { max_tokens: MAX_TOKENS, ignore_eos: true, ..StopRules::default() };
        let (prompt, params) = (ask.prompt.clone(), ask.params.clone());
        let job = ChoiceJob::new(prompt, params, stop, Box::new(sink.clone()));
        let job = ChoiceJob { seed: i as u64, ..job };
        let request = job.request(RequestId(i as u64), core.now());
        core.add_request(request, job).expect("a request that fits");
    }
    let (began, mut decode_time, mut decode_tokens) = (Instant::now(), Duration::ZERO, 0);
    while core.has_unfinished() {
        let step = Instant::now();
        let result = core.step().expect("a step");
        if result.scheduled_tokens == result.decode_rows + result.draft_tokens {
            decode_time += step.elapsed();
            decode_tokens += result.new_tokens().map(|(_, tokens)| tokens.len()).sum::<usize>();
        }
    }
    let (time, stats) = (began.elapsed(), core.scheduler().stats());
    let outputs: Vec<_> = sinks.iter().map(|sink| sink.0.lock().unwrap().clone()).collect();
    Run {
        time,
        tokens: outputs.iter().map(Vec::len).sum(),
        decode_time,
        decode_tokens,
        steps: stats.steps,
        drafts: stats.draft_tokens,
        accepted: stats.accepted_tokens,
        outputs,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn workloads(model: &EngineModel) -> Vec<Workload> {
    let tokenizer = model.tokenizer.as_ref().expect("a tokenizer");
    let template = chat_template(tokenizer).expect("a template").expect("a chat model");
    let greedy = |text: &str| {
        let rendered =
            template.render(&[Message::new("user", text)], true, &serde_json::Map::new());
        let prompt = tokenizer.encode(&rendered.expect("a prompt"), false).expect("tokens");
        Ask { prompt, params: SamplingParams::greedy() }
    };
    let batch = |kind: &str, size: usize| {
        let prompts = texts::prompts(kind);
        let of = |i: usize| Ask {
            params: match i / prompts.len() {
                0 => SamplingParams::greedy(),
                _ => SamplingParams { temperature: 0.6, ..SamplingParams::default() },
            },
            ..greedy(&prompts[i % prompts.len()])
        };
        (0..size).map(of).collect::<Vec<_>>()
    };
    let random = |size: usize| {
        let vocab = model.decoder.config().vocab as u32;
        let id = |i: usize, at: u32| (i as u32 * 7919 + at * 104_729 + 13) % vocab;
        let params = SamplingParams { temperature: 1.5, ..SamplingParams::default() };
        let of = |i| Ask { prompt: (0..64).map(|at| id(i, at)).collect(), params: params.clone() };
        (0..size).map(of).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    let mut add = |name: &str, seats, asks| {
        all.push(Workload { name: format!("{name}, {seats} at once"), seats, asks });
    };
    for kind in ["code", "summary"] {
        add(kind, 1, batch(kind, 4));
        add(kind, 8, batch(kind, 24));
    }
    for seats in [1, 2, 4, 8, 16, 32] {
        add("random", seats, random((2 * seats).max(4)));
    }
    add("agent", 1, texts::agent_steps(6).iter().map(|step| greedy(step)).collect());
    all
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let path = std::env::var_os("STRATA_SMOLLM2").filter(|path| !path.is_empty());
    let Some(path) = path.filter(|_| !arguments.iter().any(|argument| argument == "--test")) else {
        println!("STRATA_SMOLLM2 names no model: nothing to measure");
        return;
    };
    let model = EngineModel::open(path.as_ref(), RuntimeOptions::default()).expect("the model");
    let eagle = std::env::var("STRATA_SMOLLM2_EAGLE").ok().map(|head| {
        let model = serde_json::Value::from(head);
        format!(r#"{{"method": "eagle", "num_speculative_tokens": 4, "model": {model}}}"#)
    });
    let mut variants = vec![("off", None), ("ngram", Some(NGRAM)), ("suffix", Some(SUFFIX))];
    variants.extend(eagle.as_deref().map(|config| ("eagle", Some(config))));
    let engine = |config: Option<&str>, seats| {
        let speculative = config.map(|json| SpeculativeConfig::from_json(json).expect("a config"));
        let options = EngineOptions {
            speculative,
            max_num_seqs: seats,
            max_model_len: Some(2048),
            enable_prefix_caching: false,
            ..EngineOptions::default()
        };
        model.clone().core(&options).expect("an engine").0
    };
    println!(
        "{:<18} {:<8} {:>9} {:>7} {:>8} {:>8} {:>12} {:>10} {:>11}",
        "workload",
        "drafts",
        "tokens/s",
        "ratio",
        "decoding",
        "ms/step",
        "tokens/step",
        "accepted",
        "of drafts"
    );
    for workload in
        workloads(&model).iter().filter(|w| filter.is_none_or(|f| w.name.contains(f.as_str())))
    {
        let mut ratios = vec![(Vec::new(), Vec::new()); variants.len()];
        let mut last: Vec<Run> = Vec::new();
        for _ in 0..ROUNDS {
            // A new engine knows nothing of earlier rounds' outputs.
            let variants = variants.iter();
            last = variants
                .map(|(_, config)| run(engine(*config, workload.seats), workload))
                .collect();
            for ((whole, decoding), run) in ratios.iter_mut().zip(&last) {
                assert_eq!(run.outputs, last[0].outputs, "{}: outputs", workload.name);
                whole.push(run.rate() / last[0].rate());
                decoding.push(run.decode_rate() / last[0].decode_rate());
            }
        }
        for ((name, _), (run, (whole, decoding))) in variants.iter().zip(last.iter().zip(ratios)) {
            println!(
                "{:<18} {name:<8} {:>9.0} {:>7.3} {:>8.3} {:>8.1} {:>12.2} {:>10} {:>11}",
                workload.name,
                run.rate(),
                median(whole),
                median(decoding),
                1e3 * run.time.as_secs_f64() / run.steps as f64,
                run.tokens as f64 / run.steps as f64,
                run.accepted,
                run.drafts,
            );
        }
    }
}

//! The draft head for SmolLM2-135M-Instruct: its drafts are right as often as its model card says, and change no token.
//!
//! This test needs the model's file: `cargo x test --full` fetches it and names it in `STRATA_SMOLLM2`. Without that
//! variable it says so and passes.

#[path = "../../l2-model/tests/support/smollm2.rs"]
mod real;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::sync::{Arc, Mutex};

use l1_tensor::Precision;
use l2_model::chat_template;
use l2_model::chat_template::Message;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::{EngineModel, EngineOptions};
use l5_scheduler::speculation::{DraftMethod, SpeculativeConfig, WindowMode};
use l5_scheduler::{ChoiceJob, OutputEnd, OutputSink, RequestId, SchedulerStats, TokenDelta};
use runtime::runtime;

const HEAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/draft-heads/smollm2-eagle");
const ASKED: [&str; 4] = [
    "Name three rivers of Europe, and say where each of them ends.",
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the largest of three numbers.",
    "Summarise: the train was late because a tree had fallen on the track near the bridge.",
];

#[derive(Clone, Default)]
struct Tokens(Arc<Mutex<Vec<u32>>>);

impl OutputSink for Tokens {
    fn push(&mut self, delta: &TokenDelta<'_>) {
        self.0.lock().unwrap().extend_from_slice(delta.tokens);
    }

    fn end(&mut self, _: &OutputEnd) {}
}

fn outputs(
    model: &EngineModel,
    speculative: Option<SpeculativeConfig>,
) -> (Vec<Vec<u32>>, SchedulerStats) {
    let tokenizer = model.tokenizer.clone().unwrap();
    let template = chat_template(&tokenizer).unwrap().unwrap();
    let options = EngineOptions {
        speculative,
        max_model_len: Some(256),
        max_num_seqs: 4,
        ..EngineOptions::default()
    };
    let mut core = model.clone().core(&options).unwrap().0;
    let mut sinks = Vec::new();
    for (id, text) in ASKED.iter().enumerate() {
        let chat = [Message::new("user", text)];
        let rendered = template.render(&chat, true, &serde_json::Map::new()).unwrap();
        let prompt = tokenizer.encode(&rendered, false).unwrap();
        let stop = StopRules { max_tokens: 48, ignore_eos: true, ..StopRules::default() };
        let sink = Tokens::default();
        sinks.push(sink.clone());
        let job = ChoiceJob::new(prompt, SamplingParams::greedy(), stop, Box::new(sink));
        core.add_request(job.request(RequestId(id as u64), core.now()), job).unwrap();
    }
    while core.has_unfinished() {
        core.step().unwrap();
    }
    let tokens = sinks.iter().map(|sink| sink.0.lock().unwrap().clone()).collect();
    (tokens, core.scheduler().stats())
}

#[test]
fn the_head_for_smollm2_is_right_with_a_third_of_its_first_drafts() {
    let Some(path) = real::file() else { return };
    let rt = runtime(Precision::Bf16, 2);
    let model = EngineModel::open_on(&path, &rt).unwrap();
    let (want, _) = outputs(&model, None);
    let config = SpeculativeConfig {
        model: Some(HEAD.into()),
        window: WindowMode::Fixed,
        ..SpeculativeConfig::new(DraftMethod::Eagle, 1)
    };
    let (got, stats) = outputs(&model, Some(config));
    assert_eq!(got, want);
    let rate = stats.accepted_tokens as f64 / stats.draft_tokens as f64;
    println!("{stats:?}: {rate}");
    assert!(rate > 0.25, "{stats:?}");
}

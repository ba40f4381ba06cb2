//! An engine of one's own thread, on the device.

use std::sync::Arc;

use l1_tensor::Precision;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::{EngineModel, Startup};
use l5_scheduler::{Engine, EngineOptions, EngineRequest, FinishReason};

use crate::device;
use crate::support::prompt;
use crate::tiny::on;

fn start(eager: bool) -> Engine {
    let tiny = on("tiny-llama", device(Precision::F32, false));
    let model = EngineModel {
        rt: tiny.rt,
        decoder: Arc::clone(&tiny.decoder),
        tokenizer: Some(tiny.tokenizer),
        stop_tokens: tiny.ends,
        digest: None,
        startup: Startup::default(),
    };
    let options = EngineOptions {
        max_num_seqs: 3,
        max_num_batched_tokens: 32,
        max_model_len: Some(48),
        eager,
        ..EngineOptions::default()
    };
    Engine::new(model, &options).unwrap()
}

/// Two prompts, answered together.
fn answers(engine: &Engine) -> Vec<Vec<u32>> {
    let request = |which: u32| {
        let stop = StopRules { max_tokens: 6, ignore_eos: true, ..StopRules::default() };
        EngineRequest::new(prompt(which, 5), SamplingParams::greedy(), stop)
    };
    let answers = engine.handle().submit_all(vec![request(0), request(1)]).unwrap();
    let rest = answers.into_iter().map(|mut answer| answer.rest());
    rest.map(|piece| {
        assert_eq!(piece.end.unwrap().finish, FinishReason::Length);
        piece.tokens
    })
    .collect()
}

fn capture(engine: &Engine) -> &str {
    let steps = &engine.startup().steps;
    &steps.iter().find(|step| step.name == "capture").unwrap().what
}

#[test]
fn an_engine_says_what_it_captured_and_how_many_steps_were_replayed() {
    let (captures, eager) = (start(false), start(true));
    assert_eq!(capture(&captures), "decode steps of [1, 2, 3] rows");
    assert_eq!(capture(&eager), "none: every step is launched kernel by kernel (eager)");
    assert_eq!(captures.handle().load().replay_rate(), None, "no step yet");
    assert_eq!(answers(&captures), answers(&eager));
    captures.handle().drain().unwrap();
    eager.handle().drain().unwrap();
    let (load, none) = (captures.handle().load(), eager.handle().load());
    // One step for both prompts, five that only decode.
    assert_eq!((load.steps, load.replayed), (6, 5));
    assert_eq!(load.replay_rate(), Some(5.0 / 6.0));
    assert_eq!((none.steps, none.replayed), (6, 0));
    captures.shutdown().unwrap();
    eager.shutdown().unwrap();
}

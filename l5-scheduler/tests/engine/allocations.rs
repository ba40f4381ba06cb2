//! A steady step allocates nothing: not in the loop, not on the way to a reader.

use std::path::Path;
use std::sync::{Arc, Mutex};

use l1_tensor::RuntimeOptions;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::sim::{FakeModel, Script};
use l5_scheduler::{
    Engine, EngineCore, EngineOptions, EngineRequest, Executor, Request, RequestId, Resolved,
    Scheduler, SchedulerConfig, StepOutput, Time,
};

use crate::counting::{ALLOCATED, Watch};

#[test]
fn a_steady_decode_step_of_the_engine_allocates_nothing() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let options = EngineOptions { max_num_seqs: 4, ..EngineOptions::default() };
    let runtime = RuntimeOptions { threads: Some(1), ..RuntimeOptions::default() };
    let engine = Engine::open(&model, runtime, &options).unwrap();
    let counts = Arc::new(Mutex::new(Vec::with_capacity(1000)));
    engine.handle().observe(Box::new(Watch(counts.clone()))).unwrap();
    let stop = StopRules { max_tokens: 60, ignore_eos: true, ..StopRules::default() };
    let request = |i| {
        let params = SamplingParams { temperature: 0.8, top_p: 0.9, ..SamplingParams::default() };
        EngineRequest {
            seed: i,
            ..EngineRequest::new(vec![5, 6, 7, i as u32], params, stop.clone())
        }
    };
    // A first round makes room in what all requests share, such as for the longest word.
    for _ in 0..2 {
        let answers = engine.handle().submit_all((0..4).map(request).collect()).unwrap();
        for mut answering in answers {
            assert_eq!(answering.rest().tokens.len(), 60);
        }
    }
    engine.handle().drain().unwrap();
    let counts = counts.lock().unwrap().clone();
    assert_eq!(counts.len(), 120);
    // Steps 10 to 58 of the second: the first ones make room, the last one ends.
    let steady: Vec<usize> = counts[70..119].windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(steady, [0; 48], "allocations of each step");
}

/// Proposes two drafts for each request, of which the first is right.
struct HalfRight;

impl Script for HalfRight {
    fn token(&self, _: usize) -> Option<u32> {
        Some(7)
    }

    fn drafts(&self, _: usize, out: &mut Vec<u32>) {
        out.extend([7, 8]);
    }
}

#[test]
fn a_steady_step_with_drafts_allocates_nothing() {
    let limits = SchedulerConfig { max_num_seqs: 8, ..SchedulerConfig::new(1025, 16) };
    let config = SchedulerConfig { num_speculative_tokens: 2, ..limits };
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut model = FakeModel::default();
    for id in (0..8).map(RequestId) {
        let prompt = vec![id.0 as u32; 20];
        let request = Request { id, prompt, max_tokens: 1000, ..Request::default() };
        scheduler.add_request(request).unwrap();
        model.begin(id, HalfRight);
    }
    let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
    let mut step = || {
        let before = ALLOCATED.get();
        output.clear();
        let drafts = scheduler.plan(Time::ZERO).drafts();
        model.execute(&scheduler.view(), &mut output).unwrap();
        scheduler.resolve(&output, &mut resolved).unwrap();
        scheduler.apply(&resolved, Time::ZERO);
        (drafts, ALLOCATED.get() - before)
    };
    (0..20).for_each(|_| _ = step());
    // Blocks are taken and hashed on the way.
    for _ in 0..100 {
        assert_eq!(step(), (16, 0), "drafts and allocations of a step");
    }
}

#[test]
fn a_steady_step_that_is_planned_ahead_allocates_nothing() {
    let config = SchedulerConfig { max_num_seqs: 8, ..SchedulerConfig::new(1025, 16) };
    let mut core = EngineCore::new(Scheduler::new(config).unwrap(), FakeModel::default());
    assert!(core.set_async_scheduling(true));
    for id in (0..8).map(RequestId) {
        let prompt = vec![id.0 as u32; 20];
        let request = Request { id, prompt, max_tokens: 1000, ..Request::default() };
        core.add_request(request, vec![7; 1000]).unwrap();
    }
    let mut step = || {
        let before = ALLOCATED.get();
        core.step_at(Time::ZERO).unwrap();
        (core.is_running(), ALLOCATED.get() - before)
    };
    (0..20).for_each(|_| _ = step());
    for _ in 0..100 {
        assert_eq!(step(), (true, 0), "whether a step runs, and allocations");
    }
}

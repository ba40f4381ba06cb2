//! Counting a steady step allocates nothing.

use std::path::Path;
use std::sync::{Arc, Mutex};

use l1_tensor::RuntimeOptions;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{Engine, EngineOptions, EngineRequest};
use l6_ensemble::ReplicaId;
use server::metrics::{Metrics, SharedSlo};

use crate::counting::Watch;

#[test]
fn counting_a_steady_step_allocates_nothing() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let options = EngineOptions { max_num_seqs: 4, ..EngineOptions::default() };
    let runtime = RuntimeOptions { threads: Some(1), ..RuntimeOptions::default() };
    let engine = Engine::open(&model, runtime, &options).unwrap();
    let slo = SharedSlo::new(Default::default(), Default::default());
    let metrics = Metrics::default();
    let _lane = metrics.lane([(ReplicaId(0), engine.handle())], "tiny-llama", "f32", slo).unwrap();
    let counts = Arc::new(Mutex::new(Vec::with_capacity(1000)));
    engine.handle().observe(Box::new(Watch(counts.clone()))).unwrap();
    let stop = StopRules { max_tokens: 60, ignore_eos: true, ..StopRules::default() };
    let request = |i| EngineRequest::new(vec![5, 6, 7, i], SamplingParams::greedy(), stop.clone());
    // A first round makes room in what all requests share.
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

//! A steady step of plain answers allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::path::Path;
use std::sync::Arc;

use counting::fewest_allocations;
use l1_tensor::Precision;
use l2_model::ModelFiles;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::EngineRequest;
use l5_scheduler::engine::{EngineModel, EngineOptions, Startup};
use l5_scheduler::generate::{GenerateRequest, Generator};
use runtime::runtime;

/// What a request needs is taken at its beginning, so one of ninety steps takes memory as often as one of ten.
#[test]
fn a_steady_step_of_plain_answers_allocates_nothing() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let files = ModelFiles::open(&path).unwrap();
    for (threads, n) in [(1, 1), (2, 3)] {
        let rt = runtime(Precision::F32, threads);
        let model = EngineModel {
            decoder: Arc::new(files.decoder(&rt).unwrap()),
            rt,
            tokenizer: Some(files.tokenizer().unwrap()),
            stop_tokens: Vec::new(),
            digest: None,
            startup: Startup::default(),
        };
        for params in [
            SamplingParams::greedy(),
            SamplingParams { top_k: 50, top_p: 0.9, temperature: 0.8, ..SamplingParams::default() },
            SamplingParams {
                repetition_penalty: 1.2,
                frequency_penalty: 0.1,
                min_p: 0.01,
                ..SamplingParams::default()
            },
        ] {
            let options = EngineOptions {
                max_model_len: Some(128),
                max_num_seqs: n,
                ..EngineOptions::default()
            };
            let mut generator = Generator::open(model.clone(), &options).unwrap();
            let mut allocations = |max_tokens| {
                let stop = StopRules { max_tokens, ..StopRules::default() };
                let request = EngineRequest::new(vec![5, 17, 100, 3, 64], params.clone(), stop);
                let request = EngineRequest { seed: 3, ..request };
                let request = GenerateRequest { n, ..request.into() };
                fewest_allocations(5, || {
                    let generation = generator.run(&request, |_, _| true).unwrap();
                    assert!(generation.choices.iter().all(|c| c.tokens.len() == max_tokens));
                })
            };
            // The longest first: buffers that are kept grow once.
            let (long, short) = (allocations(91), allocations(11));
            assert!(short > 0, "the counter counts");
            // Texts differ, and with them how often a buffer of text grows. A step that allocates would do it eighty times.
            assert!(
                long < short + 10,
                "{long} and {short} allocations of {n} answers of 91 and of 11 tokens, {threads} threads, {params:?}"
            );
        }
    }
}

//! A recorded run of a real, tiny model.

use std::path::Path;
use std::sync::Arc;

use l1_tensor::{DType, Precision};
use l2_model::ModelFiles;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::trace::{Recorder, Summary};
use l5_scheduler::{
    ChoiceJob, EngineCore, ModelRunner, OutputEnd, OutputSink, RequestId, Scheduler, Time,
    TokenDelta,
};

use crate::runtime::runtime;
use crate::world::{File, run_of, small, steps};

/// Nobody listens.
struct Nobody;

impl OutputSink for Nobody {
    fn push(&mut self, _: &TokenDelta<'_>) {}
    fn end(&mut self, _: &OutputEnd) {}
}

#[test]
fn a_run_of_a_model_is_recorded_with_the_time_its_parts_took() {
    let rt = runtime(Precision::F32, 2);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let files = ModelFiles::open(&path).unwrap();
    let decoder = Arc::new(files.decoder_and_tokenizer(&rt).0.unwrap());
    let runner = ModelRunner::new(decoder, None, &rt, &small(), DType::F32).unwrap();
    let mut core = EngineCore::new(Scheduler::new(small()).unwrap(), runner);
    let file = File::default();
    let recorder = Recorder::new(file.clone());
    core.set_observer(Some(recorder.observer()));
    for id in 0..4u32 {
        let stop = StopRules { max_tokens: 4 + id as usize, ..StopRules::default() };
        let prompt: Vec<u32> = (0..5 + id).map(|i| 3 + 17 * id + i).collect();
        let job = ChoiceJob::new(prompt, SamplingParams::greedy(), stop, Box::new(Nobody));
        core.add_request(job.request(RequestId(u64::from(id)), Time::ZERO), job).unwrap();
    }
    let (mut told, mut tokens, mut ends) = (0, 0, 0);
    while core.has_unfinished() {
        let result = core.step().unwrap();
        told += 1;
        tokens += result.new_tokens().map(|(_, tokens)| tokens.len()).sum::<usize>();
        ends += result.finished.len();
    }
    recorder.finish().unwrap();
    let steps = steps(&file.text());
    assert_eq!(steps.len(), told, "steps");
    assert_eq!(steps.iter().map(|step| step.new_tokens()).sum::<usize>(), tokens, "tokens");
    assert_eq!(steps.iter().map(|step| step.finished.len()).sum::<usize>(), ends, "ends");
    assert_eq!((tokens, ends), (4 + 5 + 6 + 7, 4), "what was asked for");
    for step in &steps {
        let [plan, _turn, pack, forward, sample, apply] = step.phases_us.parts();
        assert!(forward > 0.0 && pack > 0.0 && plan > 0.0 && apply > 0.0, "{step:?}");
        assert_eq!(sample > 0.0, step.new_tokens() > 0, "{step:?}");
    }
    let summary = Summary::of(&run_of(&file.text()));
    assert_eq!((summary.new_tokens, summary.unfinished), (tokens, 0), "{summary}");
}

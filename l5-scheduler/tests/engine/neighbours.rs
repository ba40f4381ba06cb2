//! Engines that share a runtime: the failure of one of them changes no token of the others.

use std::path::{Path, PathBuf};

use l1_tensor::{Runtime, RuntimeOptions};
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsRequest, SamplingParams};
use l5_scheduler::engine::{EngineModel, ModelFacts};
use l5_scheduler::{
    Caps, ChoiceJob, Engine, EngineCore, EngineOptions, EngineRequest, ExecuteError, Executor,
    FinishReason, RequestId, ResponseStream, Scheduler, SchedulerConfig, StepHandle, StepOutput,
    StepView, Turns,
};

use crate::fake::request;

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// Panics in a step, while its engine has the turn.
struct Panics {
    turns: Turns,
    steps: usize,
    jobs: Vec<ChoiceJob>,
}

impl Executor for Panics {
    type Job = ChoiceJob;
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        Caps::default()
    }

    fn begin(&mut self, _: RequestId, job: ChoiceJob) {
        self.jobs.push(job);
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let _turn = self.turns.take();
        self.steps = self.steps.checked_sub(1).expect("the last step of this engine");
        for (number, row) in step.rows().enumerate() {
            if row.row.samples {
                out.push(number, &[5], None);
            }
        }
        Ok(())
    }

    fn end(&mut self, _: RequestId, _: FinishReason) {}
}

/// Starts an engine that ends with a panic after some steps, and gives it a request.
fn panics_after(steps: usize, turns: &Turns) -> (Engine, ResponseStream) {
    let scheduler = Scheduler::new(SchedulerConfig::new(64, 16)).unwrap();
    let executor = Panics { turns: turns.clone(), steps, jobs: Vec::new() };
    let core = EngineCore::new(scheduler, executor);
    let facts = ModelFacts { vocab: 384, tokenizer: None, stop_tokens: Vec::new() };
    let engine = Engine::start(core, facts, 16).unwrap();
    let response = engine.handle().submit(request(&[1], 100)).unwrap();
    (engine, response)
}

/// Tokens, log probabilities and ends of the requests of two specialists, which share a runtime with engines that
/// panic after so many of their steps.
fn served_beside(panics: &[usize]) -> Vec<String> {
    let options = RuntimeOptions { threads: Some(2), ..RuntimeOptions::default() };
    let rt = Runtime::new(options).unwrap();
    let turns = Turns::default();
    let options =
        EngineOptions { turns: Some(turns.clone()), max_num_seqs: 4, ..EngineOptions::default() };
    let engine = |name| {
        let model = EngineModel::open_on(&tiny(name), &rt).unwrap();
        Engine::new(model, &options).unwrap()
    };
    let engines = ["tiny-llama", "tiny-qwen3"].map(engine);
    let logprobs = Some(LogprobsRequest { top: 2, ..Default::default() });
    let params = SamplingParams { temperature: 0.9, logprobs, ..SamplingParams::default() };
    let stop = StopRules { max_tokens: 60, ..StopRules::default() };
    let ask = |seed: u32| {
        let prompt: Vec<u32> = (0..5 + 3 * seed).map(|t| 3 + (t * 13 + seed) % 250).collect();
        let request = EngineRequest::new(prompt, params.clone(), stop.clone());
        EngineRequest { seed: seed.into(), continues: true, ..request }
    };
    let responses: Vec<_> = engines
        .iter()
        .flat_map(|engine| engine.handle().submit_all((0..3).map(ask).collect()).unwrap())
        .collect();
    let failing: Vec<_> = panics.iter().map(|steps| panics_after(*steps, &turns)).collect();
    let got = responses.into_iter().map(|mut response| format!("{:?}", response.rest())).collect();
    for (engine, mut response) in failing {
        assert!(engine.handle().wait_until_ended().to_string().contains("last step"));
        assert_eq!(response.rest().end.unwrap().finish, FinishReason::Failed);
    }
    for engine in engines {
        engine.handle().drain().unwrap();
    }
    got
}

#[test]
fn an_engine_that_fails_during_its_turn_changes_nothing_for_the_others() {
    let alone = served_beside(&[]);
    assert!(alone.iter().all(|response| response.contains("error: None")), "{alone:?}");
    assert_eq!(served_beside(&[0, 3, 10]), alone);
}

//! An engine that launches a step while the step before it runs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::ModelFacts;
use l5_scheduler::{
    Caps, Engine, EngineCore, EngineRequest, ExecuteError, Executor, FinishReason, MalformedOutput,
    Request, RequestId, Scheduler, SchedulerConfig, StepHandle, StepOutput, StepView, Time,
};
use proptest::prelude::*;

use super::device::{Device, Output, VOCAB, alone, job};

/// Blocks of 4 tokens, `blocks` of them to be handed out.
fn config(blocks: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        max_model_len: 200,
        ..SchedulerConfig::new(blocks + 1, 4)
    }
}

fn core(config: &SchedulerConfig, device: Device, ahead: bool) -> EngineCore<Device> {
    let mut core = EngineCore::new(Scheduler::new(config.clone()).unwrap(), device);
    assert_eq!(core.set_async_scheduling(ahead), ahead);
    core
}

fn add(
    core: &mut EngineCore<Device>,
    id: u64,
    prompt: &[u32],
    stop: &[u32],
    most: usize,
) -> Output {
    let (job, output) = job(prompt, stop, most);
    let request = job.request(RequestId(id), core.now());
    core.add_request(request, job).unwrap();
    output
}

/// Steps until nothing is left; errors are tried again.
fn finish(core: &mut EngineCore<Device>) {
    for _ in 0..10_000 {
        if !core.has_unfinished() {
            core.scheduler().blocks().check_invariants().unwrap();
            assert_eq!(core.scheduler().blocks().usage(), 0.0, "blocks in use at the end");
            return;
        }
        let _ = core.step();
    }
    panic!("it does not end: {:?}", core.scheduler());
}

#[test]
fn a_step_runs_while_the_next_one_is_planned() {
    let device = Device::new(&config(20));
    let seen = device.seen();
    let mut core = core(&config(20), device, true);
    let output = add(&mut core, 1, &[1, 2, 3], &[], 6);
    core.step().unwrap();
    assert!(core.is_running(), "the second step");
    assert_eq!(output.get().0, alone(&[1, 2, 3], &[], 1), "output of the first step");
    finish(&mut core);
    assert_eq!(output.get(), (alone(&[1, 2, 3], &[], 6), Some(FinishReason::Length)));
    let seen = seen.lock().unwrap();
    assert_eq!((seen.depth, seen.awaited, seen.useless), (2, 5, 0));
    assert_eq!(core.scheduler().stats().steps, 6, "no step for nothing");
}

#[test]
fn it_is_off_unless_the_executor_can() {
    let mut core = EngineCore::new(Scheduler::new(config(20)).unwrap(), Waits::default());
    assert!(!core.set_async_scheduling(true));
    let device = Device::new(&config(20));
    let seen = device.seen();
    let mut core = self::core(&config(20), device, false);
    add(&mut core, 1, &[1, 2, 3], &[], 6);
    finish(&mut core);
    assert_eq!(seen.lock().unwrap().depth, 1);
}

#[test]
fn a_stop_token_costs_one_row() {
    let prompt = [3, 1, 4];
    let output = alone(&prompt, &[], 10);
    let stop = output[4];
    let device = Device::new(&config(20));
    let seen = device.seen();
    let mut core = core(&config(20), device, true);
    let (first, second) =
        (add(&mut core, 1, &prompt, &[stop], 50), add(&mut core, 2, &[9, 9], &[], 20));
    finish(&mut core);
    let want = alone(&prompt, &[stop], 50);
    assert_eq!(first.get(), (want, Some(FinishReason::Stop)));
    assert_eq!(second.get(), (alone(&[9, 9], &[], 20), Some(FinishReason::Length)));
    assert_eq!(seen.lock().unwrap().useless, 1);
}

#[test]
fn an_end_is_reported_while_the_last_row_runs() {
    let stop = alone(&[7], &[], 1)[0];
    let mut core = core(&config(20), Device::new(&config(20)), true);
    let output = add(&mut core, 1, &[7], &[stop], 50);
    let result = core.step().unwrap();
    assert_eq!(result.finished, [(RequestId(1), FinishReason::Stop)]);
    assert_eq!(output.get().1, Some(FinishReason::Stop));
    assert!(core.is_running() && core.has_unfinished());
    assert!(core.step().unwrap().finished.is_empty());
    assert!(!core.has_unfinished());
}

#[test]
fn a_launch_that_fails_ahead_is_tried_again() {
    let device = Device::new(&config(20)).failing(&[1], &[]);
    let mut core = core(&config(20), device, true);
    let output = add(&mut core, 1, &[1, 2, 3], &[], 6);
    core.step().expect("the running step has not failed");
    assert!(!core.is_running());
    finish(&mut core);
    assert_eq!(output.get().0, alone(&[1, 2, 3], &[], 6));
}

#[test]
fn a_step_that_fails_takes_the_next_one_with_it() {
    let device = Device::new(&config(20)).failing(&[], &[1]);
    let seen = device.seen();
    let mut core = core(&config(20), device, true);
    let output = add(&mut core, 1, &[1, 2, 3], &[], 6);
    let other = add(&mut core, 2, &[5; 20], &[], 6);
    core.step().unwrap();
    assert!(core.step().is_err());
    assert!(!core.is_running(), "the step ahead was discarded");
    assert_eq!(seen.lock().unwrap().discarded, 1);
    finish(&mut core);
    assert_eq!(output.get().0, alone(&[1, 2, 3], &[], 6));
    assert_eq!(other.get().0, alone(&[5; 20], &[], 6));
}

#[test]
fn requests_of_a_failed_step_end_and_those_of_the_step_ahead_do_not() {
    let device = Device::new(&config(20)).failing(&[], &[1]);
    let mut core = core(&config(20), device, true);
    let first = add(&mut core, 1, &[1, 2, 3], &[], 6);
    core.step().unwrap();
    let second = add(&mut core, 2, &[4, 5], &[], 6);
    let error = core.step().unwrap_err();
    let result = core.fail_step(&error);
    assert_eq!(result.finished, [(RequestId(1), FinishReason::Failed)]);
    assert_eq!(first.get(), (alone(&[1, 2, 3], &[], 1), Some(FinishReason::Failed)));
    finish(&mut core);
    assert_eq!(second.get(), (alone(&[4, 5], &[], 6), Some(FinishReason::Length)));
}

#[test]
fn a_request_that_was_aborted_in_a_failed_step_has_not_failed() {
    let device = Device::new(&config(20)).failing(&[], &[1]);
    let mut core = core(&config(20), device, true);
    let output = add(&mut core, 1, &[1, 2, 3], &[], 6);
    core.step().unwrap();
    assert!(core.abort(RequestId(1)));
    let error = core.step().unwrap_err();
    let result = core.fail_step(&error);
    assert_eq!(result.finished, [(RequestId(1), FinishReason::Aborted)]);
    assert_eq!(core.executor().seen().lock().unwrap().failed, []);
    assert_eq!(output.get().1, Some(FinishReason::Aborted));
}

/// An executor whose device runs a step for 5 milliseconds, and whose host works for 1 millisecond on each.
#[derive(Default)]
struct Waits {
    ahead: bool,
    host: Rc<Cell<f64>>,
    /// Times at which the launched steps end.
    ends: VecDeque<f64>,
    /// Time at which the device is idle, and for how long it has run.
    idle: f64,
    busy: f64,
}

impl Executor for Waits {
    type Job = ();
    type Error = MalformedOutput;

    fn caps(&self) -> Caps {
        Caps { async_scheduling: self.ahead, ..Caps::default() }
    }

    fn begin(&mut self, _: RequestId, (): ()) {}

    fn launch(&mut self, step: &StepView<'_>) -> Result<StepHandle, MalformedOutput> {
        self.host.set(self.host.get() + 1e-3);
        self.idle = self.idle.max(self.host.get()) + 5e-3;
        self.busy += 5e-3;
        self.ends.push_back(self.idle);
        Ok(StepHandle::of(step))
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), MalformedOutput> {
        let end = self.ends.pop_front().expect("a launched step");
        self.host.set(self.host.get().max(end));
        for (i, row) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            out.push(i, &[row.row.id.0 as u32], None);
        }
        Ok(())
    }

    fn end(&mut self, _: RequestId, _: FinishReason) {}
}

/// Share of the time in which the device is busy while 8 requests of 100 output tokens run.
fn busy(ahead: bool) -> f64 {
    let (host, config) = (Rc::new(Cell::new(0.0)), SchedulerConfig::new(200, 16));
    let waits = Waits { ahead: true, host: host.clone(), ..Waits::default() };
    let mut core = EngineCore::new(Scheduler::new(config).unwrap(), waits);
    core.set_async_scheduling(ahead);
    for id in 0..8 {
        let (id, prompt) = (RequestId(id), vec![id as u32; 10]);
        core.add_request(Request { id, prompt, max_tokens: 100, ..Request::default() }, ())
            .unwrap();
    }
    while core.has_unfinished() {
        core.step_at(Time(host.get())).unwrap();
    }
    core.executor().busy / host.get()
}

#[test]
fn the_device_does_not_wait_for_the_host() {
    let (one_at_a_time, ahead) = (busy(false), busy(true));
    assert!((0.833..0.834).contains(&one_at_a_time), "one step at a time: {one_at_a_time}");
    assert!(ahead > 0.99, "one step ahead: {ahead}");
}

#[test]
fn an_engine_ends_with_a_step_running() {
    let device = Device::new(&config(20));
    let seen = device.seen();
    let core = core(&config(20), device, true);
    let facts = ModelFacts { vocab: VOCAB as usize, tokenizer: None, stop_tokens: Vec::new() };
    let engine = Engine::start(core, facts, 16).unwrap();
    let stop = |max_tokens| StopRules { max_tokens, ..StopRules::default() };
    let request =
        |prompt: &[u32], most| EngineRequest::new(prompt, SamplingParams::greedy(), stop(most));
    let mut short = engine.handle().submit(request(&[4, 5], 12)).unwrap();
    let dropped = engine.handle().submit(request(&[6, 7], 150)).unwrap();
    let mut long = engine.handle().submit(request(&[8, 9], 150)).unwrap();
    assert_eq!(short.rest().tokens, alone(&[4, 5], &[], 12));
    drop(dropped);
    long.recv().unwrap();
    engine.shutdown().unwrap();
    let ended = long.rest().end.map(|end| end.finish);
    assert!(matches!(ended, Some(FinishReason::Aborted | FinishReason::Length)), "{ended:?}");
    let seen = seen.lock().unwrap();
    assert_eq!((seen.ends.len(), seen.depth), (3, 2));
}

/// A request of a random run.
#[derive(Clone, Debug)]
struct Plan {
    prompt: Vec<u32>,
    stop: Vec<u32>,
    max_tokens: usize,
    /// Steps before which it is added, and aborted.
    at: usize,
    abort: Option<usize>,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    // Prompts that begin alike share blocks.
    let prompt = (0..3u32, 0..20usize, prop::collection::vec(0..VOCAB, 1..6))
        .prop_map(|(first, shared, own)| [vec![first; shared], own].concat());
    let stop = prop::collection::vec(0..VOCAB, 0..3);
    let plan =
        (prompt, stop, 1..24usize, 0..30usize, prop::option::weighted(0.2, 0..40usize)).prop_map(
            |(prompt, stop, max_tokens, at, abort)| Plan { prompt, stop, max_tokens, at, abort },
        );
    prop::collection::vec(plan, 1..12)
}

/// Runs requests, and checks what each of them got against the request alone. Returns the ends, by request.
fn run(
    config: &SchedulerConfig,
    plans: &[Plan],
    (launches, steps): (&[u64], &[u64]),
    ahead: bool,
) -> Vec<(Vec<u32>, Option<FinishReason>)> {
    let device = Device::new(config).failing(launches, steps);
    let seen = device.seen();
    let mut core = core(config, device, ahead);
    let mut outputs = vec![None; plans.len()];
    for step in 0..60 {
        for (id, plan) in plans.iter().enumerate() {
            if plan.at == step {
                let output = add(&mut core, id as u64, &plan.prompt, &plan.stop, plan.max_tokens);
                outputs[id] = Some(output);
            }
            if plan.abort == Some(step) {
                core.abort(RequestId(id as u64));
            }
        }
        if core.has_unfinished() {
            let _: Result<_, ExecuteError> = core.step();
            core.scheduler().blocks().check_invariants().unwrap();
        }
    }
    finish(&mut core);
    let outputs: Vec<_> = outputs.into_iter().map(|output| output.unwrap().get()).collect();
    for (plan, (tokens, end)) in plans.iter().zip(&outputs) {
        let want = alone(&plan.prompt, &plan.stop, plan.max_tokens);
        match end.expect("every request ends") {
            FinishReason::Aborted => assert!(want.starts_with(tokens), "{tokens:?} of {want:?}"),
            _ => assert_eq!(*tokens, want),
        }
    }
    assert_eq!(seen.lock().unwrap().ends.len(), plans.len(), "ends");
    outputs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_what_it_gets_alone(
        plans in plans(),
        blocks in 14..40usize,
        seats in 1..6usize,
        budget in 6..24usize,
        launches in prop::collection::vec(0..40u64, 0..3),
        steps in prop::collection::vec(0..40u64, 0..3),
        policy in prop::sample::select(vec!["fcfs", "priority", "strict-priority"]),
    ) {
        let config = SchedulerConfig {
            max_num_seqs: seats,
            max_num_batched_tokens: budget,
            policy: policy.parse().unwrap(),
            ..config(blocks)
        };
        let on = run(&config, &plans, (&launches, &steps), true);
        let off = run(&config, &plans, (&launches, &steps), false);
        for (plan, (on, off)) in plans.iter().zip(on.iter().zip(&off)) {
            if plan.abort.is_none() {
                prop_assert_eq!(on, off, "async scheduling on and off");
            }
        }
    }
}

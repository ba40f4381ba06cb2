//! The load that a router reads: measured rates, preemptions and slack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use l5_scheduler::{
    EngineRequest, FinishReason, RequestView, Scheduler, SchedulerConfig, StepObserver, StepResult,
    StepView,
};

use crate::fake::{Trouble, answer, engine, limits, request};

const DAY: u64 = 24 * 60 * 60;

/// A request that should be finished within so many days.
fn due(days: u64, max_tokens: usize) -> EngineRequest {
    let deadline = Some(Duration::from_secs(days * DAY));
    EngineRequest { deadline, ..request(&[1, 2], max_tokens) }
}

/// Checks that the slack is more than `least` days and at most `most`. The margin is a day, so that the time which the
/// test takes does not matter.
#[track_caller]
fn assert_days(slack: Option<f64>, least: u64, most: u64) {
    let days = slack.map(|seconds| seconds / DAY as f64);
    assert!(days.is_some_and(|days| days > least as f64 && days <= most as f64), "{days:?} days");
}

#[test]
fn rates_are_unknown_before_the_first_step_and_measured_after_it() {
    let (engine, control) = engine(limits(), 9);
    let handle = engine.handle();
    control.hold();
    let mut stream = handle.submit(request(&[1; 20], 9)).unwrap();
    control.wait_for_step(1);
    let load = handle.load();
    assert_eq!(
        (load.prefill_seconds_per_token, load.decode_time, load.seconds),
        (None, None, None)
    );
    assert_eq!(load.waiting, 1, "a request that the step is about to admit waits until then");
    control.open();
    stream.rest();
    handle.drain().unwrap();
    let load = handle.load();
    let prefill = load.prefill_seconds_per_token.unwrap();
    assert!(prefill.is_finite() && prefill >= 0.0, "{load:?}");
    let [one, two] = [1, 2].map(|width| load.decode_step_seconds(width).unwrap());
    assert!(one.is_finite() && one > 0.0 && two >= one, "{load:?}");
    assert_eq!(load.seconds, Some(0.0), "nothing is left to do");
    assert_eq!(load.steps, 9);
}

/// Adds up what the results of steps say about preemptions.
struct Preempted(Arc<AtomicU64>);

impl StepObserver for Preempted {
    fn planned(&mut self, _: &StepView<'_>, _: &Scheduler) {}

    fn applied(&mut self, result: &StepResult, _: &Scheduler) {
        self.0.fetch_add(result.preempted.len() as u64, Ordering::SeqCst);
    }
}

#[test]
fn preemptions_are_counted_since_the_start() {
    // 16 blocks of 4 tokens, and three requests that need 11 blocks each.
    let config = SchedulerConfig { num_gpu_blocks: 17, max_model_len: 64, ..limits() };
    let (engine, _) = engine(config, 9);
    let handle = engine.handle();
    let counted = Arc::new(AtomicU64::new(0));
    handle.observe(Box::new(Preempted(counted.clone()))).unwrap();
    assert_eq!(handle.load().preemptions, 0);
    let streams = handle.submit_all((0..3).map(|i| request(&[i; 4], 40)).collect()).unwrap();
    for (i, mut stream) in (0..).zip(streams) {
        assert_eq!(stream.rest().tokens, answer(&[i; 4], 40));
    }
    handle.drain().unwrap();
    let preemptions = handle.load().preemptions;
    assert!(preemptions > 0, "the requests do not fit together");
    assert_eq!(preemptions, counted.load(Ordering::SeqCst));
}

/// Notes how long after its arrival each request should be finished, as the scheduler has it.
struct Deadlines(Arc<Mutex<Vec<Option<f64>>>>);

impl StepObserver for Deadlines {
    fn arrived(&mut self, request: RequestView<'_>) {
        let within = request.deadline().map(|deadline| deadline - request.arrival());
        self.0.lock().unwrap().push(within);
    }

    fn planned(&mut self, _: &StepView<'_>, _: &Scheduler) {}

    fn applied(&mut self, _: &StepResult, _: &Scheduler) {}
}

#[test]
fn the_deadline_of_a_request_reaches_the_scheduler() {
    let (engine, _) = engine(limits(), 9);
    let seen = Arc::new(Mutex::new(Vec::new()));
    engine.handle().observe(Box::new(Deadlines(seen.clone()))).unwrap();
    let streams = engine.handle().submit_all(vec![due(2, 1), request(&[1], 1)]).unwrap();
    streams.into_iter().for_each(|mut stream| drop(stream.rest()));
    let seen = seen.lock().unwrap().clone();
    let [Some(within), None] = seen[..] else { panic!("{seen:?}") };
    assert!((within - 2.0 * DAY as f64).abs() < 1e-3, "{within} s");
}

#[test]
fn the_slack_is_that_of_the_earliest_deadline_of_an_unfinished_request() {
    let (engine, control) = engine(limits(), 99);
    let handle = engine.handle();
    let slack = || handle.load().slack;
    control.hold();
    let mut plain = handle.submit(request(&[7], 60)).unwrap();
    control.wait_for_step(1);
    assert_eq!(slack(), None, "a request without a deadline does not count");
    // The engine is in a step: these are in its inbox.
    let mut long = handle.submit(due(30, 60)).unwrap();
    assert_days(slack(), 29, 30);
    let mut late = handle.submit(due(0, 60)).unwrap();
    let mut soon = handle.submit(due(20, 60)).unwrap();
    // The deadline of `late` was its submission.
    assert!(slack().is_some_and(|seconds| seconds <= 0.0), "{:?}", slack());
    while slack() >= Some(0.0) {
        std::thread::yield_now();
    }
    assert!(slack().is_some_and(|seconds| seconds < 0.0), "still in the same step: {:?}", slack());
    // The first is aborted before it runs, the second while it runs. An abort is read after the present step, and the
    // request has ended after the next one.
    for stream in [&mut late, &mut soon] {
        let before = slack();
        handle.abort(stream.id()).unwrap();
        control.pass(2);
        assert_eq!(stream.rest().end.unwrap().finish, FinishReason::Aborted);
        assert!(slack() > before, "{:?} after {before:?}", slack());
    }
    assert_days(slack(), 29, 30);
    control.open();
    assert_eq!(long.rest().end.unwrap().finish, FinishReason::Length);
    assert_eq!(slack(), None, "the last one with a deadline has ended");
    plain.rest();
}

#[test]
fn requests_that_never_reach_the_engine_have_no_slack() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 1, ..limits() }, 1);
    let handle = engine.handle();
    control.hold();
    let running = handle.submit(request(&[1], 2)).unwrap();
    control.wait_for_step(1);
    assert!(handle.submit(due(1, 0)).unwrap().rest().tokens.is_empty());
    let waiting = handle.submit(request(&[1], 2)).unwrap();
    assert!(handle.submit(due(1, 2)).is_err(), "the queue is full");
    assert!(handle.submit(EngineRequest { prompt: [].into(), ..due(1, 2) }).is_err());
    assert_eq!(handle.load().slack, None);
    control.open();
    drop((running, waiting));
}

#[test]
fn a_step_that_fails_takes_its_requests_out_of_the_load() {
    let (engine, control) = engine(limits(), 9);
    let handle = engine.handle();
    control.troubles(&[Trouble::None, Trouble::Error]);
    let mut failed = handle.submit(due(1, 9)).unwrap();
    assert_eq!(failed.rest().end.unwrap().finish, FinishReason::Failed);
    handle.drain().unwrap();
    let load = handle.load();
    assert_eq!((load.running, load.waiting, load.slack), (0, 0, None));
}

#[test]
fn an_engine_that_has_ended_has_no_deadlines() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 1, ..limits() }, 9);
    let handle = engine.handle().clone();
    control.hold();
    let streams = handle.submit_all(vec![due(1, 60), due(2, 60)]).unwrap();
    control.wait_for_step(1);
    control.troubles(&[Trouble::Panic]);
    control.open();
    streams.into_iter().for_each(|mut stream| drop(stream.rest()));
    assert!(engine.shutdown().is_err());
    let load = handle.load();
    assert_eq!((load.running, load.waiting, load.slack), (0, 0, None));
}

//! The loop, with an executor that writes down what it is told.

use std::sync::{Arc, Mutex};

use l5_scheduler::{
    BySeat, Caps, EngineCore, ExecuteError, Executor, FinishReason, Request, RequestId, Scheduler,
    SchedulerConfig, StepHandle, StepObserver, StepOutput, StepResult, StepView, Time,
};

/// Lines that everybody writes to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn write(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Chooses the tokens 100, 101, ... for each request, and fails when it is told to.
struct Fake {
    log: Log,
    chosen: BySeat<u32>,
    fails: bool,
    /// Leaves the last row of a step out.
    forgets: bool,
}

impl Executor for Fake {
    type Job = ();
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        Caps::default()
    }

    fn begin(&mut self, id: RequestId, (): ()) {
        self.chosen.insert(id, 100);
        self.log.write(format!("begin {}", id.0));
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let rows: Vec<_> = step.rows().map(|row| (row.row.id.0, row.tokens.to_vec())).collect();
        self.log.write(format!("execute {rows:?}"));
        if self.fails {
            return Err(ExecuteError::Malformed("it was told to fail".into()));
        }
        let samples = step.rows().enumerate().filter(|(_, row)| row.row.samples);
        for (i, row) in samples.take(if self.forgets { 0 } else { usize::MAX }) {
            let chosen = self.chosen.seated(row.row.seat, row.row.id).expect("it has begun");
            out.push(i, &[*chosen], None);
            *chosen += 1;
        }
        Ok(())
    }

    fn fail(&mut self, id: RequestId, error: &ExecuteError) {
        self.log.write(format!("fail {}: {error}", id.0));
    }

    fn end(&mut self, id: RequestId, reason: FinishReason) {
        self.chosen.remove(id);
        self.log.write(format!("end {} {reason}", id.0));
    }
}

struct Watcher(Log);

impl StepObserver for Watcher {
    fn planned(&mut self, step: &StepView<'_>, _scheduler: &Scheduler) {
        self.0.write(format!("planned {} tokens", step.step().tokens));
    }

    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler) {
        let running = scheduler.num_running();
        self.0.write(format!("applied, {} ended, {running} run", result.finished.len()));
    }
}

/// A core over a pool of seven blocks of 4, and its log.
fn core() -> (EngineCore<Fake>, Log) {
    let log = Log::default();
    let fake = Fake { log: log.clone(), chosen: BySeat::default(), fails: false, forgets: false };
    let config = SchedulerConfig {
        max_num_batched_tokens: 256,
        max_model_len: 100,
        ..SchedulerConfig::new(8, 4)
    };
    (EngineCore::new(Scheduler::new(config).unwrap(), fake), log)
}

fn add(core: &mut EngineCore<Fake>, id: u64, prompt: &[u32], max_tokens: usize) {
    let prompt = prompt.to_vec();
    let request = Request { id: RequestId(id), prompt, max_tokens, ..Request::default() };
    core.add_request(request, ()).unwrap();
}

fn tokens(result: &StepResult) -> Vec<(u64, Vec<u32>)> {
    result.new_tokens().map(|(id, tokens)| (id.0, tokens.to_vec())).collect()
}

#[test]
fn a_step_is_planned_then_executed_then_applied() {
    let (mut core, log) = core();
    core.set_observer(Some(Box::new(Watcher(log.clone()))));
    add(&mut core, 0, &[1, 2, 3], 2);
    log.take();
    core.step_at(Time(0.0)).unwrap();
    let want = ["planned 3 tokens", "execute [(0, [1, 2, 3])]", "applied, 0 ended, 1 run"];
    assert_eq!(log.take(), want, "what happened in the first step");
    core.step_at(Time(0.0)).unwrap();
    let want =
        ["planned 1 tokens", "execute [(0, [100])]", "end 0 length", "applied, 1 ended, 0 run"];
    assert_eq!(log.take(), want, "what happened in the second step");
}

#[test]
fn a_result_tells_who_got_which_tokens_and_who_ended() {
    let (mut core, _) = core();
    add(&mut core, 0, &[1, 2, 3], 2);
    add(&mut core, 1, &[4, 5], 1);
    let result = core.step_at(Time(0.0)).unwrap();
    assert_eq!((result.scheduled, result.scheduled_tokens), (2, 5), "requests and tokens");
    assert_eq!(tokens(result), [(0, vec![100]), (1, vec![100])], "new tokens");
    assert_eq!(result.finished, [(RequestId(1), FinishReason::Length)], "who ended");
    let result = core.step_at(Time(0.0)).unwrap();
    assert_eq!((result.step, result.scheduled), (1, 1), "number of the step, and requests");
    assert_eq!(tokens(result), [(0, vec![101])], "new tokens");
    assert_eq!(result.finished, [(RequestId(0), FinishReason::Length)], "who ended");
    assert!(!core.has_unfinished(), "nobody is left");
}

#[test]
fn a_step_without_rows_is_not_executed_and_tells_of_who_was_aborted() {
    let (mut core, log) = core();
    add(&mut core, 0, &[1, 2, 3], 5);
    core.abort(RequestId(0));
    log.take();
    let result = core.step_at(Time(0.0)).unwrap();
    assert_eq!(result.finished, [(RequestId(0), FinishReason::Aborted)], "who ended");
    assert_eq!((result.scheduled, tokens(result).len()), (0, 0), "requests, and who got tokens");
    assert_eq!(log.take(), ["end 0 abort"], "what the executor was told");
}

#[test]
fn a_request_with_the_id_of_an_aborted_one_begins_after_its_end() {
    let (mut core, log) = core();
    add(&mut core, 0, &[1, 2, 3], 9);
    core.step_at(Time(0.0)).unwrap();
    log.take();
    core.abort(RequestId(0));
    add(&mut core, 0, &[4, 5], 1);
    assert_eq!(log.take(), ["end 0 abort", "begin 0"], "what the executor was told, in order");
    let result = core.step_at(Time(0.0)).unwrap();
    let ends = [(RequestId(0), FinishReason::Aborted), (RequestId(0), FinishReason::Length)];
    assert_eq!(result.finished, ends, "who ended");
    assert_eq!(tokens(result), [(0, vec![100])], "new tokens");
}

#[test]
fn a_request_that_has_the_id_of_one_in_a_failed_step_does_not_end_with_it() {
    let (mut core, log) = core();
    core.executor_mut().fails = true;
    add(&mut core, 0, &[1, 2, 3], 9);
    let error = core.step_at(Time(0.0)).unwrap_err();
    core.executor_mut().fails = false;
    core.abort(RequestId(0));
    add(&mut core, 0, &[4, 5], 1);
    log.take();
    let ended = core.fail_step(&error).finished.clone();
    assert_eq!(ended, [(RequestId(0), FinishReason::Aborted)], "the request of the failed step");
    assert_eq!(log.take(), [] as [&str; 0], "what the executor was told");
    assert_eq!(tokens(core.step_at(Time(0.0)).unwrap()), [(0, vec![100])], "new tokens");
}

#[test]
fn nobody_gets_the_last_steps_tokens_again() {
    let (mut core, _) = core();
    add(&mut core, 0, &[1, 2, 3], 9);
    core.step_at(Time(0.0)).unwrap();
    core.abort(RequestId(0));
    let empty = core.step_at(Time(0.0)).unwrap();
    assert_eq!(tokens(empty).len(), 0, "new tokens of a step without rows");
    add(&mut core, 1, &[4, 5], 1);
    let next = core.step_at(Time(0.0)).unwrap();
    assert_eq!(tokens(next), [(1, vec![100])], "new tokens of the step behind it");
}

#[test]
fn a_result_tells_who_was_preempted_and_who_did_not_fit() {
    let (mut core, _) = core();
    add(&mut core, 0, &[1; 12], 40);
    add(&mut core, 1, &[2; 12], 40);
    let (mut preempted, mut finished) = (Vec::new(), Vec::new());
    while core.has_unfinished() {
        let result = core.step_at(Time(0.0)).unwrap();
        preempted.extend_from_slice(&result.preempted);
        finished.extend_from_slice(&result.finished);
    }
    assert_eq!(preempted, [RequestId(1)], "two of 13 tokens need 8 blocks, and there are 7");
    let end = FinishReason::KvExhausted;
    assert_eq!(finished, [(RequestId(0), end), (RequestId(1), end)], "both outgrow the pool");
}

#[test]
fn a_step_that_fails_was_never_planned_and_is_tried_again() {
    let (mut core, log) = core();
    add(&mut core, 0, &[1, 2, 3], 3);
    core.step_at(Time(0.0)).unwrap();
    add(&mut core, 1, &[4, 5], 3);
    let before = (core.scheduler().blocks().num_free(), core.scheduler().num_running());
    core.executor_mut().fails = true;
    log.take();
    assert!(core.step_at(Time(0.0)).is_err(), "the executor's error is the step's");
    let after = (core.scheduler().blocks().num_free(), core.scheduler().num_running());
    assert_eq!(after, before, "free blocks and running requests, after the failure and before");
    assert!(!core.scheduler().is_open(), "the step is over");
    core.executor_mut().fails = false;
    let result = core.step_at(Time(0.0)).unwrap();
    assert_eq!(tokens(result), [(0, vec![101]), (1, vec![100])], "new tokens of the next try");
    let tries = log.take();
    assert_eq!(tries[0], tries[1], "both tries execute the same");
}

#[test]
fn an_executor_that_forgets_a_row_is_an_error() {
    let (mut core, _) = core();
    add(&mut core, 0, &[1, 2, 3], 3);
    core.executor_mut().forgets = true;
    let failed = core.step_at(Time(0.0));
    assert!(matches!(failed, Err(ExecuteError::Malformed(_))), "{failed:?}");
    assert!(!core.scheduler().is_open(), "the step is over");
}

#[test]
fn who_took_part_in_a_broken_step_can_be_ended_and_who_waited_goes_on() {
    let (mut core, log) = core();
    add(&mut core, 0, &[1; 12], 2);
    add(&mut core, 1, &[2; 10], 2);
    // Does not fit beside the others.
    add(&mut core, 2, &[3; 9], 2);
    core.executor_mut().fails = true;
    let error = core.step_at(Time(0.0)).unwrap_err();
    log.take();
    let result = core.fail_step(&error);
    let failed = FinishReason::Failed;
    assert_eq!(result.finished, [(RequestId(0), failed), (RequestId(1), failed)], "who ended");
    let want = [
        "fail 0: it was told to fail",
        "fail 1: it was told to fail",
        "end 0 error",
        "end 1 error",
    ];
    assert_eq!(log.take(), want, "what the executor was told");
    core.executor_mut().fails = false;
    assert_eq!(core.fail_step(&error).finished.len(), 0, "nobody ends twice");
    let result = core.step_at(Time(0.0)).unwrap();
    assert_eq!(tokens(result), [(2, vec![100])], "who waited has its first token");
    core.step_at(Time(0.0)).unwrap();
    assert!(!core.has_unfinished(), "nobody is left");
    assert_eq!(core.scheduler().blocks().num_free(), 7, "all blocks are free");
}

//! Asking: by many at once, too much, and for what cannot be.

use std::sync::Arc;
use std::time::Duration;

use l4_sampler::guide::GuideSpec;
use l5_scheduler::engine::EngineRequest;
use l5_scheduler::{
    FinishReason, Rejection, RequestId, RequestView, Scheduler, SchedulerConfig, StepObserver,
    StepResult, StepView, SubmitError, Time,
};

use crate::fake::{VOCAB, answer, engine, limits, request};

#[test]
fn many_threads_ask_and_each_gets_its_own_answers() {
    let (engine, control) = engine(limits(), 1000);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let handle = engine.handle().clone();
            scope.spawn(move || {
                for i in 0..40 {
                    let prompt = [thread, i, 7];
                    let tokens = 1 + (i as usize + thread as usize) % 9;
                    let got = handle.submit(request(&prompt, tokens)).unwrap().rest();
                    assert_eq!(got.tokens, answer(&prompt, tokens), "of thread {thread}, {i}");
                    assert_eq!(got.end.unwrap().finish, FinishReason::Length);
                }
            });
        }
    });
    engine.handle().drain().unwrap();
    let mut ended: Vec<RequestId> = control.ends().into_iter().map(|(id, _)| id).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..320).map(RequestId).collect::<Vec<_>>(), "each ended, and once");
    assert_eq!(control.free_blocks(), Some(64), "every block came back");
}

#[test]
fn requests_that_are_handed_in_together_are_in_one_step() {
    let (engine, control) = engine(limits(), 1000);
    let all = (0..5).map(|i| request(&[i], 2)).collect();
    let answers = engine.handle().submit_all(all).unwrap();
    let ids: Vec<_> = answers.iter().map(|answer| answer.id()).collect();
    for (i, mut got) in answers.into_iter().enumerate() {
        assert_eq!(got.rest().tokens, answer(&[i as u32], 2));
    }
    assert_eq!(control.steps(), [ids.clone(), ids]);
}

#[test]
fn several_answers_are_the_samples_of_one_seed() {
    let (engine, _) = engine(limits(), 1000);
    let answers = engine.handle().submit_n(request(&[1, 2, 3], 4), 3).unwrap();
    assert_eq!(answers.len(), 3);
    for mut got in answers {
        assert_eq!(got.rest().tokens, answer(&[1, 2, 3], 4));
    }
}

/// Reports when requests arrived, and their deadlines.
struct Arrivals(std::sync::mpsc::Sender<(Time, Option<Time>)>);

impl StepObserver for Arrivals {
    fn arrived(&mut self, request: RequestView<'_>) {
        let _ = self.0.send((request.arrival(), request.deadline()));
    }

    fn planned(&mut self, _: &StepView<'_>, _: &Scheduler) {}

    fn applied(&mut self, _: &StepResult, _: &Scheduler) {}
}

#[test]
fn what_a_request_waited_before_it_was_handed_in_is_time_in_the_queue_and_not_of_its_deadline() {
    let (engine, _) = engine(limits(), 1000);
    let (sender, arrivals) = std::sync::mpsc::channel();
    engine.handle().observe(Box::new(Arrivals(sender))).unwrap();
    let long = Duration::from_secs(20);
    let get = |waited| {
        let deadline = Some(Duration::from_secs(60));
        let request = EngineRequest { waited, deadline, ..request(&[1, 2], 3) };
        let mut got = engine.handle().submit(request).unwrap();
        assert_eq!(got.rest().tokens, answer(&[1, 2], 3));
        let times = got.times();
        let (arrival, due) = arrivals.recv().unwrap();
        (times.scheduled.unwrap() - times.submitted, arrival, due.unwrap())
    };
    let (queued, first, due) = get(Duration::ZERO);
    assert!(queued < long);
    let (queued, second, later) = get(long);
    assert!(queued >= long);
    assert!(second < first && later > due, "{second:?} {first:?} {later:?} {due:?}");
}

#[test]
fn a_full_inbox_says_so_and_takes_more_when_there_is_room() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 1, ..limits() }, 3);
    let handle = engine.handle();
    // One has a seat, and three may wait.
    let full = SubmitError::Full { waiting: 3, most: 4 };
    let five = || (0..5).map(|i| request(&[i], 1)).collect::<Vec<_>>();
    assert_eq!(handle.submit_all(five()).unwrap_err(), full);
    control.hold();
    let running = handle.submit(request(&[9], 1)).unwrap();
    control.wait_for_step(1);
    // One runs, and three may wait.
    let waiting = handle.submit_all((0..3).map(|i| request(&[i], 1)).collect()).unwrap();
    let refused = handle.submit(request(&[5], 1)).unwrap_err();
    assert_eq!(refused, full);
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| handle.submit_waiting(vec![request(&[6], 1)]));
        control.open();
        late.join().unwrap()
    });
    for mut answer in late.unwrap().into_iter().chain(waiting).chain([running]) {
        assert_eq!(answer.rest().end.unwrap().finish, FinishReason::Length);
    }
    assert_eq!(control.ends().len(), 5, "nothing is left of what was refused");
}

#[test]
fn free_seats_are_taken_by_requests_that_do_not_count_as_waiting() {
    // Eight tokens a step: prompts of four are admitted two by two, and the others wait for a step only.
    let config = SchedulerConfig { max_num_seqs: 8, max_num_batched_tokens: 8, ..limits() };
    let (engine, control) = engine(config, 1);
    let handle = engine.handle();
    control.hold();
    let first = handle.submit_all((0..8).map(|i| request(&[i, 1, 2, 3], 2)).collect()).unwrap();
    control.wait_for_step(1);
    // Two of them run, and six seats are free for the other six: one more may wait.
    control.pass(1);
    control.wait_for_step(2);
    let waits = handle.submit(request(&[9], 1)).unwrap();
    let full = SubmitError::Full { waiting: 1, most: 9 };
    assert_eq!(handle.submit(request(&[9], 1)).unwrap_err(), full);
    control.open();
    for mut answer in first.into_iter().chain([waits]) {
        assert_eq!(answer.rest().end.unwrap().finish, FinishReason::Length);
    }
}

#[test]
fn free_seats_without_blocks_are_for_nobody() {
    // Sixteen blocks of four tokens, all of which the first request takes.
    let config = SchedulerConfig { max_num_seqs: 8, num_gpu_blocks: 17, ..limits() };
    let (engine, control) = engine(config, 2);
    let handle = engine.handle();
    control.hold();
    let large = handle.submit(request(&[1; 60], 4)).unwrap();
    control.wait_for_step(1);
    let first = handle.submit(request(&[2; 8], 1)).unwrap();
    control.pass(1);
    control.wait_for_step(2);
    control.pass(1);
    control.wait_for_step(3);
    let second = handle.submit(request(&[3; 8], 1)).unwrap();
    assert!(matches!(handle.submit(request(&[4], 1)), Err(SubmitError::Full { waiting: 2, .. })));
    control.open();
    for mut answer in [large, first, second] {
        assert_eq!(answer.rest().end.unwrap().finish, FinishReason::Length);
    }
}

#[test]
fn what_cannot_be_answered_is_refused_with_its_reason() {
    let (engine, control) = engine(SchedulerConfig { max_model_len: 40, ..limits() }, 9);
    let refused = |request| engine.handle().submit(request).unwrap_err();
    assert_eq!(refused(request(&[], 1)), Rejection::EmptyPrompt.into());
    let long = Rejection::MaxModelLen { prompt: 40, max_model_len: 40 };
    assert_eq!(refused(request(&[1; 40], 1)), long.into());
    let unknown = SubmitError::UnknownToken { id: 1000, vocab: VOCAB };
    assert_eq!(refused(request(&[1, 1000], 1)), unknown);
    let mut hot = request(&[1], 1);
    Arc::make_mut(&mut hot.params).temperature = -1.0;
    assert!(matches!(refused(hot), SubmitError::Params(_)));
    let guided = GuideSpec::Regex("a+".into());
    let guided = EngineRequest { guide: Some(guided.into()), ..request(&[1], 1) };
    assert!(matches!(refused(guided), SubmitError::NoTokenizer("guides")));
    let mut stops = request(&[1], 1);
    stops.stop.strings = vec!["x".into()];
    assert!(matches!(refused(stops), SubmitError::NoTokenizer("stop strings")));
    assert_eq!(control.steps().len(), 0, "nothing of it was run");
}

#[test]
fn of_requests_that_are_handed_in_together_all_or_none_are_taken() {
    let (engine, control) = engine(limits(), 9);
    let all = vec![request(&[1], 1), request(&[], 1)];
    assert!(engine.handle().submit_all(all).is_err());
    engine.handle().drain().unwrap();
    assert_eq!(control.ends(), []);
}

#[test]
fn an_answer_of_no_tokens_needs_no_engine() {
    let (engine, control) = engine(limits(), 9);
    let got = engine.handle().submit(request(&[1], 0)).unwrap().rest();
    assert_eq!((got.tokens, got.end.unwrap().finish), (vec![], FinishReason::Length));
    assert_eq!(control.steps().len(), 0);
}

#[test]
fn an_answer_has_room_up_to_the_longest_sequence() {
    let (engine, _) = engine(SchedulerConfig { max_model_len: 12, ..limits() }, 9);
    let got = engine.handle().submit(request(&[1, 2], usize::MAX)).unwrap().rest();
    assert_eq!(got.tokens, answer(&[1, 2], 10));
    assert_eq!(got.end.unwrap().finish, FinishReason::Length);
}

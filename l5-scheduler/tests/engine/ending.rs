//! Ends before the end: aborted, forgotten, drained, shut down.

use l5_scheduler::{EngineError, FinishReason, RequestId, SchedulerConfig, SubmitError};

use crate::fake::{answer, engine, limits, request};

#[test]
fn an_aborted_request_keeps_what_it_has_and_ends_once() {
    let (engine, control) = engine(limits(), 9);
    control.hold();
    let mut answering = engine.handle().submit(request(&[1], 50)).unwrap();
    control.wait_for_step(1);
    control.pass(2);
    control.wait_for_step(3);
    // The third step runs: its token comes, and no fourth step.
    engine.handle().abort(answering.id()).unwrap();
    engine.handle().abort(answering.id()).unwrap();
    control.open();
    let got = answering.rest();
    assert_eq!(got.tokens, answer(&[1], 3));
    assert_eq!(got.end.unwrap().finish, FinishReason::Aborted);
    assert_eq!(control.ends(), [(answering.id(), FinishReason::Aborted)]);
    engine.handle().abort(RequestId(77)).unwrap();
}

#[test]
fn who_waits_can_be_aborted_too() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 1, ..limits() }, 9);
    control.hold();
    let mut first = engine.handle().submit(request(&[1], 3)).unwrap();
    let mut second = engine.handle().submit(request(&[2], 3)).unwrap();
    control.wait_for_step(1);
    engine.handle().abort(second.id()).unwrap();
    control.open();
    let got = second.rest();
    assert_eq!((got.tokens, got.end.unwrap().finish), (vec![], FinishReason::Aborted));
    assert_eq!(first.rest().tokens, answer(&[1], 3));
}

#[test]
fn a_receiver_that_vanishes_aborts_its_request_before_the_next_step() {
    let (engine, control) = engine(limits(), 9);
    control.hold();
    let both = vec![request(&[1], 50), request(&[2], 5)];
    let mut both = engine.handle().submit_all(both).unwrap();
    let (mut stays, goes) = (both.pop().unwrap(), both.pop().unwrap());
    let (stays_id, goes_id) = (stays.id(), goes.id());
    control.wait_for_step(1);
    drop(goes);
    control.open();
    assert_eq!(stays.rest().tokens, answer(&[2], 5));
    let steps = control.steps();
    assert_eq!(steps[0], [goes_id, stays_id], "it was in the step that ran");
    assert!(steps[1..].iter().all(|step| step == &[stays_id]), "and in none after: {steps:?}");
    assert!(control.ends().contains(&(goes_id, FinishReason::Aborted)));
}

#[test]
fn a_drained_engine_finishes_what_it_has_and_takes_nothing_new() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 2, ..limits() }, 99);
    let handle = engine.handle();
    let all = (0..7).map(|i| request(&[i], 4)).collect();
    let answers = handle.submit_all(all).unwrap();
    handle.drain().unwrap();
    assert_eq!(control.ends().len(), 7, "drained means done");
    let refused = handle.submit(request(&[1], 1)).unwrap_err();
    assert_eq!(refused, SubmitError::Draining);
    for (i, mut got) in answers.into_iter().enumerate() {
        let got = got.try_recv().unwrap();
        assert_eq!(got.tokens, answer(&[i as u32], 4));
    }
    handle.drain().unwrap();
    assert_eq!(control.free_blocks(), Some(64));
}

#[test]
fn shutting_down_ends_everybody_and_says_so_to_who_comes_later() {
    // Answers that take far more steps than are let through.
    let config = SchedulerConfig { max_num_seqs: 2, num_gpu_blocks: 50_001, ..limits() };
    let (engine, control) = engine(SchedulerConfig { max_model_len: 90_000, ..config }, 99);
    let handle = engine.handle().clone();
    control.hold();
    let many = |prompts: std::ops::Range<u32>| prompts.map(|i| request(&[i], 80_000)).collect();
    let mut answers = handle.submit_all(many(0..5)).unwrap();
    control.wait_for_step(1);
    // These are in the inbox when the word comes.
    answers.extend(handle.submit_all(many(5..8)).unwrap());
    let ends = std::thread::scope(|scope| {
        let down = scope.spawn(|| engine.shutdown());
        while !down.is_finished() {
            control.pass(1);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        down.join().unwrap()
    });
    assert_eq!(ends, Ok(()));
    for mut answering in answers {
        assert_eq!(answering.rest().end.unwrap().finish, FinishReason::Aborted);
        assert_eq!(answering.recv(), None);
    }
    let stopped = SubmitError::Stopped(EngineError::ShutDown);
    assert_eq!(handle.submit(request(&[1], 1)).unwrap_err(), stopped);
    assert_eq!(handle.abort(RequestId(0)), Err(EngineError::ShutDown));
    assert_eq!(handle.drain(), Ok(()), "nothing is there");
    assert_eq!(handle.shutdown(), Ok(()), "a second time is no harm");
    assert_eq!(control.free_blocks(), Some(50_000));
}

#[test]
fn however_requests_end_each_ends_once_and_gives_its_blocks_back() {
    // A pool so small that requests are preempted, and ends of every kind.
    let config = SchedulerConfig { num_gpu_blocks: 17, max_model_len: 64, ..limits() };
    let (engine, control) = engine(config, 1000);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let handle = engine.handle().clone();
            scope.spawn(move || {
                for i in 0..50 {
                    let prompt = vec![thread + 1; 1 + (i * 7 % 23) as usize];
                    let tokens = 1 + (i * 5 % 30) as usize;
                    let mut answering = handle.submit(request(&prompt, tokens)).unwrap();
                    match i % 4 {
                        0 => drop(answering),
                        1 => {
                            let first = answering.recv().unwrap();
                            handle.abort(answering.id()).unwrap();
                            let end = first.end.or_else(|| answering.rest().end).unwrap();
                            let ends = [FinishReason::Aborted, FinishReason::Length];
                            assert!(ends.contains(&end.finish), "{end:?}");
                        }
                        _ => assert_eq!(answering.rest().tokens, answer(&prompt, tokens)),
                    }
                }
            });
        }
    });
    engine.handle().drain().unwrap();
    let mut ended: Vec<RequestId> = control.ends().into_iter().map(|(id, _)| id).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..200).map(RequestId).collect::<Vec<_>>(), "each ended, and once");
    assert_eq!(control.free_blocks(), Some(16), "every block came back");
    assert_eq!(engine.handle().load().pending_output_tokens, 0);
    assert_eq!(engine.handle().load().queued_tokens, 0);
}

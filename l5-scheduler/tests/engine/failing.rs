//! What goes wrong in the engine: everybody is told, nobody waits for ever.

use l5_scheduler::{EngineError, FinishReason, SchedulerConfig, SubmitError};

use crate::fake::{Trouble, answer, engine, limits, request};

#[test]
fn a_step_that_fails_ends_who_was_in_it_and_nobody_else() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 2, ..limits() }, 99);
    control.troubles(&[Trouble::None, Trouble::Error]);
    let all = (0..3).map(|i| request(&[i], 4)).collect();
    let answers = engine.handle().submit_all(all).unwrap();
    for (i, mut answering) in answers.into_iter().enumerate() {
        let got = answering.rest();
        if i < 2 {
            assert_eq!(got.tokens, answer(&[i as u32], 1), "what came before stays");
            assert_eq!(got.end.unwrap().finish, FinishReason::Failed);
        } else {
            assert_eq!(got.tokens, answer(&[2], 4), "who waited is answered");
        }
    }
    let mut again = engine.handle().submit(request(&[9], 2)).unwrap();
    assert_eq!(again.rest().tokens, answer(&[9], 2), "the engine goes on");
    engine.handle().drain().unwrap();
    assert_eq!(control.free_blocks(), Some(64));
}

#[test]
fn observers_are_told_of_a_request_whose_step_failed() {
    let (engine, control) = engine(limits(), 99);
    control.troubles(&[Trouble::None, Trouble::Error]);
    let mut lost = engine.handle().submit(request(&[1], 4)).unwrap();
    assert_eq!(lost.rest().end.unwrap().finish, FinishReason::Failed);
    let mut answered = engine.handle().submit(request(&[2], 4)).unwrap();
    assert_eq!(answered.rest().end.unwrap().finish, FinishReason::Length);
    engine.handle().drain().unwrap();
    assert_eq!(control.lost(), [(lost.id(), FinishReason::Failed)], "once, and nobody else");
}

/// An engine in which things go wrong until it has ended: everybody is told why.
fn ends_with(troubles: &[Trouble], word: &str) {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 1, ..limits() }, 99);
    let handle = engine.handle();
    control.troubles(troubles);
    control.hold();
    let mut answers = handle.submit_all((0..3).map(|i| request(&[i], 9)).collect()).unwrap();
    control.wait_for_step(1);
    answers.extend(handle.submit(request(&[7], 9)));
    control.open();
    let mut told = 0;
    for mut answering in answers {
        let end = answering.rest().end.unwrap();
        assert_eq!(end.finish, FinishReason::Failed, "{end:?}");
        assert_eq!(answering.recv(), None, "an end is told once");
        told += usize::from(end.error.is_some_and(|error| error.contains(word)));
    }
    assert!(told >= 2, "who was not in the step is told why: {told}");
    let why = handle.shutdown().unwrap_err();
    assert!(matches!(&why, EngineError::Failed(text) if text.contains(word)), "{why}");
    let refused = handle.submit(request(&[1], 1)).unwrap_err();
    assert_eq!(refused, SubmitError::Stopped(why.clone()));
    assert_eq!(handle.drain(), Err(why.clone()));
    assert_eq!(handle.abort(l5_scheduler::RequestId(0)), Err(why.clone()));
    assert_eq!(engine.shutdown(), Err(why));
}

#[test]
fn steps_that_keep_failing_end_the_engine() {
    ends_with(&[Trouble::Error, Trouble::Error], "a cable came loose");
}

#[test]
fn a_panic_in_a_step_ends_the_engine() {
    ends_with(&[Trouble::None, Trouble::Panic], "a wheel came off");
}

#[test]
fn who_waits_for_room_is_told_of_the_end_too() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 1, ..limits() }, 1);
    let handle = engine.handle();
    control.troubles(&[Trouble::Panic]);
    control.hold();
    let _running = handle.submit(request(&[1], 9)).unwrap();
    control.wait_for_step(1);
    let refused = std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            // More than there will ever be room for at once, so that they wait.
            handle.submit_waiting((0..3).map(|i| request(&[i], 1)).collect())
        });
        control.open();
        late.join().unwrap()
    });
    assert!(matches!(refused.unwrap_err(), SubmitError::Stopped(EngineError::Failed(_))));
}

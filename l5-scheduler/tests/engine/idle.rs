//! With nothing to do, nothing is done; and how busy it is can be read at any time.

use l5_scheduler::SchedulerConfig;

use crate::fake::{engine, limits, request};

#[test]
fn an_idle_engine_sleeps() {
    let (engine, control) = engine(limits(), 9);
    let handle = engine.handle();
    handle.submit(request(&[1], 5)).unwrap().rest();
    handle.drain().unwrap();
    let looks = handle.inbox_polls();
    assert_eq!(control.steps().len(), 5);
    assert!(looks <= 16, "a look a step, and one for each time it was woken: {looks}");
    // A loop that turns does so many times within this while.
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(handle.inbox_polls(), looks);
}

#[test]
fn an_engine_that_is_busy_says_how_much() {
    let (engine, control) = engine(SchedulerConfig { max_num_seqs: 2, ..limits() }, 99);
    let handle = engine.handle();
    assert_eq!(handle.load(), Default::default());
    control.hold();
    let mut answers = handle.submit_all((0..5).map(|i| request(&[i, i], 10)).collect()).unwrap();
    let load = handle.load();
    assert_eq!((load.queued_tokens, load.pending_output_tokens, load.seconds), (10, 50, None));
    control.wait_for_step(1);
    control.pass(1);
    control.wait_for_step(2);
    // In the midst of a step, and without waiting for its end.
    let load = handle.load();
    assert_eq!((load.running, load.waiting), (2, 3));
    assert_eq!((load.queued_tokens, load.pending_output_tokens), (6, 48), "two have a token each");
    assert!(load.seconds.is_some_and(|seconds| seconds > 0.0), "{load:?}");
    answers.clear();
    control.open();
    handle.drain().unwrap();
    let load = handle.load();
    assert_eq!(
        (load.running, load.waiting, load.queued_tokens, load.pending_output_tokens),
        (0, 0, 0, 0)
    );
}

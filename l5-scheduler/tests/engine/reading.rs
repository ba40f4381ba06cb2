//! Reading: slowly, in time, never, and from a task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use l5_scheduler::{FinishReason, OutputChunk};

use crate::fake::{answer, engine, limits, request};

#[test]
fn who_reads_slowly_holds_nobody_up_and_misses_nothing() {
    let (engine, _) = engine(limits(), 9);
    let handle = engine.handle();
    let mut slow = handle.submit(request(&[1], 50)).unwrap();
    let mut fast = handle.submit(request(&[2], 60)).unwrap();
    assert_eq!(fast.rest().tokens, answer(&[2], 60));
    // The slow one was done before. What nobody read was joined.
    let got = slow.recv().unwrap();
    assert_eq!(got.tokens, answer(&[1], 50));
    let text: String = got.tokens.iter().map(|token| format!("{token} ")).collect();
    assert_eq!(got.text, text);
    assert_eq!(got.end.map(|end| end.finish), Some(FinishReason::Length));
    assert_eq!(slow.recv(), None, "the end is told once");
    assert_eq!(slow.try_recv(), None);
}

#[test]
fn pieces_come_in_order_and_are_the_answer_together() {
    let (engine, control) = engine(limits(), 9);
    control.hold();
    let mut answering = engine.handle().submit(request(&[3, 4], 6)).unwrap();
    assert_eq!(answering.try_recv(), None, "nothing yet");
    let mut tokens = Vec::new();
    for step in 1..=6 {
        control.wait_for_step(step);
        control.pass(1);
        let piece = answering.recv().unwrap();
        tokens.extend(piece.tokens);
        assert_eq!(tokens, answer(&[3, 4], step), "after step {step}");
    }
    // The end may have come with the last token, or just behind it.
    while answering.recv().is_some() {}
    assert_eq!(tokens.len(), 6);
}

#[test]
fn memory_that_a_reader_brings_is_used_again() {
    let (engine, _) = engine(limits(), 9);
    let mut answering = engine.handle().submit(request(&[3], 9)).unwrap();
    let mut piece =
        OutputChunk { tokens: vec![99; 3], text: "old".into(), ..OutputChunk::default() };
    let mut tokens = Vec::new();
    while answering.recv_into(&mut piece) {
        tokens.extend_from_slice(&piece.tokens);
        assert!(!piece.text.contains("old"));
    }
    assert_eq!(tokens, answer(&[3], 9));
}

#[test]
fn who_waits_in_vain_for_a_time_is_told_nothing() {
    let (engine, control) = engine(limits(), 9);
    control.hold();
    let mut answering = engine.handle().submit(request(&[5], 1)).unwrap();
    assert_eq!(answering.recv_timeout(Duration::from_millis(1)), None);
    control.open();
    let piece = answering.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(piece.tokens, answer(&[5], 1));
}

/// Counts how often a task is woken, and wakes a thread that waits for it.
struct Task(AtomicUsize, std::thread::Thread);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.unpark();
    }
}

#[test]
fn a_task_is_woken_when_there_is_something_to_read() {
    let (engine, control) = engine(limits(), 9);
    control.hold();
    let task = Arc::new(Task(AtomicUsize::new(0), std::thread::current()));
    let waker = Waker::from(task.clone());
    let mut cx = Context::from_waker(&waker);
    let mut answering = engine.handle().submit(request(&[6], 3)).unwrap();
    assert!(answering.poll_recv(&mut cx).is_pending());
    assert!(answering.poll_recv(&mut cx).is_pending(), "polled again, it waits once");
    assert_eq!(task.0.load(Ordering::SeqCst), 0);
    control.open();
    let mut tokens = Vec::new();
    loop {
        match answering.poll_recv(&mut cx) {
            Poll::Ready(Some(piece)) => tokens.extend(piece.tokens),
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::park(),
        }
    }
    assert_eq!(tokens, answer(&[6], 3));
    assert!(task.0.load(Ordering::SeqCst) >= 1);
}

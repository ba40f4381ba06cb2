//! An engine that relays its requests: what the relay is told, and what becomes of what it brings.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use l4_sampler::LogprobsRequest;
use l4_sampler::guide::GuideSpec;
use l5_scheduler::engine::{ModelFacts, Relay, RelayOutput, relay_config};
use l5_scheduler::{
    Engine, EngineError, EngineRequest, FinishReason, RelayFailure, RequestId, ResponseStream,
    SchedulerConfig, SubmitError,
};
use proptest::prelude::*;

use crate::fake::{VOCAB, request};

/// Maximum time that a test waits for a relay.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A relay whose outputs a test holds.
#[derive(Clone, Default)]
struct Script(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    outputs: HashMap<RequestId, RelayOutput>,
    begun: Vec<(RequestId, u32)>,
    aborted: Vec<RequestId>,
    panics: bool,
}

impl Script {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the relay's state is like this.
    #[track_caller]
    fn wait(&self, until: impl Fn(&State) -> bool) {
        let wait = |state: &mut State| !until(state);
        let (_state, waited) = self.0.1.wait_timeout_while(self.lock(), TIMEOUT, wait).unwrap();
        assert!(!waited.timed_out(), "the relay was not told in time");
    }

    /// The output of a request, once the request was relayed.
    fn output(&self, stream: &ResponseStream) -> RelayOutput {
        let id = stream.id();
        self.wait(|state| state.outputs.contains_key(&id));
        self.lock().outputs.remove(&id).unwrap()
    }

    fn begun(&self) -> Vec<RequestId> {
        self.lock().begun.iter().map(|(id, _)| *id).collect()
    }
}

impl Relay for Script {
    fn begin(&mut self, id: RequestId, _: &EngineRequest, choice: u32, output: RelayOutput) {
        let mut state = self.lock();
        assert!(!state.panics, "the relay has a bug");
        state.begun.push((id, choice));
        state.outputs.insert(id, output);
        self.0.1.notify_all();
    }

    fn abort(&mut self, id: RequestId) {
        let mut state = self.lock();
        state.aborted.push(id);
        // As its trait asks, though not at once: the output may be held by the test.
        let output = state.outputs.remove(&id);
        drop(state);
        drop(output);
        self.0.1.notify_all();
    }
}

fn limits(seats: usize) -> SchedulerConfig {
    relay_config(64, seats)
}

fn engine(seats: usize, waiting: usize) -> (Engine, Script) {
    let script = Script::default();
    let facts = ModelFacts { vocab: VOCAB, ..ModelFacts::default() };
    (Engine::start_relay(script.clone(), limits(seats), facts, waiting).unwrap(), script)
}

#[track_caller]
fn ended(stream: &mut ResponseStream) -> (Vec<u32>, FinishReason, Option<String>) {
    let rest = stream.rest();
    let end = rest.end.unwrap();
    (rest.tokens, end.finish, end.error)
}

#[test]
fn tokens_come_back_as_they_arrive_and_the_length_counts_here() {
    let (engine, script) = engine(2, 4);
    let mut stream = engine.handle().submit(request(&[1, 2], 4)).unwrap();
    let mut output = script.output(&stream);
    assert_eq!(output.push(&[7]), None);
    assert_eq!(stream.recv().unwrap().tokens, [7]);
    assert_eq!((output.len(), output.is_empty()), (1, false));
    let too_many = output.push(&[8, 9, 10, 11, 12]);
    assert_eq!(too_many, Some(FinishReason::Length));
    assert_eq!(output.push(&[13]), Some(FinishReason::Length), "the end stays the end");
    output.fail(RelayFailure::Transient, "too late");
    assert_eq!(ended(&mut stream), (vec![8, 9, 10], FinishReason::Length, None));
    assert!(script.lock().aborted.is_empty(), "it has ended by itself");
}

#[test]
fn an_end_token_and_the_peers_own_end_end_a_response() {
    let (engine, script) = engine(2, 4);
    let mut own = request(&[1], 9);
    own.stop.token_ids = vec![5];
    let mut stream = engine.handle().submit(own).unwrap();
    assert_eq!(script.output(&stream).push(&[4, 5, 6]), Some(FinishReason::Stop));
    assert_eq!(ended(&mut stream).1, FinishReason::Stop);
    let mut stream = engine.handle().submit(request(&[1], 9)).unwrap();
    let mut output = script.output(&stream);
    output.push(&[4]);
    output.end(FinishReason::Length);
    assert_eq!(ended(&mut stream), (vec![4], FinishReason::Length, None));
}

#[test]
fn a_failure_a_foreign_token_and_a_dropped_output_are_failures_with_their_reason() {
    let (engine, script) = engine(4, 4);
    let submit = || engine.handle().submit(request(&[1], 9)).unwrap();
    let mut stream = submit();
    script.output(&stream).fail(RelayFailure::Final, "the line is dead");
    assert_eq!(ended(&mut stream), (vec![], FinishReason::Failed, Some("the line is dead".into())));
    let mut stream = submit();
    let foreign = script.output(&stream).push(&[3, VOCAB as u32]);
    assert_eq!(foreign, Some(FinishReason::Failed));
    let (tokens, finish, error) = ended(&mut stream);
    assert_eq!((tokens, finish), (vec![3], FinishReason::Failed));
    assert!(error.unwrap().contains("1000"));
    let mut stream = submit();
    drop(script.output(&stream));
    let (_, finish, error) = ended(&mut stream);
    assert_eq!(finish, FinishReason::Failed);
    assert!(error.unwrap().contains("without a finish reason"));
    engine.handle().drain().unwrap();
    assert_eq!(engine.handle().load().running, 0);
}

#[test]
fn a_failure_says_whether_another_replica_may_serve_the_request() {
    let (engine, script) = engine(4, 4);
    let failure = |stream: &mut ResponseStream| stream.rest().end.unwrap().relay_failure;
    for kind in [RelayFailure::Transient, RelayFailure::Unserved, RelayFailure::Final] {
        let mut stream = engine.handle().submit(request(&[1], 9)).unwrap();
        script.output(&stream).fail(kind, "no");
        assert_eq!(failure(&mut stream), Some(kind));
    }
    let mut stream = engine.handle().submit(request(&[1], 9)).unwrap();
    let mut output = script.output(&stream);
    output.push(&[7]);
    output.fail(RelayFailure::Transient, "no");
    assert_eq!(failure(&mut stream), Some(RelayFailure::Final), "a part has arrived");
    let mut stream = engine.handle().submit(request(&[1], 9)).unwrap();
    drop(script.output(&stream));
    assert_eq!(failure(&mut stream), None, "a fault of this process, not of the server");
    let mut stream = engine.handle().submit(request(&[1], 1)).unwrap();
    script.output(&stream).push(&[7]);
    assert_eq!(failure(&mut stream), None);
}

#[test]
fn requests_that_wait_can_be_failed_while_those_that_are_relayed_go_on() {
    let (engine, script) = engine(1, 9);
    let mut relayed = engine.handle().submit(request(&[1], 9)).unwrap();
    let mut output = script.output(&relayed);
    let mut waiting = engine.handle().submit_all(vec![request(&[2], 9), request(&[3], 9)]).unwrap();
    engine.handle().fail_waiting("the server is down").unwrap();
    for stream in &mut waiting {
        let end = stream.rest().end.unwrap();
        assert_eq!(
            (end.finish, end.relay_failure),
            (FinishReason::Failed, Some(RelayFailure::Unserved))
        );
        assert_eq!(end.error.as_deref(), Some("the server is down"));
    }
    output.push(&[7]);
    output.end(FinishReason::Stop);
    assert_eq!(ended(&mut relayed), (vec![7], FinishReason::Stop, None));
    let next = engine.handle().submit(request(&[4], 9)).unwrap();
    script.output(&next).end(FinishReason::Stop);
    engine.handle().drain().unwrap();
    assert_eq!(script.begun(), [relayed.id(), next.id()], "the others were never relayed");
    assert_eq!((engine.handle().load().waiting, engine.handle().load().queued_tokens), (0, 0));
}

#[test]
fn more_requests_than_seats_wait_for_one_in_the_order_of_priority_and_arrival() {
    let (engine, script) = engine(1, 9);
    let first = engine.handle().submit(request(&[1], 2)).unwrap();
    let output = script.output(&first);
    let of = |priority| EngineRequest { priority, ..request(&[1], 2) };
    let rest = engine.handle().submit_all([5, 0, -1, 0].map(of).to_vec()).unwrap();
    // The counts are of slightly different moments while requests move from the inbox to the queue.
    let began = Instant::now();
    let counts = || {
        let load = engine.handle().load();
        (load.running, load.waiting, load.queued_tokens, load.pending_output_tokens)
    };
    while counts() != (1, 4, 5, 10) {
        assert!(began.elapsed() < TIMEOUT, "{:?}", counts());
        std::thread::yield_now();
    }
    drop(output);
    for at in [2, 1, 3, 0] {
        script.output(&rest[at]).end(FinishReason::Stop);
    }
    engine.handle().drain().unwrap();
    let order: Vec<_> = [2, 1, 3, 0].map(|at: usize| rest[at].id()).to_vec();
    assert_eq!(script.begun()[1..], order);
    assert_eq!(counts(), (0, 0, 0, 0));
}

#[test]
fn a_client_that_goes_aborts_its_request_whether_it_waits_or_is_relayed() {
    let (engine, script) = engine(1, 9);
    let relayed = engine.handle().submit(request(&[1], 9)).unwrap();
    script.wait(|state| state.begun.len() == 1);
    let waiting = engine.handle().submit(request(&[2], 9)).unwrap();
    let last = engine.handle().submit(request(&[3], 9)).unwrap();
    let (relayed_id, last_id) = (relayed.id(), last.id());
    drop(waiting);
    drop(relayed);
    script.wait(|state| state.begun.len() == 2);
    assert_eq!(script.lock().aborted, [relayed_id], "the other was never relayed");
    assert_eq!(script.begun(), [relayed_id, last_id]);
}

#[test]
fn an_aborted_response_ends_although_the_relay_keeps_its_output() {
    let (engine, script) = engine(1, 9);
    let mut stream = engine.handle().submit(request(&[1], 9)).unwrap();
    let mut output = script.output(&stream);
    output.push(&[7]);
    engine.handle().abort(stream.id()).unwrap();
    assert_eq!(ended(&mut stream), (vec![7], FinishReason::Aborted, None));
    engine.handle().drain().unwrap();
    output.push(&[8]);
    assert_eq!(stream.recv(), None, "nothing follows the end");
}

#[test]
fn choices_have_their_numbers_and_a_full_queue_refuses() {
    let (engine, script) = engine(2, 1);
    let all = engine.handle().submit_n(request(&[1], 9), 3).unwrap();
    script.wait(|state| state.begun.len() == 2);
    let full = engine.handle().submit(request(&[1], 9)).unwrap_err();
    assert!(matches!(full, SubmitError::Full { .. }), "{full}");
    assert_eq!(script.lock().begun, [(all[0].id(), 0), (all[1].id(), 1)]);
}

#[test]
fn what_a_relay_cannot_bring_is_refused_by_name() {
    let (engine, _) = engine(2, 4);
    let refused = |request: EngineRequest| engine.handle().submit(request).unwrap_err();
    let mut probable = request(&[1], 9);
    Arc::make_mut(&mut probable.params).logprobs = Some(LogprobsRequest::default());
    assert_eq!(refused(probable), SubmitError::NotRelayed("log probabilities"));
    let guide = Some(GuideSpec::Regex("a+".into()).into());
    let guided = EngineRequest { guide, ..request(&[1], 9) };
    assert_eq!(refused(guided), SubmitError::NotRelayed("guides"));
    let mut banned = request(&[1], 9);
    Arc::make_mut(&mut banned.params).logit_bias = vec![(1, f32::NEG_INFINITY)];
    assert_eq!(refused(banned), SubmitError::NotRelayed("infinite biases"));
}

#[test]
fn rates_are_measured_from_what_comes_back() {
    let (engine, script) = engine(2, 4);
    let handle = engine.handle();
    assert_eq!(handle.load().decode_time, None);
    let mut stream = handle.submit(request(&[1; 10], 3)).unwrap();
    let mut output = script.output(&stream);
    output.push(&[1]);
    output.push(&[2, 3]);
    stream.rest();
    handle.drain().unwrap();
    let load = handle.load();
    assert!(load.prefill_seconds_per_token.is_some_and(|seconds| seconds > 0.0), "{load:?}");
    let [one, many] = [1, 8].map(|width| load.decode_step_seconds(width));
    assert!(one.is_some() && one == many, "the width is the peer's: {load:?}");
    assert_eq!((load.seconds, load.steps), (Some(0.0), 1));
}

#[test]
fn shutdown_aborts_all_requests_and_tells_the_relay_of_those_it_has() {
    let (engine, script) = engine(1, 9);
    let mut relayed = engine.handle().submit(request(&[1], 9)).unwrap();
    script.wait(|state| state.begun.len() == 1);
    let mut waiting = engine.handle().submit(request(&[2], 9)).unwrap();
    let handle = engine.handle().clone();
    engine.shutdown().unwrap();
    assert_eq!(ended(&mut relayed).1, FinishReason::Aborted);
    assert_eq!(ended(&mut waiting).1, FinishReason::Aborted);
    assert_eq!(script.lock().aborted, [relayed.id()]);
    assert_eq!(handle.ended(), Some(EngineError::ShutDown));
    assert_eq!((handle.load().running, handle.load().pending_output_tokens), (0, 0));
}

#[test]
fn a_relay_that_panics_fails_all_requests_with_the_reason() {
    let (engine, script) = engine(1, 9);
    let mut first = engine.handle().submit(request(&[1], 9)).unwrap();
    let output = script.output(&first);
    let mut second = engine.handle().submit(request(&[2], 9)).unwrap();
    let mut third = engine.handle().submit(request(&[3], 9)).unwrap();
    script.lock().panics = true;
    output.end(FinishReason::Stop);
    assert_eq!(ended(&mut first).1, FinishReason::Stop);
    assert_eq!(ended(&mut second).1, FinishReason::Failed, "the relay had it");
    let (_, finish, error) = ended(&mut third);
    assert_eq!(finish, FinishReason::Failed);
    assert!(error.unwrap().contains("the relay has a bug"));
    assert!(matches!(engine.handle().ended(), Some(EngineError::Failed(_))));
}

/// What a test does next with a request.
#[derive(Clone, Copy, Debug)]
enum Act {
    Submit,
    Push(usize, usize),
    End(usize),
    Drop(usize),
    Fail(usize),
    Abort(usize),
    FailWaiting,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Submit),
        4 => (0usize..8, 1usize..5).prop_map(|(at, n)| Act::Push(at, n)),
        1 => (0usize..8).prop_map(Act::End),
        1 => (0usize..8).prop_map(Act::Drop),
        1 => (0usize..8).prop_map(Act::Fail),
        1 => (0usize..8).prop_map(Act::Abort),
        1 => Just(Act::FailWaiting),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever happens, each request ends exactly once, never more are relayed at once than there are seats, and
    /// nothing is left in the load.
    #[test]
    fn every_request_ends_once_and_leaves_nothing(acts in prop::collection::vec(act(), 1..40)) {
        let (engine, script) = engine(3, 64);
        let mut streams = Vec::new();
        for act in acts {
            match act {
                Act::Submit => streams.push(engine.handle().submit(request(&[1, 2], 6)).unwrap()),
                Act::Push(at, n) => {
                    let id = script.begun().get(at).copied();
                    let output = id.and_then(|id| script.lock().outputs.remove(&id));
                    if let Some(mut output) = output
                        && output.push(&vec![1; n]).is_none()
                    {
                        script.lock().outputs.insert(id.unwrap(), output);
                    }
                }
                Act::End(at) | Act::Drop(at) | Act::Fail(at) => {
                    let id = script.begun().get(at).copied();
                    let output = id.and_then(|id| script.lock().outputs.remove(&id));
                    match (act, output) {
                        (Act::End(_), Some(output)) => output.end(FinishReason::Stop),
                        (Act::Fail(_), Some(output)) => output.fail(RelayFailure::Transient, "no"),
                        (_, output) => drop(output),
                    }
                }
                Act::Abort(at) => {
                    let id = streams.get(at).map(ResponseStream::id);
                    id.map_or(Ok(()), |id| engine.handle().abort(id)).unwrap();
                }
                Act::FailWaiting => engine.handle().fail_waiting("down").unwrap(),
            }
            prop_assert!(engine.handle().load().running <= 3);
        }
        for stream in &mut streams {
            engine.handle().abort(stream.id()).unwrap();
            let rest = stream.rest();
            prop_assert!(rest.end.is_some() && rest.tokens.len() <= 6);
            prop_assert_eq!(stream.recv(), None);
        }
        engine.handle().drain().unwrap();
        let load = engine.handle().load();
        prop_assert_eq!((load.running, load.waiting), (0, 0));
        prop_assert_eq!((load.queued_tokens, load.pending_output_tokens), (0, 0));
    }
}

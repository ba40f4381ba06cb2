//! Quotes against hand-made examples.

use std::time::Duration;

use l5_scheduler::sim::{FakeModel, Output};
use l5_scheduler::{
    DecodeTime, Executor, Load, PolicyKind, Request, RequestId, Resolved, Scheduler,
    SchedulerConfig, StepOutput, Time,
};
use proptest::prelude::*;

use super::*;
use crate::quote::RequestSize;

/// Milliseconds of a step, of each row, and of each prompt token.
const BASE: f64 = 8.0;
const ROW: f64 = 2.0;
const PROMPT: f64 = 0.5;

fn load() -> Load {
    let decode_time = Some(DecodeTime { base: BASE * 1e-3, per_row: ROW * 1e-3 });
    let prefill_seconds_per_token = Some(PROMPT * 1e-3);
    Load { decode_time, prefill_seconds_per_token, steps: 100, ..Load::default() }
}

fn config(seats: usize) -> SchedulerConfig {
    let policy = PolicyKind::StrictPriority;
    let limits = SchedulerConfig { policy, max_num_seqs: seats, ..SchedulerConfig::new(4096, 16) };
    SchedulerConfig { max_num_batched_tokens: 100, ..limits }
}

fn request(prompt: usize, output: usize) -> Admitted {
    let expected_output_tokens = Some(output as f64);
    let size = RequestSize { prompt_tokens: prompt, max_tokens: output, ..RequestSize::default() };
    let size = RequestSize { expected_output_tokens, ..size };
    Admitted { size, in_time: true, ..Admitted::default() }
}

fn ask_beside(
    request: &Admitted,
    seats: usize,
    in_flight: &InFlight,
    neighbours: &[LaneWork],
    now: f64,
) -> Quote {
    let work = in_flight.work(&config(seats), &load(), Time(now));
    Forecast::new(&work, neighbours, Time(now)).quote(request, in_flight, 0.0)
}

fn ask(request: &Admitted, seats: usize, in_flight: &InFlight, now: f64) -> Quote {
    ask_beside(request, seats, in_flight, &[], now)
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn empty() -> InFlight {
    InFlight::new(PolicyKind::StrictPriority)
}

#[test]
fn an_idle_replica_takes_the_steps_of_the_request_alone() {
    let quote = ask(&request(250, 11), 4, &empty(), 5.0);
    // Three steps of at most 100 prompt tokens, then ten decode steps of width 1.
    assert_eq!(ms(quote.first_token), 3.0 * BASE + 250.0 * PROMPT);
    assert_eq!(ms(quote.done), 149.0 + 10.0 * (BASE + ROW));
    assert_eq!((quote.queue, ms(quote.per_token)), (Duration::ZERO, BASE + ROW));
    assert_eq!((ms(quote.alone), ms(quote.done_after(1))), (249.0, 149.0));
}

#[test]
fn cached_prompt_tokens_are_not_computed() {
    let mut warm = request(250, 11);
    warm.size.cached_tokens = 200;
    assert_eq!(ms(ask(&warm, 4, &empty(), 0.0).first_token), BASE + 50.0 * PROMPT);
}

/// Two seats, taken by requests with 20 and 5 tokens to come.
fn full() -> InFlight {
    let mut in_flight = empty();
    for (id, output) in [(0, 21), (1, 6)] {
        in_flight.admit(RequestId(id), request(10, output), Time::ZERO);
        in_flight.output(RequestId(id), 1, Time(1.0));
    }
    in_flight
}

#[test]
fn with_all_seats_taken_a_request_waits_for_the_first_that_ends() {
    let quote = ask(&request(10, 1), 2, &full(), 1.0);
    let soonest = 5.0 * (BASE + 2.0 * ROW) + BASE + ROW + 10.0 * PROMPT;
    assert_eq!(ms(quote.first_token_range[0]), soonest);
    assert_eq!(ms(quote.first_token_range[1]), soonest + 100.0, "others may overtake it");
    assert_eq!(ms(quote.first_token), soonest + 50.0, "half of that, before any did");
    let later = ask(&request(10, 1), 2, &full(), 1.006);
    assert_eq!(ms(later.first_token), ms(quote.first_token) - 6.0, "half a step has passed");
}

#[test]
fn a_request_waits_for_those_ahead_of_it_and_not_for_those_behind() {
    let mut in_flight = full();
    let soonest =
        |in_flight: &InFlight| ms(ask(&request(10, 1), 2, in_flight, 1.0).first_token_range[0]);
    let alone = soonest(&in_flight);
    in_flight.admit(RequestId(7), Admitted { priority: 1, ..request(90, 3) }, Time(1.0));
    assert_eq!(soonest(&in_flight), alone);
    in_flight.admit(RequestId(8), request(90, 3), Time(0.5));
    // It has its tokens in steps 6, 7 and 8, and the new one follows in step 9.
    let steps = 5.0 * (BASE + 2.0 * ROW) + (BASE + ROW) + 2.0 * (BASE + 2.0 * ROW) + (BASE + ROW);
    assert_eq!(soonest(&in_flight), steps + 100.0 * PROMPT);
}

#[test]
fn neighbours_with_requests_take_their_turns() {
    let mut other = empty();
    other.admit(RequestId(0), request(10, 101), Time::ZERO);
    other.output(RequestId(0), 1, Time(1.0));
    let neighbour = other.work(&config(4), &load(), Time(1.0));
    let quote =
        |output, near: &[LaneWork]| ask_beside(&request(10, output), 4, &empty(), near, 1.0);
    let (alone, beside) = (quote(51, &[]), quote(51, std::slice::from_ref(&neighbour)));
    assert_eq!(ms(beside.per_token), 2.0 * ms(alone.per_token), "each has every other step");
    let long = quote(201, &[neighbour]);
    assert!(ms(long.done) < 1.7 * ms(quote(201, &[]).done), "it ends in the middle: {long:?}");
}

/// A lane that had a request of 41 steps in each of 20 seconds, which found so many others on the machine.
fn had_requests(beside: impl Fn(u64) -> usize, max_tokens: usize) -> InFlight {
    let mut in_flight = empty();
    for id in 0..20 {
        let arrival = Time(id as f64);
        let size = RequestSize { prompt_tokens: 10, max_tokens, ..RequestSize::default() };
        let admitted = Admitted { arrival, size, beside: beside(id), ..Admitted::default() };
        in_flight.admit(RequestId(id), admitted, arrival);
        in_flight.output(RequestId(id), 41, arrival + 0.42);
        in_flight.end(RequestId(id), true);
    }
    in_flight
}

/// End of a request of 501 tokens, in ms.
fn done_beside(other: &InFlight) -> f64 {
    let neighbour = [other.work(&config(4), &load(), Time(20.0))];
    ms(ask_beside(&request(10, 501), 4, &empty(), &neighbour, 20.0).done)
}

#[test]
fn neighbours_go_on_getting_as_many_requests_as_came_recently() {
    // A request each second, of 41 steps of 10 ms: they have less than half of the time. What they were allowed to
    // have does not matter.
    let alone = ms(ask(&request(10, 501), 4, &empty(), 20.0).done);
    for max_tokens in [41, 4000] {
        let beside = done_beside(&had_requests(|id| (id % 2) as usize, max_tokens));
        assert!(beside > 1.5 * alone && beside < 1.9 * alone, "{alone} and {beside}");
    }
}

#[test]
fn a_client_that_waits_for_each_response_is_not_expected_to_send_more_while_it_waits() {
    let alone = ms(ask(&request(10, 501), 4, &empty(), 20.0).done);
    assert_eq!(done_beside(&had_requests(|_| 0, 4000)), alone);
}

#[test]
fn a_request_that_would_make_another_one_late_names_it() {
    let mut in_flight = empty();
    let deadline = Some(Time(1.0 + 0.245));
    in_flight.admit(RequestId(3), Admitted { deadline, ..request(10, 21) }, Time::ZERO);
    in_flight.output(RequestId(3), 1, Time(1.0));
    // 20 steps of 10 ms, and 12 ms with two rows.
    let small = ask(&request(1, 1), 2, &in_flight, 1.0);
    assert_eq!(small.harms, None, "{small:?}");
    let large = ask(&request(100, 1), 2, &in_flight, 1.0);
    let harm = large.harms.expect("50 ms of a prompt");
    assert_eq!((harm.request, ms(harm.left)), (RequestId(3), 245.0));
    let urgent = Admitted { priority: -1, ..request(100, 1) };
    assert_eq!(ask(&urgent, 2, &in_flight, 1.0).harms, None, "it may harm a less urgent one");
    let mut late = empty();
    let not_promised = Admitted { deadline, in_time: false, ..request(10, 21) };
    late.admit(RequestId(3), not_promised, Time::ZERO);
    late.output(RequestId(3), 1, Time(1.0));
    assert_eq!(ask(&request(100, 1), 2, &late, 1.0).harms, None, "nothing was promised");
}

#[test]
fn a_lane_of_a_machine_protects_the_deadlines_of_the_others() {
    let mut other = empty();
    let deadline = Some(Time(1.0 + 1.2));
    other.admit(RequestId(3), Admitted { deadline, ..request(10, 101) }, Time::ZERO);
    other.output(RequestId(3), 1, Time(1.0));
    let neighbour = [other.work(&config(4), &load(), Time(1.0))];
    let harms = |output| ask_beside(&request(1, output), 4, &empty(), &neighbour, 1.0).harms;
    assert_eq!(harms(10), None, "100 steps of 10 ms, and ten more");
    assert_eq!(harms(60).map(|harm| harm.request), Some(RequestId(3)));
}

#[test]
fn a_waiting_request_is_overtaken_no_further_than_it_was_promised() {
    let mut in_flight = full();
    let first_token_range = [60, 200].map(Duration::from_millis);
    let waits = Admitted { arrival: Time(1.0), first_token_range, ..request(10, 5) };
    in_flight.admit(RequestId(9), waits, Time(1.0));
    let urgent = |output| Admitted { deadline: Some(Time(60.0)), ..request(10, output) };
    let harms = |request: &Admitted| ask(request, 2, &in_flight, 1.0).harms;
    assert_eq!(harms(&urgent(3)), None, "it is a little later");
    assert_eq!(harms(&urgent(90)).map(|harm| harm.request), Some(RequestId(9)));
    let behind = Admitted { arrival: Time(2.0), ..request(10, 90) };
    assert_eq!(harms(&behind), None, "it overtakes nothing");
}

#[test]
fn how_far_requests_are_overtaken_is_measured() {
    let mut in_flight = full();
    let soonest = |in_flight: &InFlight| {
        let quote = ask(&request(10, 1), 2, in_flight, 1.0);
        ms(quote.first_token) - ms(quote.first_token_range[0])
    };
    assert_eq!(soonest(&in_flight), 50.0);
    for id in 10..90 {
        let first_token_range = [1, 2].map(Duration::from_secs);
        let at = 1.0 + 1e-3 * id as f64;
        in_flight.admit(
            RequestId(id),
            Admitted { arrival: Time(at - 1.0), first_token_range, ..request(10, 9) },
            Time(at),
        );
        in_flight.output(RequestId(id), 1, Time(at));
        in_flight.end(RequestId(id), false);
    }
    assert!(soonest(&in_flight) < 10.0, "none was: {}", soonest(&in_flight));
}

proptest! {
    /// Any state gives a quote whose times are in order.
    #[test]
    fn times_of_a_quote_are_in_order(
        decoding in prop::collection::vec((1_usize..400, 2_usize..80, 0_i64..3), 0..7),
        waiting in prop::collection::vec((1_usize..400, 2_usize..80, 0_i64..3), 0..9),
        (prompt, output, priority) in (1_usize..400, 1_usize..80, 0_i64..3),
        deadline in prop::option::of(0.0_f64..9.0),
        seats in 1_usize..6,
    ) {
        let mut in_flight = empty();
        for (id, (prompt, output, priority)) in (0..).zip(decoding) {
            in_flight.admit(RequestId(id), Admitted { priority, ..request(prompt, output) }, Time(0.5));
            in_flight.output(RequestId(id), 1, Time(1.0));
        }
        for (id, (prompt, output, priority)) in (100..).zip(waiting) {
            let arrival = Time(1.0 + 1e-6 * id as f64);
            in_flight.admit(RequestId(id), Admitted { priority, arrival, ..request(prompt, output) }, arrival);
        }
        let deadline = deadline.map(|within| Time(1.004 + within));
        let arrival = Time(1.004);
        let new = Admitted { priority, deadline, arrival, ..request(prompt, output) };
        let quote = ask(&new, seats, &in_flight, 1.004);
        prop_assert!(quote.queue <= quote.first_token && quote.first_token <= quote.done);
        prop_assert!(quote.done < Duration::MAX && quote.done_late < Duration::MAX);
        let [soonest, latest] = quote.first_token_range;
        prop_assert!(soonest <= quote.first_token && quote.first_token <= latest);
    }
}

#[test]
fn what_is_computed_of_a_prompt_is_not_waited_for_again() {
    let mut scheduler = Scheduler::new(config(4)).unwrap();
    let (mut model, mut output, mut resolved) =
        (FakeModel::default(), StepOutput::default(), Resolved::default());
    let mut in_flight = empty();
    in_flight.admit(RequestId(1), request(350, 5), Time::ZERO);
    let long = Request { prompt: (0..350).collect(), max_tokens: 5, ..Request::default() };
    scheduler.add_request(Request { id: RequestId(1), ..long }).unwrap();
    model.begin(RequestId(1), Output::of(RequestId(1)));
    let first_token = |in_flight: &InFlight| {
        // A request that arrives while a step runs, and whose prompt needs no step of its own.
        ms(ask(&request(10, 5), 4, in_flight, 1.0).first_token)
    };
    let before = first_token(&in_flight);
    scheduler.plan(Time::ZERO);
    model.execute(&scheduler.view(), &mut output).unwrap();
    scheduler.resolve(&output, &mut resolved).unwrap();
    scheduler.apply(&resolved, Time(1.0));
    in_flight.prefilled(&scheduler);
    // A step of 100 tokens less.
    assert_eq!(before - first_token(&in_flight), BASE + 100.0 * PROMPT);
    scheduler.reset_prefix_cache(true);
    in_flight.prefilled(&scheduler);
    assert_eq!(first_token(&in_flight), before, "a preempted request begins again");
}

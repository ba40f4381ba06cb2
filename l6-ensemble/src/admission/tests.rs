//! Decisions of the door.

use std::time::Duration;

use l5_scheduler::engine::LoadMeter;
use l5_scheduler::{PolicyKind, RequestId, StepLoad};
use proptest::prelude::*;

use super::*;

/// A replica whose steps take 10 ms for each row.
struct Replica {
    config: SchedulerConfig,
    in_flight: InFlight,
    load: Load,
}

impl Replica {
    fn new(seats: usize) -> Self {
        let policy = PolicyKind::StrictPriority;
        let config =
            SchedulerConfig { policy, max_num_seqs: seats, ..SchedulerConfig::new(65, 16) };
        let mut meter = LoadMeter::default();
        let step = StepLoad { decode_tokens: 1, ..StepLoad::default() };
        (0..8).for_each(|_| meter.step(&step, Duration::from_millis(10)));
        Self { config, in_flight: InFlight::new(policy), load: meter.load() }
    }

    fn view(&self) -> LaneView<'_> {
        LaneView {
            load: self.load,
            config: &self.config,
            in_flight: &self.in_flight,
            max_num_waiting: 4,
            priority_floor: None,
            neighbours: &[],
            margins: Margins::default(),
        }
    }

    /// Adds a request that decodes, with so many tokens to come.
    fn decodes(&mut self, id: u64, priority: i64, tokens: usize, deadline: Option<f64>) {
        let deadline = deadline.map(Time);
        let request = AdmissionRequest { priority, deadline, ..request(tokens + 1, None) };
        self.in_flight.admit(RequestId(id), request.admitted(&Quote::default()), Time::ZERO);
        self.in_flight.output(RequestId(id), 1, Time::ZERO);
        self.load.running += 1;
    }
}

fn request(max_tokens: usize, deadline: Option<f64>) -> AdmissionRequest {
    let expected_output_tokens = Some(max_tokens as f64);
    let size =
        RequestSize { prompt_tokens: 1, max_tokens, expected_output_tokens, cached_tokens: 0 };
    AdmissionRequest { size, deadline: deadline.map(Time), ..AdmissionRequest::default() }
}

fn code(request: &AdmissionRequest, lane: &LaneView<'_>) -> Option<RefusalCode> {
    match decide(request, lane).expect("it fits") {
        Decision::Admit { .. } => None,
        Decision::Refuse(refusal) => Some(refusal.code),
    }
}

#[test]
fn a_request_that_does_not_fit_the_context_is_an_error_and_no_refusal() {
    let replica = Replica::new(4);
    let mut long = request(10, None);
    long.size.prompt_tokens = 1024;
    let error = decide(&long, &replica.view()).unwrap_err();
    assert!(error.to_string().contains("1024 tokens"), "{error}");
    long.size.prompt_tokens = 1023;
    assert_eq!(code(&long, &replica.view()), None, "one output token fits, and ends it");
}

#[test]
fn a_deadline_is_kept_with_a_margin_or_refused() {
    let replica = Replica::new(4);
    // 100 steps of 10 ms, and a tenth more.
    assert_eq!(code(&request(100, Some(1.101)), &replica.view()), None);
    let late = request(100, Some(1.099));
    assert_eq!(code(&late, &replica.view()), Some(RefusalCode::DeadlineUnreachable));
    let far = request(100, Some(-1.0));
    assert_eq!(code(&far, &replica.view()), Some(RefusalCode::DeadlineUnreachable));
    assert_eq!(code(&request(100, None), &replica.view()), None);
}

#[test]
fn before_steps_are_measured_only_an_idle_machine_takes_a_deadline() {
    let mut replica = Replica { load: Load::default(), ..Replica::new(4) };
    let decision = decide(&request(100, Some(0.001)), &replica.view()).unwrap();
    assert!(matches!(decision, Decision::Admit { quote } if !quote.measured), "{decision:?}");
    replica.decodes(1, 0, 10, None);
    assert_eq!(code(&request(100, Some(60.0)), &replica.view()), Some(RefusalCode::QueueFull));
    assert_eq!(code(&request(100, None), &replica.view()), None, "nothing is promised to it");
    let work = replica.in_flight.work(&replica.config, &replica.load, Time::ZERO);
    let idle = Replica { load: Load::default(), ..Replica::new(4) };
    let view = LaneView { neighbours: &[work], ..idle.view() };
    assert_eq!(code(&request(100, Some(60.0)), &view), Some(RefusalCode::QueueFull), "a neighbour");
}

#[test]
fn a_request_that_harms_one_in_flight_is_refused_unless_it_is_strictly_more_urgent() {
    let mut replica = Replica::new(4);
    // 100 steps of 10 ms; 20 ms with a second row.
    replica.decodes(1, 5, 100, Some(1.5));
    let with = |priority| AdmissionRequest { priority, ..request(100, None) };
    assert_eq!(code(&with(5), &replica.view()), Some(RefusalCode::WouldHarm));
    assert_eq!(code(&with(6), &replica.view()), Some(RefusalCode::WouldHarm), "less urgent");
    assert_eq!(code(&with(4), &replica.view()), None, "more urgent");
    let Decision::Refuse(refusal) = decide(&with(5), &replica.view()).unwrap() else { panic!() };
    assert_eq!(refusal.quote.harms.map(|harm| harm.request), Some(RequestId(1)));
}

#[test]
fn a_request_in_flight_that_is_late_anyway_protects_nothing() {
    let mut replica = Replica::new(4);
    replica.decodes(1, 0, 100, Some(0.9));
    assert_eq!(code(&request(100, None), &replica.view()), None);
}

#[test]
fn a_floor_refuses_what_is_less_urgent_and_a_full_queue_refuses_all() {
    let mut replica = Replica::new(2);
    let with = |priority| AdmissionRequest { priority, ..request(10, None) };
    let floor = LaneView { priority_floor: Some(3), ..replica.view() };
    assert_eq!(code(&with(3), &floor), None);
    assert_eq!(code(&with(4), &floor), Some(RefusalCode::PriorityFloor));
    replica.load.waiting = 5;
    assert_eq!(code(&with(0), &replica.view()), None, "two seats are free beside the four");
    replica.load.waiting = 6;
    assert_eq!(code(&with(0), &replica.view()), Some(RefusalCode::QueueFull));
    let floor = LaneView { priority_floor: Some(3), ..replica.view() };
    assert_eq!(code(&with(4), &floor), Some(RefusalCode::PriorityFloor), "the more certain reason");
}

#[test]
fn a_deadline_is_checked_for_an_output_that_few_requests_exceed() {
    let mut replica = Replica::new(4);
    // One output in ten is long, so the expected one is short.
    for id in 0..200 {
        let admitted =
            AdmissionRequest { now: Time::ZERO, ..request(100, None) }.admitted(&Quote::default());
        replica.in_flight.admit(RequestId(id), admitted, Time::ZERO);
        replica.in_flight.output(RequestId(id), if id % 10 == 0 { 90 } else { 10 }, Time::ZERO);
        replica.in_flight.end(RequestId(id), true);
    }
    let mut asked = request(100, None);
    asked.size.expected_output_tokens = None;
    let quote = *decide(&asked, &replica.view()).expect("it fits").quote();
    assert!(quote.done * 2 < quote.done_late, "{quote:?}");
    asked.deadline = Some(Time(quote.done.as_secs_f64() * 1.5));
    assert_eq!(code(&asked, &replica.view()), Some(RefusalCode::DeadlineUnreachable));
    asked.deadline = Some(Time(quote.done_late.as_secs_f64() * 1.2));
    assert_eq!(code(&asked, &replica.view()), None);
}

#[test]
fn of_several_reasons_the_most_certain_one_is_given() {
    let mut replica = Replica::new(4);
    replica.decodes(1, 0, 100, Some(1.5));
    // Late, and harmful.
    let late = request(100, Some(0.5));
    assert_eq!(code(&late, &replica.view()), Some(RefusalCode::DeadlineUnreachable));
    replica.load.waiting = 100;
    assert_eq!(code(&late, &replica.view()), Some(RefusalCode::QueueFull));
    let floor = LaneView { priority_floor: Some(-1), ..replica.view() };
    assert_eq!(code(&late, &floor), Some(RefusalCode::PriorityFloor));
}

#[test]
fn retry_after_is_the_time_until_the_condition_can_hold() {
    let refuse = |request: &AdmissionRequest, lane: &LaneView<'_>| match decide(request, lane) {
        Ok(Decision::Refuse(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let mut replica = Replica::new(1);
    replica.decodes(1, 0, 1000, None);
    // The seat is free after 10 s, and the request takes 1 s of it.
    let late = refuse(&request(100, Some(3.0)), &replica.view());
    // 11 s with the margin are 12.1 s, so the estimate must fall by 11 s - 3 s / 1.1.
    assert_eq!((late.code, late.retry_after), (RefusalCode::DeadlineUnreachable, 9), "{late:?}");
    assert!(late.is_load());
    let spread = AdmissionRequest { jitter: 1.0, ..request(100, Some(3.0)) };
    assert_eq!(refuse(&spread, &replica.view()).retry_after, 13, "half more");
    for left in [0.5, 1.05] {
        let never = refuse(&request(100, Some(left)), &replica.view());
        assert_eq!(never.retry_after, MAX_RETRY_AFTER, "an idle replica is not fast enough");
        assert!(never.hopeless && !never.is_load());
    }
    replica.load.waiting = 100;
    let full = refuse(&request(10, None), &replica.view());
    assert_eq!((full.code, full.retry_after), (RefusalCode::QueueFull, 10));
}

#[test]
fn a_request_spills_if_its_first_choice_is_loaded_and_was_not_certain() {
    let mut loaded = Replica::new(1);
    loaded.decodes(1, 0, 1000, None);
    let idle = Replica::new(1);
    let asked = request(100, Some(3.0));
    let second =
        |score, spill_below, lane| SecondChoice { request: asked, lane, score, spill_below };
    let spills = |second: Option<SecondChoice<'_>>| {
        admit_or_spill(&asked, &loaded.view(), second.as_ref()).expect("it fits")
    };
    let went = spills(Some(second(0.4, 0.5, idle.view())));
    assert!(matches!(went, Spill::Spill { refused, .. } if refused.code.is_load()), "{went:?}");
    for other in [
        None,
        Some(second(0.5, 0.5, idle.view())),
        Some(second(0.4, 0.5, loaded.view())),
        Some(second(0.4, 0.0, idle.view())),
    ] {
        assert!(matches!(spills(other), Spill::Refuse(_)), "{other:?}");
    }
    let choice = second(0.4, 0.5, loaded.view());
    let first = admit_or_spill(&asked, &idle.view(), Some(&choice)).expect("it fits");
    assert!(matches!(first, Spill::Admit { .. }), "the first choice has room: {first:?}");
    let floor = LaneView { priority_floor: Some(-1), ..idle.view() };
    let refused = admit_or_spill(&asked, &floor, Some(&second(0.4, 0.5, idle.view())));
    assert!(matches!(refused, Ok(Spill::Refuse(_))), "a floor is no load: {refused:?}");
}

#[test]
fn the_refusal_that_a_client_gets_is_that_of_its_first_choice() {
    let (mut late, mut full) = (Replica::new(1), Replica::new(1));
    late.decodes(1, 0, 1000, None);
    full.load.waiting = 100;
    let asked = request(100, Some(3.0));
    let second = |request, lane| SecondChoice { request, lane, score: 0.1, spill_below: 0.5 };
    let code = |second: SecondChoice<'_>| match admit_or_spill(&asked, &late.view(), Some(&second))
    {
        Ok(Spill::Refuse(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    };
    let both = second(asked, full.view());
    assert_eq!(code(both), RefusalCode::DeadlineUnreachable, "the second one's queue is full");
    let size = RequestSize { prompt_tokens: 5000, ..asked.size };
    let idle = Replica::new(1);
    let long = second(AdmissionRequest { size, ..asked }, idle.view());
    assert_eq!(code(long), RefusalCode::DeadlineUnreachable, "it does not fit the second one");
    let first = admit_or_spill(&AdmissionRequest { size, ..asked }, &late.view(), Some(&both));
    assert!(first.is_err(), "what does not fit the first choice is an error");
}

/// Priority, output tokens, and milliseconds to the deadline.
type Asked = (i64, usize, Option<u32>);

fn asked() -> impl Strategy<Value = Asked> {
    (0_i64..4, 1_usize..500, prop::option::of(0_u32..20_000))
}

proptest! {
    #[test]
    fn a_refusal_has_a_reason_that_holds_and_a_retry_within_bounds(
        decoding in prop::collection::vec(asked(), 0..6),
        (priority, tokens, deadline) in asked(),
        waiting in 0_usize..12,
        floor in prop::option::of(0_i64..4),
        seats in 1_usize..5,
        jitter in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), 0.0..1.0],
    ) {
        let mut replica = Replica::new(seats);
        let seconds = |ms: u32| f64::from(ms) * 1e-3;
        for (id, (priority, tokens, deadline)) in (0..).zip(decoding) {
            replica.decodes(id, priority, tokens, deadline.map(seconds));
        }
        replica.load.waiting = waiting;
        let lane = LaneView { priority_floor: floor, ..replica.view() };
        let deadline = deadline.map(seconds);
        let request = AdmissionRequest { priority, jitter, ..request(tokens, deadline) };
        let decision = decide(&request, &lane).expect("it fits");
        let quote = decision.quote();
        prop_assert!(quote.queue <= quote.first_token && quote.first_token <= quote.done);
        prop_assert!(quote.alone <= quote.done);
        match decision {
            Decision::Admit { .. } => {
                prop_assert!(floor.is_none_or(|floor| priority <= floor));
                prop_assert!(deadline.is_none_or(|left| quote.done.as_secs_f64() <= left));
                prop_assert_eq!(quote.harms, None);
            }
            Decision::Refuse(refusal) => {
                prop_assert!((1..=MAX_RETRY_AFTER).contains(&refusal.retry_after));
                match refusal.code {
                    RefusalCode::DeadlineUnreachable => prop_assert!(deadline.is_some()),
                    RefusalCode::WouldHarm => prop_assert!(quote.harms.is_some()),
                    RefusalCode::PriorityFloor => prop_assert!(floor.is_some()),
                    RefusalCode::QueueFull => prop_assert!(waiting >= 4),
                }
            }
        }
    }
}

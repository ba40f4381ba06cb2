//! Quotes against hand-made examples, and the harm check against a naive one.

use std::time::Duration;

use l5_scheduler::{DecodeTime, Load, PolicyKind, RequestId, SchedulerConfig, Time};
use proptest::prelude::*;

use super::*;
use crate::quote::{Quote, RequestSize, is_harmed, quote};

/// Milliseconds of a step, of each row, and of each prompt token.
const BASE: f64 = 8.0;
const ROW: f64 = 2.0;
const PROMPT: f64 = 0.5;

fn load() -> Load {
    let decode_time = Some(DecodeTime { base: BASE * 1e-3, per_row: ROW * 1e-3 });
    let prefill_seconds_per_token = Some(PROMPT * 1e-3);
    Load { decode_time, prefill_seconds_per_token, ..Load::default() }
}

fn config(seats: usize) -> SchedulerConfig {
    let policy = PolicyKind::StrictPriority;
    let limits = SchedulerConfig { policy, max_num_seqs: seats, ..SchedulerConfig::new(4096, 16) };
    SchedulerConfig { max_num_batched_tokens: 100 + seats, ..limits }
}

fn request(prompt: usize, output: usize) -> Admitted {
    let expected_output_tokens = Some(output as f64);
    let size = RequestSize { prompt_tokens: prompt, max_tokens: output, ..RequestSize::default() };
    Admitted { size: RequestSize { expected_output_tokens, ..size }, ..Admitted::default() }
}

fn ask(request: &Admitted, seats: usize, in_flight: &InFlight, now: f64) -> Quote {
    quote(request, Time(now), (&config(seats), &load(), in_flight, 0.0), 0.0)
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
    // Three steps of 100 prompt tokens at most, then ten decode steps of width 1.
    assert_eq!(ms(quote.first_token), 3.0 * 10.0 + 250.0 * PROMPT);
    assert_eq!(ms(quote.done), 155.0 + 10.0 * 10.0);
    assert_eq!((quote.queue, quote.done, ms(quote.per_token)), (Duration::ZERO, quote.alone, 10.0));
    assert_eq!(ms(quote.done_after(1)), 155.0);
}

#[test]
fn cached_prompt_tokens_are_not_computed() {
    let mut warm = request(250, 11);
    warm.size.cached_tokens = 200;
    assert_eq!(ms(ask(&warm, 4, &empty(), 0.0).first_token), 10.0 + 50.0 * PROMPT);
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
    let step = BASE + 2.0 * ROW;
    let quote = ask(&request(10, 1), 2, &full(), 1.0);
    assert_eq!(ms(quote.queue), 5.0 * step);
    assert_eq!(ms(quote.first_token), 6.0 * step + 10.0 * PROMPT);
    let later = ask(&request(10, 1), 2, &full(), 1.006);
    assert_eq!(ms(later.first_token), ms(quote.first_token) - 6.0, "half a step has passed");
}

#[test]
fn a_request_waits_for_those_ahead_of_it_and_not_for_those_behind() {
    let mut in_flight = full();
    let alone = ask(&request(10, 1), 2, &in_flight, 1.0);
    in_flight.admit(RequestId(7), Admitted { priority: 1, ..request(90, 3) }, Time(1.0));
    assert_eq!(ask(&request(10, 1), 2, &in_flight, 1.0).first_token, alone.first_token);
    in_flight.admit(RequestId(8), request(90, 3), Time(0.5));
    let step = BASE + 2.0 * ROW;
    // It begins in step 5, has its tokens in steps 6, 7 and 8, and the new one follows.
    let behind = ask(&request(10, 1), 2, &in_flight, 1.0);
    assert_eq!(ms(behind.first_token), 9.0 * step + 100.0 * PROMPT);
}

#[test]
fn a_more_urgent_request_does_not_wait_for_seats_that_it_can_preempt() {
    let mut in_flight = empty();
    for id in 0..2 {
        in_flight.admit(RequestId(id), Admitted { priority: 5, ..request(10, 50) }, Time::ZERO);
        in_flight.output(RequestId(id), 1, Time(1.0));
    }
    let mut urgent = request(10, 1);
    let quote = ask(&urgent, 2, &in_flight, 1.0);
    assert_eq!(ms(quote.queue), BASE + 2.0 * ROW, "the step that runs");
    urgent.priority = 5;
    let equal = ask(&urgent, 2, &in_flight, 1.0);
    assert_eq!(ms(equal.queue), 49.0 * (BASE + 2.0 * ROW));
}

#[test]
fn prompts_take_their_part_of_the_time_from_output() {
    let mut in_flight = empty();
    // A request each second, whose prompt takes half a second.
    for id in 0..20 {
        let arrival = Time(id as f64);
        in_flight.admit(RequestId(id), Admitted { arrival, ..request(1000, 1) }, arrival);
        in_flight.output(RequestId(id), 1, Time(id as f64 + 0.6));
        in_flight.end(RequestId(id), true);
    }
    let idle = ask(&request(10, 11), 4, &in_flight, 20.0);
    assert_eq!(ms(idle.per_token), 2.0 * (BASE + ROW), "the decode steps have the other half");
}

#[test]
fn the_width_is_half_that_of_the_moment_and_half_that_of_the_recent_steps() {
    let mut in_flight = empty();
    for id in 0..3 {
        in_flight.admit(RequestId(id), request(10, 100), Time::ZERO);
        (1..9).for_each(|n| in_flight.output(RequestId(id), n, Time(0.010 * n as f64)));
    }
    (0..3).for_each(|id| in_flight.end(RequestId(id), true));
    let width = in_flight.mean_width().expect("steps were seen");
    assert!(width > 1.0 && width < 3.0, "{width}");
    let quote = ask(&request(10, 11), 4, &in_flight, 20.0);
    assert_eq!(ms(quote.per_token), ((BASE + ROW * 0.5 * (1.0 + width)) * 1e3).round() / 1e3);
}

#[test]
fn a_request_without_a_token_in_the_last_steps_was_preempted_and_waits() {
    let mut in_flight = empty();
    for (id, priority) in [(0, 0), (1, 5)] {
        in_flight.admit(RequestId(id), Admitted { priority, ..request(10, 101) }, Time::ZERO);
        in_flight.output(RequestId(id), 1, Time(1.0));
    }
    let mut least = request(10, 1);
    least.priority = 9;
    let begins = |in_flight: &InFlight| ms(ask(&least, 2, in_flight, 1.012).queue);
    in_flight.output(RequestId(0), 2, Time(1.012));
    in_flight.output(RequestId(1), 2, Time(1.012));
    let step = BASE + 2.0 * ROW;
    assert_eq!(begins(&in_flight), 99.0 * step, "both have 99 tokens to come");
    in_flight.output(RequestId(0), 22, Time(1.300));
    // Request 0 has 79 tokens to come. The other one takes the second seat, for its 12 tokens and the 99 to come.
    let quote = ask(&least, 2, &in_flight, 1.300);
    assert_eq!(ms(quote.queue), 79.0 * step + 12.0 * PROMPT);
}

#[test]
fn a_request_with_time_is_overtaken_as_often_as_recent_ones_would_have_been() {
    let mut in_flight = empty();
    let deadline = |arrival: f64, within| Some(Time(arrival + within));
    for id in 0..20 {
        let arrival = id as f64;
        let short = Admitted { deadline: deadline(arrival, 2.0), ..request(200, 21) };
        in_flight.admit(RequestId(id), Admitted { arrival: Time(arrival), ..short }, Time(arrival));
        in_flight.output(RequestId(id), 1, Time(arrival + 0.1));
        in_flight.end(RequestId(id), false);
    }
    in_flight.admit(RequestId(50), request(10, 301), Time(20.0));
    in_flight.output(RequestId(50), 1, Time(20.0));
    let ask = |deadline| {
        let new = Admitted { deadline, arrival: Time(20.0), ..request(10, 1) };
        ms(ask(&new, 1, &in_flight, 20.0).queue)
    };
    let soon = ask(deadline(20.0, 1.5));
    let (late, none) = (ask(deadline(20.0, 60.0)), ask(None));
    assert!(soon < late && late <= none, "{soon}, {late} and {none}");
    // Prompts of 200 tokens and 20 more steps of 10 ms in each second.
    let fraction = 0.2 * PROMPT + 0.020 + 0.2;
    assert!((none / (soon / (1.0 - fraction)) - 1.0).abs() < 0.02, "{soon} and {none}");
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
    let harm = large.harms.expect("50 ms of a prompt, and 40 ms of rows");
    assert_eq!((harm.request, ms(harm.left), ms(harm.done)), (RequestId(3), 245.0, 290.0));
    let urgent = Admitted { priority: -1, ..request(100, 1) };
    assert_eq!(ask(&urgent, 2, &in_flight, 1.0).harms, None, "it may harm a less urgent one");
}

/// Times by a search of a list of seats, for each request from the beginning.
mod naive {
    use super::*;

    /// The step at which the last of these jobs begins, and the seconds to its first and last token.
    fn last(forecast: &Forecast, jobs: &[Job], width: f64) -> (f64, f64, f64) {
        let mut seats = vec![0.0; forecast.seats];
        for (i, running) in forecast.running.iter().enumerate() {
            // The running ones are sorted; those beyond the seats follow the first that end.
            if i < seats.len() {
                seats[i] = running.remaining;
            } else {
                seats.sort_by(f64::total_cmp);
                seats[0] += running.remaining;
            }
        }
        let (mut prompts, mut result) = (0.0, (0.0, 0.0, 0.0));
        for job in jobs {
            seats.sort_by(f64::total_cmp);
            let missed = f64::from(u8::from(forecast.busy && !job.joined));
            let begin = seats[0].max(missed);
            let own = (job.prompt / forecast.chunk).ceil().max(1.0);
            prompts += job.prompt;
            let prefilled = (begin + own).max((prompts / forecast.chunk).ceil() + missed);
            seats[0] = prefilled + job.output - 1.0;
            let step = forecast.rates.base + forecast.rates.per_row * width;
            let rate = forecast.rates.per_prompt_token;
            let first = prefilled * step + rate * prompts - forecast.elapsed;
            let least = if job.joined { 0.0 } else { own * step + rate * job.prompt };
            let first = first.max(least);
            result = (begin, first, first + (job.output - 1.0) * forecast.per_token(width));
        }
        result
    }

    /// Requests whose deadline the new one would harm.
    pub(super) fn harmed(forecast: &Forecast, new: &Job, now: Time, margin: f64) -> Vec<RequestId> {
        let taken = forecast.running.len() + forecast.waiting.len() + forecast.others;
        let widths = [taken, taken + 1].map(|n| n.min(forecast.seats) as f64);
        let ahead: Vec<Job> =
            forecast.waiting.iter().copied().filter(|job| job.rank < new.rank).collect();
        let until_new = [&ahead[..], &[*new]].concat();
        let (begins, ..) = last(forecast, &until_new, widths[1]);
        let prompt = forecast.rates.per_prompt_token * new.prompt;
        let mut harmed = Vec::new();
        for running in &forecast.running {
            let Some(deadline) = running.deadline else { continue };
            let [before, mut after] = widths
                .map(|width| running.remaining * forecast.per_token(width) - forecast.elapsed);
            if begins < running.remaining {
                after += prompt;
            }
            if is_harmed(deadline - now, [before, after], margin) {
                harmed.push(running.id);
            }
        }
        for (i, job) in forecast.waiting.iter().enumerate() {
            let Some(deadline) = job.deadline else { continue };
            let all = &forecast.waiting[..=i];
            let (begin, _, before) = last(forecast, all, widths[0]);
            let after = if job.rank < new.rank {
                let (_, _, after) = last(forecast, all, widths[1]);
                after + if begins < begin + job.output { prompt } else { 0.0 }
            } else {
                let mut with = all.to_vec();
                with.push(*new);
                with.sort_by_key(|job| job.rank);
                last(forecast, &with, widths[1]).2
            };
            if is_harmed(deadline - now, [before, after], margin) {
                harmed.push(job.id);
            }
        }
        harmed
    }
}

/// A request in flight: prompt, output, priority, milliseconds from the arrival to the deadline.
type Asked = (usize, usize, i64, Option<u16>);

fn asked() -> impl Strategy<Value = Asked> {
    (1_usize..400, 2_usize..80, 0_i64..3, prop::option::of(10_u16..3000))
}

fn admitted((prompt, output, priority, deadline): Asked, arrival: f64) -> Admitted {
    let deadline = deadline.map(|ms| Time(arrival + f64::from(ms) * 1e-3));
    Admitted { arrival: Time(arrival), priority, deadline, ..request(prompt, output) }
}

/// A replica with requests that decode since a common step, which ended at 1 s, and requests that came later.
fn state(decoding: &[Asked], waiting: &[Asked]) -> InFlight {
    let mut in_flight = empty();
    let ids = || (0..).map(RequestId);
    for (id, asked) in ids().zip(decoding) {
        in_flight.admit(id, admitted(*asked, 0.5), Time(0.5));
        in_flight.output(id, 1, Time(1.0));
    }
    for (id, asked) in ids().skip(100).zip(waiting) {
        let arrival = 1.0 + id.0 as f64 * 1e-6;
        in_flight.admit(id, admitted(*asked, arrival), Time(arrival));
    }
    in_flight
}

const NOW: f64 = 1.004;

proptest! {
    #[test]
    fn the_harm_check_is_that_of_a_search_for_each_request(
        decoding in prop::collection::vec(asked(), 0..7),
        waiting in prop::collection::vec(asked(), 0..9),
        new in asked(),
        seats in 1_usize..6,
        margin in 0.0..0.2,
    ) {
        let in_flight = state(&decoding, &waiting);
        let (config, load, now) = (config(seats), load(), Time(NOW));
        let new = admitted(new, NOW);
        let id = RequestId(1 << 40);
        let forecast = Forecast::new(&config, &load, &in_flight, 0.003, new.priority, now);
        let job = job(id, in_flight.rank(id, &new), &new, &in_flight);
        let harmed: Vec<_> = forecast
            .ends(&job)
            .filter(|(_, deadline, ends)| is_harmed(*deadline - now, *ends, margin))
            .map(|(id, ..)| id)
            .collect();
        prop_assert_eq!(harmed, naive::harmed(&forecast, &job, now, margin));
    }

    /// One more request of any kind, a longer one, or slower steps.
    #[test]
    fn more_load_never_makes_a_quote_earlier(
        decoding in prop::collection::vec(asked(), 1..7),
        waiting in prop::collection::vec(asked(), 0..9),
        more in asked(),
        which in any::<prop::sample::Index>(),
        new in asked(),
        seats in 1_usize..6,
        slower in 1.0_f64..3.0,
    ) {
        let new = admitted(new, NOW);
        let before = ask(&new, seats, &state(&decoding, &waiting), NOW);
        let mut heavier = vec![];
        let also = |to: &[Asked], one: Asked| [to, &[one]].concat();
        heavier.push((decoding.clone(), also(&waiting, more)));
        heavier.push((also(&decoding, more), waiting.clone()));
        let longer = |of: &[Asked]| {
            let mut of = of.to_vec();
            let one = which.index(of.len());
            (of[one].0, of[one].1) = (of[one].0 + more.0, of[one].1 + more.1);
            of
        };
        heavier.push((longer(&decoding), waiting.clone()));
        if !waiting.is_empty() {
            heavier.push((decoding.clone(), longer(&waiting)));
        }
        let earlier = |after: &Quote| {
            after.queue < before.queue
                || after.first_token < before.first_token
                || after.done < before.done
        };
        for (decoding, waiting) in heavier {
            let after = ask(&new, seats, &state(&decoding, &waiting), NOW);
            prop_assert!(!earlier(&after), "{before:?} and {after:?} with {decoding:?}, {waiting:?}");
        }
        let mut slow = load();
        slow.decode_time = slow.decode_time.map(|time| DecodeTime {
            base: time.base * slower,
            per_row: time.per_row * slower,
        });
        let view = (&config(seats), &slow, &state(&decoding, &waiting), 0.0);
        let after = quote(&new, Time(NOW), view, 0.0);
        prop_assert!(!earlier(&after), "{before:?} and {after:?} with slower steps");
    }
}

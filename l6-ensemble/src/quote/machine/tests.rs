//! The machine against one that runs every step.

use std::collections::BTreeMap;

use l5_scheduler::{Rank, RequestId};
use proptest::prelude::*;

use super::*;
use crate::quote::work::Rates;

/// Milliseconds of a step, of each row, and of each prompt token; tokens of a step.
const RATES: [f64; 3] = [8.0, 2.0, 0.5];
const STEP_TOKENS: f64 = 100.0;

fn job(id: u64, prompt: usize, output: usize) -> Job {
    Job {
        id: RequestId(id),
        rank: Rank { tie: id as i64, ..Rank::default() },
        priority: 0,
        deadline: None,
        promised: None,
        prompt: prompt as f64,
        output: output as f64,
        joined: true,
        prefills: false,
    }
}

/// A lane whose step was planned at `asked`.
fn lane(seats: usize, running: Vec<Job>, waiting: Vec<Job>, asked: f64) -> LaneWork {
    let [base, per_row, per_prompt_token] = RATES.map(|ms| ms * 1e-3);
    LaneWork {
        rates: Rates::new(base, per_row, per_prompt_token),
        measured: true,
        seats,
        step_tokens: STEP_TOKENS,
        preempts: true,
        running,
        waiting,
        asked: Time(asked),
        last_step: Time::ZERO,
        arrivals: Vec::new(),
        period: f64::INFINITY,
        found: 0.0,
        seconds: 0.0,
    }
}

fn machine(lanes: &[LaneWork]) -> Machine {
    let lanes: Vec<_> = lanes.iter().map(Cow::Borrowed).collect();
    Machine::new(&lanes, Time::ZERO)
}

fn run(machine: &mut Machine, requests: usize) -> Vec<[f64; 2]> {
    (0..requests).for_each(|number| machine.wait_for(number));
    machine.run([]);
    let ms = |seconds: f64| (seconds * 1e6).round() / 1e3;
    (0..requests).map(|n| [machine.times(n).first_token, machine.times(n).done].map(ms)).collect()
}

#[test]
fn lanes_take_turns_and_one_that_is_done_leaves_its_time_to_the_other() {
    let lanes =
        [lane(4, vec![job(0, 1, 5)], vec![], -2.0), lane(4, vec![job(1, 1, 10)], vec![], -1.0)];
    let ends = run(&mut machine(&lanes), 2);
    // The first lane has every other step of 10 ms, and ends with the ninth. The second one has all steps from then on,
    // which makes 15; half a round that has begun counts with its new duration.
    assert_eq!(ends[0][1], 90.0);
    assert!((145.0..=150.0).contains(&ends[1][1]), "{ends:?}");
}

#[test]
fn a_request_waits_for_a_seat_and_then_for_its_prompt() {
    let lanes = [lane(1, vec![job(0, 1, 3)], vec![job(1, 20, 2)], 0.0)];
    // Three steps of 10 ms; a step with 20 tokens of a prompt, and one with a row.
    assert_eq!(run(&mut machine(&lanes), 2)[1], [30.0 + 8.0 + 10.0, 58.0]);
}

#[test]
fn a_request_that_arrives_at_a_busy_lane_is_in_the_step_after_the_planned_one() {
    let lanes = [lane(2, vec![job(0, 1, 100)], vec![], 0.0)];
    let mut machine = machine(&lanes);
    let number = machine.arrive(0, job(7, 20, 1));
    machine.wait_for(number);
    machine.run([]);
    let first_token = machine.times(number).first_token;
    assert!((first_token - 0.030).abs() < 1e-9, "10 ms, and 20 ms with a prompt: {first_token}");
}

#[test]
fn a_more_urgent_request_takes_the_seat_of_the_least_urgent() {
    let later = Job { priority: 5, rank: Rank { class: 5, ..Rank::default() }, ..job(0, 30, 50) };
    let lanes = [lane(1, vec![later], vec![], 0.0)];
    let mut machine = machine(&lanes);
    let urgent = machine.arrive(0, job(1, 10, 3));
    [0, urgent].iter().for_each(|number| machine.wait_for(*number));
    machine.run([]);
    let [preempted, urgent] = [0, urgent].map(|number| machine.times(number).done);
    assert!(urgent < 0.060 && preempted > 0.5, "{urgent} and {preempted}");
}

#[test]
fn the_least_urgent_request_is_found_behind_those_that_are_as_urgent() {
    let later = Job { priority: 5, rank: Rank { class: 5, ..Rank::default() }, ..job(2, 30, 50) };
    let lanes = [lane(2, vec![job(0, 1, 60), later], vec![], 0.0)];
    let mut machine = machine(&lanes);
    let new = machine.arrive(0, job(1, 10, 3));
    machine.wait_for(new);
    machine.run([]);
    assert!(machine.times(new).done < 0.070, "{:?}", machine.times(new));
}

/// A step has 100 tokens. One row decodes, so 99 of them are for prompts.
fn chunked(prefills: bool) -> Machine {
    let first = Job { prefills, ..job(1, 150, 5) };
    machine(&[lane(4, vec![job(0, 1, 100)], vec![first, job(2, 20, 5)], 0.0)])
}

#[test]
fn a_long_prompt_takes_several_steps_and_the_next_one_shares_the_last() {
    let mut machine = chunked(true);
    let ends = run(&mut machine, 3);
    // 10 ms and 99 tokens; 10 ms, 51 tokens and the 20 of the other prompt.
    assert_eq!([ends[1][0], ends[2][0]], [10.0 + 49.5 + 10.0 + 35.5; 2]);
}

#[test]
fn who_has_no_tokens_of_a_step_can_be_overtaken_and_who_has_some_keeps_its_seat() {
    let mut machine = chunked(true);
    // More urgent than both, and it would fill two steps.
    let urgent = Job { rank: Rank { class: -1, ..Rank::default() }, ..job(3, 140, 5) };
    let urgent = machine.arrive(0, urgent);
    let numbers = [1, urgent, 2];
    numbers.iter().for_each(|number| machine.wait_for(*number));
    machine.run([]);
    let times = numbers.map(|number| machine.times(number));
    // Two steps for the first prompt, of which the second has 48 tokens left; 92 are left for a third.
    let first = 10.0 + 49.5 + 10.0 + 49.5;
    assert!((times[0].first_token * 1e3 - first).abs() < 1.0, "{times:?}");
    assert!((times[1].begin * 1e3 - 59.5).abs() < 1.0, "{times:?}");
    assert!((times[1].first_token * 1e3 - (first + 12.0 + 49.0)).abs() < 3.0, "{times:?}");
    assert!(times[2].begin > times[1].begin + 0.040, "{times:?}");
}

/// All lanes, step by step.
fn naive(lanes: &[LaneWork]) -> Vec<[f64; 2]> {
    struct Own {
        decoding: Vec<(usize, u64)>,
        prompts: Vec<(usize, f64, u64)>,
        waiting: BTreeMap<(Rank, usize), (f64, u64)>,
    }
    let [base, row, token] = RATES.map(|ms| ms * 1e-3);
    let (mut times, mut number) = (Vec::new(), 0);
    let mut all: Vec<Own> = Vec::new();
    for lane in lanes {
        let mut own = Own { decoding: vec![], prompts: vec![], waiting: BTreeMap::new() };
        for (i, job) in lane.running.iter().chain(&lane.waiting).enumerate() {
            if i < lane.running.len() {
                own.decoding.push((number, job.steps()));
            } else {
                own.waiting.insert((job.rank, number), (job.prompt, job.steps()));
            }
            times.push([f64::INFINITY; 2]);
            number += 1;
        }
        all.push(own);
    }
    let mut now = 0.0;
    while all.iter().any(|own| own.decoding.len() + own.prompts.len() + own.waiting.len() > 0) {
        for (lane, own) in lanes.iter().zip(&mut all) {
            // A request has its seat in the first step with tokens left for it.
            let seated: f64 = own.prompts.iter().map(|(_, left, _)| left).sum();
            let mut tokens = STEP_TOKENS - own.decoding.len() as f64 - seated;
            while own.decoding.len() + own.prompts.len() < lane.seats && tokens > 0.0 {
                let Some(((_, number), (prompt, output))) = own.waiting.pop_first() else { break };
                tokens -= prompt;
                own.prompts.push((number, prompt, output));
            }
            if own.decoding.len() + own.prompts.len() == 0 {
                continue;
            }
            let mut left = STEP_TOKENS - own.decoding.len() as f64;
            now += base + row * own.decoding.len() as f64;
            own.decoding.iter_mut().for_each(|(_, left)| *left -= 1);
            for (_, prompt, _) in &mut own.prompts {
                let chunk = prompt.min(left);
                (*prompt, left, now) = (*prompt - chunk, left - chunk, now + token * chunk);
            }
            for (number, _, output) in own.prompts.extract_if(.., |(_, prompt, _)| *prompt <= 0.0) {
                times[number][0] = now;
                own.decoding.push((number, output - 1));
            }
            own.decoding.retain(|(number, left)| {
                if *left == 0 {
                    times[*number][1] = now;
                }
                *left > 0
            });
        }
    }
    times
}

fn jobs(from: u64, sizes: &[(usize, usize)]) -> Vec<Job> {
    (from..).zip(sizes).map(|(id, (prompt, output))| job(id, *prompt, *output)).collect()
}

proptest! {
    /// Prompts make the steps of a round unequal, and the machine spreads them over it; so times differ by up to a round.
    /// A lane alone has no others to wait for, and its times are exact.
    #[test]
    fn times_are_those_of_running_every_step(
        lanes in prop::collection::vec((
            1_usize..5,
            prop::collection::vec((1_usize..90, 1_usize..60), 0..5),
            prop::collection::vec((1_usize..350, 1_usize..60), 0..6),
        ), 1..5),
    ) {
        let lanes: Vec<_> = (1_u32..).zip(&lanes).map(|(i, (seats, running, waiting))| {
            let running = &running[..running.len().min(*seats)];
            let (running, waiting) = (jobs(0, running), jobs(100, waiting));
            lane(*seats, running, waiting, -1.0 + 1e-3 * f64::from(i))
        }).collect();
        let want = naive(&lanes);
        let mut machine = machine(&lanes);
        let got = run(&mut machine, want.len());
        // A round of the longest steps, which are full of prompts.
        let others = lanes.iter().filter(|work| work.is_busy()).count().saturating_sub(1);
        let slack = 1e-3 + others as f64 * (8.0 + 2.0 * 4.0 + 0.5 * 100.0);
        for (got, want) in got.iter().zip(&want) {
            for (got, want) in got.iter().zip(want).filter(|(_, want)| want.is_finite()) {
                let error = (got - want * 1e3).abs();
                prop_assert!(error <= slack, "{got} ms, not {want} s");
            }
        }
    }
}

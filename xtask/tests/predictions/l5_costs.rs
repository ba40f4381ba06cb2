//! The fifth layer answers its own questions about the time of steps.

use l5_scheduler::{Compose, CostModel, Request, Scheduler, SchedulerConfig, StepLoad, Time};

use super::l5::{add, config, list, request, run, scheduler, step, written};
use super::{agree, number, numbers};

/// Costs in milliseconds, of which only a step's own and that of a prompt's token count.
fn costs(base: usize, per_token: usize) -> CostModel {
    CostModel {
        base: base as f64,
        per_prefill_token: per_token as f64,
        per_decode_token: 0.0,
        per_verify_token: None,
        per_kv_byte: 0.0,
        kv_bytes_per_token: 0.0,
        load_bytes_per_second: None,
    }
}

#[test]
fn a_first_token_comes_after_the_time_said() {
    agree(("l5", "first-token-time"), 200, number, |facts| {
        let [base, per_token, budget, writing, into, prompt] =
            ["base", "per_token", "budget", "writing", "into", "prompt"]
                .map(|name| number(&facts[name]));
        let costs = costs(base, per_token);
        let mut scheduler = scheduler(SchedulerConfig {
            max_num_seqs: 8,
            max_num_batched_tokens: budget,
            ..config(100, 16)
        });
        (1..=writing).for_each(|id| add(&mut scheduler, request(id, 1)));
        step(&mut scheduler, 7);
        let mut clock = Time::ZERO;
        let mut tick = |scheduler: &mut Scheduler| {
            let load = StepLoad::of(scheduler.plan(clock));
            clock = clock + costs.seconds(&load);
            clock
        };
        // It comes while this one runs.
        tick(&mut scheduler);
        let arrival = Time(into as f64);
        add(&mut scheduler, Request { arrival, ..request(0, prompt) });
        run(&mut scheduler, 7);
        loop {
            let over = tick(&mut scheduler);
            run(&mut scheduler, 7);
            if written(&scheduler, 0) > 0 {
                return (over - arrival).round() as usize;
            }
        }
    });
}

#[test]
fn as_many_steps_as_said_can_be_replayed() {
    agree(("l5", "replayable-steps"), 200, number, |facts| {
        let compose = match number(&facts["max_decode_steps"]) {
            0 => Compose::Mixed,
            max_decode_steps => Compose::Stable { max_decode_steps, chunk: 0 },
        };
        let seats = SchedulerConfig { max_num_seqs: 64, ..config(1000, 16) };
        let mut scheduler = scheduler(SchedulerConfig { compose, ..seats });
        add(&mut scheduler, request(0, 3));
        step(&mut scheduler, 7);
        let mut id = 0;
        let arrivals = numbers(&facts["arrivals"]).into_iter();
        let replayable = arrivals.map(|arrivals| {
            for _ in 0..arrivals {
                id += 1;
                add(&mut scheduler, request(id, 3));
            }
            let replayable = scheduler.plan(Time::ZERO).decode_width().is_some();
            run(&mut scheduler, 7);
            usize::from(replayable)
        });
        replayable.sum()
    });
}

#[test]
fn a_step_takes_the_time_said() {
    // In nanoseconds, of which every cost has whole ones.
    let nanos = |ms: f64| (ms * 1e6).round();
    agree(
        ("l5", "step-time"),
        200,
        |answer| nanos(answer.as_f64().unwrap()),
        |facts| {
            let micros = |name: &str| number(&facts[name]) as f64 * 1e-6;
            let costs = CostModel {
                base: micros("base"),
                per_prefill_token: micros("prefill"),
                per_decode_token: micros("decode"),
                per_verify_token: None,
                per_kv_byte: number(&facts["kv"]) as f64 * 1e-9 / 1024.0,
                kv_bytes_per_token: 1024.0 * number(&facts["kib"]) as f64,
                load_bytes_per_second: None,
            };
            // As `StepLoad::of` counts a step's rows.
            let mut load = StepLoad::default();
            for row in list(&facts["rows"]).iter().map(numbers) {
                match row[1] {
                    1 => load.decode_tokens += 1,
                    len => load.prefill_tokens += len,
                }
                load.kv_tokens += row[0] + row[1];
            }
            nanos(costs.seconds(&load) * 1e3)
        },
    );
}

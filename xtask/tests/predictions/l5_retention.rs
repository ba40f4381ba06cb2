//! The retention of the fifth layer answers its own questions.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use l3_paged_kv::{BlockHash, TokenChain};
use l5_scheduler::{
    Caps, Job, KvConnector, Matched, Note, PolicyKind, Request, RequestId, Resolved, Scheduler,
    SchedulerConfig, StepOp, StepOutput, Time,
};
use serde_json::Value;

use super::l5::{KeepsSteps, add, config, request, scheduler};
use super::{agree, number, numbers};

/// Plans a step at `at`, gives a token to every row that samples, with this tool, and applies the step at `end`.
fn step(scheduler: &mut Scheduler, tool: Option<&str>, at: Time, end: Time) {
    scheduler.plan(at);
    let mut out = StepOutput::default();
    for (row, view) in scheduler.view().step().rows.iter().enumerate() {
        if view.samples {
            out.push(row, &[7], None);
            if tool.is_some() {
                let tool = tool.map(str::to_owned);
                out.note(row, Note { tool, ..Note::default() });
            }
        }
    }
    let mut resolved = Resolved::default();
    scheduler.resolve(&out, &mut resolved).unwrap();
    scheduler.apply(&resolved, end);
    scheduler.take_ended();
}

/// A step of a job with one output token.
fn step_of(job: usize, last_step: bool, id: usize, prompt: Vec<u32>) -> Request {
    let job = Some(Job { id: job.to_string(), last_step });
    Request { job, prompt, max_tokens: 1, ..request(id, 1) }
}

fn pairs(v: &Value) -> Vec<[usize; 2]> {
    let pair = |v: &Value| numbers(v).try_into().unwrap_or_else(|_| panic!("{v} is no pair"));
    v.as_array().unwrap().iter().map(pair).collect()
}

#[test]
fn leases_hold_as_many_blocks_behind_each_turn_as_said() {
    agree(("l5", "leased-gaps"), 200, numbers, |facts| {
        let size = number(&facts["block_size"]);
        let mut scheduler = scheduler(config(1000, size)).with_retention(Box::new(KeepsSteps));
        let turns = pairs(&facts["turns"]);
        let mut conversation = Vec::new();
        let gaps = turns.iter().enumerate().map(|(turn, [prompt, output])| {
            conversation.resize(*prompt, 5);
            let request = step_of(1, turn + 1 == turns.len(), turn, conversation.clone());
            add(&mut scheduler, Request { max_tokens: *output, ..request });
            for _ in 0..*output {
                step(&mut scheduler, None, Time::ZERO, Time::ZERO);
            }
            conversation.resize(prompt + output, 7);
            scheduler.retained_blocks()
        });
        gaps.collect()
    });
}

/// A second memory that has what was stored in it.
#[derive(Clone, Default)]
struct Stored(Arc<Mutex<HashSet<BlockHash>>>);

impl KvConnector for Stored {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, from: usize) -> Matched {
        let stored = self.0.lock().unwrap();
        let behind = chain.hashes().iter().skip(from / chain.block_size());
        let blocks = behind.take_while(|hash| stored.contains(*hash)).count();
        Matched::Tokens(blocks * chain.block_size())
    }
}

#[test]
fn a_returning_step_computes_and_loads_as_much_as_said() {
    agree(("l5", "returning-step"), 200, numbers, |facts| {
        let policy: PolicyKind = facts["policy"].as_str().unwrap().parse().unwrap();
        let [pool, left, other, prompt] =
            ["pool", "left", "other", "prompt"].map(|name| number(&facts[name]));
        let memory = Stored::default();
        let config = SchedulerConfig { policy, ..config(pool, 4) };
        let mut scheduler = scheduler(config).with_kv_connector(Box::new(memory.clone()));
        scheduler.set_caps(&Caps { can_store: true, ..Caps::default() });
        let tokens: Vec<u32> = (0..4 * prompt as u32).map(|n| n + 100).collect();
        let mut loaded = 0;
        let mut one = |scheduler: &mut Scheduler, request: Request| {
            let id = request.id;
            add(scheduler, request);
            // A load is a step of its own.
            for _ in 0..4 {
                scheduler.plan(Time::ZERO);
                let ops = scheduler.view().step().ops.clone();
                let rows = &scheduler.view().step().rows;
                let tokens = rows.iter().find(|row| row.id == id).map(|row| row.len);
                step(scheduler, Some("ls"), Time::ZERO, Time::ZERO);
                for op in ops {
                    let StepOp::Load { id, from, to, .. } = op else { panic!("{op:?}") };
                    loaded = (to - from) / 4;
                    scheduler.kv_arrived(id, to);
                }
                if let Some(tokens) = tokens {
                    return tokens / 4;
                }
            }
            panic!("{id} did not run");
        };
        // What a request leaves is stored before the next one comes.
        let store = |scheduler: &mut Scheduler| {
            scheduler.plan(Time::ZERO);
            let ops = scheduler.view().step().ops.clone();
            step(scheduler, None, Time::ZERO, Time::ZERO);
            for op in ops {
                let StepOp::Store { lease, hashes, .. } = op else { panic!("{op:?}") };
                memory.0.lock().unwrap().extend(hashes);
                scheduler.kv_stored(lease);
            }
        };
        one(&mut scheduler, step_of(1, false, 0, tokens[..4 * left].to_vec()));
        store(&mut scheduler);
        one(&mut scheduler, Request { max_tokens: 1, ..request(1, 4 * other) });
        store(&mut scheduler);
        let computed = one(&mut scheduler, step_of(1, true, 2, tokens));
        vec![computed, loaded]
    });
}

#[test]
fn a_request_beside_a_lease_begins_when_it_was_said() {
    agree(("l5", "lease-cost"), 200, number, |facts| {
        let [pool, lease, arrival, needed] =
            ["pool", "lease", "arrival", "needed"].map(|name| number(&facts[name]));
        let config = SchedulerConfig { policy: PolicyKind::Continuum, ..config(pool, 64) };
        let mut scheduler = scheduler(config);
        // Steps of 100 ms.
        let time = |tenth: usize| Time(tenth as f64 / 10.0);
        add(&mut scheduler, step_of(1, false, 0, request(0, 64 * lease).prompt));
        step(&mut scheduler, Some("ls"), Time::ZERO, Time::ZERO);
        assert_eq!(scheduler.retained_blocks(), lease);
        for (id, [blocks, end]) in (1..).zip(pairs(&facts["running"])) {
            // It grows into no further block.
            let request = request(id, 64 * (blocks - 1) + 1);
            add(&mut scheduler, Request { max_tokens: end / 100, ..request });
        }
        for tenth in 0..40 {
            if 100 * tenth == arrival {
                let request = request(9, 64 * (needed - 1) + 1);
                add(&mut scheduler, Request { max_tokens: 1, ..request });
            }
            step(&mut scheduler, None, time(tenth), time(tenth + 1));
            if scheduler.request(RequestId(9)).is_none() && 100 * tenth >= arrival {
                return 100 * tenth;
            }
        }
        panic!("it does not begin");
    });
}

#[test]
fn the_lease_that_was_said_ends_for_a_running_request() {
    agree(("l5", "longest-rest"), 200, number, |facts| {
        let leases: Vec<Vec<usize>> =
            facts["leases"].as_array().unwrap().iter().map(numbers).collect();
        let config = SchedulerConfig { policy: PolicyKind::Adaptive, ..config(14, 4) };
        let mut scheduler = scheduler(config);
        let mut id = 0;
        let mut serve = |scheduler: &mut Scheduler, job: usize, last, tool: &str, at: f64| {
            id += 1;
            let arrival = Time(at);
            add(scheduler, Request { arrival, ..step_of(job, last, id, request(id, 4).prompt) });
            step(scheduler, Some(tool), Time(at), Time(at));
        };
        let mut now = 0.0;
        for (tool, gaps) in facts["records"].as_array().unwrap().iter().enumerate() {
            for gap in numbers(gaps) {
                now += 100.0;
                serve(&mut scheduler, 100, false, &tool.to_string(), now);
                serve(&mut scheduler, 100, true, "", now + gap as f64);
            }
        }
        now += 100.0;
        let mut in_order = leases.clone();
        in_order.sort_by_key(|lease| std::cmp::Reverse(lease[2]));
        for lease in in_order {
            let at = now - lease[2] as f64;
            serve(&mut scheduler, lease[0], false, &lease[1].to_string(), at);
        }
        assert_eq!(scheduler.leases().len(), 4);
        // It has all blocks that are free, and its second token needs one more.
        add(&mut scheduler, request(99, 40));
        let before = Time(now - 0.5);
        step(&mut scheduler, None, before, before);
        assert_eq!((scheduler.leases().len(), scheduler.blocks().num_free()), (4, 0));
        scheduler.plan(Time(now));
        let held: Vec<String> =
            scheduler.leases().iter().map(|lease| lease.job.clone().unwrap().id).collect();
        assert_eq!(held.len(), 3);
        leases.iter().map(|lease| lease[0]).find(|job| !held.contains(&job.to_string())).unwrap()
    });
}

//! A hundred thousand steps of everything at once, in pools of every size.

use std::collections::HashSet;

use l3_paged_kv::TokenChain;
use l5_scheduler::retention::Ttl;
use l5_scheduler::{
    Adapter, Admitted, Compose, Job, KvConnector, Lease, Matched, PolicyKind, Request, RequestId,
    Retention, Scheduler, SchedulerConfig, StepRow, StepShape, Time,
};

use crate::driver::{Driver, Happened, request};
use crate::learning::{Learning, Names};
use crate::leases::Keeping;
use crate::reranking::LeasedFirst;

const STEPS: usize = 100_000;
const STEPS_EACH: usize = 400;

/// Numbers that look random and are the same every time.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    /// Below `n`.
    fn roll(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.roll(n) == 0
    }
}

/// Has a beginning of some requests, sometimes.
struct Sometimes(Dice);

impl KvConnector for Sometimes {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, _from: usize) -> Matched {
        match self.0.roll(6) {
            0 | 1 => Matched::Tokens(self.0.roll(chain.len())),
            2 => Matched::AskAgain,
            _ => Matched::Tokens(0),
        }
    }
}

fn config(dice: &mut Dice) -> SchedulerConfig {
    let seats = 1 + dice.roll(6);
    let pool = SchedulerConfig::new(3 + dice.roll(30), 1 << dice.roll(4));
    let chunked = !dice.one_in(4);
    let tokens = if chunked { seats } else { seats.max(pool.max_model_len) };
    SchedulerConfig {
        policy: PolicyKind::ALL[dice.roll(3)],
        max_num_seqs: seats,
        max_num_batched_tokens: tokens + dice.roll(24),
        long_prefill_token_threshold: if dice.one_in(3) { 1 + dice.roll(6) } else { 0 },
        enable_chunked_prefill: chunked,
        enable_prefix_caching: !dice.one_in(4),
        scheduler_reserve_full_isl: !dice.one_in(4),
        watermark: if dice.one_in(3) { 0.1 } else { 0.0 },
        num_lookahead_tokens: if dice.one_in(4) { 2 } else { 0 },
        num_speculative_tokens: if dice.one_in(2) { dice.roll(5) } else { 0 },
        max_model_len: pool.max_model_len + if chunked { dice.roll(5) } else { 0 },
        compose: match dice.roll(2) {
            0 => Compose::Mixed,
            _ => Compose::Stable { max_decode_steps: 1 + dice.roll(4), chunk: dice.roll(12) },
        },
        adapter_turn: dice.roll(3),
        ..pool
    }
}

fn arrival(dice: &mut Dice, id: u64, now: f64, config: &SchedulerConfig) -> Request {
    let most = (config.capacity() * config.block_size).clamp(1, 40);
    let family = dice.roll(3) as u32;
    let shared = dice.roll(most);
    let mut prompt: Vec<u32> = (0..shared as u32).map(|n| n * (family + 1) % 4).collect();
    prompt.push(dice.roll(5) as u32);
    let job =
        dice.one_in(2).then(|| Job { id: format!("job {family}"), last_step: dice.one_in(4) });
    Request {
        eos: if dice.one_in(3) { vec![2] } else { vec![] },
        priority: dice.roll(4) as i64,
        arrival: Time(now),
        deadline: (id % 2 == 1).then(|| Time(now + (id * 7 % 9) as f64)),
        job,
        adapter: [None, None, Some("a"), Some("b")][dice.roll(4)]
            .map(|name| Adapter { name: name.to_owned(), path: name.to_owned() }),
        ..request(id, &prompt, 1 + dice.roll(16))
    }
}

fn retention(dice: &mut Dice) -> Box<dyn Retention> {
    if dice.one_in(2) {
        let names = Names::ALL[dice.roll(Names::ALL.len())];
        return Box::new(Learning { names, losses: 0 });
    }
    Box::new(Keeping { seconds: (!dice.one_in(3)).then_some(dice.roll(30) as f64) })
}

/// One run: everything that can happen does. Returns what did.
fn run(seed: u64) -> Vec<Happened> {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut config = config(&mut dice);
    // A policy for agents, with its own retention.
    let own = dice.one_in(3);
    if own {
        config.policy = PolicyKind::ALL[3 + dice.roll(PolicyKind::ALL.len() - 3)];
        config.continuum_ttl = Ttl::ALL[dice.roll(2)];
    }
    let mut scheduler = Scheduler::new(config.clone()).expect("the tests' configurations can be");
    let leased_first = dice.one_in(4);
    if leased_first {
        scheduler = scheduler.with_policy(Box::new(LeasedFirst::default()));
    }
    if !own {
        scheduler = scheduler.with_retention(retention(&mut dice));
    }
    let mut driver = Driver::around(scheduler);
    driver.tool = own.then(|| "tool".to_owned());
    let fetches = dice.one_in(2);
    if fetches {
        driver = driver.with_source(Sometimes(dice.clone()));
    }
    let busy = 1 + dice.roll(4);
    let ahead = dice.one_in(2);
    let mut planned_ahead = 0;
    let (mut id, mut log) = (0, Vec::new());
    let mut begun = HashSet::new();
    for step in 0..STEPS_EACH {
        let now = step as f64;
        if dice.one_in(busy) && driver.alive.len() < 24 {
            let asked = arrival(&mut dice, id, now, &config);
            if driver.scheduler.add_request(asked).is_ok() {
                driver.alive.insert(id);
            }
            id += 1;
        }
        disturb(&mut dice, &mut driver, id);
        if !driver.scheduler.is_open() {
            driver.plan(now);
            of_one_shape(&driver);
        }
        if dice.one_in(15) {
            driver.scheduler.abandon();
            disturb(&mut dice, &mut driver, id);
            driver.plan(now);
            of_one_shape(&driver);
        }
        if dice.one_in(20) {
            // While the model runs.
            driver.scheduler.abort(RequestId(dice.roll(id as usize + 1) as u64));
        }
        if ahead && !dice.one_in(5) && driver.plan_ahead(now) {
            planned_ahead += 1;
            of_one_shape(&driver);
            if dice.one_in(20) {
                driver.scheduler.abandon_ahead();
            }
        }
        let happened = driver.run();
        within_limits(&happened, &config);
        if config.policy == PolicyKind::Fcfs && !fetches && !leased_first {
            in_turn(&happened, &mut begun);
        }
        if step % 16 == 0 {
            driver.check();
        }
        log.push(happened);
    }
    finish(&mut driver);
    let drafts = config.num_speculative_tokens > 0;
    assert!(!ahead || drafts || planned_ahead > 50, "{planned_ahead} steps planned ahead");
    log
}

/// Aborts, resets, arrivals of keys and values, ends of storing.
fn disturb(dice: &mut Dice, driver: &mut Driver, ids: u64) {
    if dice.one_in(12) {
        driver.scheduler.abort(RequestId(dice.roll(ids as usize + 1) as u64));
    }
    if dice.one_in(60) {
        let preempt = dice.one_in(2);
        driver.scheduler.reset_prefix_cache(preempt);
    }
    if !driver.loads.is_empty() && dice.one_in(2) {
        let (id, to, _) = driver.loads[dice.roll(driver.loads.len())].clone();
        let came = if dice.one_in(4) { dice.roll(to + 1) } else { to };
        driver.arrive(id, came);
    }
    if !driver.stores.is_empty() && dice.one_in(3) {
        driver.stored(driver.stores[0]);
    }
}

fn within_limits(happened: &Happened, config: &SchedulerConfig) {
    let tokens: usize = happened.rows.iter().map(|(_, _, len)| len).sum();
    assert!(tokens <= config.max_num_batched_tokens, "{tokens} tokens in a step");
    assert!(happened.rows.len() <= config.max_num_seqs, "{} rows in a step", happened.rows.len());
    assert!(happened.running.len() <= config.max_num_seqs, "{} run", happened.running.len());
    assert!(happened.rows.iter().all(|(_, _, len)| *len > 0), "a row of no tokens");
}

/// The rows of the step that is planned are those of its shape, and of one adapter if adapters have turns.
fn of_one_shape(driver: &Driver) {
    let (view, config) = (driver.scheduler.view(), driver.scheduler.config());
    let step = view.step();
    match step.shape {
        StepShape::Mixed => {}
        StepShape::DecodeOnly => {
            assert!(step.rows.iter().all(StepRow::decodes), "{step:?}");
        }
        StepShape::Prefill { chunk } => {
            let whole = chunk == 0 || !config.enable_chunked_prefill;
            assert!(whole || step.tokens <= chunk, "{} tokens of prompts", step.tokens);
            let decodes = |row: &StepRow| row.decodes() && row.admitted == Admitted::Before;
            let before = view.rows().filter(|row| decodes(row.row));
            assert_eq!(before.filter(|row| row.request.decodes()).count(), 0, "{step:?}");
        }
    }
    if config.adapter_turn > 0 {
        let adapters: HashSet<_> = view.rows().filter_map(|row| row.request.adapter()).collect();
        assert!(adapters.len() <= 1, "adapters of one step: {adapters:?}");
    }
}

/// Nobody who came later begins before somebody who came earlier and still waits for the first time.
fn in_turn(happened: &Happened, begun: &mut HashSet<u64>) {
    begun.extend(happened.rows.iter().map(|(id, ..)| *id));
    let last = begun.iter().max().copied().unwrap_or_default();
    let overtaken = happened.waiting.iter().find(|id| **id < last && !begun.contains(id));
    assert_eq!(overtaken, None, "who still waits though request {last} began, which came later");
}

/// Everybody ends, whatever is under way comes to its end, and everything is back.
fn finish(driver: &mut Driver) {
    for step in 0..10_000 {
        while let Some((id, to, _)) = driver.loads.first().cloned() {
            driver.arrive(id, to);
        }
        while let Some(lease) = driver.stores.first().copied() {
            driver.stored(lease);
        }
        driver.ended();
        if !driver.scheduler.has_unfinished() {
            driver.check();
            assert!(driver.alive.is_empty(), "everybody's end was told");
            driver.step(f64::MAX);
            let kept = |lease: &Lease| lease.until().is_none();
            assert!(driver.scheduler.leases().iter().all(kept), "leases whose time has come");
            driver.scheduler.reset_prefix_cache(false);
            let free = driver.scheduler.blocks().num_free();
            let kept = driver.scheduler.retained_blocks();
            assert_eq!(free + kept, driver.scheduler.config().capacity(), "free and kept blocks");
            assert_eq!(kept, 0, "blocks that are kept for ever");
            return;
        }
        driver.step((STEPS_EACH + step) as f64);
    }
    panic!("never done: {:?}, {:?}", driver.scheduler, driver.alive);
}

#[test]
fn a_hundred_thousand_steps_of_everything_leave_everything_in_order() {
    for seed in 0..(STEPS / STEPS_EACH) as u64 {
        run(seed);
    }
}

#[test]
fn the_same_requests_get_the_same_schedule() {
    for seed in 0..8 {
        assert_eq!(run(seed), run(seed), "run {seed}, twice");
    }
}

//! Step by step, the scheduler does what the naive one says.

use std::collections::BTreeMap;

use l5_scheduler::{
    Adapter, Compose, Job, PolicyKind, Request, RequestId, Scheduler, SchedulerConfig, Time,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::driver::{Driver, request};
use crate::learning::{Learning, Names};
use crate::leases::leased;
use crate::naive::{LoadEvent, Naive, NaiveRequest};
use crate::reranking::LeasedFirst;
use crate::second_memory::{Script, Scripted};

/// What is asked of both between two steps.
#[derive(Clone, Debug)]
enum Order {
    Add(Asked),
    Abort(usize),
    /// Aborts the first request that loads, if there is one.
    AbortLoad,
    Reset(bool),
}

#[derive(Clone, Debug, Default)]
struct Asked {
    prompt: Vec<u32>,
    max_tokens: usize,
    eos: Option<u32>,
    arrival: u8,
    priority: i64,
    deadline: Option<u8>,
    /// Number of its job, and whether it is the last step.
    job: Option<(u8, bool)>,
    /// Whether it is another tenant's.
    foreign: bool,
    adapter: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Scenario {
    config: SchedulerConfig,
    /// Which leases are named, if there are any.
    names: Option<Names>,
    leased_first: bool,
    /// Second memory, if there is one.
    memory: Option<Script>,
    /// Seconds from one step to the next, over and over.
    pace: Vec<f64>,
    /// Each before a step; the later ones are empty.
    orders: Vec<Vec<Order>>,
}

/// Prompts begin like those of their family, so that blocks are shared.
fn prompts() -> impl Strategy<Value = Vec<u32>> {
    let own = proptest::collection::vec(0u32..3, 0..4);
    (0u32..3, 0usize..24, own).prop_map(|(family, shared, own)| {
        let begin = (0..shared as u32).map(|n| (n * (family + 1)) % 4);
        begin.chain(own).collect()
    })
}

fn orders() -> impl Strategy<Value = Order> {
    let eos = proptest::option::weighted(0.3, Just(2u32));
    let job = proptest::option::weighted(0.6, (0u8..3, proptest::bool::weighted(0.2)));
    let adapter = proptest::sample::select(vec![None, None, Some("a"), Some("b"), Some("c")]);
    let whose = (job, proptest::bool::weighted(0.2), adapter);
    let urgency = (0u8..6, -1i64..3, proptest::option::of(0u8..5));
    let add = (prompts(), 1usize..14, eos, urgency, whose);
    prop_oneof![
        8 => add.prop_map(|(prompt, max_tokens, eos, urgency, (job, foreign, adapter))| {
            let (arrival, priority, deadline) = urgency;
            let lengths = Asked { prompt, max_tokens, ..Asked::default() };
            Order::Add(Asked { eos, arrival, priority, deadline, job, foreign, adapter, ..lengths })
        }),
        1 => (0usize..20).prop_map(Order::Abort),
        1 => Just(Order::AbortLoad),
        1 => any::<bool>().prop_map(Order::Reset),
    ]
}

fn configs() -> impl Strategy<Value = SchedulerConfig> {
    let limits = (3usize..16, 0u32..3, 1usize..6, 0usize..24, any::<bool>(), 0usize..7);
    let habits =
        (0usize..3, any::<bool>(), any::<bool>(), 0usize..3, any::<bool>(), 0usize..6, 0usize..8);
    let mixed = Just(Compose::Mixed);
    let stable = (1usize..4, 0usize..9)
        .prop_map(|(max_decode_steps, chunk)| Compose::Stable { max_decode_steps, chunk });
    let compose = (prop_oneof![mixed, stable], 0usize..3);
    (limits, habits, compose).prop_map(|(limits, habits, (compose, adapter_turn))| {
        let (blocks, size, seats, tokens, chunked, threshold) = limits;
        let (policy, adaptive, caching, watermark, whole, lookahead, drafts) = habits;
        let policy = PolicyKind::ALL[policy];
        let pool = SchedulerConfig::new(blocks, 1 << size);
        SchedulerConfig {
            policy,
            max_num_seqs: seats,
            max_num_active_seqs: (tokens % 4 == 0).then_some(2),
            max_num_batched_tokens: match chunked {
                true => seats + tokens,
                false => pool.max_model_len.max(seats) + tokens,
            },
            long_prefill_token_threshold: if threshold > 4 { 0 } else { threshold },
            long_prefill_token_threshold_adaptive: adaptive,
            enable_chunked_prefill: chunked,
            enable_prefix_caching: caching,
            scheduler_reserve_full_isl: whole,
            watermark: [0.0, 0.1, 0.3][watermark],
            num_speculative_tokens: if drafts > 4 { 0 } else { drafts },
            num_lookahead_tokens: lookahead,
            // Longer than the pool, so that it can be exhausted.
            max_model_len: pool.max_model_len + if chunked { 4 } else { 0 },
            compose,
            adapter_turn,
            ..pool
        }
    })
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let orders = proptest::collection::vec(proptest::collection::vec(orders(), 0..3), 1..14);
    let names = proptest::option::weighted(0.7, proptest::sample::select(Names::ALL.to_vec()));
    let memory = proptest::option::weighted(0.7, any::<u64>().prop_map(Script));
    let pause = proptest::sample::select(vec![0.01, 0.03, 0.06, 1.0, 1.0]);
    let pace = proptest::collection::vec(pause, 1..4);
    let setup = (configs(), names, proptest::bool::weighted(0.3), memory, pace);
    (setup, orders).prop_map(|((mut config, names, leased_first, memory, pace), orders)| {
        if leased_first {
            config.policy = PolicyKind::Fcfs;
        }
        Scenario { config, names, leased_first, memory, pace, orders }
    })
}

/// Both schedulers play a scenario, and are compared after every step. Returns what happened to loads.
fn play(scenario: &Scenario) -> Result<BTreeMap<LoadEvent, usize>, TestCaseError> {
    let mut scheduler = Scheduler::new(scenario.config.clone()).expect("a valid configuration");
    let mut naive = Naive::new(&scenario.config);
    if let Some(names) = scenario.names {
        scheduler = scheduler.with_retention(Box::new(Learning { names, losses: 0 }));
        naive.names = Some(names);
    }
    if scenario.leased_first {
        scheduler = scheduler.with_policy(Box::new(LeasedFirst::default()));
        naive.leased_first = true;
    }
    let mut real = Driver::around(scheduler);
    let script = scenario.memory.unwrap_or(Script(0));
    let (connector, questions) = Scripted::new(script);
    if scenario.memory.is_some() {
        real = real.with_source(connector);
        naive.memory = scenario.memory;
    }
    // Request id, step after which it arrives, tokens.
    let mut arrivals: Vec<(u64, usize, usize)> = Vec::new();
    let (mut added, mut now) = (0, 0.0);
    for step in 0..2000 {
        for order in scenario.orders.get(step).into_iter().flatten() {
            obey(order, now, &mut added, &mut real, &mut naive)?;
        }
        let (got, want) = (real.step(now), naive.step(now));
        let asked = std::mem::take(&mut *questions.lock().unwrap());
        let expected = std::mem::take(&mut naive.questions);
        prop_assert_eq!(asked, expected, "questions to the second memory in step {}", step);
        prop_assert_eq!(&got, &want, "what happened in step {}", step);
        prop_assert_eq!(leased(&real), naive.leased(), "whose blocks are kept after step {}", step);
        let loading = loading(&real);
        prop_assert_eq!(&loading, &naive.loading(), "loads after step {}", step);
        let cached = real.scheduler.stats().cached_tokens;
        prop_assert_eq!(cached, naive.cached_tokens, "cached tokens until step {}", step);
        for lease in real.stores.clone() {
            if (lease.0 + step as u64).is_multiple_of(3) {
                real.stored(lease);
                naive.stored(lease.0);
            }
        }
        for (id, to) in loading {
            if !arrivals.iter().any(|arrival| arrival.0 == id) {
                let end = step + script.steps(id, step);
                arrivals.push((id, end, script.arriving(id, step, to)));
            }
        }
        for (id, _, tokens) in arrivals.extract_if(.., |arrival| arrival.1 <= step) {
            real.arrive(id, tokens);
            naive.arrive(id, tokens);
        }
        real.check();
        if naive.is_idle() && step >= scenario.orders.len() {
            prop_assert!(real.alive.is_empty(), "requests that have not ended: {:?}", real.alive);
            return Ok(naive.seen);
        }
        now += scenario.pace[step % scenario.pace.len()];
    }
    Err(TestCaseError::fail("a request is still there after 2,000 steps"))
}

/// Loads that have not ended: request id, and number of tokens that are there when all have arrived.
fn loading(driver: &Driver) -> Vec<(u64, usize)> {
    let mut loading: Vec<_> = driver.loads.iter().map(|(id, to, _)| (*id, *to)).collect();
    loading.sort_unstable();
    loading
}

fn lora(name: &str) -> Adapter {
    Adapter { name: name.to_owned(), path: name.to_owned() }
}

fn obey(
    order: &Order,
    now: f64,
    added: &mut u64,
    real: &mut Driver,
    naive: &mut Naive,
) -> Result<(), TestCaseError> {
    match order {
        Order::Add(asked) => {
            let Asked { prompt, max_tokens, eos, arrival, priority, .. } = asked;
            let Asked { deadline, job, foreign, adapter, .. } = asked;
            // Of two requests with equal arrival and priority, vLLM preempts the one that was admitted first. If they
            // may be admitted before all of their tokens fit, they can preempt each other for ever, so a test of ends
            // cannot use them.
            let whole = real.scheduler.config().scheduler_reserve_full_isl;
            let after = if whole { f64::from(*arrival % 3) } else { *added as f64 * 1e-3 };
            let (id, arrival) = (*added, now + after);
            let deadline = deadline.map(|after| now + f64::from(after));
            *added += 1;
            let asked = Request {
                eos: eos.iter().copied().collect(),
                arrival: Time(arrival),
                deadline: deadline.map(Time),
                priority: *priority,
                adapter: adapter.map(lora),
                job: job.map(|(job, last_step)| Job { id: format!("job {job}"), last_step }),
                cache_salt: foreign.then(|| "another".to_owned()),
                ..request(id, prompt, *max_tokens)
            };
            let mut plain = NaiveRequest::new(id, prompt, *max_tokens);
            (plain.eos, plain.arrival, plain.priority) = (*eos, arrival, *priority);
            plain.deadline = deadline;
            plain.adapter = adapter.map(str::to_owned);
            plain.tenant = asked.cache_salt.clone();
            plain.job = asked.job.as_ref().map(|job| (plain.tenant.clone(), job.id.clone()));
            plain.last_step = job.is_some_and(|(_, last)| last);
            let (got, want) = (real.scheduler.add_request(asked).is_ok(), naive.add(plain));
            prop_assert_eq!(got, want, "whether request {} is taken", id);
            if got {
                real.alive.insert(id);
            }
        }
        Order::Abort(n) => {
            let id = *n as u64 % (*added).max(1);
            real.scheduler.abort(RequestId(id));
            naive.abort(id);
        }
        Order::AbortLoad => {
            if let Some((id, ..)) = real.loads.first() {
                let id = *id;
                real.scheduler.abort(RequestId(id));
                naive.abort(id);
            }
        }
        Order::Reset(preempt) => {
            real.scheduler.reset_prefix_cache(*preempt);
            naive.reset(*preempt);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_step_is_as_the_naive_scheduler_has_it(scenario in scenarios()) {
        play(&scenario)?;
    }
}

#[test]
fn the_scenarios_have_loads_of_every_kind() {
    let mut runner = TestRunner::deterministic();
    let mut all = BTreeMap::new();
    for _ in 0..1000 {
        let scenario = scenarios().new_tree(&mut runner).expect("a scenario").current();
        for (event, times) in play(&scenario).expect("equal steps") {
            *all.entry(event).or_insert(0) += times;
        }
    }
    for event in LoadEvent::ALL {
        let times = all.get(&event).copied().unwrap_or_default();
        assert!(times >= 10, "{event:?}: {times} times; all: {all:?}");
    }
}

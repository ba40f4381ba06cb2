//! Under steps of stable shapes and turns of adapters, no request waits longer than the composer says.

use std::collections::{BTreeMap, BTreeSet};

use l5_scheduler::{Adapter, Compose, Request, SchedulerConfig, Time};
use proptest::prelude::*;

use crate::driver::{Driver, request, unique};

#[derive(Clone, Debug)]
struct Load {
    max_decode_steps: usize,
    chunk: usize,
    adapter_turn: usize,
    seats: usize,
    /// For each request the step it comes before, tokens of prompt and output, and its adapter.
    requests: Vec<(usize, usize, usize, usize)>,
}

const ADAPTERS: [&str; 3] = ["a", "b", "c"];

fn loads(adapter_turn: std::ops::Range<usize>) -> impl Strategy<Value = Load> {
    let request = (0usize..60, 1usize..40, 1usize..40, 0usize..ADAPTERS.len());
    let requests = proptest::collection::vec(request, 1..40);
    (1usize..5, 0usize..12, adapter_turn, 2usize..7, requests).prop_map(
        |(max_decode_steps, chunk, adapter_turn, seats, requests)| Load {
            max_decode_steps,
            chunk,
            adapter_turn,
            seats,
            requests,
        },
    )
}

/// A state before a step: who decodes, and of which adapters a running request has not computed its prompt.
struct Ready {
    decoding: BTreeSet<u64>,
    prefilling: BTreeSet<Option<String>>,
    /// Whether a prompt could have tokens in this step.
    prompts: bool,
}

fn ready(driver: &Driver) -> Ready {
    let scheduler = &driver.scheduler;
    let name = |adapter: Option<&Adapter>| adapter.map(|adapter| adapter.name.clone());
    let (decode, prefill): (Vec<_>, Vec<_>) =
        scheduler.running().partition(|request| request.decodes());
    let seat = scheduler.num_running() < scheduler.config().seats();
    Ready {
        prompts: !prefill.is_empty() || (seat && scheduler.num_waiting() > 0),
        decoding: decode.iter().map(|r| r.id().0).collect(),
        prefilling: prefill.iter().map(|r| name(r.adapter())).collect(),
    }
}

/// The longest that anything waited, in steps.
#[derive(Debug, Default)]
struct Waits {
    /// A request that decodes, for a token.
    decode: usize,
    /// Prompts that could be computed, for a step that computes tokens of any.
    prompts: usize,
    /// Prompts of running requests of one adapter, for tokens of one of them.
    adapter: usize,
}

/// Counts on for everything that is ready, from 0 for what has just been served, and keeps the longest.
fn wait_on<K: Ord>(
    waits: &mut BTreeMap<K, usize>,
    ready: impl IntoIterator<Item = K>,
    served: impl Fn(&K) -> bool,
    longest: &mut usize,
) {
    let before = std::mem::take(waits);
    for key in ready {
        let wait = if served(&key) { 0 } else { before.get(&key).copied().unwrap_or(0) + 1 };
        *longest = wait.max(*longest);
        waits.insert(key, wait);
    }
}

/// Runs a load in a pool with room for all of it.
fn longest_waits(load: &Load, adapters: bool) -> Waits {
    let Load { max_decode_steps, chunk, adapter_turn, seats, .. } = *load;
    let mut driver = Driver::new(SchedulerConfig {
        max_num_seqs: seats,
        max_num_batched_tokens: 64,
        compose: Compose::Stable { max_decode_steps, chunk },
        adapter_turn,
        ..SchedulerConfig::new(1000, 4)
    });
    let mut longest = Waits::default();
    let (mut decode, mut prompts, mut adapter) = Default::default();
    for step in 0..20_000 {
        let coming = load.requests.iter().zip(0..).filter(|((at, ..), _)| *at == step);
        for ((_, prompt, output, of), id) in coming {
            let adapter = adapters.then(|| ADAPTERS[*of].to_owned());
            driver.add(Request {
                adapter: adapter.map(|name| Adapter { path: name.clone(), name }),
                arrival: Time(step as f64),
                ..request(id, &unique(id, *prompt), *output)
            });
        }
        if driver.alive.is_empty() && step > 60 {
            return longest;
        }
        let ready = ready(&driver);
        let names: BTreeMap<u64, Option<String>> = driver
            .scheduler
            .running()
            .chain(driver.scheduler.waiting())
            .map(|r| (r.id().0, r.adapter().map(|adapter| adapter.name.clone())))
            .collect();
        let happened = driver.step(step as f64);
        assert!(happened.preempted.is_empty(), "the pool holds them all");
        let rows: BTreeSet<u64> = happened.rows.iter().map(|(id, ..)| *id).collect();
        let fed: Vec<u64> = rows.difference(&ready.decoding).copied().collect();
        let served: BTreeSet<_> = fed.iter().map(|id| names[id].clone()).collect();
        wait_on(&mut decode, ready.decoding, |id| rows.contains(id), &mut longest.decode);
        wait_on(
            &mut prompts,
            ready.prompts.then_some(()),
            |()| !fed.is_empty(),
            &mut longest.prompts,
        );
        wait_on(&mut adapter, ready.prefilling, |of| served.contains(of), &mut longest.adapter);
    }
    panic!("still there after 20,000 steps: {:?}", driver.alive);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_prompt_and_a_request_that_decodes_wait_no_longer_than_the_cadence(load in loads(0..1)) {
        let waits = longest_waits(&load, false);
        prop_assert!(waits.decode <= 1, "without a token for {} steps", waits.decode);
        prop_assert!(waits.prompts <= load.max_decode_steps, "prompts waited {} steps", waits.prompts);
    }

    #[test]
    fn an_adapter_waits_no_longer_than_a_round_of_all_turns(load in loads(1..4)) {
        let waits = longest_waits(&load, true);
        let others = (ADAPTERS.len() - 1) * load.adapter_turn;
        // Before each step that decodes there can be one of prompts, and max_decode_steps the other way round.
        prop_assert!(waits.decode <= 2 * others + 1, "without a token for {} steps", waits.decode);
        prop_assert!(waits.prompts <= load.max_decode_steps, "prompts waited {} steps", waits.prompts);
        let most = (others + 1) * (load.max_decode_steps + 1) - 1;
        prop_assert!(waits.adapter <= most, "an adapter's prompts waited {} steps", waits.adapter);
    }
}

#[test]
fn the_bounds_of_the_cadence_are_reached() {
    // One request decodes for long, and prompts of one chunk come in every step.
    let mut requests = vec![(0, 3, 39, 0)];
    requests.extend((1..40).map(|step| (step, 8, 1, 0)));
    let load = Load { max_decode_steps: 3, chunk: 8, adapter_turn: 0, seats: 4, requests };
    let waits = longest_waits(&load, false);
    assert_eq!((waits.decode, waits.prompts), (1, 3));
}

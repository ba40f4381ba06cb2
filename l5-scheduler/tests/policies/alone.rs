//! A request that runs alone makes progress: it never preempts itself only to be admitted again.

use l3_paged_kv::TokenChain;
use l5_scheduler::{
    Job, KvConnector, LeaseId, Matched, Note, PolicyContext, Request, RequestId, RequestView,
    Retain, Retention, SchedulerConfig,
};

use crate::driver::{Driver, request, unique};

/// Retains what steps of jobs leave in this way, and ends no lease for any request.
struct EndsNone(Retain);

impl Retention for EndsNone {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        _: &PolicyContext<'_>,
    ) -> Retain {
        if finished.job().is_some() { self.0 } else { Retain::Free }
    }

    fn lease_for(
        &self,
        _: &RequestView<'_>,
        _: &[LeaseId],
        _: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        None
    }
}

/// 3 blocks of 8 tokens, and steps of at most `tokens`.
fn config(tokens: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 2,
        max_num_batched_tokens: tokens,
        ..SchedulerConfig::new(4, 8)
    }
}

/// A driver that retains one block, of a request that has ended.
fn retaining(config: SchedulerConfig, retain: Retain) -> Driver {
    let mut driver = Driver::with_retention(config, EndsNone(retain));
    let job = Some(Job { id: "a".to_owned(), last_step: false });
    driver.add(Request { job, ..request(1, &unique(1, 8), 1) });
    driver.finish(0.0);
    driver.step(1.0);
    assert_eq!(driver.scheduler.retained_blocks(), 1, "blocks of 3");
    driver
}

fn preemptions(driver: &Driver) -> u64 {
    driver.scheduler.stats().preemptions
}

/// Runs many steps. Returns the number of preemptions.
fn many_steps(driver: &mut Driver) -> u64 {
    (10..60).for_each(|now| _ = driver.step(f64::from(now)));
    preemptions(driver)
}

#[test]
fn it_ends_leases_that_the_retention_does_not_name() {
    // It is admitted with two of three blocks, and a later chunk needs the third.
    let config = SchedulerConfig { scheduler_reserve_full_isl: false, ..config(4) };
    let mut driver = retaining(config, Retain::Keep);
    driver.add(request(2, &unique(2, 20), 1));
    assert_eq!(many_steps(&mut driver), 0, "preemptions");
    assert!(driver.alive.is_empty(), "it has ended");
    assert_eq!(driver.scheduler.retained_blocks(), 0, "and the lease");
}

#[test]
fn a_retention_is_not_overruled_while_another_request_runs() {
    let config = SchedulerConfig { scheduler_reserve_full_isl: false, ..config(8) };
    let mut driver = retaining(config, Retain::Keep);
    // Both will need a second block.
    driver.add(request(2, &unique(2, 7), 4));
    driver.add(request(3, &unique(3, 7), 4));
    let preempted: Vec<u64> =
        (10..13).flat_map(|now| driver.step(f64::from(now)).preempted).collect();
    assert_eq!(preempted, [3], "the request that was admitted last");
    assert_eq!(driver.scheduler.leases().len(), 1, "and not the lease");
    driver.finish(20.0);
}

#[test]
fn it_is_admitted_with_blocks_for_the_lookahead() {
    // 15 tokens and a lookahead of 2 are 3 blocks, of which one is being stored.
    let config = SchedulerConfig { num_lookahead_tokens: 2, ..config(4) };
    let mut driver = retaining(config, Retain::Offload);
    driver.add(request(2, &unique(2, 15), 1));
    assert_eq!(many_steps(&mut driver), 0, "preemptions");
    assert_eq!(driver.scheduler.num_running(), 0, "it waits for the block");
    driver.stored(driver.stores[0]);
    driver.finish(100.0);
    assert_eq!(preemptions(&driver), 0);
}

#[test]
fn after_a_preemption_it_waits_for_blocks_that_are_being_stored() {
    for tokens in 4..8 {
        let config = SchedulerConfig { scheduler_reserve_full_isl: false, ..config(tokens) };
        let mut driver = retaining(config, Retain::Offload);
        driver.add(request(2, &unique(2, 20), 1));
        assert_eq!(many_steps(&mut driver), 1, "preemptions with {tokens} tokens a step");
        driver.stored(driver.stores[0]);
        driver.finish(100.0);
        assert_eq!(preemptions(&driver), 1, "in the end");
    }
}

/// Has the first block of prompts that begin with this token.
struct FirstBlockOf(u32);

impl KvConnector for FirstBlockOf {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, from: usize) -> Matched {
        Matched::Tokens(if chain.tokens()[0] == self.0 { 8 - from.min(8) } else { 0 })
    }
}

#[test]
fn after_a_preemption_it_waits_for_blocks_that_are_being_loaded() {
    for tokens in 4..8 {
        let config = SchedulerConfig { scheduler_reserve_full_isl: false, ..config(tokens) };
        let mut driver = Driver::new(config).with_source(FirstBlockOf(unique(1, 1)[0]));
        driver.add(request(1, &unique(1, 9), 1));
        driver.add(request(2, &unique(2, 20), 1));
        assert_eq!(many_steps(&mut driver), 1, "preemptions with {tokens} tokens a step");
        driver.arrive(1, 8);
        driver.finish(100.0);
    }
}

//! A step that never was.

use l5_scheduler::{PolicyKind, Request, RequestId, SchedulerConfig, Time};

use crate::driver::{Driver, request, unique};

fn config(policy: PolicyKind) -> SchedulerConfig {
    SchedulerConfig {
        policy,
        max_num_batched_tokens: 16,
        max_num_seqs: 4,
        ..SchedulerConfig::new(17, 4)
    }
}

/// A request's name, its tokens, and those that are computed.
type Standing = (u64, usize, usize);

/// Who is where with how much, and what is free.
fn state(driver: &Driver) -> (Vec<Standing>, Vec<Standing>, usize) {
    let scheduler = &driver.scheduler;
    let of = |request: l5_scheduler::RequestView<'_>| {
        (request.id().0, request.num_tokens(), request.num_computed())
    };
    let (running, waiting) = (scheduler.running().map(of), scheduler.waiting().map(of));
    (running.collect(), waiting.collect(), scheduler.blocks().num_free())
}

#[test]
fn who_ran_runs_and_who_waited_waits_in_the_same_places() {
    for policy in [PolicyKind::Fcfs, PolicyKind::Priority] {
        let mut driver = Driver::new(config(policy));
        driver.add(request(1, &unique(1, 6), 9));
        driver.step(0.0);
        for id in 2..6 {
            driver.add(Request { arrival: Time(id as f64), ..request(id, &unique(id, 6), 9) });
        }
        let before = state(&driver);
        let planned = driver.plan(1.0);
        assert_eq!(planned, [(1, 1), (2, 6), (3, 6), (4, 3)], "who was to take part");
        driver.scheduler.abandon();
        assert_eq!(state(&driver), before, "running, waiting, free blocks ({policy})");
        assert!(!driver.scheduler.is_open(), "no step is planned");
        assert!(driver.scheduler.view().step().is_empty(), "and none can be run");
        assert_eq!(driver.plan(1.0), planned, "the same step, planned again");
        driver.run();
        driver.finish(2.0);
    }
}

#[test]
fn who_ran_has_no_more_computed_than_before() {
    let mut driver = Driver::new(config(PolicyKind::Fcfs));
    driver.add(request(1, &unique(1, 40), 5));
    for now in 0..3 {
        assert_eq!(driver.plan(f64::from(now)), [(1, if now < 2 { 16 } else { 8 })], "its chunk");
        driver.scheduler.abandon();
        let computed = driver.scheduler.request(RequestId(1)).unwrap().num_computed();
        assert_eq!(computed, 16 * now as usize, "tokens computed, after an abandoned step");
        driver.step(f64::from(now));
    }
    driver.finish(3.0);
}

#[test]
fn what_it_would_have_computed_is_not_found() {
    let mut driver = Driver::new(config(PolicyKind::Fcfs));
    let prompt = unique(1, 13);
    driver.add(request(1, &prompt, 3));
    driver.plan(0.0);
    driver.scheduler.abandon();
    assert!(driver.scheduler.abort(RequestId(1)), "it is there, and waits");
    driver.add(request(2, &prompt, 3));
    let happened = driver.step(1.0);
    assert_eq!(happened.rows, [(2, 0, 13)], "the same prompt begins at its beginning");
    driver.finish(2.0);
}

#[test]
fn nothing_was_planned_and_nothing_happens() {
    let mut driver = Driver::new(config(PolicyKind::Fcfs));
    driver.scheduler.abandon();
    driver.add(request(1, &unique(1, 5), 4));
    driver.step(0.0);
    let before = state(&driver);
    driver.scheduler.abandon();
    assert_eq!(state(&driver), before, "after a step that was applied there is nothing to abandon");
    driver.finish(1.0);
}

#[test]
fn planning_again_abandons_what_was_planned() {
    let mut driver = Driver::new(config(PolicyKind::Priority));
    driver.add(Request { priority: 1, ..request(1, &unique(1, 16), 4) });
    assert_eq!(driver.plan(0.0), [(1, 16)], "with nobody else there");
    driver.add(request(2, &unique(2, 12), 4));
    assert_eq!(driver.plan(0.0), [(2, 12), (1, 4)], "once somebody more urgent came");
    driver.run();
    driver.finish(1.0);
}

#[test]
fn who_was_preempted_stays_so_and_comes_back() {
    let mut driver = Driver::new(SchedulerConfig { num_gpu_blocks: 7, ..config(PolicyKind::Fcfs) });
    driver.add(request(1, &unique(1, 11), 9));
    driver.add(request(2, &unique(2, 11), 9));
    driver.step(0.0);
    driver.step(1.0);
    driver.plan(2.0);
    let preempted = driver.scheduler.view().step().preempted.clone();
    assert_eq!(preempted, [RequestId(2)], "who was preempted, as the pool is full");
    driver.scheduler.abandon();
    let (running, waiting, _) = state(&driver);
    assert_eq!(running.len(), 1, "who runs");
    assert_eq!(waiting, [(2, 12, 0)], "who waits, with all that it said");
    assert_eq!(driver.finish(2.0).len(), 2, "and both end");
}

#[test]
fn who_was_aborted_meanwhile_ends_with_it() {
    let mut driver = Driver::new(config(PolicyKind::Fcfs));
    driver.add(request(1, &unique(1, 6), 9));
    driver.step(0.0);
    driver.add(request(2, &unique(2, 6), 9));
    driver.plan(1.0);
    assert!(driver.scheduler.abort(RequestId(1)) && driver.scheduler.abort(RequestId(2)));
    driver.scheduler.abandon();
    let mut ended: Vec<u64> = driver.ended().into_iter().map(|(id, _)| id).collect();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2], "who ended: one that ran, and one that was about to");
    assert!(!driver.scheduler.has_unfinished(), "nobody is left");
    driver.check();
}

#[test]
fn every_step_planned_twice_is_the_same_run() {
    for seed in 0..60u64 {
        for policy in [PolicyKind::Fcfs, PolicyKind::Priority] {
            // Without a cache, since what was evicted for a step stays so; in a pool where nobody is preempted.
            let roomy = SchedulerConfig {
                num_gpu_blocks: 200,
                enable_prefix_caching: false,
                ..config(policy)
            };
            let (mut once, mut twice) = (Driver::new(roomy.clone()), Driver::new(roomy));
            for step in 0..30u64 {
                if (seed + step) % 3 == 0 {
                    let asked = Request {
                        priority: (seed * step % 3) as i64,
                        arrival: Time(step as f64),
                        ..request(step, &unique(step, 1 + (seed * 7 + step * 5) as usize % 30), 7)
                    };
                    once.add(asked.clone());
                    twice.add(asked);
                }
                let planned = twice.plan(step as f64);
                if twice.scheduler.view().step().preempted.is_empty() {
                    twice.scheduler.abandon();
                    assert_eq!(twice.plan(step as f64), planned, "step {step} planned again");
                }
                let got = twice.run();
                assert_eq!(got, once.step(step as f64), "step {step} after an abandoned one");
            }
        }
    }
}

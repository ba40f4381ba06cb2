//! An abort at every possible moment leaks nothing.

use l5_scheduler::{Job, PolicyKind, Request, RequestId, SchedulerConfig, Time};

use crate::driver::{Driver, request, unique};
use crate::fetched::Elsewhere;
use crate::leases::Keeping;

/// Between any two calls somebody may be aborted: at moment `when`, request `who`.
struct Moments {
    now: usize,
    when: usize,
    who: u64,
}

impl Moments {
    fn pass(&mut self, driver: &mut Driver) {
        if self.now == self.when {
            driver.scheduler.abort(RequestId(self.who));
        }
        self.now += 1;
    }
}

/// Four requests that share a prefix, give way to each other, fetch and are kept. Returns how many moments there were.
fn scenario(policy: PolicyKind, fetching: bool, when: usize, who: u64) -> usize {
    let config = SchedulerConfig {
        policy,
        max_num_seqs: 3,
        max_num_batched_tokens: 9,
        ..SchedulerConfig::new(10, 4)
    };
    let keeping = Keeping { seconds: who.is_multiple_of(2).then_some(4.0) };
    let mut driver = Driver::with_retention(config, keeping);
    if fetching {
        driver = driver.with_source(Elsewhere(8));
    }
    let mut moments = Moments { now: 0, when, who };
    for step in 0..60u64 {
        if step < 4 {
            let job = (step % 2 == 0).then(|| Job { id: "a".to_owned(), last_step: false });
            let own = unique(step, 3 + step as usize);
            let prompt = [&[1, 1, 1, 1, 2, 2, 2, 2], &own[..]].concat();
            let (priority, arrival) = (3 - step as i64, Time(step as f64));
            driver.add(Request { priority, arrival, job, ..request(step, &prompt, 9) });
            moments.pass(&mut driver);
        }
        driver.plan(step as f64);
        moments.pass(&mut driver);
        if step % 5 == 3 {
            driver.scheduler.abandon();
            moments.pass(&mut driver);
            driver.plan(step as f64);
            moments.pass(&mut driver);
        }
        driver.run();
        driver.check();
        moments.pass(&mut driver);
        if step % 2 == 1
            && let Some((id, ..)) = driver.loads.first()
        {
            driver.arrive(*id, 8);
            moments.pass(&mut driver);
        }
        if let Some(lease) = driver.stores.first() {
            driver.stored(*lease);
        }
        driver.ended();
        driver.check();
        if step > 3 && driver.alive.is_empty() {
            break;
        }
    }
    assert!(
        driver.alive.is_empty(),
        "request {who} aborted at moment {when}: {:?} left",
        driver.alive
    );
    driver.step(1000.0);
    while let Some(lease) = driver.stores.first() {
        driver.stored(*lease);
    }
    let free = driver.scheduler.blocks().num_free();
    assert_eq!(free, 9, "free blocks after request {who} was aborted at moment {when}");
    moments.now
}

#[test]
fn an_abort_at_every_possible_moment_leaks_nothing() {
    for policy in PolicyKind::ALL {
        for fetching in [false, true] {
            let moments = scenario(policy, fetching, usize::MAX, 0);
            assert!(moments > 40, "moments of the scenario: {moments}");
            for when in 0..moments {
                for who in 0..4 {
                    scenario(policy, fetching, when, who);
                }
            }
        }
    }
}

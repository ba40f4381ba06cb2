//! Ranks that change while requests wait, and jobs that are remembered between their requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use l5_scheduler::policy::Fcfs;
use l5_scheduler::{
    Job, JobKey, LeaseId, Policy, PolicyContext, Rank, Request, RequestId, RequestView, Scheduler,
    SchedulerConfig, Time, Victim,
};

use crate::driver::{Driver, request, unique};
use crate::leases::{Keeping, leased};

/// Steps of jobs that have a lease first, then all others; each by the arrival of its job.
#[derive(Debug, Default)]
pub struct LeasedFirst {
    asked: Arc<AtomicUsize>,
    /// It does not say that it orders by leases.
    silent: bool,
    /// From here on, everybody who is asked about comes last.
    last: Arc<AtomicUsize>,
}

impl Policy for LeasedFirst {
    fn name(&self) -> &'static str {
        "leased-first"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let class = i64::from(!context.has_lease(request));
        let class = if self.last.load(Ordering::Relaxed) > 0 { 2 } else { class };
        let (arrival, tie) = (request.job_arrival(), request.ticket());
        Rank { class, arrival, tie, ..Rank::default() }
    }

    fn orders_by_leases(&self) -> bool {
        !self.silent
    }

    fn victim(
        &self,
        needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        Fcfs.victim(needy, running, lease, context)
    }
}

fn driver(blocks: usize, seats: usize, policy: LeasedFirst, seconds: f64) -> Driver {
    let config = SchedulerConfig { max_num_seqs: seats, ..SchedulerConfig::new(blocks + 1, 4) };
    let scheduler = Scheduler::new(config).unwrap().with_policy(Box::new(policy));
    Driver::around(scheduler.with_retention(Box::new(Keeping::leasing(seconds))))
}

fn step_of(job: &str, id: u64, prompt: &[u32], max_tokens: usize, arrival: f64) -> Request {
    let job = Job { id: job.to_owned(), last_step: false };
    Request { job: Some(job), arrival: Time(arrival), ..request(id, prompt, max_tokens) }
}

fn waiting(driver: &Driver) -> Vec<u64> {
    driver.scheduler.waiting().map(|request| request.id().0).collect()
}

#[test]
fn a_step_of_a_job_with_a_lease_overtakes_earlier_arrivals() {
    let mut driver = driver(20, 1, LeasedFirst::default(), 50.0);
    driver.add(step_of("a", 1, &unique(1, 10), 3, 0.0));
    driver.finish(0.0);
    driver.add(Request { arrival: Time(1.0), ..request(2, &unique(2, 5), 5) });
    driver.step(1.0);
    driver.add(Request { arrival: Time(2.0), ..request(3, &unique(3, 5), 5) });
    driver.add(step_of("a", 4, &unique(1, 12), 3, 3.0));
    driver.add(step_of("b", 5, &unique(5, 12), 3, 4.0));
    assert_eq!(waiting(&driver), [4, 3, 5], "who waits, in the order of the queue");
    driver.finish(5.0);
}

#[test]
fn a_step_that_waits_moves_when_a_lease_of_its_job_begins_and_when_it_ends() {
    let mut driver = driver(8, 1, LeasedFirst::default(), 50.0);
    driver.add(step_of("a", 1, &unique(1, 10), 3, 0.0));
    driver.step(0.0);
    driver.add(Request { arrival: Time(-1.0), ..request(2, &unique(2, 12), 8) });
    driver.add(step_of("a", 3, &unique(3, 5), 2, 2.0));
    assert_eq!(waiting(&driver), [2, 3], "before the job has a lease");
    driver.step(3.0);
    driver.step(4.0);
    assert_eq!(leased(&driver), [1]);
    assert_eq!(waiting(&driver), [3, 2], "a sibling of it has finished");
    // Aborted, and sent again: the job began with the first of its requests all the same.
    driver.scheduler.abort(RequestId(3));
    driver.step(5.0);
    driver.add(step_of("a", 4, &unique(4, 5), 2, 6.0));
    assert_eq!(waiting(&driver), [4]);
    // Request 2 runs and grows until it needs what is leased.
    assert_eq!(driver.scheduler.running().map(|r| r.id().0).collect::<Vec<_>>(), [2]);
    driver.add(Request { arrival: Time(-2.0), ..request(5, &unique(5, 5), 2) });
    assert_eq!(waiting(&driver), [4, 5]);
    for now in 7..11 {
        driver.step(f64::from(now));
    }
    driver.add(Request { arrival: Time(-3.0), ..request(6, &unique(6, 5), 2) });
    assert_eq!((leased(&driver), waiting(&driver)), (vec![1], vec![4, 6, 5]));
    driver.scheduler.reset_prefix_cache(true);
    assert_eq!(waiting(&driver)[..2], [6, 5], "no lease, and a job that began later");
    driver.finish(20.0);
}

#[test]
fn a_job_began_with_its_first_request_however_long_ago_that_is() {
    let mut driver = driver(20, 1, LeasedFirst::default(), 5.0);
    driver.add(step_of("a", 1, &unique(1, 10), 3, 0.0));
    driver.finish(0.0);
    driver.add(Request { arrival: Time(900.0), ..request(2, &unique(2, 5), 5) });
    driver.step(900.0);
    assert!(driver.scheduler.leases().is_empty(), "its lease has expired");
    driver.add(Request { arrival: Time(901.0), ..request(3, &unique(3, 5), 5) });
    driver.add(step_of("a", 4, &unique(4, 5), 5, 902.0));
    assert_eq!(waiting(&driver), [4, 3]);
    assert_eq!(driver.scheduler.request(RequestId(4)).unwrap().job_arrival(), Time(0.0));
    assert_eq!(driver.scheduler.request(RequestId(3)).unwrap().job_arrival(), Time(901.0));
    driver.finish(903.0);
}

#[test]
fn jobs_that_never_return_are_forgotten() {
    let mut driver = driver(20, 1, LeasedFirst::default(), 0.5);
    for id in 0..5000 {
        driver.add(step_of(&format!("job {id}"), id, &[1], 1, id as f64));
        driver.step(id as f64);
    }
    assert_eq!(driver.scheduler.num_jobs(), 4096, "jobs that are remembered");
}

#[test]
fn who_was_admitted_in_an_abandoned_step_waits_at_its_new_rank() {
    let mut driver = driver(7, 2, LeasedFirst::default(), 50.0);
    driver.add(step_of("a", 1, &unique(1, 7), 3, 0.0));
    driver.finish(0.0);
    assert_eq!(leased(&driver), [1]);
    driver.add(step_of("a", 2, &unique(2, 7), 3, 2.0));
    driver.add(Request { arrival: Time(-1.0), ..request(3, &unique(3, 19), 1) });
    assert_eq!(waiting(&driver), [2, 3], "whose job has a lease, and who came first");
    assert_eq!(driver.plan(3.0), [(2, 7), (3, 19)], "the lease ends for the second of them");
    assert!(leased(&driver).is_empty(), "it has ended");
    driver.scheduler.abandon();
    assert_eq!(waiting(&driver), [3, 2], "once nothing of the job is leased");
    driver.finish(4.0);
}

#[test]
fn a_caller_can_ask_for_a_jobs_ranks_again() {
    let policy = LeasedFirst::default();
    let last = Arc::clone(&policy.last);
    let mut driver = driver(20, 1, policy, 50.0);
    driver.add(step_of("a", 1, &unique(1, 10), 3, 0.0));
    driver.finish(0.0);
    driver.add(Request { arrival: Time(1.0), ..request(2, &unique(2, 5), 5) });
    driver.step(1.0);
    driver.add(step_of("a", 3, &unique(3, 5), 3, 2.0));
    driver.add(Request { arrival: Time(3.0), ..request(4, &unique(4, 5), 5) });
    driver.add(step_of("a", 5, &unique(5, 5), 3, 4.0));
    last.store(1, Ordering::Relaxed);
    driver.add(Request { arrival: Time(-5.0), ..request(6, &unique(6, 5), 5) });
    assert_eq!(waiting(&driver), [3, 5, 4, 6], "others keep the rank that they have");
    let of = |id: &str| JobKey { tenant: None, id: id.to_owned() };
    driver.scheduler.rerank(&of("b"));
    driver.scheduler.rerank(&JobKey { tenant: Some("x".to_owned()), ..of("a") });
    assert_eq!(waiting(&driver), [3, 5, 4, 6], "of other jobs nobody waits");
    driver.scheduler.rerank(&of("a"));
    assert_eq!(waiting(&driver), [4, 6, 3, 5], "number 4 has its old rank");
    driver.finish(5.0);
}

#[test]
fn a_policy_that_does_not_order_by_leases_is_asked_once_a_request() {
    for silent in [true, false] {
        let policy = LeasedFirst { silent, ..LeasedFirst::default() };
        let asked = Arc::clone(&policy.asked);
        let mut driver = driver(20, 1, policy, 1.0);
        driver.add(step_of("a", 1, &unique(1, 10), 3, 0.0));
        driver.step(0.0);
        driver.add(step_of("a", 2, &unique(2, 5), 3, 0.0));
        driver.finish(1.0);
        driver.step(90.0);
        let more = if silent { 0 } else { 1 };
        assert_eq!(asked.load(Ordering::Relaxed), 2 + more, "times that it was asked ({silent})");
    }
}

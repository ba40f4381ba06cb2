//! Policies and retentions that learn: what they are told, and which leases end by their answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use l5_scheduler::policy::Fcfs;
use l5_scheduler::{
    Job, LeaseEnd, LeaseId, Note, Policy, PolicyContext, PolicyEvent, PolicyKind, Rank, Request,
    RequestId, RequestView, Retain, Retention, Scheduler, SchedulerConfig, Status, Time, Victim,
};

use crate::driver::{Driver, NOBODY, request, unique};
use crate::leases::{Keeping, leased};

/// Which leases a retention names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// All, in the order of expiry.
    Soonest,
    /// All, the newest first.
    Newest,
    /// None for a waiting request; all for a running one.
    ForRunning,
    /// Not more than one.
    One,
    /// None at all.
    Nothing,
}

impl Names {
    pub const ALL: [Self; 5] =
        [Self::Soonest, Self::Newest, Self::ForRunning, Self::One, Self::Nothing];

    fn lease(
        self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        let waits = needy.status() != Status::Running;
        match self {
            Self::ForRunning if waits => None,
            Self::One if !named.is_empty() => None,
            Self::Nothing => None,
            Self::Newest => {
                let can_end = context.leases.iter().filter(|lease| lease.can_end());
                can_end.map(|lease| lease.id).filter(|lease| !named.contains(lease)).max()
            }
            _ => {
                let next = context.leases.next_to_expire(named.last().copied());
                next.map(|lease| lease.id)
            }
        }
    }
}

/// Keeps what steps of jobs leave, each in another way, and changes its mind with each lease and each request that lost
/// its blocks.
#[derive(Debug)]
pub struct Learning {
    pub names: Names,
    pub losses: u64,
}

impl Learning {
    /// What happens to the blocks of a request that finished, after so many losses.
    pub fn decision(id: u64, losses: u64, now: f64) -> Retain {
        match (id + losses) % 5 {
            0 => Retain::Free,
            1 => Retain::LeaseUntil(Time(now + 2.0 + (losses % 3) as f64)),
            2 => Retain::Keep,
            3 => Retain::Offload,
            _ => Retain::LeaseUntil(Time(now + 9.0)),
        }
    }
}

impl Retention for Learning {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        match finished.job() {
            Some(Job { last_step: false, .. }) => {
                Self::decision(finished.id().0, self.losses, context.now.seconds())
            }
            _ => Retain::Free,
        }
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        self.names.lease(needy, named, context)
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, _: &PolicyContext<'_>) {
        use LeaseEnd::{ForRunning, ForWaiting};
        let loss = matches!(
            event,
            PolicyEvent::LeaseEnded(_, ForWaiting | ForRunning) | PolicyEvent::Preempted(_)
        );
        self.losses += u64::from(loss);
    }
}

/// Keeps what steps of jobs leave for so many seconds, names leases in some way, and notes what it is told.
struct Listening {
    seconds: f64,
    names: Names,
    heard: Arc<Mutex<Vec<String>>>,
    asked: Arc<AtomicUsize>,
}

fn listening(seconds: f64, names: Names) -> Listening {
    Listening { seconds, names, heard: Arc::default(), asked: Arc::default() }
}

impl Retention for Listening {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        Keeping::leasing(self.seconds).retain(finished, None, context)
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.names.lease(needy, named, context)
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        let what = match event {
            PolicyEvent::Arrived(request) => format!("{} arrived", request.id().0),
            PolicyEvent::Preempted(request) => format!("{} preempted", request.id().0),
            PolicyEvent::Finished(request, why) => format!("{} {}", request.id().0, why.as_str()),
            PolicyEvent::Leased(lease) => {
                assert!(context.leases.get(lease.id).is_some(), "a lease that is there");
                format!("{} leased", lease.request.0)
            }
            PolicyEvent::LeaseEnded(lease, why) => {
                assert!(context.leases.get(lease.id).is_none(), "a lease that has ended");
                format!("{} {why:?}", lease.request.0)
            }
        };
        self.heard.lock().unwrap().push(what);
    }
}

/// A policy beside a retention hears the same.
struct Hears(Fcfs, Listening);

impl Policy for Hears {
    fn name(&self) -> &'static str {
        "hears"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        self.0.order(request, context)
    }

    fn victim(
        &self,
        needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        self.0.victim(needy, running, lease, context)
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        self.1.observe(event, context);
    }
}

fn config(blocks: usize) -> SchedulerConfig {
    SchedulerConfig::new(blocks + 1, 4)
}

fn step_of(job: &str, id: u64, prompt: &[u32], max_tokens: usize) -> Request {
    let job = Job { id: job.to_owned(), last_step: false };
    Request { job: Some(job), ..request(id, prompt, max_tokens) }
}

fn take(heard: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut *heard.lock().unwrap())
}

#[test]
fn a_retention_and_a_policy_are_told_of_arrivals_ends_and_leases_in_their_order() {
    let (retention, policy) = (listening(5.0, Names::Soonest), listening(0.0, Names::Soonest));
    let (heard, also) = (Arc::clone(&retention.heard), Arc::clone(&policy.heard));
    let scheduler = Scheduler::new(config(10)).unwrap();
    let scheduler = scheduler.with_policy(Box::new(Hears(Fcfs, policy)));
    let mut driver = Driver::around(scheduler.with_retention(Box::new(retention)));
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    assert_eq!(take(&heard), ["1 arrived", "1 leased", "1 length"]);
    // The next step of the job begins with these tokens.
    let prompt = driver_answer(&unique(1, 10), 3);
    driver.add(step_of("a", 2, &[&prompt[..], &[8; 6]].concat(), 2));
    driver.finish(3.0);
    assert_eq!(take(&heard), ["2 arrived", "2 leased", "1 Outlived", "2 length"]);
    driver.step(50.0);
    assert_eq!(take(&heard), ["2 Expired"]);
    driver.add(step_of("b", 3, &unique(3, 10), 3));
    driver.finish(51.0);
    let job = Some(Job { id: "b".to_owned(), last_step: true });
    driver.add(Request { job, ..request(4, &unique(4, 4), 9) });
    driver.step(53.0);
    driver.scheduler.reset_prefix_cache(true);
    driver.scheduler.abort(RequestId(4));
    driver.step(54.0);
    let want = ["3 arrived", "3 leased", "3 length", "4 arrived", "4 preempted", "3 Reset"];
    assert_eq!(take(&heard), [&want[..], &["4 abort"]].concat());
    assert_eq!(take(&also).len(), 3 + 4 + 1 + 7, "events that the policy was told of");
}

/// A prompt and the first `n` tokens of its output.
fn driver_answer(prompt: &[u32], n: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(crate::driver::next_token(&tokens));
    }
    tokens
}

#[test]
fn an_abandoned_step_takes_nothing_back_that_was_told_and_tells_nothing_twice() {
    let retention = listening(50.0, Names::Soonest);
    let heard = Arc::clone(&retention.heard);
    let mut driver = Driver::with_retention(config(6), retention);
    driver.add(step_of("a", 1, &unique(1, 7), 2));
    driver.finish(0.0);
    driver.add(request(2, &unique(2, 11), 9));
    driver.step(3.0);
    driver.step(4.0);
    take(&heard);
    // Request 2 needs a fourth block, and request 3 its first one: 2 blocks are leased, and 1 is free.
    driver.add(request(3, &unique(3, 7), 9));
    driver.plan(5.0);
    let told = take(&heard);
    assert_eq!(told, ["3 arrived", "1 ForWaiting"], "what was told while the step was planned");
    assert_eq!(leased(&driver), NOBODY, "the lease has ended");
    driver.scheduler.abandon();
    assert_eq!(take(&heard), NOBODY.map(|_| String::new()), "what abandoning it told");
    assert_eq!(leased(&driver), NOBODY, "the lease has ended all the same");
    driver.plan(5.0);
    assert_eq!(take(&heard), NOBODY.map(|_| String::new()), "what planning it again told");
    driver.run();
    // A preemption is not undone, and told once.
    let mut told = Vec::new();
    for now in 6..30 {
        driver.plan(f64::from(now));
        let preempted = driver.scheduler.view().step().preempted.len();
        let planned = take(&heard);
        assert_eq!(planned.len(), preempted, "{planned:?}");
        told.extend(planned);
        driver.scheduler.abandon();
        driver.step(f64::from(now));
        take(&heard);
    }
    assert_eq!(told, ["3 preempted"], "preemptions of steps that were abandoned");
    driver.finish(30.0);
}

#[test]
fn a_waiting_request_waits_if_no_lease_is_named_for_it_and_a_running_one_takes_its_blocks() {
    let mut driver = Driver::with_retention(config(8), listening(50.0, Names::ForRunning));
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    driver.add(request(2, &unique(2, 15), 4));
    driver.step(3.0);
    // 3 blocks are leased, 4 in use, and 1 is free.
    driver.add(request(3, &unique(3, 7), 2));
    assert_eq!(driver.step(4.0).waiting, [3], "who waits for a block that is leased");
    assert_eq!(leased(&driver), [1]);
    driver.add(request(4, &unique(4, 3), 1));
    driver.step(5.0);
    assert_eq!(driver.finish(6.0).len(), 3);
    assert_eq!(leased(&driver), [1], "the lease is still there, as nobody needed it to run");
    driver.add(request(5, &unique(5, 19), 2));
    assert_eq!(driver.step(20.0).free, 0, "free blocks, of which it needs no further one");
    driver.finish(21.0);
    assert_eq!(leased(&driver), [1]);
    driver.add(request(6, &unique(6, 20), 8));
    driver.finish(30.0);
    assert_eq!(leased(&driver), NOBODY, "a running request needed more");
}

#[test]
fn a_refusal_does_not_hold_while_nothing_runs() {
    let mut driver = Driver::with_retention(config(8), listening(1e9, Names::ForRunning));
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    driver.add(request(2, &unique(2, 30), 1));
    assert_eq!(driver.step(3.0).rows, [(2, 0, 30)], "it would wait for ever");
    assert_eq!(leased(&driver), NOBODY);
    driver.check();
}

#[test]
fn the_leases_that_are_named_end_in_that_order_and_no_others() {
    let mut driver = Driver::with_retention(config(10), listening(50.0, Names::Newest));
    for id in 1..=3 {
        driver.add(step_of(&format!("job {id}"), id, &unique(id, 7), 3));
        driver.finish(id as f64 * 10.0);
    }
    driver.add(request(4, &unique(4, 23), 1));
    assert_eq!(driver.step(40.0).rows, [(4, 0, 23)], "it needs 6 blocks, and 4 are free");
    assert_eq!(leased(&driver), [1, 2], "the newest is gone");
    // Where what is named is not enough, nothing ends.
    let mut driver = Driver::with_retention(config(10), listening(500.0, Names::One));
    for id in 1..=3 {
        driver.add(step_of(&format!("job {id}"), id, &unique(id, 7), 3));
        driver.finish(id as f64 * 10.0);
    }
    driver.add(request(4, &unique(4, 3), 9));
    driver.step(50.0);
    driver.add(request(5, &unique(5, 23), 1));
    assert_eq!(driver.step(51.0).waiting, [5], "3 blocks are free, and one lease has 2");
    assert_eq!(leased(&driver), [1, 2, 3]);
    driver.finish(52.0);
}

#[test]
fn a_lease_that_frees_no_block_does_not_end() {
    let prompt = unique(1, 13);
    for waits in [false, true] {
        let mut driver = Driver::with_retention(config(10), listening(500.0, Names::Soonest));
        driver.add(step_of("a", 1, &prompt, 1));
        driver.add(step_of("b", 2, &unique(2, 7), 3));
        driver.finish(0.0);
        assert_eq!(driver.scheduler.retained_blocks(), 5, "3 and 2 blocks");
        // It shares the 3, and needs another one soon.
        driver.add(request(3, &prompt, 9));
        driver.step(10.0);
        driver.add(request(4, &unique(4, 15), 1 + usize::from(!waits)));
        driver.step(11.0);
        let free = driver.scheduler.blocks().num_free();
        if waits {
            driver.add(request(5, &unique(5, 4 * free + 7), 1));
            driver.step(12.0);
        } else {
            (12..18).for_each(|now| _ = driver.step(f64::from(now)));
        }
        assert_eq!(leased(&driver)[0], 1, "the lease whose blocks are in use ({waits})");
        driver.finish(20.0);
    }
}

#[test]
fn nobody_is_preempted_for_want_of_a_lease_that_frees_nothing() {
    let prompt = unique(1, 13);
    let mut driver = Driver::with_retention(config(7), listening(500.0, Names::Soonest));
    driver.add(step_of("a", 1, &prompt, 1));
    driver.finish(0.0);
    for id in [2, 3] {
        driver.add(request(id, &prompt, 12));
    }
    let mut preempted = Vec::new();
    for now in 10..20 {
        preempted.extend(driver.step(f64::from(now)).preempted);
    }
    assert_eq!(preempted, [3], "who gave way, as all blocks are in use");
    assert_eq!(leased(&driver), [1], "the lease costs nothing, and stays");
    driver.finish(20.0);
}

/// Names what cannot be ended: a lease that is none, and one twice.
struct Confused(bool);

impl Retention for Confused {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        Keeping::leasing(100.0).retain(finished, None, context)
    }

    fn lease_for(
        &self,
        _: &RequestView<'_>,
        _: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        if self.0 { Some(LeaseId(999)) } else { context.leases.first().map(|lease| lease.id) }
    }
}

#[test]
fn a_lease_that_cannot_be_named_counts_as_none() {
    for unknown in [true, false] {
        let mut driver = Driver::with_retention(config(10), Confused(unknown));
        for id in 1..=2 {
            driver.add(step_of(&format!("job {id}"), id, &unique(id, 7), 3));
            driver.finish(id as f64 * 10.0);
        }
        driver.add(request(3, &unique(3, 3), 9));
        driver.step(30.0);
        driver.add(request(4, &unique(4, 34), 1));
        let happened = driver.step(31.0);
        assert_eq!((happened.waiting, leased(&driver)), (vec![4], vec![1, 2]), "{unknown}");
        driver.finish(32.0);
    }
}

/// Many leases over the same 2 blocks, which a running request shares; somebody waits for more than is free.
fn crowded(policy: PolicyKind, shares: bool) -> (Driver, Arc<AtomicUsize>) {
    let retention = listening(1e9, Names::Soonest);
    let asked = Arc::clone(&retention.asked);
    let config = SchedulerConfig { policy, ..config(32) };
    let mut driver = Driver::with_retention(config, retention);
    let prompt = unique(1, 9);
    for id in 0..LEASES as u64 {
        driver.add(step_of(&format!("job {id}"), id, &prompt, 1));
        driver.step(0.0);
    }
    assert_eq!(driver.scheduler.leases().len(), LEASES);
    assert_eq!(driver.scheduler.retained_blocks(), 2, "blocks of all of them");
    let running = if shares { [&prompt[..], &[7; 30]].concat() } else { unique(5000, 39) };
    driver.add(Request { priority: 1, ..request(5000, &running, 40) });
    // More urgent, so that it would be preempted for nobody.
    driver.add(Request { priority: -1, ..request(5001, &unique(5001, 48), 16) });
    driver.step(1.0);
    asked.store(0, Ordering::Relaxed);
    (driver, asked)
}

const LEASES: usize = 4000;

#[test]
fn leases_are_not_looked_at_in_every_step_in_which_somebody_waits() {
    for policy in [PolicyKind::Fcfs, PolicyKind::StrictPriority] {
        for shares in [false, true] {
            let (mut driver, asked) = crowded(policy, shares);
            let free = driver.scheduler.blocks().num_free();
            // Without the leases, and without request 5000 too if it may be preempted, there would be fewer.
            let more = match policy {
                PolicyKind::Fcfs => free + if shares { 1 } else { 3 },
                _ => 22,
            };
            driver.add(request(5002, &unique(5002, 4 * more - 1), 1));
            let mut each = Vec::new();
            for now in 2..10 {
                let happened = driver.step(f64::from(now));
                assert_eq!(happened.waiting, [5002], "who waits ({policy}, {shares})");
                each.push(asked.swap(0, Ordering::Relaxed));
            }
            assert!(each[0] <= 3 * (LEASES + 1), "leases asked for at first: {}", each[0]);
            assert_eq!(each[1..], [0; 7], "leases asked for in later steps ({policy}, {shares})");
            // When blocks are freed, it is worth another look.
            driver.scheduler.abort(RequestId(5001));
            let rows = driver.step(20.0).rows;
            assert!(rows.iter().any(|row| row.0 == 5002), "who runs then: {rows:?}");
            driver.finish(21.0);
        }
    }
}

#[test]
fn what_too_many_blocks_are_wanted_for_is_known_from_their_number() {
    let (mut driver, asked) = crowded(PolicyKind::Fcfs, false);
    let free = driver.scheduler.blocks().num_free();
    driver.add(request(5002, &unique(5002, 4 * (free + 3) - 1), 1));
    assert_eq!(driver.step(2.0).waiting, [5002]);
    assert_eq!(asked.load(Ordering::Relaxed), 0, "the leases have 2 blocks, and it lacks 3");
    driver.finish(3.0);
}

/// Names no lease any more once a request has been preempted.
struct Sulking(bool);

impl Retention for Sulking {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        Keeping::leasing(100.0).retain(finished, None, context)
    }

    fn lease_for(
        &self,
        _: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        let next = context.leases.next_to_expire(named.last().copied());
        next.filter(|_| !self.0).map(|lease| lease.id)
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, _: &PolicyContext<'_>) {
        self.0 |= matches!(event, PolicyEvent::Preempted(_));
    }
}

#[test]
fn nobody_is_preempted_for_leases_that_are_not_ended_after_all() {
    let config = SchedulerConfig { policy: PolicyKind::StrictPriority, ..config(8) };
    let mut driver = Driver::with_retention(config, Sulking(false));
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    driver.add(Request { priority: 5, ..request(2, &unique(2, 6), 9) });
    driver.add(Request { priority: -5, ..request(3, &unique(3, 2), 2) });
    driver.step(3.0);
    // 3 blocks are leased, 2 and 1 in use, and 2 are free: it needs the lease, and what request 2 has.
    driver.add(request(4, &unique(4, 25), 1));
    let happened = driver.step(4.0);
    assert_eq!((happened.preempted, leased(&driver)), (vec![2], vec![]), "who lost their blocks");
    assert!(happened.rows.iter().any(|row| row.0 == 4), "and for whom: {:?}", happened.rows);
    driver.finish(5.0);
}

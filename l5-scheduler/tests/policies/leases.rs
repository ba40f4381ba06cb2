//! What is kept of a request that has finished, for how long, and before whom it goes.

use l3_paged_kv::{BlockHasher, ExtraKeys, TokenChain};
use l5_scheduler::{
    Caps, FinishReason, Job, JobKey, Note, PolicyContext, PolicyKind, Request, RequestId,
    RequestView, Resolved, Retain, Retention, SchedulerConfig, StepOp, StepOutput, Time,
};

use crate::driver::{Driver, NOBODY, request, unique};

/// Keeps what a job's steps leave, all but the last one's: so many seconds, or elsewhere.
pub struct Keeping {
    pub seconds: Option<f64>,
}

impl Keeping {
    pub fn leasing(seconds: f64) -> Self {
        Self { seconds: Some(seconds) }
    }
}

impl Retention for Keeping {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        match (finished.job(), self.seconds) {
            (None, _) | (Some(Job { last_step: true, .. }), _) => Retain::Free,
            (Some(_), Some(seconds)) => Retain::LeaseUntil(context.now + seconds),
            (Some(_), None) => Retain::Offload,
        }
    }
}

/// Requests whose blocks are leased, in the order of their ids.
pub fn leased(driver: &Driver) -> Vec<u64> {
    let mut leases: Vec<u64> =
        driver.scheduler.leases().iter().map(|lease| lease.request.0).collect();
    leases.sort_unstable();
    leases
}

fn config(blocks: usize) -> SchedulerConfig {
    SchedulerConfig::new(blocks + 1, 4)
}

/// A step of a job.
fn step_of(job: &str, id: u64, prompt: &[u32], max_tokens: usize) -> Request {
    let job = Job { id: job.to_owned(), last_step: false };
    Request { job: Some(job), ..request(id, prompt, max_tokens) }
}

/// A prompt and the first `n` tokens of its output.
fn answered(prompt: &[u32], n: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(crate::driver::next_token(&tokens));
    }
    tokens
}

/// One step of a job was here: 10 tokens in, 3 out, of which 12 are computed, and 3 blocks are kept from second 2 on.
fn kept(config: SchedulerConfig, seconds: f64) -> Driver {
    let mut driver = Driver::with_retention(config, Keeping::leasing(seconds));
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    driver
}

#[test]
fn what_a_step_leaves_is_kept_until_its_time() {
    let mut driver = kept(config(10), 5.0);
    assert_eq!(driver.scheduler.leases().len(), 1, "leases");
    assert_eq!(driver.scheduler.retained_blocks(), 3, "blocks that are kept");
    assert_eq!(driver.scheduler.blocks().num_free(), 7, "blocks that are free");
    driver.step(6.9);
    assert_eq!(driver.scheduler.retained_blocks(), 3, "blocks that are kept before their time");
    driver.step(7.0);
    assert!(driver.scheduler.leases().is_empty(), "nothing is kept when its time has come");
    driver.check();
}

#[test]
fn only_full_blocks_are_kept() {
    let mut driver = Driver::with_retention(config(10), Keeping::leasing(5.0));
    driver.add(step_of("a", 1, &unique(1, 9), 3));
    driver.add(step_of("b", 2, &unique(2, 2), 2));
    driver.finish(0.0);
    // 11 and 3 tokens are computed.
    assert_eq!(driver.scheduler.retained_blocks(), 2, "blocks that are kept");
    assert_eq!(driver.scheduler.leases().len(), 1, "a lease of no block is none");
}

#[test]
fn the_next_step_of_the_job_begins_with_what_was_kept() {
    let mut driver = kept(config(10), 50.0);
    let before = answered(&unique(1, 10), 3);
    // In the meantime others use all that is free.
    driver.add(request(2, &unique(2, 26), 2));
    let others = driver.step(3.0);
    assert_eq!(others.free, 0, "free blocks");
    driver.step(4.0);
    driver.add(step_of("a", 3, &[&before[..], &[8, 8]].concat(), 2));
    let happened = driver.step(5.0);
    assert_eq!(happened.rows, [(3, 12, 3)], "the next step computes only what is new");
    assert_eq!(driver.finish(6.0).len(), 1);
    assert_eq!(leased(&driver), [3], "and its own lease takes the place of the old one");
    driver.check();
}

#[test]
fn the_last_step_of_a_job_leaves_nothing() {
    let mut driver = kept(config(10), 50.0);
    let job = Some(Job { id: "a".to_owned(), last_step: true });
    driver.add(Request { job, ..request(2, &unique(2, 5), 2) });
    driver.finish(3.0);
    assert_eq!(driver.scheduler.retained_blocks(), 0, "blocks that are kept");
}

#[test]
fn leases_go_before_a_waiting_request_waits_for_blocks_the_soonest_first_and_no_more_than_it_takes()
{
    let mut driver = Driver::with_retention(config(10), Keeping::leasing(50.0));
    for id in 1..=3 {
        driver.add(step_of(&format!("job {id}"), id, &unique(id, 7), 3));
        driver.finish(id as f64 * 10.0);
    }
    assert_eq!(driver.scheduler.retained_blocks(), 6, "blocks that are kept");
    driver.add(request(4, &unique(4, 23), 1));
    let happened = driver.step(40.0);
    assert_eq!(happened.rows, [(4, 0, 23)], "it needs 6 blocks, and 4 are free");
    assert_eq!(leased(&driver), [2, 3], "whose blocks are still kept");
    driver.check();
}

#[test]
fn leases_do_not_end_in_vain() {
    let mut driver = Driver::with_retention(config(10), Keeping::leasing(50.0));
    driver.add(step_of("a", 1, &unique(1, 7), 3));
    driver.finish(0.0);
    driver.add(request(2, &unique(2, 15), 9));
    driver.step(10.0);
    // 2 blocks are kept and 4 in use: a prompt of 9 blocks has to wait whoever goes.
    driver.add(request(3, &unique(3, 35), 1));
    let happened = driver.step(11.0);
    assert_eq!(happened.waiting, [3], "who waits");
    assert_eq!(driver.scheduler.retained_blocks(), 2, "blocks that are kept");
    driver.finish(12.0);
}

#[test]
fn the_blocks_that_an_arrival_has_hit_in_a_lease_are_no_gain() {
    let mut driver = kept(config(6), 50.0);
    // 3 blocks are kept, 3 are free: with the hit of 2 it needs 4 more, and would have 3 + 1.
    let prompt = [&unique(1, 10)[..], &[7; 13]].concat();
    driver.add(request(2, &prompt, 1));
    let happened = driver.step(10.0);
    assert_eq!(happened.rows, [(2, 8, 15)], "the lease ends, and 6 blocks are enough");
    driver.finish(11.0);
    // The same with one block more than there are: it is refused for ever, and not at the lease's cost.
    let mut driver = kept(config(6), 50.0);
    assert!(
        driver
            .scheduler
            .add_request(request(2, &[&unique(1, 10)[..], &[7; 15]].concat(), 1))
            .is_err()
    );
    assert_eq!(driver.scheduler.retained_blocks(), 3, "blocks that are kept");
}

#[test]
fn leases_go_before_anybody_who_runs() {
    let mut driver = kept(config(8), 50.0);
    driver.add(request(2, &unique(2, 10), 9));
    driver.add(request(3, &unique(3, 8), 9));
    let happened = driver.step(10.0);
    assert_eq!((happened.free, happened.running), (0, vec![2, 3]), "free blocks, and who runs");
    let happened = driver.step(11.0);
    assert_eq!(happened.preempted, NOBODY, "who gave way");
    assert_eq!(driver.scheduler.retained_blocks(), 0, "blocks that are kept");
    driver.finish(12.0);
}

#[test]
fn leases_go_before_anybody_gives_way_to_somebody_more_urgent() {
    let config = SchedulerConfig { policy: PolicyKind::StrictPriority, ..config(8) };
    let mut driver = Driver::with_retention(config, Keeping::leasing(50.0));
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    driver.add(Request { priority: 5, ..request(2, &unique(2, 7), 9) });
    driver.step(10.0);
    // 3 kept, 2 in use, 3 free.
    driver.add(request(3, &unique(3, 19), 2));
    let happened = driver.step(11.0);
    assert_eq!(happened.preempted, NOBODY, "who gave way to somebody who needs 5 blocks");
    assert_eq!(driver.scheduler.retained_blocks(), 0, "blocks that are kept");
    driver.finish(12.0);
}

#[test]
fn what_is_to_be_stored_elsewhere_is_asked_for_once_and_held_until_it_is() {
    let mut driver = Driver::with_retention(config(6), Keeping { seconds: None });
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    assert!(driver.scheduler.has_unfinished(), "there is something to be done");
    driver.plan(5.0);
    let ops = driver.scheduler.view().step().ops.clone();
    let [StepOp::Store { lease, id, blocks, hashes }] = &ops[..] else {
        panic!("what is to be done: {ops:?}")
    };
    assert_eq!(
        (*id, blocks.len()),
        (RequestId(1), 3),
        "whose blocks are to be stored, and how many"
    );
    let mut chain = TokenChain::new(&BlockHasher::new(4), ExtraKeys::default());
    chain.extend(&answered(&unique(1, 10), 2));
    assert_eq!(hashes, chain.hashes(), "the names of these blocks");
    driver.scheduler.abandon();
    driver.plan(6.0);
    assert_eq!(driver.scheduler.view().step().ops, ops, "asked again, as the step did not run");
    driver.run();
    driver.plan(7.0);
    assert!(driver.scheduler.view().step().ops.is_empty(), "and not once more");
    driver.run();
    assert!(!driver.scheduler.has_unfinished(), "the rest is the writer's");
    // Who comes now waits: somebody reads these blocks.
    driver.add(request(2, &unique(2, 16), 1));
    assert_eq!(driver.step(8.0).waiting, [2], "who waits while blocks are being stored");
    assert!(driver.scheduler.reset_prefix_cache(true).is_none(), "nothing can be forgotten either");
    driver.stored(*lease);
    assert!(!driver.scheduler.kv_stored(*lease), "stored once");
    assert_eq!(driver.step(9.0).rows, [(2, 0, 16)], "who begins as soon as they are free");
    driver.finish(10.0);
}

#[test]
fn without_an_executor_that_can_store_nothing_is_kept_for_it() {
    let mut driver = Driver::with_retention(config(6), Keeping { seconds: None });
    driver.scheduler.set_caps(&Caps::default());
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.finish(0.0);
    assert!(!driver.scheduler.has_unfinished(), "nothing is left to be done");
    assert_eq!(driver.scheduler.retained_blocks(), 0, "blocks that are kept");
    driver.plan(5.0);
    assert!(driver.scheduler.view().step().is_empty(), "no store is planned");
}

#[test]
fn a_lease_that_has_expired_stays_while_a_step_of_its_job_waits() {
    let mut driver = kept(SchedulerConfig { max_num_seqs: 1, ..config(10) }, 5.0);
    driver.add(request(2, &unique(2, 4), 9));
    driver.step(3.0);
    driver.add(step_of("a", 3, &[&unique(1, 10)[..], &[8; 3]].concat(), 2));
    assert_eq!(driver.step(8.0).waiting, [3], "who waits for the only seat");
    assert_eq!(driver.scheduler.retained_blocks(), 3, "blocks that are kept, a second too long");
    driver.scheduler.abort(RequestId(3));
    driver.step(9.0);
    assert_eq!(driver.scheduler.retained_blocks(), 0, "and nobody waits for them any more");
    driver.finish(10.0);
}

#[test]
fn steps_of_one_job_that_overlap_have_a_lease_each() {
    let mut driver = Driver::with_retention(config(20), Keeping::leasing(50.0));
    driver.add(step_of("a", 1, &unique(1, 10), 3));
    driver.add(step_of("a", 2, &unique(2, 10), 3));
    driver.finish(0.0);
    assert_eq!(driver.scheduler.leases().len(), 2, "their tokens have nothing in common");
    assert_eq!(driver.scheduler.leases().blocks(), 6, "blocks of both");
    // The next step of one of them begins with what that one left.
    driver.add(step_of("a", 3, &[&answered(&unique(2, 10), 3)[..], &[8; 6]].concat(), 2));
    driver.finish(3.0);
    assert_eq!(leased(&driver), [1, 3], "whose blocks are kept");
    driver.check();
}

/// A sub-agent begins with the instructions of the agent that called it.
#[test]
fn steps_of_one_job_that_only_begin_alike_have_a_lease_each() {
    let mut driver = Driver::with_retention(config(20), Keeping::leasing(50.0));
    let prompt = |end: u32| [&unique(1, 8)[..], &[end; 4]].concat();
    driver.add(step_of("a", 1, &prompt(20), 3));
    driver.finish(0.0);
    driver.add(step_of("a", 2, &[&prompt(21)[..], &[9; 6]].concat(), 3));
    driver.finish(1.0);
    assert_eq!(leased(&driver), [1, 2], "2 blocks are the same, and the third one is not");
    assert_eq!(driver.scheduler.retained_blocks(), 3 + 3, "blocks that are held");
    driver.check();
}

#[test]
fn a_job_has_a_bounded_number_of_leases() {
    let mut driver = Driver::with_retention(config(100), Keeping::leasing(500.0));
    for id in 1..=20 {
        driver.add(step_of("a", id, &unique(id, 10), 3));
        driver.finish(id as f64 * 10.0);
    }
    assert_eq!(leased(&driver), (13..=20).collect::<Vec<_>>(), "the newest eight");
    driver.check();
}

#[test]
fn of_a_job_with_as_many_leases_as_it_may_have_a_step_ends_only_the_one_that_it_begins_with() {
    let mut driver = Driver::with_retention(config(100), Keeping::leasing(500.0));
    for id in 1..=8 {
        driver.add(step_of("a", id, &unique(id, 10), 3));
        driver.finish(id as f64 * 10.0);
    }
    driver.add(step_of("a", 9, &[&answered(&unique(8, 10), 3)[..], &[8; 6]].concat(), 2));
    driver.finish(100.0);
    assert_eq!(leased(&driver), [1, 2, 3, 4, 5, 6, 7, 9], "whose blocks are kept");
}

#[test]
fn a_step_that_fails_leaves_the_lease_that_it_began_with() {
    let mut driver = kept(config(20), 50.0);
    driver.add(step_of("a", 2, &[&answered(&unique(1, 10), 3)[..], &[8; 3]].concat(), 9));
    driver.fails = Some(2);
    assert_eq!(driver.step(3.0).ended, [(2, FinishReason::Failed)]);
    assert_eq!(leased(&driver), [1], "whose blocks are kept, for another try");
}

#[test]
fn a_lease_until_no_time_at_all_is_none() {
    let driver = kept(config(10), f64::NAN);
    assert_eq!(driver.scheduler.leases().len(), 0);
    driver.check();
}

#[test]
fn another_tenants_job_of_the_same_name_is_another_job() {
    let mut driver = Driver::with_retention(config(20), Keeping::leasing(50.0));
    let of =
        |tenant: &str, request: Request| Request { cache_salt: Some(tenant.to_owned()), ..request };
    driver.add(of("x", step_of("a", 1, &unique(1, 10), 3)));
    driver.finish(0.0);
    let job = Some(Job { id: "a".to_owned(), last_step: true });
    driver.add(of("y", Request { job, ..request(2, &unique(1, 10), 3) }));
    driver.finish(3.0);
    assert_eq!(leased(&driver), [1], "whose blocks are kept");
}

#[test]
fn a_lease_counts_from_the_end_of_its_step() {
    let mut driver = Driver::with_retention(config(10), Keeping::leasing(5.0));
    driver.add(step_of("a", 1, &unique(1, 10), 1));
    driver.plan(1.0);
    driver.run_until(3.0);
    let lease = driver.scheduler.leases().first().unwrap();
    assert_eq!((lease.since, lease.until()), (Time(3.0), Some(Time(8.0))));
    assert_eq!(driver.scheduler.leases().next_deadline(), Some(Time(8.0)));
}

/// Keeps what steps of jobs leave, without an end.
struct KeepsForGood;

impl Retention for KeepsForGood {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        _: &PolicyContext<'_>,
    ) -> Retain {
        if finished.job().is_some() { Retain::Keep } else { Retain::Free }
    }
}

#[test]
fn what_is_kept_without_an_end_is_kept_until_it_is_needed_the_oldest_first() {
    let mut driver = Driver::with_retention(config(10), KeepsForGood);
    for id in 1..=3 {
        driver.add(step_of(&format!("job {id}"), id, &unique(id, 7), 3));
        driver.finish(id as f64 * 10.0);
    }
    driver.step(1e9);
    assert_eq!(driver.scheduler.retained_blocks(), 6, "blocks that are kept, however long it is");
    assert_eq!(driver.scheduler.leases().next_deadline(), None);
    driver.add(request(4, &unique(4, 23), 1));
    assert_eq!(driver.step(2e9).rows, [(4, 0, 23)], "it needs 6 blocks, and 4 are free");
    assert_eq!(leased(&driver), [2, 3], "whose blocks are still kept");
    driver.check();
}

#[test]
fn ten_thousand_jobs_that_never_return_take_no_more_than_the_pool_and_a_list_of_bounded_size() {
    let mut driver = Driver::with_retention(config(40), KeepsForGood);
    for id in 1..=10_000 {
        driver.add(step_of(&format!("job {id}"), id, &unique(id, 7), 3));
        driver.finish(id as f64);
    }
    let scheduler = &driver.scheduler;
    assert_eq!(scheduler.num_jobs(), 4096, "jobs that are remembered");
    // Each has two full blocks; the last of them needed a third one while it ran.
    assert_eq!((scheduler.leases().len(), scheduler.retained_blocks()), (19, 38));
    assert_eq!(leased(&driver), (9982..=10_000).collect::<Vec<_>>(), "the newest");
    let job = |id| JobKey { tenant: None, id: format!("job {id}") };
    assert!(scheduler.leases().of_job(&job(9981)).is_empty(), "nothing is left of an older one");
    driver.check();
}

#[test]
fn who_was_aborted_leaves_nothing() {
    let mut driver = Driver::with_retention(config(10), Keeping::leasing(50.0));
    driver.add(step_of("a", 1, &unique(1, 10), 9));
    driver.plan(0.0);
    driver.scheduler.abort(RequestId(1));
    let happened = driver.run();
    assert_eq!(happened.ended, [(1, FinishReason::Aborted)]);
    assert_eq!(driver.scheduler.retained_blocks(), 0, "blocks that are kept");
    driver.check();
}

#[test]
fn leases_are_forgotten_with_the_cache() {
    let mut driver = kept(config(10), 50.0);
    assert!(
        driver.scheduler.reset_prefix_cache(false).is_some(),
        "nobody is there to be preempted"
    );
    assert_eq!(driver.scheduler.blocks().num_free(), 10, "free blocks");
    assert_eq!(driver.scheduler.blocks().cache().len(), 0, "blocks that can be found");
}

/// Keeps what was left for a tool that is quick.
struct ByTool;

impl Retention for ByTool {
    fn retain(
        &mut self,
        _: &RequestView<'_>,
        note: Option<&Note>,
        _: &PolicyContext<'_>,
    ) -> Retain {
        let tool = note.and_then(|note| note.tool.as_deref());
        if tool.is_some_and(|tool| tool.starts_with("ls")) { Retain::Keep } else { Retain::Free }
    }
}

#[test]
fn a_retention_and_its_lease_know_the_tool_that_the_executor_noted() {
    let mut driver = Driver::with_retention(config(20), ByTool);
    for (id, tool) in [(1, Some("ls")), (2, Some("make")), (3, None)] {
        driver.tool = tool.map(str::to_owned);
        driver.add(step_of("a", id, &unique(id, 7), 3));
        driver.add(step_of("b", id + 10, &unique(id + 10, 7), 3));
        driver.finish(id as f64);
    }
    let mut tools: Vec<_> =
        driver.scheduler.leases().iter().map(|lease| (lease.request.0, &lease.tool)).collect();
    tools.sort_unstable();
    let want = [(1, Some("ls 1".to_owned())), (11, Some("ls 11".to_owned()))];
    assert_eq!(tools, want.each_ref().map(|(id, tool)| (*id, tool)), "tools, of their own rows");
}

#[test]
fn a_note_on_a_row_that_the_step_lacks_is_an_error() {
    let mut driver = Driver::with_retention(config(20), ByTool);
    driver.add(request(1, &unique(1, 7), 3));
    driver.plan(0.0);
    let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
    output.push(0, &[7], None);
    output.note(1, Note::default());
    assert!(driver.scheduler.resolve(&output, &mut resolved).is_err());
    driver.run();
    driver.finish(1.0);
}

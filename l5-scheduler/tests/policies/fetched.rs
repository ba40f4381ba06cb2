//! Requests whose keys and values come from elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use l3_paged_kv::{BlockHasher, TokenChain};
use l5_scheduler::{
    Compose, FinishReason, Job, KvCompletion, KvConnector, MAX_LOOKUP_SECONDS, Matched, PolicyKind,
    Request, RequestId, Scheduler, SchedulerConfig, Status, StepOp,
};

use crate::driver::{Driver, request, unique};
use crate::leases::{Keeping, leased};
use crate::reranking::LeasedFirst;

/// Has so many tokens of everything.
pub struct Elsewhere(pub usize);

impl KvConnector for Elsewhere {
    fn matched_tokens(&mut self, _: RequestId, _: &TokenChain, from: usize) -> Matched {
        Matched::Tokens(self.0.saturating_sub(from))
    }
}

/// Has 12 tokens of prompts that begin with this one, and nothing of others.
struct ElsewhereOf(u32);

impl KvConnector for ElsewhereOf {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, _: usize) -> Matched {
        Matched::Tokens(if chain.tokens()[0] == self.0 { 12 } else { 0 })
    }
}

fn driver(blocks: usize, available: usize) -> Driver {
    Driver::new(SchedulerConfig::new(blocks + 1, 4)).with_source(Elsewhere(available))
}

fn status(driver: &Driver, id: u64) -> Status {
    driver.scheduler.request(RequestId(id)).expect("it is there").status()
}

#[test]
fn what_others_have_is_fetched_and_only_the_rest_is_computed() {
    let mut driver = driver(10, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.plan(0.0);
    let step = driver.scheduler.view().step();
    assert!(step.rows.is_empty(), "nobody computes yet");
    let [StepOp::Load { id, from, to, blocks, .. }] = &step.ops[..] else {
        panic!("{:?}", step.ops)
    };
    assert_eq!((id.0, *from, *to, blocks.len()), (1, 0, 12, 3), "what is to be fetched");
    assert_eq!(status(&driver, 1), Status::WaitingForKv);
    let happened = driver.run();
    assert_eq!((happened.waiting, happened.free), (vec![1], 7), "it waits with 3 blocks in hand");
    assert!(driver.step(1.0).rows.is_empty(), "nobody takes part before anything has come");
    driver.arrive(1, 12);
    let happened = driver.step(2.0);
    assert_eq!(happened.rows, [(1, 12, 6)], "it computes the rest");
    driver.finish(3.0);
}

#[test]
fn what_was_fetched_is_found_by_others() {
    let mut driver = driver(10, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.step(0.0);
    driver.arrive(1, 12);
    driver.add(request(2, &unique(1, 18), 3));
    let happened = driver.step(1.0);
    assert_eq!(happened.rows, [(1, 12, 6), (2, 16, 2)], "the second one hits all that is full");
    driver.finish(2.0);
}

#[test]
fn the_last_token_and_what_is_found_here_are_not_fetched() {
    let mut driver = driver(10, 100);
    driver.add(request(1, &unique(1, 9), 1));
    driver.step(0.0);
    driver.arrive(1, 8);
    driver.finish(1.0);
    driver.add(request(2, &[&unique(1, 9)[..8], &[3; 8]].concat(), 1));
    driver.plan(2.0);
    let ops = &driver.scheduler.view().step().ops;
    let [StepOp::Load { from, to, .. }] = &ops[..] else { panic!("what is to be done: {ops:?}") };
    assert_eq!(
        (*from, *to),
        (8, 12),
        "of 16 tokens, those behind the hit and before the last block"
    );
    driver.run();
    driver.arrive(2, 12);
    driver.finish(3.0);
}

#[test]
fn a_load_names_its_blocks_as_the_prefix_cache_does() {
    let mut driver = driver(20, 100);
    let prompt = unique(1, 18);
    let of = |id, tenant: &str| {
        let cache_salt = Some(tenant.to_owned());
        Request { cache_salt, ..request(id, &prompt, 1) }
    };
    // The first tenant has 8 tokens in the pool.
    driver.add(Request { prompt: prompt[..9].to_vec(), ..of(1, "a") });
    driver.step(0.0);
    driver.arrive(1, 8);
    driver.finish(1.0);
    driver.add(of(2, "a"));
    driver.add(of(3, "b"));
    driver.plan(2.0);
    let names = driver.scheduler.view().step().ops.iter().map(|op| match op {
        StepOp::Load { id, from, hashes, .. } => (id.0, *from, hashes.clone()),
        StepOp::Store { .. } | StepOp::WriteBack { .. } => panic!("{op:?}"),
    });
    let names: Vec<_> = names.collect();
    let chain = |id, tenant: &str| {
        let mut chain = TokenChain::new(&BlockHasher::new(4), of(id, tenant).extra_keys());
        chain.extend(&prompt);
        chain.hashes().to_vec()
    };
    let (a, b) = (chain(2, "a"), chain(3, "b"));
    assert_eq!(names, [(2, 8, a[2..4].to_vec()), (3, 0, b[..4].to_vec())]);
    driver.run();
    driver.arrive(2, 16);
    driver.arrive(3, 16);
    driver.finish(3.0);
}

#[test]
fn fewer_tokens_than_hoped_for_or_none_are_fine() {
    for (came, computed) in [(11, 8), (4, 4), (3, 0), (0, 0)] {
        let mut driver = driver(10, 12);
        driver.add(request(1, &unique(1, 18), 3));
        driver.step(0.0);
        driver.arrive(1, came);
        let happened = driver.step(1.0);
        assert_eq!(happened.rows, [(1, computed, 18 - computed)], "when {came} tokens have come");
        driver.finish(2.0);
    }
}

#[test]
fn it_begins_before_those_who_wait_and_takes_its_seat_then() {
    let seats = SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::new(11, 4) };
    let mut driver = Driver::new(seats).with_source(Elsewhere(8));
    driver.add(request(1, &unique(1, 10), 3));
    driver.add(request(2, &unique(2, 3), 3));
    let happened = driver.step(0.0);
    assert_eq!(happened.rows, [(2, 0, 3)], "the seat is not kept empty for who is loading");
    driver.arrive(1, 8);
    driver.add(request(3, &unique(3, 3), 3));
    let order: Vec<_> = (1..12).flat_map(|now| driver.step(f64::from(now)).ended).collect();
    let order: Vec<u64> = order.into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, [2, 1, 3], "in which order they had the seat");
    driver.check();
}

#[test]
fn an_abort_waits_for_whoever_writes_into_its_blocks() {
    let mut driver = driver(10, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.step(0.0);
    assert!(driver.scheduler.abort(RequestId(1)), "it is there");
    assert!(!driver.scheduler.abort(RequestId(1)), "and is aborted once");
    let happened = driver.step(1.0);
    assert_eq!((happened.ended, happened.free), (vec![], 7), "its blocks are still written to");
    assert!(driver.scheduler.reset_prefix_cache(true).is_none(), "and cannot be forgotten");
    driver.arrive(1, 12);
    assert_eq!(driver.ended(), [(1, FinishReason::Aborted)], "now it has ended");
    driver.check();
    assert_eq!(driver.scheduler.blocks().num_free(), 10, "and its blocks are free");
}

#[test]
fn an_abort_after_the_arrival_is_at_once() {
    let mut driver = driver(10, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.step(0.0);
    driver.arrive(1, 12);
    driver.scheduler.abort(RequestId(1));
    assert_eq!(driver.ended(), [(1, FinishReason::Aborted)]);
    driver.check();
}

#[test]
fn loads_never_wait_for_each_others_blocks() {
    // Each needs 5 blocks and has 3 of them fetched: both could begin to load, and neither could go on.
    let mut driver = driver(7, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.add(request(2, &unique(2, 18), 3));
    driver.step(0.0);
    assert_eq!(status(&driver, 1), Status::WaitingForKv);
    assert_eq!(status(&driver, 2), Status::Waiting, "blocks are promised to the first one");
    driver.arrive(1, 12);
    assert_eq!(driver.step(1.0).rows, [(1, 12, 6)]);
    for now in 2..20 {
        driver.step(f64::from(now));
        if driver.loads.iter().any(|(id, ..)| *id == 2) {
            driver.arrive(2, 12);
        }
    }
    assert!(driver.alive.is_empty(), "both have ended");
    driver.check();
}

#[test]
fn who_has_fetched_and_finds_no_room_is_not_overtaken() {
    let config = SchedulerConfig::new(9, 4);
    let mut driver = Driver::new(config).with_source(ElsewhereOf(unique(1, 1)[0]));
    driver.add(request(1, &unique(1, 18), 3));
    driver.step(0.0);
    // This one is computed here, and takes what the first one will need.
    driver.add(request(2, &unique(2, 15), 3));
    assert_eq!(driver.step(1.0).rows, [(2, 0, 15)]);
    driver.arrive(1, 12);
    driver.add(request(3, &unique(3, 2), 3));
    let happened = driver.step(2.0);
    assert_eq!(happened.waiting, [1, 3], "a small one does not overtake it");
    let ended: Vec<u64> = driver.finish(3.0).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ended[0], 2, "who ends first");
}

#[test]
fn abandoning_the_step_that_asks_for_it_puts_it_back_into_the_queue() {
    for policy in PolicyKind::ALL {
        let config = SchedulerConfig { policy, ..SchedulerConfig::new(11, 4) };
        let mut driver = Driver::new(config).with_source(Elsewhere(12));
        driver.add(request(1, &unique(1, 18), 3));
        driver.add(request(2, &unique(2, 3), 3));
        driver.plan(0.0);
        driver.scheduler.abandon();
        assert_eq!(status(&driver, 1), Status::Waiting);
        let waiting: Vec<u64> = driver.scheduler.waiting().map(|request| request.id().0).collect();
        assert_eq!(waiting, [1, 2], "who waits, in order");
        assert_eq!(driver.scheduler.blocks().num_free(), 10, "free blocks");
        assert!(!driver.scheduler.kv_arrived(RequestId(1), 12), "nothing is on its way");
        driver.step(1.0);
        driver.arrive(1, 12);
        driver.finish(2.0);
    }
}

#[test]
fn abandoning_the_step_in_which_it_begins_keeps_what_has_come() {
    let mut driver = driver(10, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.step(0.0);
    driver.arrive(1, 12);
    assert_eq!(driver.plan(1.0), [(1, 6)], "it begins");
    driver.scheduler.abandon();
    assert_eq!(status(&driver, 1), Status::WaitingForKv);
    assert_eq!(
        driver.scheduler.request(RequestId(1)).unwrap().seat(),
        None,
        "its seat while it waits"
    );
    assert_eq!(driver.scheduler.blocks().num_free(), 7, "it has what was fetched, and no more");
    assert_eq!(driver.step(2.0).rows, [(1, 12, 6)], "it begins with what was fetched");
    driver.finish(3.0);
}

#[test]
fn aborted_in_the_step_that_asks_for_it_it_ends_when_that_is_abandoned() {
    let mut driver = driver(10, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.plan(0.0);
    driver.scheduler.abort(RequestId(1));
    driver.scheduler.abandon();
    assert_eq!(driver.ended(), [(1, FinishReason::Aborted)]);
    driver.check();
}

/// Does not know before so many questions, and has 12 tokens then. Counts the questions.
struct Slow {
    questions: Arc<AtomicUsize>,
    knows_after: usize,
}

impl KvConnector for Slow {
    fn matched_tokens(&mut self, _: RequestId, _: &TokenChain, from: usize) -> Matched {
        match self.questions.fetch_add(1, Ordering::Relaxed) >= self.knows_after {
            true => Matched::Tokens(12 - from),
            false => Matched::AskAgain,
        }
    }
}

/// A driver whose connector knows after so many questions, and the number of questions.
fn slow(config: SchedulerConfig, knows_after: usize) -> (Driver, Arc<AtomicUsize>) {
    let questions = Arc::new(AtomicUsize::new(0));
    let connector = Slow { questions: questions.clone(), knows_after };
    (Driver::new(config).with_source(connector), questions)
}

#[test]
fn a_request_waits_for_the_answer_and_those_behind_it_begin() {
    let (mut driver, _) = slow(SchedulerConfig::new(21, 4), 2);
    driver.add(request(1, &unique(1, 18), 3));
    // Its prompt has no full block beside its last token, so it is not looked up.
    driver.add(request(2, &unique(2, 4), 3));
    assert_eq!(driver.step(0.0).rows, [(2, 0, 4)], "the first request waits");
    assert_eq!(driver.step(0.01).rows, [(2, 4, 1)]);
    driver.plan(0.02);
    let ops = &driver.scheduler.view().step().ops;
    assert!(matches!(ops[..], [StepOp::Load { id: RequestId(1), to: 12, .. }]), "{ops:?}");
    driver.run();
    driver.arrive(1, 12);
    assert_eq!(driver.step(0.03).rows, [(1, 12, 6)]);
    driver.finish(1.0);
}

#[test]
fn a_request_does_not_wait_for_ever_for_an_answer() {
    let (mut driver, _) = slow(SchedulerConfig::new(21, 4), usize::MAX);
    driver.add(request(1, &unique(1, 18), 3));
    assert!(driver.step(5.0).rows.is_empty(), "it waits");
    assert!(driver.step(5.0 + 0.9 * MAX_LOOKUP_SECONDS).rows.is_empty(), "it still waits");
    assert_eq!(driver.step(5.0 + 1.1 * MAX_LOOKUP_SECONDS).rows, [(1, 0, 18)], "it computes all");
    driver.finish(6.0);
}

#[test]
fn a_step_asks_for_no_more_requests_than_could_be_seated() {
    let config = SchedulerConfig { max_num_seqs: 4, ..SchedulerConfig::new(201, 4) };
    let (mut driver, questions) = slow(config, usize::MAX);
    (0..50).for_each(|id| driver.add(request(id, &unique(id, 18), 3)));
    driver.plan(0.0);
    assert_eq!(questions.load(Ordering::Relaxed), 4, "questions of a step with 4 free seats");
    driver.run();
    driver.finish(1.0);
}

#[test]
fn seats_are_kept_for_requests_that_wait_for_an_answer() {
    let config = SchedulerConfig { max_num_seqs: 3, ..SchedulerConfig::new(201, 4) };
    let source = NeverKnows(unique(1, 1)[0], Arc::default());
    let mut driver = Driver::new(config).with_source(source);
    for id in 1..=4 {
        driver.add(request(id, &unique(id, 18), 3));
    }
    let happened = driver.step(0.0);
    assert_eq!(happened.rows, [(2, 0, 18), (3, 0, 18)], "request 4 would have the seat of 1");
    assert_eq!(happened.waiting, [1, 4]);
    let happened = driver.step(1.1 * MAX_LOOKUP_SECONDS);
    assert_eq!((happened.running, happened.waiting), (vec![2, 3, 1], vec![4]), "after its time");
    driver.finish(1.0);
}

#[test]
fn no_request_overtakes_those_that_wait_for_an_answer_on_all_free_seats() {
    let config = SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::new(201, 4) };
    let (mut driver, questions) = slow(config, 4);
    (0..6).for_each(|id| driver.add(request(id, &unique(id, 18), 3)));
    let happened = driver.step(0.0);
    assert_eq!((happened.rows, questions.load(Ordering::Relaxed)), (vec![], 2), "two questions");
    assert!(driver.step(0.01).rows.is_empty(), "asked again");
    driver.plan(0.02);
    let loads = driver.scheduler.view().step().ops.len();
    assert_eq!(loads, 6, "all are looked up as soon as the connector knows");
    driver.run();
    (0..6).for_each(|id| driver.arrive(id, 12));
    driver.finish(1.0);
}

#[test]
fn a_connector_is_asked_once_in_a_plan_of_several_attempts() {
    for (adapter_turn, compose) in
        [(0, Compose::Mixed), (1, Compose::Mixed), (0, Compose::STABLE), (1, Compose::STABLE)]
    {
        let config = SchedulerConfig { adapter_turn, compose, ..SchedulerConfig::new(40, 4) };
        let (mut driver, questions) = slow(config, usize::MAX);
        driver.add(request(1, &unique(1, 20), 4));
        driver.plan(0.0);
        let asked = questions.load(Ordering::Relaxed);
        assert_eq!(asked, 1, "questions with turns of {adapter_turn} and {compose}");
        driver.run();
        driver.finish(1.0);
    }
}

#[test]
fn completions_end_loads_and_stores_once() {
    let mut driver = driver(10, 12);
    driver.add(request(1, &unique(1, 18), 3));
    driver.step(0.0);
    let loaded = KvCompletion::Loaded { id: RequestId(1), tokens: 0 };
    assert!(driver.scheduler.kv_completed(loaded), "its load has ended, and nothing has come");
    assert!(!driver.scheduler.kv_completed(loaded), "it ends once");
    driver.loads.clear();
    assert_eq!(driver.step(1.0).rows, [(1, 0, 18)], "it computes all");
    driver.finish(2.0);
}

fn strict(config: SchedulerConfig, elsewhere: u32) -> Driver {
    let config = SchedulerConfig { policy: PolicyKind::StrictPriority, ..config };
    Driver::new(config).with_source(ElsewhereOf(elsewhere))
}

#[test]
fn an_urgent_request_that_has_arrived_preempts_though_the_step_has_no_tokens_left() {
    let config = SchedulerConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: 4,
        ..SchedulerConfig::new(41, 4)
    };
    let mut driver = strict(config, unique(1, 1)[0]);
    driver.add(request(1, &unique(1, 18), 3));
    driver.add(Request { priority: 2, ..request(2, &unique(2, 40), 3) });
    assert_eq!(driver.step(0.0).rows, [(2, 0, 4)], "request 1 loads");
    driver.arrive(1, 12);
    driver.add(Request { priority: 1, ..request(3, &unique(3, 8), 3) });
    let happened = driver.step(1.0);
    assert_eq!((happened.preempted, happened.rows), (vec![2], vec![(1, 12, 4)]), "who runs");
    driver.finish(2.0);
}

#[test]
fn what_is_admitted_with_loaded_blocks_can_be_preempted_in_the_same_step() {
    let mut driver = strict(SchedulerConfig::new(11, 2), unique(1, 1)[0]);
    driver.add(request(1, &unique(1, 5), 9));
    driver.add(request(2, &unique(2, 1), 9));
    driver.step(0.0);
    // It needs 9 of 10 blocks: 2 are being loaded into, and those cannot be had.
    driver.add(Request { priority: -1, ..request(3, &unique(3, 16), 1) });
    assert_eq!(driver.step(1.0).waiting, [1, 3]);
    driver.arrive(1, 4);
    let happened = driver.step(2.0);
    assert_eq!(happened.rows, [(3, 0, 16)], "who runs: both others may be preempted for it");
    driver.check();
}

#[test]
fn blocks_of_a_load_that_brought_nothing_are_not_taken_back_as_those_of_drafts() {
    let config = SchedulerConfig {
        num_speculative_tokens: 4,
        long_prefill_token_threshold: 1,
        ..SchedulerConfig::new(13, 4)
    };
    let mut driver = Driver::new(config).with_source(ElsewhereOf(unique(1, 1)[0]));
    driver.add(request(2, &unique(2, 3), 30));
    driver.add(request(1, &unique(1, 18), 3));
    driver.step(0.0);
    driver.arrive(1, 0);
    // It never fits beside the others, so that blocks of drafts are taken back in each step.
    driver.add(request(3, &unique(3, 40), 1));
    for now in 1..12 {
        driver.step(f64::from(now));
        let table = driver.scheduler.view().table_of(RequestId(1)).expect("it has blocks");
        assert!(table.blocks().len() >= 3, "{} blocks after step {now}", table.blocks().len());
    }
    driver.finish(12.0);
}

#[test]
fn loads_never_wait_for_each_others_lookahead() {
    let config = SchedulerConfig { num_lookahead_tokens: 4, ..SchedulerConfig::new(5, 2) };
    let mut driver = Driver::new(config).with_source(Elsewhere(100));
    driver.add(request(1, &unique(1, 3), 1));
    driver.add(request(2, &unique(2, 3), 1));
    for now in 0..10 {
        driver.step(f64::from(now));
        while let Some((id, to, _)) = driver.loads.first().cloned() {
            driver.arrive(id, to);
        }
    }
    assert!(driver.alive.is_empty(), "requests that wait for each other: {:?}", driver.alive);
}

/// Never knows about prompts that begin with this token, and has nothing of others. Counts the questions about the
/// former.
struct NeverKnows(u32, Arc<AtomicUsize>);

impl KvConnector for NeverKnows {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, _: usize) -> Matched {
        if chain.tokens()[0] != self.0 {
            return Matched::Tokens(0);
        }
        self.1.fetch_add(1, Ordering::Relaxed);
        Matched::AskAgain
    }
}

#[test]
fn a_request_that_moves_back_in_the_queue_is_asked_for_once_in_a_plan() {
    let scheduler = Scheduler::new(SchedulerConfig::new(9, 4)).expect("a valid configuration");
    let scheduler = scheduler.with_policy(Box::new(LeasedFirst::default()));
    let scheduler = scheduler.with_retention(Box::new(Keeping::leasing(50.0)));
    let questions = Arc::new(AtomicUsize::new(0));
    let source = NeverKnows(unique(2, 1)[0], questions.clone());
    let mut driver = Driver::around(scheduler).with_source(source);
    let job = Some(Job { id: "a".to_owned(), last_step: false });
    driver.add(Request { job: job.clone(), ..request(1, &unique(1, 10), 3) });
    driver.finish(0.0);
    assert_eq!(leased(&driver), [1]);
    // Request 2 is before request 3 as long as its job has a lease, which ends for request 3.
    driver.add(request(3, &unique(3, 22), 3));
    driver.add(Request { job, ..request(2, &unique(2, 10), 3) });
    let happened = driver.step(3.0);
    assert_eq!((happened.running, happened.waiting), (vec![3], vec![2]));
    assert_eq!((leased(&driver), questions.load(Ordering::Relaxed)), (vec![], 1));
    driver.finish(4.0);
}

/// A request that needs the whole pool, and a less urgent one that loads a block: under `strict-priority` the first
/// preempts the second whenever that has arrived, and preempts itself when it needs the block that the second one loads
/// into again.
#[test]
fn a_load_of_a_less_urgent_request_does_not_hold_up_a_running_one_for_ever() {
    let config = SchedulerConfig {
        max_num_seqs: 2,
        max_num_batched_tokens: 2,
        enable_prefix_caching: false,
        ..SchedulerConfig::new(8, 4)
    };
    let mut driver = strict(config, unique(2, 1)[0]);
    driver.add(request(1, &unique(1, 20), 6));
    driver.add(Request { priority: 1, ..request(2, &unique(2, 7), 1) });
    for now in 0..2000 {
        driver.step(f64::from(now));
        if now % 4 == 3 {
            while let Some((id, to, _)) = driver.loads.first().cloned() {
                driver.arrive(id, to);
            }
        }
    }
    assert!(driver.alive.is_empty(), "requests that never end: {:?}", driver.alive);
}

//! The policies for agents with their retentions: which blocks they hold between the steps of a job, and whose.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use l3_paged_kv::{BlockHash, TokenChain};
use l5_scheduler::{
    Caps, CostModel, Job, KvConnector, Matched, PolicyKind, Request, RequestId, SchedulerConfig,
    StepOp, Time,
};

use crate::driver::{Driver, next_token, request, unique};
use crate::leases::leased;

const COST: CostModel = CostModel { per_prefill_token: 0.01, ..CostModel::SMOLLM2_TWO_CORES };

pub fn config(policy: PolicyKind, blocks: usize) -> SchedulerConfig {
    SchedulerConfig { policy, ..SchedulerConfig::new(blocks + 1, 4) }
}

pub fn driver(config: SchedulerConfig) -> Driver {
    let mut driver = Driver::new(config);
    driver.scheduler.set_caps(&Caps { can_store: true, cost: Some(COST), ..Caps::default() });
    driver
}

/// A step of a job.
pub fn step_of(
    job: &str,
    last: bool,
    id: u64,
    prompt: &[u32],
    max_tokens: usize,
    at: f64,
) -> Request {
    let job = Job { id: job.to_owned(), last_step: last };
    Request { job: Some(job), arrival: Time(at), ..request(id, prompt, max_tokens) }
}

/// A prompt, the first `n` tokens of its output, and as many others as make it `len` long.
fn continued(prompt: &[u32], n: usize, len: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(next_token(&tokens));
    }
    tokens.resize(len, 77);
    tokens
}

/// Runs a step of a job alone, from `at` on, with a tool at its end. Returns the time at which it has finished.
pub fn serve(driver: &mut Driver, tool: Option<&str>, request: Request, at: f64) -> f64 {
    driver.tool = tool.map(str::to_owned);
    let steps = request.max_tokens;
    driver.add(request);
    for n in 0..steps {
        driver.step(at + n as f64 * 1e-3);
    }
    driver.tool = None;
    at + (steps - 1) as f64 * 1e-3
}

/// Blocks of 16; each prompt holds the conversation before it.
#[test]
fn a_job_of_five_turns_holds_its_full_blocks_in_the_gaps() {
    for policy in [PolicyKind::Continuum, PolicyKind::ContextServe, PolicyKind::Adaptive] {
        let config = SchedulerConfig { policy, ..SchedulerConfig::new(65, 16) };
        let mut driver = driver(config);
        let (mut in_gaps, mut at_ends) = (Vec::new(), Vec::new());
        let mut text = unique(1, 61);
        // The tokens that are computed at a turn's end are all but the last one.
        for (turn, (prompt, output)) in
            [(61, 9), (125, 12), (280, 20), (390, 22), (490, 20)].into_iter().enumerate()
        {
            text = continued(&text, 0, prompt);
            let at = turn as f64;
            let request = step_of("j", turn == 4, turn as u64, &text, output, at);
            driver.tool = Some("cat".to_owned());
            driver.add(request);
            for n in 0..output {
                driver.plan(at + n as f64 * 1e-3);
                if n + 1 == output {
                    let view = driver.scheduler.view();
                    let blocks = view.rows().map(|row| row.table.blocks().len()).next();
                    at_ends.push(blocks.expect("it runs"));
                }
                driver.run();
            }
            text = continued(&text, output, prompt + output);
            in_gaps.push(driver.scheduler.retained_blocks());
        }
        assert_eq!(in_gaps, [4, 8, 18, 25, 0], "{policy}: leased blocks between the turns");
        assert_eq!(at_ends, [5, 9, 19, 26, 32], "{policy}: blocks at the ends of the turns");
        driver.check();
    }
}

#[test]
fn continuum_leases_after_a_tool_for_two_seconds() {
    let mut driver = driver(config(PolicyKind::Continuum, 40));
    let prompt = unique(1, 10);
    serve(&mut driver, None, step_of("a", false, 1, &prompt, 1, 0.0), 0.0);
    serve(&mut driver, Some("ls"), step_of("b", true, 2, &unique(2, 10), 1, 0.0), 0.0);
    serve(&mut driver, Some("ls"), request(3, &unique(3, 10), 1), 0.0);
    assert_eq!(leased(&driver), [0; 0], "no tool, a last step, and a request of no job");
    serve(&mut driver, Some("ls"), step_of("c", false, 4, &unique(4, 10), 1, 5.0), 5.0);
    assert_eq!(leased(&driver), [4]);
    driver.step(6.99);
    assert_eq!(leased(&driver), [4]);
    driver.step(7.0);
    assert_eq!(leased(&driver), [0; 0], "its time has come");
}

/// The driver's notes name each request's tool after its id, so the tool of a job's only request is its own.
#[test]
fn continuum_makes_no_lease_after_a_tool_that_takes_longer() {
    let mut driver = driver(config(PolicyKind::Continuum, 40));
    let mut pause = |job: &str, id: u64, pause: f64| {
        let at = 100.0 * id as f64;
        serve(&mut driver, Some("make"), step_of(job, false, id, &unique(id, 10), 1, at), at);
        let made = !driver.scheduler.leases().is_empty();
        // The id is used again, and so is the tool.
        let at = at + pause;
        serve(&mut driver, Some("make"), step_of(job, true, 9, &unique(id, 10), 1, at), at);
        made
    };
    assert!(pause("a", 1, 6.0), "nothing is known of the tool");
    assert!(!pause("b", 1, 6.0), "its pauses take 6 s");
    assert!(pause("c", 2, 1.0), "another tool");
    assert!(pause("d", 2, 1.0));
}

#[test]
fn under_continuum_a_waiting_request_ends_no_lease_unless_at_most_one_runs() {
    let mut driver = driver(config(PolicyKind::Continuum, 12));
    for id in [1, 2] {
        let at = id as f64 * 0.1;
        serve(
            &mut driver,
            Some("ls"),
            step_of(&id.to_string(), false, id, &unique(id, 12), 1, at),
            at,
        );
    }
    assert_eq!(leased(&driver), [1, 2], "3 blocks each");
    driver.add(request(3, &unique(3, 5), 9));
    driver.add(request(4, &unique(4, 5), 5));
    driver.step(0.5);
    driver.add(request(5, &unique(5, 20), 1));
    let happened = driver.step(0.6);
    assert_eq!((happened.running, happened.waiting), (vec![3, 4], vec![5]), "2 blocks are free");
    assert_eq!(leased(&driver), [1, 2], "two run");
    for n in 1..4 {
        driver.step(0.6 + 0.1 * f64::from(n));
    }
    assert_eq!(leased(&driver), [1, 2]);
    let happened = driver.step(1.0);
    assert_eq!(happened.running, [3], "and 5 has run, too");
    assert_eq!(leased(&driver), [1], "the one that would have expired last ended");
    driver.finish(1.1);
}

#[test]
fn under_continuum_the_lease_of_a_job_that_is_back_does_not_end_for_others() {
    let mut driver = driver(config(PolicyKind::Continuum, 12));
    let prompt = unique(2, 12);
    serve(&mut driver, Some("ls"), step_of("a", false, 1, &unique(1, 12), 1, 0.0), 0.0);
    serve(&mut driver, Some("ls"), step_of("b", false, 2, &prompt, 1, 0.1), 0.1);
    driver.add(request(3, &unique(3, 20), 9));
    driver.step(0.2);
    assert_eq!(leased(&driver), [1, 2], "6 blocks are leased, 5 in use, and 1 is free");
    // The lease that would expire last is that of a job which is back, and waits for a seat or for blocks.
    driver.add(step_of("b", true, 4, &continued(&prompt, 1, 40), 1, 0.3));
    (3..9).for_each(|n| _ = driver.step(0.1 * f64::from(n)));
    assert_eq!(leased(&driver), [2], "3 has grown, and 4 needs more than was free");
    driver.finish(1.0);
}

#[test]
fn under_continuum_the_latest_job_that_returns_is_preempted_before_one_that_ends() {
    let mut driver = driver(config(PolicyKind::Continuum, 9));
    driver.add(step_of("old", false, 1, &unique(1, 11), 20, 0.0));
    driver.add(step_of("new", false, 2, &unique(2, 11), 20, 1.0));
    driver.add(step_of("newest", true, 3, &unique(3, 11), 20, 2.0));
    driver.step(3.0);
    let preempted: Vec<_> = (0..2).map(|n| driver.step(4.0 + f64::from(n)).preempted).collect();
    assert_eq!(preempted.concat(), [2], "neither the last step nor the older job");
    driver.finish(9.0);
}

#[test]
fn adaptive_holds_blocks_without_a_deadline_and_the_job_that_stays_away_longest_goes_first() {
    let mut driver = driver(config(PolicyKind::Adaptive, 12));
    for id in 1..=3 {
        let at = id as f64;
        serve(&mut driver, None, step_of(&id.to_string(), false, id, &unique(id, 12), 1, at), at);
    }
    driver.step(900.0);
    assert_eq!(leased(&driver), [1, 2, 3], "3 blocks each, no deadline");
    // A request that runs grows into the last free block, and further.
    driver.add(request(9, &unique(9, 5), 9));
    for n in 0..9 {
        driver.step(901.0 + f64::from(n));
    }
    assert_eq!(leased(&driver), [2, 3], "the oldest of three tools that nothing is known of");
    driver.finish(950.0);
}

#[test]
fn under_adaptive_a_waiting_request_ends_a_lease_only_of_a_job_that_stays_away_for_long() {
    // 12 blocks of 4 tokens, each computed in 0.01 s: the whole pool in 0.48 s.
    let waits = |age: f64| {
        let mut driver = driver(config(PolicyKind::Adaptive, 12));
        serve(&mut driver, None, step_of("a", false, 1, &unique(1, 24), 1, 0.0), 0.0);
        driver.add(request(2, &unique(2, 5), 9));
        driver.step(age - 0.001);
        driver.add(request(3, &unique(3, 20), 1));
        let happened = driver.step(age);
        let waits = happened.waiting == [3];
        assert_eq!(leased(&driver).is_empty(), !waits);
        driver.finish(age + 1.0);
        waits
    };
    assert!(waits(0.47));
    assert!(!waits(0.49), "without records the rest is the age");
}

#[test]
fn adaptive_displaces_the_lease_with_the_longest_rest_and_refuses_no_new_one() {
    let mut driver = driver(config(PolicyKind::Adaptive, 12));
    for id in 1..=4 {
        let at = id as f64;
        serve(&mut driver, None, step_of(&id.to_string(), false, id, &unique(id, 12), 1, at), at);
        assert!(driver.scheduler.retained_blocks() <= 10, "90% of 12 blocks");
    }
    assert_eq!(leased(&driver), [2, 3, 4], "9 of 12 blocks; the oldest was displaced");
    assert_eq!(driver.scheduler.lease_stats().stolen, 1);
}

#[test]
fn under_adaptive_a_lease_does_not_end_for_others_while_a_step_of_its_job_is_there() {
    let mut driver = driver(config(PolicyKind::Adaptive, 12));
    let prompt = unique(1, 12);
    serve(&mut driver, None, step_of("a", false, 1, &prompt, 1, 0.0), 0.0);
    serve(&mut driver, None, step_of("b", false, 2, &unique(2, 12), 1, 1.0), 1.0);
    // It fills what is free.
    driver.add(request(3, &unique(3, 21), 9));
    driver.step(100.0);
    // The older lease is that of a job which is back, and waits.
    driver.add(step_of("a", false, 4, &continued(&prompt, 1, 40), 1, 101.0));
    for n in 0..4 {
        driver.step(101.0 + f64::from(n));
    }
    assert_eq!(leased(&driver), [1], "3 has grown into the blocks of b");
    driver.finish(200.0);
    assert_eq!(leased(&driver), [4]);
}

/// A second memory that has what was stored in it.
#[derive(Clone, Default)]
struct Stored(Arc<Mutex<HashSet<BlockHash>>>);

impl KvConnector for Stored {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, from: usize) -> Matched {
        let stored = self.0.lock().unwrap();
        let size = chain.block_size();
        let behind = chain.hashes().iter().skip(from / size);
        Matched::Tokens(behind.take_while(|hash| stored.contains(*hash)).count() * size)
    }
}

/// Sixteen blocks of 4 tokens. Job a's first step leaves 4 blocks; b and c run with 4 blocks each and grow; a comes back
/// with a prompt of 12 blocks. One line a step: rows as `id computed+new [blocks]`, what was preempted, leased, waits.
fn worked_example(policy: PolicyKind) -> String {
    let memory = Stored::default();
    let mut driver = driver(config(policy, 16)).with_source(memory.clone());
    driver.tool = Some("ls".to_owned());
    let prompt = unique(1, 16);
    driver.add(step_of("a", false, 1, &prompt, 1, 0.0));
    let mut lines = String::new();
    for step in 0..60 {
        let now = f64::from(step) * 0.1;
        if step == 1 {
            driver.add(step_of("b", true, 2, &unique(2, 15), 22, now));
            driver.add(step_of("c", false, 3, &unique(3, 15), 21, now));
        }
        if step == 3 {
            driver.add(step_of("a", true, 4, &continued(&prompt, 1, 48), 1, now));
        }
        driver.plan(now);
        write!(lines, "{step}:").unwrap();
        let view = driver.scheduler.view();
        for row in view.rows() {
            let (id, computed, len) = (row.row.id.0, row.row.computed, row.row.len);
            write!(lines, " {id} {computed}+{len} {:?}", row.table.blocks()).unwrap();
        }
        let stores: Vec<_> = view
            .step()
            .ops
            .iter()
            .filter_map(|op| match op {
                StepOp::Store { lease, hashes, .. } => Some((*lease, hashes.clone())),
                StepOp::Load { .. } | StepOp::WriteBack { .. } => None,
            })
            .collect();
        let happened = driver.run();
        if !happened.preempted.is_empty() {
            write!(lines, " preempted {:?}", happened.preempted).unwrap();
        }
        for (lease, hashes) in stores {
            write!(lines, " stored {}", hashes.len()).unwrap();
            memory.0.lock().unwrap().extend(hashes);
            driver.stored(lease);
        }
        while let Some((id, to, blocks)) = driver.loads.first().cloned() {
            write!(lines, " loaded {id} to {to} {blocks:?}").unwrap();
            driver.arrive(id, to);
        }
        if driver.scheduler.retained_blocks() > 0 {
            write!(lines, " leased {}", driver.scheduler.retained_blocks()).unwrap();
        }
        if !happened.waiting.is_empty() {
            write!(lines, " waits {:?}", happened.waiting).unwrap();
        }
        lines.push('\n');
        if step > 3 && driver.alive.is_empty() {
            driver.check();
            return lines;
        }
    }
    panic!("{lines}");
}

/// What the request of job a's second step was given, and what was preempted before it.
fn second_step(lines: &str) -> (&str, usize) {
    let row = lines.lines().last().and_then(|line| line.split_once(": 4 ")).expect("it runs last");
    let preemptions = lines.lines().filter(|line| line.contains("preempted [3]")).count();
    (row.1.split_once(' ').expect("its blocks").0, preemptions)
}

/// The blocks that a left are free: b and c take 4 and 3 in step 11, 2 and 1 in step 15. In step 19 b needs a ninth, and
/// c, which was admitted last, gives its own back. Of a nothing is left: it computes 12 blocks.
#[test]
fn the_worked_example_under_fcfs() {
    let lines = worked_example(PolicyKind::Fcfs);
    assert_eq!(lines, include_str!("worked_example/fcfs.txt"));
    assert_eq!(second_step(&lines), ("0+48", 1));
}

/// The blocks that a left are leased, and stay so beyond 2 s, because a waits. The pool is full in step 11, and c is
/// preempted, whose job will return. While it waits only b runs; but a's lease does not end for c, because a waits, too.
/// In the end a computes 8 blocks, and has its old ones 1 to 4.
#[test]
fn the_worked_example_under_continuum() {
    let lines = worked_example(PolicyKind::Continuum);
    assert_eq!(lines, include_str!("worked_example/continuum.txt"));
    assert_eq!(second_step(&lines), ("16+32", 1));
}

/// `ls` is fast, so its blocks are held for 3 s, not 2. A waits before either time is over, and all goes as under
/// `continuum`, whose queue and victims these are.
#[test]
fn the_worked_example_under_context_serve() {
    let lines = worked_example(PolicyKind::ContextServe);
    assert_eq!(lines, include_str!("worked_example/continuum.txt"));
}

/// The blocks that a left are stored in step 1, and free. All goes as under `fcfs`, except that a loads 4 blocks in the
/// end, and computes 8.
#[test]
fn the_worked_example_under_lmcache() {
    let lines = worked_example(PolicyKind::LmCache);
    assert_eq!(lines, include_str!("worked_example/lmcache.txt"));
    assert_eq!(second_step(&lines), ("16+32", 1));
}

#[test]
fn without_an_id_a_conversation_is_known_by_its_tokens() {
    let infer_jobs = SchedulerConfig { infer_jobs: true, ..config(PolicyKind::Adaptive, 40) };
    let mut driver = driver(infer_jobs);
    let first = unique(1, 17);
    serve(&mut driver, None, request(1, &first, 2), 0.0);
    assert_eq!(leased(&driver), [1], "a request that may be followed by another");
    let salted = Request { cache_salt: Some("b".to_owned()), ..request(2, &first, 2) };
    serve(&mut driver, None, salted, 1.0);
    assert_eq!(leased(&driver), [1, 2], "another tenant's");
    let next = continued(&first, 2, 30);
    driver.add(request(3, &next, 1));
    let happened = driver.step(2.0);
    assert_eq!(happened.cached, [(3, 16)]);
    assert_eq!(leased(&driver), [2, 3], "the lease of the next turn, instead of the first one's");
    let keys: HashSet<_> = driver.scheduler.leases().iter().map(|l| l.job_key.clone()).collect();
    assert_eq!(keys.len(), 2);
    serve(&mut driver, None, step_of("own", false, 4, &continued(&next, 1, 40), 1, 3.0), 3.0);
    assert_eq!(leased(&driver), [2, 3, 4], "a job that the client names is another one");
}

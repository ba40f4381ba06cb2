//! Write-back: what leaves the pool early is copied to the memory behind it. The driver checks that a block still holds
//! what its hash says when it is copied.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use l3_paged_kv::{BlockHash, TokenChain};
use l5_scheduler::{
    Job, KvConnector, Matched, PolicyKind, Request, RequestId, SchedulerConfig, SecondMemory, StepOp,
};
use proptest::prelude::*;

use crate::driver::{Driver, next_token, request, unique};

const BLOCK: usize = 4;

/// Blocks by hash, with room for so many more.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<HashSet<BlockHash>>>, usize);

impl KvConnector for Memory {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, from: usize) -> Matched {
        let there = self.0.lock().unwrap();
        let behind = chain.hashes().iter().skip(from / BLOCK);
        Matched::Tokens(behind.take_while(|hash| there.contains(*hash)).count() * BLOCK)
    }

    fn second_memory(&mut self) -> SecondMemory {
        SecondMemory { room: self.1, load_seconds_per_block: None }
    }
}

/// A pool of so many blocks under `adaptive`, before a memory.
fn driver(blocks: usize, memory: &Memory) -> Driver {
    let policy = PolicyKind::Adaptive;
    let config = SchedulerConfig { policy, ..SchedulerConfig::new(blocks + 1, BLOCK) };
    Driver::new(config).with_source(memory.clone())
}

fn step_of(job: &str, last_step: bool, id: u64, prompt: &[u32], max_tokens: usize) -> Request {
    let job = Job { id: job.to_owned(), last_step };
    Request { job: Some(job), ..request(id, prompt, max_tokens) }
}

/// Copies and loads of the planned step.
fn ops(driver: &Driver) -> (Vec<(usize, f64)>, Vec<(u64, usize, usize)>) {
    let (mut copies, mut loads) = (Vec::new(), Vec::new());
    let view = driver.scheduler.view();
    for op in &view.step().ops {
        match op {
            StepOp::WriteBack { hashes, keep_until, .. } => {
                assert!(loads.is_empty(), "copies come before loads, which write");
                copies.push((hashes.len(), keep_until.seconds()));
            }
            StepOp::Load { id, from, to, .. } => loads.push((id.0, *from, *to)),
            StepOp::Store { .. } => {}
        }
    }
    (copies, loads)
}

/// A prompt behind a request's prompt and its first `n` output tokens.
fn continued(prompt: &[u32], n: usize, len: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(next_token(&tokens));
    }
    tokens.resize(len, 77);
    tokens
}

#[test]
fn a_lease_that_ends_for_a_request_is_copied_by_the_step_that_takes_its_blocks() {
    let memory = Memory(Arc::default(), 8);
    let mut driver = driver(8, &memory);
    let prompt = unique(1, 17);
    driver.add(step_of("a", false, 1, &prompt, 1));
    driver.step(0.0);
    assert_eq!(driver.scheduler.retained_blocks(), 4);
    // Nothing runs, so it need not wait for the lease.
    driver.add(request(2, &unique(2, 24), 1));
    driver.plan(1.0);
    assert_eq!(ops(&driver), (vec![(4, 61.0)], vec![]), "kept for a minute");
    driver.run();
    memory.0.lock().unwrap().extend(driver.copies.concat());
    driver.add(step_of("a", true, 3, &continued(&prompt, 1, 20), 1));
    driver.plan(2.0);
    assert_eq!(ops(&driver).1, [(3, 8, 16)], "the first two blocks are in the pool yet");
}

#[test]
fn a_preempted_request_is_copied_if_there_is_room() {
    for (room, copied) in [(9, 1), (1, 0)] {
        let mut driver = driver(8, &Memory(Arc::default(), room));
        driver.add(request(1, &unique(1, 12), 9));
        driver.add(request(2, &unique(2, 15), 9));
        driver.step(0.0);
        driver.step(1.0);
        let preempted = (2..9).any(|n| {
            driver.plan(f64::from(n));
            let copies = ops(&driver).0;
            let preempted = !driver.scheduler.view().step().preempted.is_empty();
            assert_eq!(copies.len(), if preempted { copied } else { 0 }, "step {n}");
            let blocks: Vec<_> = copies.iter().map(|(blocks, _)| *blocks).collect();
            assert!(blocks.iter().all(|blocks| *blocks == 4), "full computed blocks: {blocks:?}");
            driver.run();
            preempted
        });
        assert!(preempted);
    }
}

#[test]
fn nothing_is_copied_for_a_job_that_goes_on_or_is_over_or_without_a_memory() {
    let memory = Memory(Arc::default(), 8);
    let prompt = unique(1, 17);
    let mut driver_of = driver(16, &memory);
    driver_of.add(step_of("a", false, 1, &prompt, 1));
    driver_of.step(0.0);
    driver_of.add(step_of("a", true, 2, &continued(&prompt, 1, 20), 1));
    driver_of.step(1.0);
    driver_of.step(2.0);
    assert_eq!((driver_of.copies.len(), driver_of.scheduler.retained_blocks()), (0, 0));

    let policy = PolicyKind::Adaptive;
    let config = SchedulerConfig { policy, ..SchedulerConfig::new(9, BLOCK) };
    let mut alone = Driver::new(config);
    alone.add(step_of("a", false, 1, &prompt, 1));
    alone.step(0.0);
    alone.add(request(2, &unique(2, 24), 1));
    alone.step(1.0);
    assert_eq!((alone.copies.len(), alone.scheduler.retained_blocks()), (0, 0));
}

#[test]
fn a_copy_that_a_step_planned_ahead_would_make_is_made_by_the_next_one() {
    let memory = Memory(Arc::default(), 8);
    let mut driver = driver(8, &memory);
    driver.add(step_of("a", false, 1, &unique(1, 9), 1));
    driver.step(0.0);
    driver.add(request(2, &unique(2, 16), 9));
    driver.plan(1.0);
    assert_eq!(ops(&driver).0, []);
    // The next token of 2 has room, and the one that needs a block ends the lease, whose plan is given up.
    let mut copies = 0;
    for step in 1..9 {
        let ahead = driver.plan_ahead(f64::from(step));
        driver.run();
        if !ahead && !driver.alive.is_empty() {
            driver.plan(f64::from(step) + 0.5);
            copies += ops(&driver).0.len();
        }
    }
    driver.finish(20.0);
    assert_eq!((copies, driver.copies.len()), (1, 1));
}

/// A job of the property: when its first step comes, its prompts, outputs, and pauses in steps.
type DrawnJob = (usize, Vec<(usize, usize, usize)>);

proptest! {
    /// Whatever is copied holds what its hash says, and everybody ends.
    #[test]
    fn copies_are_true_whatever_happens(
        blocks in 9_usize..24,
        room in 0_usize..40,
        jobs in prop::collection::vec(
            (0_usize..12, prop::collection::vec((1_usize..14, 1_usize..7, 0_usize..12), 1..5)),
            1..7,
        ),
        loses in 0_usize..5,
    ) {
        let memory = Memory(Arc::default(), room);
        let mut driver = driver(blocks, &memory);
        driver.tool = Some("tool".to_owned());
        let most = (blocks - 1) * BLOCK;
        run_jobs(&mut driver, &memory, &jobs, most, loses);
        driver.finish(1e6);
    }
}

fn run_jobs(
    driver: &mut Driver,
    memory: &Memory,
    jobs: &[DrawnJob],
    most: usize,
    loses: usize,
) {
    // For each job: its text, its next turn, and the step in which that comes.
    let mut states: Vec<_> =
        jobs.iter().enumerate().map(|(n, (at, _))| (unique(n as u64, 1), 0_usize, Some(*at))).collect();
    let mut copied = 0;
    for step in 0..400 {
        for (n, (text, turn, due)) in states.iter_mut().enumerate() {
            let turns = &jobs[n].1;
            if due.is_none_or(|due| due > step) || *turn == turns.len() {
                continue;
            }
            let (prompt, output, _) = turns[*turn];
            let len = (text.len() + prompt).min(most - output);
            if len < text.len() {
                *turn = turns.len();
                continue;
            }
            text.resize(len, 50 + *turn as u32);
            let last = *turn + 1 == turns.len();
            let id = (n * 10 + *turn) as u64;
            driver.add(step_of(&format!("job {n}"), last, id, text, output));
            *due = None;
        }
        driver.plan(step as f64 * 0.01);
        let happened = driver.run();
        for hashes in &driver.copies[copied..] {
            // A memory may lose the last blocks.
            let kept = hashes.len().saturating_sub(loses);
            memory.0.lock().unwrap().extend(&hashes[..kept]);
        }
        copied = driver.copies.len();
        while let Some((id, to, _)) = driver.loads.first().cloned() {
            driver.arrive(id, to);
        }
        for (id, _) in happened.ended {
            let (n, ended) = (id as usize / 10, id as usize % 10);
            let (text, turn, due) = &mut states[n];
            *text = continued(text, jobs[n].1[ended].1, text.len() + jobs[n].1[ended].1);
            *turn = ended + 1;
            *due = jobs[n].1.get(ended).map(|(.., pause)| step + 1 + pause);
        }
        if driver.alive.is_empty() && states.iter().zip(jobs).all(|((_, t, _), j)| *t == j.1.len()) {
            break;
        }
    }
    driver.check();
}

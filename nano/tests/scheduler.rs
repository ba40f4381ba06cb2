//! The scheduler: which requests run, and which wait.

use nano::{BlockPool, Request, Row, Scheduler};

fn scheduler(blocks: usize, budget: usize) -> Scheduler {
    Scheduler::new(BlockPool::new(blocks, 4), budget)
}

fn add(scheduler: &mut Scheduler, id: usize, prompt: usize) {
    scheduler.waiting.push_back(Request::new(id, vec![0; prompt], 100));
}

/// A request that runs already: it has the blocks of its prompt, of which nothing is computed.
fn run(scheduler: &mut Scheduler, id: usize, prompt: usize) {
    let mut request = Request::new(id, vec![0; prompt], 100);
    assert!(request.table.reserve(prompt, &mut scheduler.pool));
    scheduler.running.push(request);
}

/// Plans a step and computes its rows: a request whose tokens are all computed gets another one. Returns the tokens of each
/// request that ran, by its id.
fn step(scheduler: &mut Scheduler) -> Vec<(usize, usize)> {
    let rows = scheduler.plan();
    for row in &rows {
        let request = &mut scheduler.running[row.request];
        request.computed += row.tokens;
        if request.computed == request.tokens.len() {
            request.tokens.push(1);
        }
    }
    rows.iter().map(|row| (scheduler.running[row.request].id, row.tokens)).collect()
}

fn ids<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Vec<usize> {
    requests.into_iter().map(|request| request.id).collect()
}

#[test]
fn a_request_is_prefilled_and_then_decoded_token_by_token() {
    let mut s = scheduler(10, 64);
    add(&mut s, 7, 6);
    assert_eq!(s.plan(), [Row { request: 0, tokens: 6 }]);
    s.running[0].computed = 6;
    s.running[0].tokens.push(1);
    for _ in 0..3 {
        assert_eq!(step(&mut s), [(7, 1)]);
    }
    assert_eq!(s.running[0].table.blocks().len(), 3, "9 tokens are stored");
}

#[test]
fn requests_join_a_batch_that_is_running() {
    let mut s = scheduler(10, 64);
    add(&mut s, 0, 5);
    assert_eq!(step(&mut s), [(0, 5)]);
    add(&mut s, 1, 3);
    add(&mut s, 2, 2);
    assert_eq!(step(&mut s), [(0, 1), (1, 3), (2, 2)]);
    assert_eq!(step(&mut s), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn requests_that_are_admitted_together_share_the_budget() {
    let mut s = scheduler(10, 8);
    add(&mut s, 0, 6);
    add(&mut s, 1, 5);
    add(&mut s, 2, 3);
    assert_eq!(step(&mut s), [(0, 6), (1, 2)]);
}

#[test]
fn a_prompt_longer_than_the_budget_is_computed_in_chunks() {
    let mut s = scheduler(10, 4);
    add(&mut s, 0, 10);
    let steps: Vec<_> = (0..4).map(|_| step(&mut s)).collect();
    assert_eq!(steps.concat(), [(0, 4), (0, 4), (0, 2), (0, 1)]);
}

#[test]
fn running_requests_have_their_tokens_before_waiting_ones() {
    let mut s = scheduler(10, 4);
    add(&mut s, 0, 2);
    assert_eq!(step(&mut s), [(0, 2)]);
    add(&mut s, 1, 9);
    assert_eq!(step(&mut s), [(0, 1), (1, 3)]);
    add(&mut s, 2, 1);
    assert_eq!(step(&mut s), [(0, 1), (1, 3)], "1 has the rest of the budget, and 2 waits");
    assert_eq!(step(&mut s), [(0, 1), (1, 3)]);
    assert_eq!(step(&mut s), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn a_waiting_request_without_blocks_holds_up_those_behind_it() {
    let mut s = scheduler(3, 64);
    add(&mut s, 0, 6);
    add(&mut s, 1, 7);
    add(&mut s, 2, 1);
    assert_eq!(step(&mut s), [(0, 6)], "1 needs two blocks of which one is free");
    assert_eq!((ids(&s.waiting), s.pool.num_free()), (vec![1, 2], 1));
}

#[test]
fn running_requests_share_the_budget_in_their_order() {
    let mut s = scheduler(10, 6);
    run(&mut s, 0, 4);
    run(&mut s, 1, 8);
    run(&mut s, 2, 1);
    assert_eq!(step(&mut s), [(0, 4), (1, 2)], "2 has no tokens in this step");
    assert_eq!(step(&mut s), [(0, 1), (1, 5)]);
    assert_eq!(step(&mut s), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn the_request_admitted_last_is_preempted_when_the_pool_is_full() {
    let mut s = scheduler(3, 64);
    run(&mut s, 0, 7);
    run(&mut s, 1, 4);
    assert_eq!(step(&mut s), [(0, 7), (1, 4)]);
    // 0 has one slot left in its second block. 1 needs a second block, and is the last one itself.
    assert_eq!(step(&mut s), [(0, 1)]);
    assert_eq!((ids(&s.waiting), s.preemptions, s.pool.num_free()), (vec![1], 1, 1));
    let preempted = &s.waiting[0];
    assert_eq!((preempted.computed, preempted.tokens.len(), preempted.output().len()), (0, 5, 1));
    assert!(preempted.table.blocks().is_empty());
}

#[test]
fn a_request_takes_the_blocks_of_one_admitted_after_it() {
    let mut s = scheduler(4, 64);
    run(&mut s, 0, 8);
    run(&mut s, 1, 5);
    assert_eq!(step(&mut s), [(0, 8), (1, 5)]);
    add(&mut s, 2, 1);
    // 0 needs a third block.
    assert_eq!(
        step(&mut s),
        [(0, 1)],
        "1 loses its blocks, and no request is admitted in that step"
    );
    assert_eq!(ids(&s.waiting), [1, 2], "a preempted request is at the head of the queue");
    assert_eq!(s.pool.num_free(), 1);
}

#[test]
fn preemption_goes_on_until_there_is_room() {
    let mut s = scheduler(4, 64);
    run(&mut s, 0, 4);
    (1..4).for_each(|id| run(&mut s, id, 4));
    step(&mut s);
    // Each of them needs a second block. 3 goes for 0, and 2 for 1.
    assert_eq!(step(&mut s), [(0, 1), (1, 1)]);
    assert_eq!((ids(&s.running), ids(&s.waiting)), (vec![0, 1], vec![2, 3]));
}

#[test]
fn a_preempted_request_computes_its_output_again() {
    let mut s = scheduler(4, 64);
    add(&mut s, 0, 8);
    add(&mut s, 1, 5);
    step(&mut s);
    step(&mut s);
    let ended = s.finish(|request| request.id == 0);
    assert_eq!((ids(&ended), s.pool.num_free()), (vec![0], 4));
    assert_eq!(step(&mut s), [(1, 6)], "a prompt of 5 and an output of 1");
}

#[test]
fn ended_requests_free_their_blocks_and_others_keep_their_order() {
    let mut s = scheduler(10, 64);
    (0..4).for_each(|id| add(&mut s, id, 4));
    step(&mut s);
    let ended = s.finish(|request| request.id % 2 == 1);
    assert_eq!((ids(&ended), ids(&s.running)), (vec![1, 3], vec![0, 2]));
    assert_eq!(s.pool.num_free(), 8);
    assert!(ended.iter().all(|request| request.table.blocks().is_empty()));
}

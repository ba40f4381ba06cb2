//! Room for who cannot wait: who gives way, and that nobody does in vain.

use l5_scheduler::{PolicyKind, Request, RequestId, SchedulerConfig, Time};

use crate::driver::{Driver, Happened, NOBODY, request, unique};

/// Blocks of 4 tokens, so many of them beside the null block.
fn config(blocks: usize) -> SchedulerConfig {
    SchedulerConfig { policy: PolicyKind::StrictPriority, ..SchedulerConfig::new(blocks + 1, 4) }
}

fn urgent(id: u64, prompt: &[u32], priority: i64) -> Request {
    Request { priority, arrival: Time(id as f64), ..request(id, prompt, 30) }
}

/// A driver with these who run: name, prompt and priority. One step was taken.
fn running(config: SchedulerConfig, requests: &[(u64, &[u32], i64)]) -> Driver {
    let mut driver = Driver::new(config);
    for (id, prompt, priority) in requests {
        driver.add(urgent(*id, prompt, *priority));
    }
    let happened = driver.step(0.0);
    assert_eq!(happened.running.len(), requests.len(), "everybody runs after the first step");
    driver
}

/// Somebody comes, and this is the step after.
fn comes(driver: &mut Driver, id: u64, prompt: &[u32], priority: i64) -> Happened {
    driver.add(urgent(id, prompt, priority));
    let happened = driver.step(1.0);
    driver.check();
    happened
}

#[test]
fn an_urgent_arrival_takes_the_blocks_of_the_least_urgent_in_the_same_step() {
    let two: [(u64, &[u32], i64); 2] = [(1, &unique(1, 8), 1), (2, &unique(2, 8), 2)];
    let mut driver = running(config(8), &two);
    let happened = comes(&mut driver, 3, &unique(3, 12), 0);
    assert_eq!(happened.preempted, [2], "who gave way");
    assert_eq!(happened.rows, [(1, 8, 1), (3, 0, 12)], "who took part");
    assert_eq!(happened.waiting, [2], "who waits now");
    let ended = driver.finish(2.0);
    assert_eq!(ended.len(), 3, "and everybody ends, whoever gave way too");
}

#[test]
fn an_id_that_is_used_again_is_another_request_when_it_is_its_turn() {
    // Request 5 needs 5 blocks: 2 are free, and it may preempt request 2, which has 2. A more urgent request may
    // preempt request 1, too, whether or not its id is 5.
    for id in [5, 6] {
        let two: [(u64, &[u32], i64); 2] = [(1, &unique(1, 14), 1), (2, &unique(2, 6), 3)];
        let mut driver = running(SchedulerConfig { max_num_seqs: 3, ..config(8) }, &two);
        assert_eq!(comes(&mut driver, 5, &unique(5, 19), 2).preempted, NOBODY, "not enough");
        driver.scheduler.abort(RequestId(5));
        driver.ended();
        let happened = comes(&mut driver, id, &unique(7, 19), 0);
        assert_eq!(happened.preempted, [2, 1], "preempted for request {id}");
        assert_eq!(happened.rows, [(id, 0, 19)]);
    }
}

#[test]
fn it_takes_a_seat_though_there_are_blocks_for_all() {
    let two: [(u64, &[u32], i64); 2] = [(1, &unique(1, 8), 2), (2, &unique(2, 8), 1)];
    let mut driver = running(SchedulerConfig { max_num_seqs: 2, ..config(100) }, &two);
    let happened = comes(&mut driver, 3, &unique(3, 5), 0);
    assert_eq!(happened.preempted, [1], "who gave its seat up");
    assert_eq!(happened.running, [2, 3], "who sits");
    driver.finish(2.0);
}

#[test]
fn equals_do_not_give_way() {
    let one: [(u64, &[u32], i64); 1] = [(1, &unique(1, 8), 0)];
    let mut driver = running(SchedulerConfig { max_num_seqs: 1, ..config(100) }, &one);
    let happened = comes(&mut driver, 2, &unique(2, 5), 0);
    assert_eq!(happened.preempted, NOBODY, "who gave way to somebody as urgent");
    assert_eq!(happened.waiting, [2], "who waits");
    driver.finish(2.0);
}

#[test]
fn the_worst_goes_first_and_then_who_came_last() {
    let three: [(u64, &[u32], i64); 3] =
        [(1, &unique(1, 8), 3), (2, &unique(2, 8), 3), (3, &unique(3, 8), 2)];
    // They have 3 blocks each now, and all are taken.
    let mut driver = running(config(9), &three);
    let happened = comes(&mut driver, 4, &unique(4, 16), 0);
    assert_eq!(happened.preempted, [2, 1], "who gave way to somebody who needs 5 blocks, in order");
    assert_eq!(happened.running, [3, 4], "who runs on");
    driver.finish(2.0);
}

#[test]
fn of_one_class_the_latest_deadline_is_preempted_first_and_readmitted_last() {
    let mut driver = Driver::new(SchedulerConfig { max_num_seqs: 3, ..config(100) });
    for (id, deadline) in [(1, Some(50.0)), (2, None), (3, Some(90.0))] {
        let deadline = deadline.map(Time);
        driver.add(Request { deadline, ..urgent(id, &unique(id, 8), 5) });
    }
    driver.step(0.0);
    let mut preempted = Vec::new();
    for id in [4, 5] {
        preempted.extend(comes(&mut driver, id, &unique(id, 8), 0).preempted);
    }
    assert_eq!(preempted, [2, 3], "the request without a deadline, then the latest deadline");
    let waiting: Vec<u64> = driver.scheduler.waiting().map(|request| request.id().0).collect();
    assert_eq!(waiting, [3, 2], "the order of their deadlines");
    driver.finish(2.0);
}

#[test]
fn not_one_more_gives_way_than_it_takes() {
    let three: [(u64, &[u32], i64); 3] =
        [(1, &unique(1, 8), 1), (2, &unique(2, 8), 2), (3, &unique(3, 8), 3)];
    let mut driver = running(config(9), &three);
    let happened = comes(&mut driver, 4, &unique(4, 11), 0);
    assert_eq!(happened.preempted, [3], "who gave way to somebody who needs 3 blocks");
    driver.finish(2.0);
}

#[test]
fn nobody_gives_way_in_vain() {
    let two: [(u64, &[u32], i64); 2] = [(1, &unique(1, 20), 0), (2, &unique(2, 4), 2)];
    let mut driver = running(config(8), &two);
    // 5 blocks, and all but those of request 1 are 2.
    let happened = comes(&mut driver, 3, &unique(3, 16), 1);
    assert_eq!(happened.preempted, NOBODY, "who gave way though it does not help");
    assert_eq!(happened.rows, [(1, 20, 1), (2, 4, 1)], "who took part");
    driver.finish(2.0);
}

#[test]
fn the_tokens_of_a_victim_that_was_planned_are_the_arrivals() {
    let two: [(u64, &[u32], i64); 2] = [(1, &unique(1, 4), 1), (2, &unique(2, 4), 2)];
    let limits = SchedulerConfig { max_num_seqs: 2, max_num_batched_tokens: 8, ..config(20) };
    let mut driver = running(limits, &two);
    let happened = comes(&mut driver, 3, &unique(3, 7), 0);
    assert_eq!(happened.preempted, [2], "who gave way");
    assert_eq!(happened.rows, [(1, 4, 1), (3, 0, 7)], "all of the step's 8 tokens are used");
    driver.finish(2.0);
}

#[test]
fn a_step_that_is_full_still_takes_who_cannot_wait() {
    let two: [(u64, &[u32], i64); 2] = [(1, &unique(1, 1), 1), (2, &unique(2, 1), 2)];
    let limits = SchedulerConfig { max_num_seqs: 2, max_num_batched_tokens: 2, ..config(20) };
    let mut driver = running(limits, &two);
    let happened = comes(&mut driver, 3, &unique(3, 6), 0);
    assert_eq!(happened.preempted, [2], "who gave way");
    assert_eq!(happened.rows, [(1, 1, 1), (3, 0, 1)], "each has one of the step's 2 tokens");
    driver.finish(2.0);
}

#[test]
fn a_block_that_two_victims_share_is_free_once_and_only_without_both() {
    let prompt = |own: u32| [5, 5, 5, 5, 6, 6, 6, 6, own];
    let three: [(u64, &[u32], i64); 2] = [(1, &prompt(1), 2), (2, &prompt(2), 3)];
    // 2 blocks shared, one each: 3 are free.
    for (len, victims) in [(15, &[2][..]), (16, &[2, 1][..]), (27, &[2, 1][..])] {
        let mut driver = running(config(7), &three);
        let happened = comes(&mut driver, 3, &unique(3, len), 0);
        assert_eq!(happened.preempted, victims, "who gave way to a prompt of {len} tokens");
        assert_eq!(happened.rows.last(), Some(&(3, 0, len)), "the arrival's part of the step");
        driver.finish(2.0);
    }
}

#[test]
fn what_the_arrival_has_hit_is_no_gain() {
    let begin = [5, 5, 5, 5, 6, 6, 6, 6];
    let long = |len: usize| [&begin[..], &unique(3, len - 8)].concat();
    let victim = [&begin[..], &[1]].concat();
    // 4 blocks are used, 2 are free. Without request 2 there are 5, of which the arrival has hit 2.
    for (len, victims) in [(17, &[2][..]), (21, &[][..])] {
        let two: [(u64, &[u32], i64); 2] = [(1, &unique(1, 3), 0), (2, &victim, 2)];
        let mut driver = running(config(6), &two);
        let happened = comes(&mut driver, 3, &long(len), 1);
        assert_eq!(happened.preempted, victims, "who gave way to a prompt of {len} tokens");
        if len == 17 {
            assert_eq!(happened.rows.last(), Some(&(3, 8, 9)), "the arrival begins with its hit");
        }
        driver.finish(2.0);
    }
}

#[test]
fn what_a_victim_was_to_compute_in_this_step_is_no_hit() {
    let prompt: Vec<u32> = (0..17).collect();
    let limits = SchedulerConfig { max_num_seqs: 1, max_num_batched_tokens: 8, ..config(20) };
    let mut driver = running(limits, &[(1, &prompt, 2)]);
    let happened = comes(&mut driver, 2, &prompt, 0);
    assert_eq!(happened.preempted, [1], "who gave way");
    // The first 8 tokens were computed in the step before; the next 8 would have been in this one.
    assert_eq!(happened.rows, [(2, 8, 8)], "the arrival begins behind what is certain");
    driver.finish(2.0);
}

#[test]
fn who_others_rely_on_in_this_step_stays_until_the_next() {
    let prompt: Vec<u32> = (0..28).collect();
    let limits = SchedulerConfig { max_num_seqs: 8, max_num_batched_tokens: 16, ..config(9) };
    let mut driver = running(limits, &[(1, &prompt, 2)]);
    // Hits 5 blocks, of which request 1 computes the last one in this very step.
    driver.add(urgent(2, &[&prompt[..20], &[99]].concat(), 0));
    let happened = comes(&mut driver, 3, &unique(3, 7), 1);
    assert_eq!(happened.preempted, NOBODY, "who gave way while somebody relies on it");
    assert_eq!(happened.rows, [(1, 16, 12), (2, 20, 1)], "who took part");
    let happened = driver.step(2.0);
    assert_eq!(happened.preempted, [1], "who gave way one step later");
    assert_eq!(happened.rows, [(2, 21, 1), (3, 0, 7)], "who took part then");
    driver.finish(3.0);
}

#[test]
fn who_gave_way_is_overtaken_by_nobody_less_urgent() {
    let one: [(u64, &[u32], i64); 1] = [(1, &unique(1, 12), 2)];
    let mut driver = running(config(6), &one);
    // Small enough to fit beside the urgent one, and the least urgent of all.
    driver.add(urgent(3, &unique(3, 3), 5));
    let happened = comes(&mut driver, 2, &unique(2, 16), 0);
    assert_eq!(happened.preempted, [1], "who gave way");
    assert_eq!(happened.rows, [(2, 0, 16)], "who took part");
    assert_eq!(happened.waiting, [1, 3], "who waits, in order");
    driver.finish(2.0);
}

/// Two prompts that fill the pool alone, and are computed in chunks.
fn two_that_fill_the_pool(policy: PolicyKind, later: f64, whole: bool) -> Driver {
    let config = SchedulerConfig {
        policy,
        max_num_batched_tokens: 8,
        max_num_seqs: 4,
        long_prefill_token_threshold: 4,
        enable_prefix_caching: false,
        scheduler_reserve_full_isl: whole,
        ..SchedulerConfig::new(5, 4)
    };
    let mut driver = Driver::new(config);
    for id in [1, 2] {
        let arrival = Time(later * id as f64);
        driver.add(Request { arrival, ..request(id, &unique(id, 15), 2) });
    }
    driver
}

/// As in vLLM, whose victim is the first of those with the highest (priority, arrival). The preempted request is behind
/// the other one when it is admitted again, so the other one is the next victim.
#[test]
fn of_two_that_tie_each_preempts_the_other_unless_a_prompt_must_fit_as_a_whole() {
    let mut driver = two_that_fill_the_pool(PolicyKind::Priority, 0.0, false);
    let mut preempted = Vec::new();
    for now in 0..400 {
        let happened = driver.step(f64::from(now));
        assert_eq!(happened.ended, [], "who ended");
        preempted.extend(happened.preempted);
    }
    assert!(preempted.len() > 100, "{} preemptions", preempted.len());
    assert!(preempted.windows(2).all(|two| two[0] != two[1]), "in turns");
    // The default, and a tie that is none, and the other policies.
    for (policy, later, whole) in [
        (PolicyKind::Priority, 0.0, true),
        (PolicyKind::Priority, 1e-9, false),
        (PolicyKind::StrictPriority, 0.0, false),
        (PolicyKind::Fcfs, 0.0, false),
    ] {
        let mut driver = two_that_fill_the_pool(policy, later, whole);
        let ended: usize = (0..60).map(|now| driver.step(f64::from(now)).ended.len()).sum();
        assert_eq!(ended, 2, "requests that ended under {policy}");
    }
}

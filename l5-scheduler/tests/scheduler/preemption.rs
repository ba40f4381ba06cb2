//! Giving way: blocks go back, the request waits again, and nothing that it said is lost.

use l5_scheduler::{Admitted, FinishReason, PolicyKind, Request, RequestId, SchedulerConfig};

use super::world::{World, config, request};

/// Two requests that fill a pool of 4 blocks with their prompts and one token more each.
fn crowded() -> World {
    let mut world = World::new(config(4));
    [1, 2].into_iter().for_each(|id| world.add(request(id, 7)));
    world.step();
    world.step();
    world
}

#[test]
fn whoever_was_admitted_last_gives_way_and_waits_in_front() {
    let mut world = crowded();
    world.add(request(3, 3));
    // Both have 9 tokens, 8 of them computed: each wants a third block and none is free.
    assert_eq!(world.plan(), [(1, 1)], "who takes part");
    assert_eq!(world.preempted(), [2], "who gave way");
    assert_eq!(
        world.lists(),
        (vec![1], vec![2, 3]),
        "who runs, who waits: the victim before the new one"
    );
    assert_eq!(world.free(), 1, "free blocks of 4: two came back, one was taken");
}

#[test]
fn nothing_that_it_said_is_lost() {
    let mut world = crowded();
    world.step();
    let (tokens, computed) = world.tokens(2);
    assert_eq!(tokens[7..], [200, 201], "its answer so far");
    assert_eq!(computed, 0, "computed tokens, without blocks");
    let mut answers = vec![world.answer(2)];
    let mut ends = Vec::new();
    while world.scheduler.has_unfinished() {
        ends.extend(world.step().1);
        if world.scheduler.request(RequestId(2)).is_some() {
            answers.push(world.answer(2));
        }
    }
    let longest = answers.last().expect("it was there");
    assert_eq!(*longest, [200, 201, 202], "all but the last token of its answer");
    assert!(
        answers.iter().all(|answer| longest.starts_with(answer)),
        "said and unsaid: {answers:?}"
    );
    let length = FinishReason::Length;
    assert_eq!(ends, [(1, length), (2, length)], "every end");
    let sampled = world.scheduler.stats().sampled_tokens;
    assert_eq!(sampled, 8, "tokens that were chosen for two answers of 4");
}

#[test]
fn it_comes_back_as_one_prompt_with_what_is_still_cached() {
    let mut world = crowded();
    world.step();
    // The first goes on alone: 10 tokens, then 11, and its answer is complete.
    while world.lists().0 == [1] {
        world.run();
        world.plan();
    }
    let row = world.scheduler.view().step().rows[0];
    assert_eq!((row.id, row.admitted), (RequestId(2), Admitted::Resumed), "who comes back");
    assert_eq!(
        (row.cached, row.len),
        (4, 5),
        "of 9 tokens: in a block that nobody took, and computed"
    );
    assert!(row.samples, "its next token is chosen in the same step");
    assert_eq!(world.scheduler.stats().resumes, 1, "preempted requests that came back");
}

#[test]
fn several_victims_wait_in_the_order_in_which_they_came() {
    let mut world = World::new(config(6));
    world.add(Request { max_tokens: 12, ..request(1, 8) });
    [2, 3].into_iter().for_each(|id| world.add(Request { max_tokens: 12, ..request(id, 4) }));
    world.add(request(4, 4));
    // 2 + 1 + 1 + 1 blocks, and one is free, of which the first one's second token has need.
    world.step();
    assert_eq!(world.plan(), [(1, 1), (2, 1)], "who takes part");
    assert_eq!(world.preempted(), [4, 3], "who gave way, one after the other");
    assert_eq!(world.lists().1, [3, 4], "who waits");
}

#[test]
fn nobody_is_admitted_in_a_step_that_preempts() {
    let mut world = crowded();
    world.add(Request { max_tokens: 1, ..request(3, 3) });
    world.plan();
    assert_eq!(
        (world.free(), world.lists().0),
        (1, vec![1]),
        "a block is free, and nobody takes it"
    );
    world.run();
    assert_eq!(world.plan(), [(1, 1)], "head of the line is the victim, which does not fit yet");
}

/// Under priorities, requests that are admitted one after the other, a step each: (name, tokens, priority).
fn in_turn(limits: SchedulerConfig, turns: &[&[(u64, usize, i64)]]) -> World {
    let mut world = World::new(SchedulerConfig { policy: PolicyKind::Priority, ..limits });
    for turn in turns {
        for &(id, len, priority) in *turn {
            world.add(Request { priority, ..request(id, len) });
        }
        world.step();
    }
    world
}

#[test]
fn under_priorities_the_least_urgent_gives_way_even_if_it_is_itself() {
    let mut world = in_turn(config(4), &[&[(1, 7, 5)], &[(2, 7, 0)]]);
    // The first one's 9th token needs a block. The second one's 8th has a slot, and is not planned all the same: a
    // request that is preempted itself ends the planning of running requests. (vLLM does so, too.)
    assert!(world.plan().is_empty(), "somebody takes part");
    assert_eq!(world.preempted(), [1], "who gave way");
    assert_eq!(world.lists(), (vec![2], vec![1]), "who runs, who waits");
    world.run();
    assert_eq!(world.plan(), [(2, 1)], "the other one goes on in the next step");
}

#[test]
fn a_victim_that_was_planned_already_does_not_take_part_after_all() {
    let mut world = in_turn(config(4), &[&[(1, 5, 5)], &[(2, 8, 0)]]);
    // The first one's 7th token has a slot. Then the second one's 9th needs a block.
    assert_eq!(world.plan(), [(2, 1)], "who takes part: not the first, whose token was planned");
    assert_eq!(world.preempted(), [1], "who gave way");
    assert_eq!(world.scheduler.view().step().tokens, 1, "tokens of the step");
    assert!(world.run().is_empty(), "somebody ended");
    assert_eq!(world.answer(1), [100, 101], "the victim's answer: no third token");
    assert_eq!(world.answer(2), [200, 201], "the other one's answer");
}

#[test]
fn who_comes_behind_a_victim_is_not_left_out() {
    let turns: [&[_]; 2] = [&[(1, 5, 9)], &[(2, 6, 1), (3, 8, 1), (4, 3, 1)]];
    let mut world = in_turn(config(7), &turns);
    // 1 and 2 have slots and are planned; 3 needs a block and takes those of 1; 4 has a slot.
    assert_eq!(world.plan(), [(2, 1), (3, 1), (4, 1)], "who takes part");
    assert_eq!(world.preempted(), [1], "who gave way");
    assert_eq!(world.lists(), (vec![2, 3, 4], vec![1]), "who runs, who waits");
}

#[test]
fn who_comes_before_a_victim_is_not_planned_twice() {
    let mut world = World::new(config(5));
    [(1, 6), (2, 8), (3, 4)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    world.step();
    // 1 has a slot and is planned; 2 needs a block, and 3 behind it gives way.
    assert_eq!(world.plan(), [(1, 1), (2, 1)], "who takes part");
    assert_eq!(world.preempted(), [3], "who gave way");
}

#[test]
fn a_request_that_grew_while_it_waited_ends_if_it_fits_no_more() {
    let mut world = World::new(config(3));
    world.add(Request { max_tokens: 50, ..request(1, 5) });
    world.add(Request { max_tokens: 50, ..request(2, 4) });
    let ends = world.run_to_the_end();
    let exhausted = FinishReason::KvExhausted;
    assert_eq!(ends, [(1, exhausted), (2, exhausted)], "how both ended, in a pool of 12 slots");
    // Whoever has all of it computes 12 tokens and says a 13th.
    assert_eq!(world.scheduler.stats().sampled_tokens, 13 - 5 + 13 - 4, "tokens that were said");
    assert_eq!(world.free(), 3, "free blocks of 3");
}

#[test]
fn resetting_the_cache_makes_everybody_begin_anew_in_the_same_order() {
    let mut world = World::new(config(16));
    [1, 2].into_iter().for_each(|id| world.add(request(id, 9)));
    world.step();
    assert_eq!(world.scheduler.reset_prefix_cache(false), None, "while somebody holds blocks");
    let preempted = world.scheduler.reset_prefix_cache(true);
    assert_eq!(preempted, Some(vec![RequestId(2), RequestId(1)]), "the last one admitted first");
    assert_eq!(world.lists(), (vec![], vec![1, 2]), "who runs, who waits");
    assert_eq!(world.free(), 16, "free blocks of 16");
    assert_eq!(world.plan(), [(1, 10), (2, 10)], "prompt and first token, with nothing cached");
}

//! The step counts: what was fed is computed, what was said is part of its request, who is done is gone.

use l5_scheduler::{FinishReason, Request, RequestId, Resolved, SchedulerConfig, StepOutput, Time};

use super::world::{World, config, request};

#[test]
fn a_prompt_that_was_fed_is_computed_and_its_first_token_is_not() {
    let mut world = World::new(config(8));
    world.add(request(1, 8));
    assert_eq!(world.step(), (vec![(1, 8)], vec![]), "the prompt, and nobody ends");
    let (tokens, computed) = world.tokens(1);
    assert_eq!(tokens[8..], [100], "its answer so far");
    assert_eq!(computed, 8, "computed tokens of 9");
}

#[test]
fn a_part_of_a_prompt_is_a_part_of_it() {
    let mut world = World::new(SchedulerConfig { max_num_batched_tokens: 8, ..config(8) });
    world.add(request(1, 13));
    assert_eq!(world.step(), (vec![(1, 8)], vec![]), "the beginning of the prompt");
    let (tokens, computed) = world.tokens(1);
    assert_eq!((tokens.len(), computed), (13, 8), "tokens, and computed ones: no answer yet");
}

#[test]
fn who_is_done_is_gone_with_its_blocks() {
    let mut world = World::new(config(8));
    [1, 2].into_iter().for_each(|id| world.add(Request { max_tokens: 1, ..request(id, 9) }));
    assert_eq!(world.plan().len(), 2, "who takes part");
    assert_eq!(world.free(), 2, "free blocks of 8 while they are computed");
    let length = FinishReason::Length;
    assert_eq!(world.run(), [(1, length), (2, length)], "who ended, in the order of the step");
    assert_eq!(world.free(), 8, "free blocks of 8 when they are gone");
    assert_eq!(world.lists(), (vec![], vec![]), "who runs, who waits");
    assert!(!world.scheduler.has_unfinished(), "nobody is there");
}

#[test]
fn what_was_computed_is_found_by_those_who_come_later() {
    let mut world = World::new(config(8));
    world.add(Request { max_tokens: 1, ..request(1, 12) });
    world.step();
    world.add(Request { id: RequestId(2), max_tokens: 1, ..request(1, 12) });
    assert_eq!(world.plan(), [(2, 4)], "the same prompt once more: its last block");
    assert_eq!(world.computed_and_cached(), [(2, 8, 8)], "computed before, and cached");
}

#[test]
fn who_leaves_makes_room_for_who_waits() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 1, ..config(8) });
    [1, 2, 3].into_iter().for_each(|id| world.add(Request { max_tokens: 1, ..request(id, 9) }));
    let turns: Vec<_> = (0..3).map(|_| world.step().0).collect();
    assert_eq!(
        turns,
        [[(1, 9)], [(2, 9)], [(3, 9)]],
        "who takes part in three steps, with one seat"
    );
}

#[test]
fn every_token_of_a_step_is_said_in_order() {
    let mut world = World::new(config(8));
    [1, 2].into_iter().for_each(|id| world.add(request(id, 3)));
    world.script.insert(1, vec![42]);
    world.script.insert(2, vec![43]);
    world.step();
    assert_eq!((world.answer(1), world.answer(2)), (vec![42], vec![43]), "their answers so far");
    assert_eq!(world.scheduler.stats().sampled_tokens, 2, "tokens that were chosen");

    // A guide can force tokens behind the sampled one.
    let mut world = World::new(config(8));
    [1, 2].into_iter().for_each(|id| world.add(request(id, 3)));
    world.plan();
    let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
    output.push(0, &[44, 45, 46], None);
    output.push(1, &[47], None);
    world.scheduler.resolve(&output, &mut resolved).expect("the output of this step");
    world.scheduler.apply(&resolved, Time::ZERO);
    assert_eq!((world.answer(1), world.answer(2)), (vec![44, 45, 46], vec![47]), "three and one");
    assert_eq!(world.scheduler.stats().sampled_tokens, 4, "tokens that were chosen");
}

#[test]
fn applying_twice_does_nothing() {
    let mut world = World::new(config(8));
    world.add(request(1, 3));
    world.step();
    let resolved = world.resolved.clone();
    world.scheduler.apply(&resolved, Time::ZERO);
    assert_eq!(world.answer(1), [100], "its answer so far");
}

#[test]
fn an_end_is_told_once() {
    let mut world = World::new(config(8));
    world.add(Request { max_tokens: 1, ..request(1, 3) });
    assert_eq!(world.step().1, [(1, FinishReason::Length)], "who ended");
    assert!(world.ended().is_empty(), "it is told again");
    assert_eq!(world.step(), (vec![], vec![]), "a step with nobody in it");
}

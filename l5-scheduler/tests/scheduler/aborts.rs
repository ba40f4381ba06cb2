//! Who is not wanted any more: ended exactly once, at every possible moment, and without a trace.

use l5_scheduler::{FinishReason, PolicyKind, Request, RequestId, SchedulerConfig};

use super::world::{World, config, request};

const GONE: (u64, FinishReason) = (1, FinishReason::Aborted);

#[test]
fn one_that_waits_is_gone_at_once() {
    let mut world = World::new(config(4));
    world.add(request(1, 5));
    assert!(world.scheduler.abort(RequestId(1)), "there is such a request");
    assert!(world.scheduler.has_unfinished(), "its end is still to be told");
    assert_eq!(world.ended(), [GONE], "who ended");
    assert!(!world.scheduler.has_unfinished(), "nobody is there");
    assert!(!world.scheduler.abort(RequestId(1)), "there is none any more");
}

#[test]
fn one_that_runs_between_two_steps_is_gone_with_its_blocks() {
    let mut world = World::new(config(4));
    world.add(request(1, 5));
    world.step();
    assert!(world.scheduler.abort(RequestId(1)), "there is such a request");
    assert_eq!((world.ended(), world.free()), (vec![GONE], 4), "who ended, and free blocks of 4");
}

#[test]
fn one_that_the_model_is_working_on_ends_with_the_step() {
    let mut world = World::new(config(8));
    [1, 2].into_iter().for_each(|id| world.add(request(id, 5)));
    world.step();
    world.plan();
    assert!(world.scheduler.abort(RequestId(1)), "there is such a request");
    assert!(!world.scheduler.abort(RequestId(1)), "once is enough");
    assert_eq!(world.free(), 4, "free blocks of 8: the model writes into the others");
    assert_eq!(world.run(), [GONE], "who ended");
    assert_eq!((world.lists().0, world.free()), (vec![2], 6), "who runs, and free blocks of 8");
    assert_eq!(world.answer(2).len(), 2, "tokens of the other one's answer");
}

#[test]
fn one_that_sits_the_open_step_out_is_gone_at_once() {
    let limits = SchedulerConfig { max_num_batched_tokens: 8, ..config(16) };
    let mut world = World::new(limits);
    world.add(request(2, 3));
    world.add(request(1, 20));
    world.step();
    world.add(request(3, 20));
    // 2 has a token, 1 the 7 others; 3 waits.
    assert_eq!(world.plan(), [(2, 1), (1, 7)], "who takes part");
    assert!(world.scheduler.abort(RequestId(3)), "there is such a request");
    assert_eq!(world.ended(), [(3, FinishReason::Aborted)], "who ended");
    assert!(world.run().is_empty(), "somebody else ended, too");
}

#[test]
fn one_that_was_preempted_in_the_open_step_leaves_the_queue() {
    let mut world = World::new(config(4));
    [2, 1].into_iter().for_each(|id| world.add(request(id, 7)));
    world.step();
    world.step();
    world.plan();
    assert_eq!(world.preempted(), [1], "who gave way");
    assert!(world.scheduler.abort(RequestId(1)), "there is such a request");
    assert_eq!(world.ended(), [GONE], "who ended");
    assert_eq!(world.run_to_the_end(), [(2, FinishReason::Length)], "who ended then");
}

#[test]
fn its_name_can_be_used_again_while_others_go_on() {
    let mut world = World::new(config(8));
    world.add(request(1, 5));
    world.plan();
    world.scheduler.abort(RequestId(1));
    assert_eq!(world.run(), [GONE], "who ended");
    world.add(request(1, 3));
    assert_eq!(world.run_to_the_end(), [(1, FinishReason::Length)], "the second of the name");
}

#[test]
fn one_that_ends_in_the_very_step_ends_once() {
    let mut world = World::new(config(8));
    world.add(Request { max_tokens: 1, ..request(1, 5) });
    world.plan();
    world.scheduler.abort(RequestId(1));
    assert_eq!(world.run(), [GONE], "who ended: what it would have said came too late");
    assert!(world.run_to_the_end().is_empty(), "it ended twice");
}

/// A busy world in which request 1 is aborted after so many half steps (before or in the midst of a step).
fn abort_at(policy: PolicyKind, moment: usize) {
    let mut world = World::new(SchedulerConfig { policy, max_num_batched_tokens: 12, ..config(7) });
    for (id, len, priority) in [(1, 9, 2), (2, 6, 0), (3, 11, 2), (4, 3, 1)] {
        world.add(Request { max_tokens: 9, priority, ..request(id, len) });
    }
    let mut ends = Vec::new();
    for half in 0..400 {
        if half == moment {
            world.scheduler.abort(RequestId(1));
        }
        match half % 2 {
            0 => drop(world.plan()),
            _ => ends.extend(world.run()),
        }
        if half > moment && !world.scheduler.has_unfinished() {
            break;
        }
    }
    ends.extend(world.ended());
    ends.sort_by_key(|(id, _)| *id);
    let ids: Vec<u64> = ends.iter().map(|(id, _)| *id).collect();
    assert_eq!(
        ids,
        [1, 2, 3, 4],
        "who ended, each once, with an abort at moment {moment}: {policy}"
    );
    assert!(ends[1..].iter().all(|(_, reason)| *reason == FinishReason::Length), "ends: {ends:?}");
    assert_eq!(world.free(), 7, "free blocks of 7, with an abort at moment {moment}: {policy}");
}

#[test]
fn no_moment_is_the_wrong_one() {
    for policy in PolicyKind::ALL {
        (0..80).for_each(|moment| abort_at(policy, moment));
    }
}

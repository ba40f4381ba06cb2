//! Shapes of steps: which rows a step takes when its composer asks for less than everything.

use l5_scheduler::composer::{Composer, Composition, Demand, StepShape};
use l5_scheduler::{
    Adapter, Compose, ConfigError, FinishReason, PolicyKind, Request, Scheduler, SchedulerConfig,
};

use super::world::{World, config, request};

/// Rows, with their lengths.
type Rows = Vec<(u64, usize)>;

/// A configuration with a step of prompts, of at most `chunk` tokens, after `max_decode_steps` steps.
fn stable(max_decode_steps: usize, chunk: usize) -> SchedulerConfig {
    SchedulerConfig { compose: Compose::Stable { max_decode_steps, chunk }, ..config(64) }
}

/// A world in which requests 1 and 2 decode, with outputs of 40 tokens, and no step was of prompts since.
fn decoding(config: SchedulerConfig) -> World {
    let mut world = World::new(config);
    [1, 2].into_iter().for_each(|id| world.add(long(id, 3)));
    world.step();
    world
}

fn long(id: u64, len: usize) -> Request {
    Request { max_tokens: 40, ..request(id, len) }
}

fn steps(world: &mut World, n: usize) -> Vec<Rows> {
    (0..n).map(|_| world.step().0).collect()
}

fn shape(world: &World) -> StepShape {
    world.scheduler.view().step().shape
}

#[test]
fn a_prompt_waits_for_its_step_and_is_alone_in_it() {
    let mut world = decoding(stable(2, 0));
    world.add(long(3, 9));
    let decode = vec![(1, 1), (2, 1)];
    let after = vec![(1, 1), (2, 1), (3, 1)];
    assert_eq!(steps(&mut world, 4), [decode.clone(), decode, vec![(3, 9)], after]);
}

#[test]
fn a_long_prompt_takes_one_chunk_of_each_step_of_prompts() {
    let mut world = decoding(stable(1, 8));
    world.add(long(3, 20));
    let decode = vec![(1, 1), (2, 1)];
    let [first, rest] = [vec![(3, 8)], vec![(3, 4)]];
    let want = [&decode, &first, &decode, &first, &decode, &rest].map(Clone::clone);
    assert_eq!(steps(&mut world, 6), want);
}

#[test]
fn the_chunk_is_that_of_all_prompts_together() {
    let mut world = decoding(stable(1, 8));
    [3, 4, 5].into_iter().for_each(|id| world.add(long(id, 5)));
    world.step();
    assert_eq!(world.step().0, [(3, 5), (4, 3)], "8 tokens of prompts");
    world.step();
    assert_eq!(world.step().0, [(4, 2), (5, 5)], "the rest of one prompt comes first");
}

#[test]
fn without_requests_that_decode_prompts_have_whole_steps() {
    let mut world = World::new(stable(4, 8));
    [1, 2].into_iter().for_each(|id| world.add(long(id, 30)));
    assert_eq!(world.step().0, [(1, 30), (2, 30)], "more than a chunk");
    assert_eq!(world.step().0, [(1, 1), (2, 1)]);
}

#[test]
fn the_step_says_its_shape_and_its_width() {
    let mut world = decoding(stable(1, 8));
    world.add(long(3, 5));
    world.plan();
    let step = world.scheduler.view().step();
    assert_eq!((step.shape, step.decode_width()), (StepShape::DecodeOnly, Some(2)));
    world.run();
    world.plan();
    let step = world.scheduler.view().step();
    assert_eq!((step.shape, step.decode_width()), (StepShape::Prefill { chunk: 8 }, None));
}

#[test]
fn an_abandoned_step_counts_in_no_cadence() {
    let mut world = decoding(stable(3, 0));
    world.add(long(3, 9));
    let mut shapes = Vec::new();
    for step in 0..8 {
        for _ in 0..step % 3 {
            let planned = world.plan();
            world.scheduler.abandon();
            assert_eq!(world.plan(), planned, "planned again");
        }
        world.plan();
        shapes.push(shape(&world));
        world.run();
        world.add(long(10 + step, 1 + step as usize));
    }
    let (decode, prompts) = (StepShape::DecodeOnly, StepShape::Prefill { chunk: 0 });
    assert_eq!(shapes, [decode, decode, decode, prompts, decode, decode, decode, prompts]);
}

#[test]
fn prompts_that_cannot_have_blocks_do_not_cost_others_a_step() {
    // Two requests take 2 of 4 blocks, and the prompt needs 3.
    let mut world = World::new(SchedulerConfig { num_gpu_blocks: 5, ..stable(1, 0) });
    [1, 2].into_iter().for_each(|id| world.add(request(id, 1)));
    world.step();
    world.add(request(3, 12));
    for step in 0..3 {
        assert_eq!(world.plan(), [(1, 1), (2, 1)], "step {step}");
        assert_eq!(shape(&world), StepShape::DecodeOnly, "step {step}");
        assert_eq!(world.scheduler.is_held_up(), step > 0, "once it was tried, in step {step}");
        world.run();
    }
    assert_eq!(world.step().0, [(3, 12)], "when they have ended");
}

#[test]
fn a_preempted_request_is_a_prompt_again() {
    // Blocks for one of them to grow.
    let mut world = World::new(SchedulerConfig { num_gpu_blocks: 5, ..stable(2, 0) });
    [1, 2].into_iter().for_each(|id| world.add(request(id, 7)));
    assert_eq!(world.step().0, [(1, 7), (2, 7)]);
    assert_eq!(world.step().0, [(1, 1), (2, 1)]);
    assert_eq!(world.plan(), [(1, 1)], "each needs a third block");
    assert_eq!(world.preempted(), [2]);
    let ends = world.run_to_the_end();
    assert_eq!(ends, [(1, FinishReason::Length), (2, FinishReason::Length)]);
}

#[test]
fn an_urgent_arrival_preempts_in_the_next_step_of_prompts() {
    let limits = SchedulerConfig { max_num_seqs: 2, ..stable(2, 0) };
    let mut world = decoding(SchedulerConfig { policy: PolicyKind::StrictPriority, ..limits });
    world.add(Request { priority: -1, ..long(3, 9) });
    let decode = vec![(1, 1), (2, 1)];
    assert_eq!(steps(&mut world, 2), [decode.clone(), decode], "all seats are taken");
    assert_eq!(world.plan(), [(3, 9)]);
    assert_eq!(world.preempted(), [2], "its seat is that of the request that came last");
}

#[test]
fn a_prompt_in_one_piece_is_larger_than_a_chunk() {
    let whole = SchedulerConfig {
        enable_chunked_prefill: false,
        max_num_batched_tokens: 1000,
        ..stable(1, 4)
    };
    let mut world = decoding(whole);
    world.add(long(3, 9));
    world.step();
    assert_eq!(world.step().0, [(3, 9)]);
}

#[test]
fn a_cadence_without_steps_that_decode_is_refused() {
    let zero = Scheduler::new(stable(0, 8)).map(|_| ());
    assert_eq!(zero, Err(ConfigError::Zero { name: "max_decode_steps" }));
}

/// Asks for one shape, always.
struct Stubborn(StepShape);

impl Composer for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn begin<'a>(&self, _demand: &Demand<'a>) -> Composition<'a> {
        Composition { shape: self.0, ..Composition::default() }
    }
}

#[test]
fn a_shape_that_would_give_an_empty_step_gives_way() {
    for shape in [StepShape::DecodeOnly, StepShape::Prefill { chunk: 2 }] {
        let scheduler = Scheduler::new(config(16)).unwrap();
        let mut world = World::of(scheduler.with_composer(Box::new(Stubborn(shape))));
        [1, 2].into_iter().for_each(|id| world.add(request(id, 5)));
        let mut ends = world.run_to_the_end();
        ends.sort_unstable_by_key(|(id, _)| *id);
        let want = [(1, FinishReason::Length), (2, FinishReason::Length)];
        assert_eq!(ends, want, "with {shape:?} only");
    }
}

fn with_adapter(id: u64, len: usize, name: &str) -> Request {
    let adapter = Adapter { name: name.to_owned(), path: name.to_owned() };
    Request { adapter: Some(adapter), ..long(id, len) }
}

#[test]
fn a_step_has_rows_of_one_adapter_and_of_none() {
    let mut world = World::new(SchedulerConfig { adapter_turn: 1, ..config(64) });
    world.add(with_adapter(1, 3, "b"));
    world.add(long(2, 3));
    world.add(with_adapter(3, 3, "a"));
    world.add(with_adapter(4, 3, "b"));
    assert_eq!(world.step().0, [(1, 3), (2, 3)], "request 3 has another adapter");
    assert_eq!(world.step().0, [(2, 1), (3, 3)], "now it is the turn of `a`");
    assert_eq!(world.step().0, [(1, 1), (2, 1), (4, 3)], "and of `b`");
    assert_eq!(world.step().0, [(2, 1), (3, 1)], "and of `a`");
}

#[test]
fn a_turn_lasts_as_many_steps_as_it_may_while_others_are_ready() {
    let mut world = World::new(SchedulerConfig { adapter_turn: 2, ..config(64) });
    world.add(with_adapter(1, 3, "a"));
    world.step();
    world.add(with_adapter(2, 3, "b"));
    let first = |rows: &Rows| rows[0].0;
    let order: Vec<u64> = steps(&mut world, 7).iter().map(first).collect();
    assert_eq!(order, [1, 2, 2, 1, 1, 2, 2]);
}

#[test]
fn an_adapter_without_blocks_does_not_cost_another_its_step() {
    let mut world = World::new(SchedulerConfig { num_gpu_blocks: 5, adapter_turn: 1, ..config(4) });
    world.add(Request { max_tokens: 6, ..with_adapter(1, 3, "b") });
    world.step();
    world.add(with_adapter(2, 14, "a"));
    for step in 0..5 {
        assert_eq!(world.step().0, [(1, 1)], "step {step}");
    }
    assert_eq!(world.step().0, [(2, 14)]);
}

#[test]
fn turns_and_shapes_together_leave_no_request_behind() {
    let mut world = World::new(SchedulerConfig { adapter_turn: 1, ..stable(2, 8) });
    for id in 0..12 {
        let name = ["a", "b", "c", ""][id as usize % 4];
        let request = if name.is_empty() { request(id, 11) } else { with_adapter(id, 11, name) };
        world.add(Request { max_tokens: 5, ..request });
    }
    let mut rows = Vec::new();
    while world.scheduler.has_unfinished() {
        let planned = world.plan();
        let adapters: std::collections::BTreeSet<_> =
            planned.iter().map(|(id, _)| id % 4).filter(|of| *of != 3).collect();
        assert!(adapters.len() <= 1, "a step with adapters {adapters:?}");
        rows.push(planned);
        world.run();
        assert!(rows.len() < 500, "still unfinished: {:?}", world.scheduler);
    }
    let tokens: usize = rows.iter().flatten().map(|(_, len)| len).sum();
    assert_eq!(tokens, 12 * (11 + 4), "each token of each request was computed once");
}

#[test]
fn names_say_which_composer_it_is() {
    assert_eq!(Scheduler::new(config(4)).unwrap().composer_name(), "mixed");
    assert_eq!(Scheduler::new(stable(2, 8)).unwrap().composer_name(), "stable");
    let scheduler = Scheduler::new(config(4)).unwrap();
    let stubborn = scheduler.with_composer(Box::new(Stubborn(StepShape::Mixed)));
    assert_eq!(stubborn.composer_name(), "stubborn");
}

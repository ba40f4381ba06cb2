//! Who waits begins: in the order of the queue, as long as there are tokens, seats and blocks.

use l5_scheduler::{
    Adapter, Admit, Composed, LeaseId, Policy, PolicyContext, Rank, Request, RequestView,
    Scheduler, SchedulerConfig, Victim, policy::Fcfs,
};

use super::world::{World, config, request};

/// A request with these tokens in its prompt, and one in its answer.
fn of(id: u64, prompt: impl IntoIterator<Item = u32>) -> Request {
    Request { prompt: prompt.into_iter().collect(), max_tokens: 1, ..request(id, 0) }
}

fn table(world: &World, id: u64) -> Vec<u32> {
    let row = world.scheduler.view().rows().find(|row| row.row.id.0 == id);
    row.expect("a row of the step").table.blocks().to_vec()
}

#[test]
fn who_waits_begins_in_the_order_of_the_queue() {
    let mut world = World::new(config(16));
    [(1, 5), (2, 7), (3, 3)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    assert_eq!(world.plan(), [(1, 5), (2, 7), (3, 3)], "who takes part, with how many tokens");
    assert_eq!(world.lists(), (vec![1, 2, 3], vec![]), "who runs, who waits");
    assert_eq!(world.samples(), [1, 2, 3], "who gets a token: all prompts are complete");
    assert_eq!(table(&world, 2), [3, 4], "the second one's blocks");
    assert_eq!(world.free(), 16 - 2 - 2 - 1, "blocks that are left of 16");
}

#[test]
fn a_prompt_that_does_not_fit_the_step_begins_with_a_part_and_gets_no_token() {
    let limits = SchedulerConfig { max_num_batched_tokens: 16, ..config(16) };
    let mut world = World::new(limits);
    [(1, 10), (2, 10), (3, 10)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    assert_eq!(world.plan(), [(1, 10), (2, 6)], "16 tokens among three prompts of 10");
    assert_eq!(world.samples(), [1], "who gets a token: the second prompt is not complete");
    assert_eq!(table(&world, 2), [4, 5], "blocks for 6 tokens, not for 10");
    assert_eq!(world.lists(), (vec![1, 2], vec![3]), "who runs, who waits");
}

#[test]
fn nobody_stands() {
    let seats = SchedulerConfig { max_num_seqs: 2, ..config(16) };
    let mut world = World::new(seats);
    [1, 2, 3].into_iter().for_each(|id| world.add(request(id, 3)));
    assert_eq!(world.plan(), [(1, 3), (2, 3)], "three requests, two seats");

    let fewer = SchedulerConfig { max_num_active_seqs: Some(1), ..config(16) };
    let mut world = World::new(fewer);
    [1, 2].into_iter().for_each(|id| world.add(request(id, 3)));
    assert_eq!(world.plan(), [(1, 3)], "two requests, eight seats of which one is to be taken");
}

#[test]
fn whoever_does_not_fit_holds_up_those_behind() {
    let mut world = World::new(config(8));
    [(1, 20), (2, 16), (3, 4)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    // 5 of 8 blocks are the first one's, the second needs 4, the third only 1.
    assert_eq!(world.plan(), [(1, 20)], "who begins");
    assert_eq!(world.lists().1, [2, 3], "who waits: a small one does not overtake");
    assert_eq!(world.free(), 3, "asking takes no block");
}

#[test]
fn all_of_a_request_must_fit_though_its_first_part_needs_less() {
    let limits = |full| SchedulerConfig {
        long_prefill_token_threshold: 4,
        scheduler_reserve_full_isl: full,
        ..config(5)
    };
    for (full, begins) in [(true, vec![(1, 4)]), (false, vec![(1, 4), (2, 4)])] {
        let mut world = World::new(limits(full));
        world.add(request(1, 4));
        world.add(Request { max_tokens: 1, ..request(2, 20) });
        // 4 blocks are left. The second one's first part needs one of them, all of it five.
        assert_eq!(world.plan(), begins, "who begins, with scheduler_reserve_full_isl {full}");
    }
}

#[test]
fn what_another_one_computes_in_the_same_step_is_shared() {
    let mut world = World::new(config(16));
    world.add(of(1, 0..14));
    world.add(of(2, (0..12).chain(100..104)));
    assert_eq!(
        world.plan(),
        [(1, 14), (2, 4)],
        "the second one's first 12 tokens are the first one's"
    );
    assert_eq!(
        world.computed_and_cached(),
        [(1, 0, 0), (2, 12, 12)],
        "computed before, and cached"
    );
    assert_eq!(table(&world, 1), [1, 2, 3, 4], "the first one's blocks");
    assert_eq!(table(&world, 2), [1, 2, 3, 5], "three shared blocks and one of its own");
    assert_eq!(world.free(), 11, "five blocks of 16 are used");
}

#[test]
fn a_prompt_that_is_cached_altogether_computes_its_last_block_again() {
    let mut world = World::new(config(16));
    world.add(of(1, 0..12));
    world.add(of(2, 0..12));
    assert_eq!(world.plan(), [(1, 12), (2, 4)], "somebody must compute the last token's logits");
    assert_eq!(table(&world, 2), [1, 2, 4], "two shared blocks, and a copy of the third");
    assert_eq!(world.samples(), [1, 2], "who gets a token");
}

#[test]
fn who_wants_all_logits_reads_nothing_from_the_cache_but_leaves_what_it_computes() {
    let mut world = World::new(config(16));
    world.add(of(1, 0..8));
    world.add(Request { skip_reading_prefix_cache: true, ..of(2, 0..12) });
    world.add(of(3, 0..13));
    assert_eq!(world.plan(), [(1, 8), (2, 12), (3, 1)], "the third hits what the second computes");
}

#[test]
fn other_adapters_and_other_salts_share_nothing() {
    let adapter = |name: &str| Some(Adapter { name: name.to_owned(), path: format!("/{name}") });
    let mut world = World::new(config(16));
    world.add(of(1, 0..12));
    world.add(Request { adapter: adapter("a"), ..of(2, 0..12) });
    world.add(Request { adapter: adapter("b"), ..of(3, 0..12) });
    world.add(Request { cache_salt: Some("mine".to_owned()), ..of(4, 0..12) });
    world.add(Request { adapter: adapter("a"), ..of(5, 0..12) });
    let cached: Vec<usize> = {
        world.plan();
        world.computed_and_cached().into_iter().map(|(_, _, cached)| cached).collect()
    };
    assert_eq!(cached, [0, 0, 0, 0, 8], "cached tokens: only the fifth has somebody to share with");
}

#[test]
fn without_a_cache_everybody_computes_all_of_it() {
    let mut world = World::new(SchedulerConfig { enable_prefix_caching: false, ..config(16) });
    [1, 2].into_iter().for_each(|id| world.add(of(id, 0..12)));
    assert_eq!(world.plan(), [(1, 12), (2, 12)], "two prompts that are alike");
}

#[test]
fn beside_others_the_watermark_stays_free() {
    // 3 of 11 blocks, the null block counted.
    let limits = || SchedulerConfig { watermark: 0.3, ..config(10) };
    let begins = |lens: &[usize]| {
        let mut world = World::new(limits());
        (1..).zip(lens).for_each(|(id, len)| world.add(request(id, *len)));
        world.plan().len()
    };
    assert_eq!(begins(&[36]), 1, "who is alone may take 9 of 10");
    assert_eq!(begins(&[4, 24]), 2, "9 are free, 6 go, 3 stay");
    assert_eq!(begins(&[4, 25]), 1, "9 are free, and with 7 gone only 2 would stay");
}

#[test]
fn without_chunks_a_prompt_waits_for_a_step_that_takes_all_of_it() {
    let limits = |threshold| SchedulerConfig {
        enable_chunked_prefill: false,
        max_num_batched_tokens: 32,
        max_model_len: 32,
        long_prefill_token_threshold: threshold,
        ..config(16)
    };
    let mut world = World::new(limits(0));
    [(1, 20), (2, 13), (3, 2)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    assert_eq!(world.plan(), [(1, 20)], "12 tokens are left, the next one wants 13");
    let mut world = World::new(limits(8));
    [(1, 20), (2, 13), (3, 2)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    assert_eq!(world.plan(), [(1, 8), (2, 8), (3, 2)], "the threshold cuts all the same");
}

#[test]
fn slots_for_drafts_are_taken_along() {
    let mut world = World::new(SchedulerConfig { num_lookahead_tokens: 3, ..config(16) });
    [(1, 4), (2, 5)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    world.plan();
    assert_eq!(table(&world, 1).len(), 2, "blocks for 4 tokens and 3 drafts");
    assert_eq!(table(&world, 2).len(), 2, "blocks for 5 tokens and 3 drafts");
    // Where the model ends, nobody drafts.
    let short = SchedulerConfig { num_lookahead_tokens: 3, max_model_len: 8, ..config(16) };
    let mut world = World::new(short);
    world.add(request(1, 7));
    world.plan();
    assert_eq!(table(&world, 1).len(), 2, "blocks for 7 tokens of a model that takes 8");
}

/// First come, first served, but odd names wait for better times, and a step has two rows at most.
struct Picky;

impl Policy for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        Fcfs.order(request, context)
    }

    fn admit(&self, request: &RequestView<'_>, _context: &PolicyContext<'_>) -> Admit {
        match request.id().0 {
            9 => Admit::StopAdmitting,
            id if id % 2 == 1 => Admit::Skip,
            _ => Admit::IfBlocksFit(0),
        }
    }

    fn compose(&self, _request: &RequestView<'_>, so_far: &Composed) -> bool {
        so_far.requests < 2
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        _running: &mut dyn Iterator<Item = RequestView<'_>>,
        _lease: Option<LeaseId>,
        _context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        None
    }
}

fn picky() -> World {
    World::of(Scheduler::new(config(16)).unwrap().with_policy(Box::new(Picky)))
}

#[test]
fn a_policy_can_pass_somebody_over_without_holding_up_the_others() {
    let mut world = picky();
    [1, 2, 3, 4].into_iter().for_each(|id| world.add(request(id, 3)));
    assert_eq!(world.plan(), [(2, 3), (4, 3)], "who begins: the even ones");
    assert_eq!(world.lists().1, [1, 3], "who waits, where they waited");
}

#[test]
fn a_policy_can_close_the_door() {
    let mut world = picky();
    [2, 9, 4].into_iter().for_each(|id| world.add(request(id, 3)));
    assert_eq!(world.plan(), [(2, 3)], "nobody is let in behind number 9");
}

#[test]
fn a_policy_can_say_what_goes_together_in_a_step() {
    let mut world = picky();
    [2, 4, 6, 8].into_iter().for_each(|id| world.add(request(id, 3)));
    assert_eq!(world.plan(), [(2, 3), (4, 3)], "two rows and no more");
}

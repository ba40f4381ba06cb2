//! Running requests come first: the next tokens of each, and blocks for them.

use l5_scheduler::{
    Admitted, FinishReason, LeaseId, Policy, PolicyContext, Rank, Request, RequestId, RequestView,
    Scheduler, SchedulerConfig, Victim, policy::Fcfs,
};

use super::world::{World, config, request};

#[test]
fn who_runs_gets_its_one_token_and_then_who_waits_begins() {
    let mut world = World::new(config(16));
    [(1, 8), (2, 3)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    world.step();
    world.add(request(3, 5));
    assert_eq!(world.plan(), [(1, 1), (2, 1), (3, 5)], "decodes and a prompt in one step");
    let computed: Vec<_> =
        world.computed_and_cached().into_iter().map(|row| (row.0, row.1)).collect();
    assert_eq!(computed, [(1, 8), (2, 3), (3, 0)], "computed before");
    let admitted: Vec<_> =
        world.scheduler.view().step().rows.iter().map(|row| row.admitted).collect();
    assert_eq!(
        admitted,
        [Admitted::Before, Admitted::Before, Admitted::Now],
        "how they came to run"
    );
    assert_eq!(world.samples(), [1, 2, 3], "who gets a token");
}

#[test]
fn a_token_is_fed_in_the_step_after_it_was_chosen() {
    let mut world = World::new(config(16));
    world.add(request(1, 3));
    world.script.insert(1, vec![41, 42, 43]);
    world.step();
    for said in [41, 42, 43] {
        world.plan();
        let fed: Vec<u32> =
            world.scheduler.view().rows().flat_map(|row| row.tokens.to_vec()).collect();
        assert_eq!(fed, [said], "what the step feeds");
        world.run();
    }
}

#[test]
fn a_long_prompt_goes_on_where_it_stopped_and_is_sampled_at_its_end() {
    let mut world = World::new(SchedulerConfig { max_num_batched_tokens: 8, ..config(16) });
    world.add(request(1, 20));
    let mut steps = Vec::new();
    for _ in 0..4 {
        let rows = world.plan();
        steps.push((rows, world.samples()));
        world.run();
    }
    let parts = [(8, vec![]), (8, vec![]), (4, vec![1]), (1, vec![1])];
    assert_eq!(
        steps,
        parts.map(|(len, samples)| (vec![(1, len)], samples)),
        "parts, and who is sampled"
    );
}

#[test]
fn blocks_are_taken_when_the_first_token_behind_them_is_fed() {
    let mut world = World::new(config(16));
    world.add(Request { max_tokens: 9, ..request(1, 7) });
    let mut used = Vec::new();
    for _ in 0..7 {
        world.plan();
        used.push(16 - world.free());
        world.run();
    }
    // 7 tokens of the prompt in 2 blocks; then the 8th is fed, the 9th in the third block, ... the 13th in the fourth.
    assert_eq!(used, [2, 2, 3, 3, 3, 3, 4], "blocks in use, step by step");
}

#[test]
fn running_requests_share_a_step_in_the_order_of_their_admission() {
    let limits = SchedulerConfig {
        max_num_batched_tokens: 8,
        long_prefill_token_threshold: 4,
        ..config(32)
    };
    let mut world = World::new(limits);
    [(1, 10), (2, 10), (3, 10)].into_iter().for_each(|(id, len)| world.add(request(id, len)));
    let steps: Vec<_> = (0..5).map(|_| world.step().0).collect();
    let want = [
        vec![(1, 4), (2, 4)],
        vec![(1, 4), (2, 4)],
        vec![(1, 2), (2, 2), (3, 4)],
        vec![(1, 1), (2, 1), (3, 4)],
        vec![(1, 1), (2, 1), (3, 2)],
    ];
    assert_eq!(steps, want, "who gets how much of 8 tokens, at most 4 each");
}

#[test]
fn with_no_tokens_left_those_behind_sit_the_step_out() {
    let limits = SchedulerConfig { max_num_batched_tokens: 8, max_num_seqs: 2, ..config(32) };
    let mut world = World::new(limits);
    world.add(request(1, 4));
    world.add(request(2, 30));
    let steps: Vec<_> = (0..2).map(|_| world.step().0).collect();
    assert_eq!(steps, [[(1, 4), (2, 4)], [(1, 1), (2, 7)]], "a decode, and what is left of 8");
    let mut world = World::new(SchedulerConfig { max_num_batched_tokens: 8, ..config(32) });
    world.add(request(1, 30));
    world.step();
    world.add(request(2, 2));
    assert_eq!(world.plan(), [(1, 8)], "a long prompt takes all of every step");
}

#[test]
fn what_a_running_prompt_computes_can_be_shared_at_once() {
    let mut world = World::new(SchedulerConfig { max_num_batched_tokens: 12, ..config(16) });
    world.add(request(1, 16));
    world.step();
    world.add(Request { id: RequestId(2), ..request(1, 17) });
    assert_eq!(world.plan(), [(1, 4), (2, 1)], "12 tokens were cached before, 4 are computed now");
}

#[test]
fn an_answer_can_be_shared_as_a_prompt() {
    let mut world = World::new(config(16));
    world.add(Request { max_tokens: 6, ..request(1, 7) });
    world.run_to_the_end();
    // 7 tokens of the prompt and 5 of the answer were fed: three full blocks. The last token never was.
    let prompt: Vec<u32> =
        request(1, 7).prompt.into_iter().chain(100..106).chain([1, 2, 3]).collect();
    world.add(Request { prompt, ..request(2, 0) });
    assert_eq!(world.plan(), [(2, 4)], "16 tokens, 12 of them known from a conversation before");
}

#[test]
fn the_last_token_that_the_model_takes_is_said_and_never_fed() {
    let mut world = World::new(SchedulerConfig { max_model_len: 6, ..config(16) });
    world.add(Request { max_tokens: 100, ..request(1, 4) });
    assert_eq!(world.run_to_the_end(), [(1, FinishReason::Length)], "how it ended");
    assert_eq!(world.scheduler.stats().scheduled_tokens, 5, "tokens that were fed: 4 and 1");
    assert_eq!(world.scheduler.stats().sampled_tokens, 2, "tokens that were said");
}

#[test]
fn who_outgrows_the_pool_ends_and_harms_nobody() {
    let mut world = World::new(SchedulerConfig { max_num_active_seqs: Some(1), ..config(3) });
    world.add(Request { max_tokens: 100, ..request(1, 11) });
    world.add(Request { max_tokens: 2, ..request(2, 3) });
    // 12 slots: the prompt's 11 tokens, and the first of the answer. The second is said, but cannot be fed.
    assert!(world.step().1.is_empty() && world.step().1.is_empty(), "somebody ended early");
    let rows = world.plan();
    assert_eq!(rows, [(2, 3)], "the third step: the next one begins in the blocks of the first");
    let told: Vec<_> = world.scheduler.view().step().ended.clone();
    assert_eq!(told, [(RequestId(1), FinishReason::KvExhausted)], "what the step tells of ends");
    assert_eq!(world.run(), [(1, FinishReason::KvExhausted)], "who ended");
    assert_eq!(world.run_to_the_end(), [(2, FinishReason::Length)], "who ended then");
    assert_eq!(world.free(), 3, "free blocks of 3 at the end");
}

#[test]
fn drafts_ask_for_no_more_than_there_is() {
    let mut world = World::new(SchedulerConfig { num_lookahead_tokens: 6, ..config(3) });
    world.add(Request { max_tokens: 4, ..request(1, 9) });
    assert_eq!(
        world.run_to_the_end(),
        [(1, FinishReason::Length)],
        "how it ended, in all of the pool"
    );
}

/// Never takes anything from anybody.
struct Patient;

impl Policy for Patient {
    fn name(&self) -> &'static str {
        "patient"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        Fcfs.order(request, context)
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

#[test]
fn where_nobody_gives_way_the_needy_sit_out_until_somebody_leaves() {
    let scheduler = Scheduler::new(config(4)).unwrap().with_policy(Box::new(Patient));
    let mut world = World::of(scheduler);
    world.add(Request { max_tokens: 3, ..request(1, 7) });
    world.add(Request { max_tokens: 3, ..request(2, 8) });
    let mut steps = Vec::new();
    for _ in 0..4 {
        let rows = world.plan();
        assert!(world.preempted().is_empty(), "somebody was preempted");
        world.run();
        steps.push(rows);
    }
    // The 8th token of the first fits its blocks, the 9th of the second does not; nor does the 9th of the first.
    assert_eq!(steps[..2], [vec![(1, 7), (2, 8)], vec![(1, 1)]], "who takes part");
    assert_eq!(steps[2..], [vec![], vec![]], "who takes part then: two that wait for each other");
    assert!(world.scheduler.abort(RequestId(1)), "somebody leaves");
    assert_eq!(world.plan(), [(2, 1)], "who takes part when somebody has left");
}

#[test]
fn a_request_that_is_alone_grows_into_the_last_block() {
    let mut world = World::new(config(3));
    world.add(request(1, 8));
    assert_eq!(world.run_to_the_end(), [(1, FinishReason::Length)], "11 tokens in 3 blocks of 4");
}

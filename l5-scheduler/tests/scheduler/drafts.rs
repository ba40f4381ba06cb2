//! Drafts: how many are fed, with which blocks, and what is computed afterwards.

use std::collections::BTreeMap;

use l5_scheduler::{
    FinishReason, Request, RequestId, Resolved, Scheduler, SchedulerConfig, StepOutput, Time,
};

use super::world::{World, config, request};

/// Blocks of 4 tokens, `blocks` of them, and at most 3 drafts of a request in a step.
fn speculative(blocks: usize) -> SchedulerConfig {
    SchedulerConfig { num_speculative_tokens: 3, ..config(blocks) }
}

/// A world with one request of a 5-token prompt, whose output is 40, 41, 42, ... and whose drafts behind its first
/// output token are these.
fn world_with(config: SchedulerConfig, max_tokens: usize, drafts: &[u32]) -> World {
    let mut world = World::new(config);
    world.add(Request { max_tokens, ..request(1, 5) });
    world.script.insert(1, (40..60).collect());
    world.proposals.insert((1, 1), drafts.to_vec());
    world.step();
    world
}

/// Tokens and drafts that the planned step feeds.
fn fed(world: &World) -> Vec<(Vec<u32>, Vec<u32>)> {
    world.scheduler.view().rows().map(|row| (row.tokens.to_vec(), row.drafts.to_vec())).collect()
}

#[test]
fn a_row_feeds_its_newest_token_and_its_drafts() {
    let mut world = world_with(speculative(8), 10, &[41, 42, 43]);
    assert_eq!(world.plan(), [(1, 4)], "tokens of the row");
    assert_eq!(fed(&world), [(vec![40], vec![41, 42, 43])], "tokens and drafts");
    let step = world.scheduler.view().step().clone();
    assert_eq!((step.tokens, step.drafts()), (4, 3), "tokens and drafts of the step");
    assert_eq!((step.rows[0].fed(), step.rows[0].logit_rows()), (1, 4));
}

#[test]
fn accepted_drafts_are_computed_and_rejected_ones_are_not() {
    // Drafts, output tokens of the step, and computed tokens after it: 5 of the prompt, the first output token, and
    // the accepted drafts.
    let cases: [(&[u32], &[u32], usize); 4] = [
        (&[41, 42, 43], &[41, 42, 43, 44], 9),
        (&[41, 42, 7], &[41, 42, 43], 8),
        (&[7, 42, 43], &[41], 6),
        (&[], &[41], 6),
    ];
    for (drafts, output, computed) in cases {
        let mut world = world_with(speculative(8), 10, drafts);
        world.step();
        let want = [&[40], output].concat();
        assert_eq!(world.answer(1), want, "output after {drafts:?}");
        assert_eq!(world.tokens(1).1, computed, "computed tokens after {drafts:?}");
        let (stats, accepted) = (world.scheduler.stats(), computed - 6);
        assert_eq!(stats.drafted_rows, u64::from(!drafts.is_empty()), "rows with {drafts:?}");
        let by_position: Vec<_> = (0..3).map(|at| u64::from(at < accepted)).collect();
        assert_eq!(world.scheduler.accepted_by_position(), by_position, "positions of {drafts:?}");
        world.plan();
        let newest = vec![*output.last().unwrap()];
        assert_eq!(fed(&world), [(newest, vec![])], "the next step after {drafts:?}");
    }
}

#[test]
fn tokens_behind_a_rejected_draft_are_fed_though_one_of_them_equals_a_draft() {
    // A guide forces the tokens: the second one equals the draft at its place, but was computed behind the first draft.
    for (output, computed) in [([40, 41, 42], 6), ([40, 12, 42], 6), ([11, 41, 42], 7)] {
        let mut world = world_with(speculative(8), 10, &[11, 12]);
        world.plan();
        let (mut forced, mut resolved) = (StepOutput::default(), Resolved::default());
        forced.push(0, &output, None);
        world.scheduler.resolve(&forced, &mut resolved).unwrap();
        world.scheduler.apply(&resolved, Time::ZERO);
        assert_eq!(world.tokens(1).1, computed, "computed tokens after {output:?}");
        assert_eq!(world.plan(), [(1, 9 - computed)], "tokens of the row after {output:?}");
    }
}

#[test]
fn the_last_token_is_fed_again_even_if_it_equals_a_draft() {
    let mut world = world_with(speculative(8), 10, &[41, 42]);
    world.plan();
    // An executor that samples behind one draft only, though the second is right, too.
    let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
    output.push(0, &[41, 42], None);
    world.scheduler.resolve(&output, &mut resolved).unwrap();
    world.scheduler.apply(&resolved, Time::ZERO);
    let (tokens, computed) = world.tokens(1);
    assert_eq!((tokens.len(), computed), (8, 7), "tokens, and computed ones");
    assert_eq!(world.plan(), [(1, 1)], "the newest token is fed");
}

#[test]
fn every_running_request_gets_its_token_before_any_draft() {
    // 5 tokens a step for 3 requests: two are left for drafts.
    let tight = SchedulerConfig { max_num_seqs: 3, max_num_batched_tokens: 5, ..speculative(16) };
    let mut world = World::new(tight);
    for id in 1..=3 {
        world.add(Request { max_tokens: 10, ..request(id, 1) });
        for n in 1..6 {
            world.proposals.insert((id, n), vec![7; 3]);
        }
    }
    world.step();
    assert_eq!(world.plan(), [(1, 3), (2, 1), (3, 1)], "rows of the step");
    assert_eq!(world.scheduler.view().step().rows[0].drafts, 2, "drafts of the first request");
}

#[test]
fn drafts_preempt_no_request_and_end_none() {
    // Two requests with 4 tokens of a prompt, and 4 blocks of 4 tokens: each needs a second block now, and a third for
    // its last draft.
    let mut world = World::new(speculative(4));
    for id in [1, 2] {
        world.add(Request { max_tokens: 10, ..request(id, 4) });
        world.proposals.insert((id, 1), vec![7; 3]);
        world.proposals.insert((id, 2), vec![7; 3]);
    }
    world.step();
    assert_eq!(world.plan(), [(1, 4), (2, 4)], "slots 5 to 8 are in their second blocks");
    world.run();
    assert_eq!(world.plan(), [(1, 3), (2, 3)], "slots 6 to 8, and no block for a ninth");
    assert_eq!(world.preempted(), [0; 0], "preempted requests");
    assert_eq!(world.run(), [], "ended requests");
}

#[test]
fn blocks_of_rejected_drafts_are_taken_back_before_a_request_is_preempted() {
    // The first request's drafts take the last free block; the second request needs it a step later.
    let mut world = World::new(speculative(4));
    world.add(Request { max_tokens: 10, ..request(1, 6) });
    world.add(Request { max_tokens: 10, ..request(2, 3) });
    world.proposals.insert((1, 1), vec![7; 3]);
    world.step();
    assert_eq!(world.free(), 1, "free blocks of 4");
    assert_eq!(world.step().0, [(1, 4), (2, 1)], "slots 7 to 10, and 4");
    assert_eq!(world.free(), 0, "free blocks while the first request holds one for its drafts");
    assert_eq!(world.plan(), [(1, 1), (2, 1)], "slots 8, and 5");
    assert_eq!(world.preempted(), [0; 0], "preempted requests");
    assert_eq!(world.free(), 0, "free blocks: the second request has it");
    world.run();
    world.scheduler.blocks().check_invariants().unwrap();
    world.run_to_the_end();
    assert_eq!(world.free(), 4, "free blocks in the end");
}

#[test]
fn planned_drafts_are_cut_when_a_request_behind_them_needs_their_block() {
    // One block is free: the first request's drafts take it, and the second request's next token needs it.
    let mut world = World::new(speculative(4));
    world.add(Request { max_tokens: 10, ..request(1, 6) });
    world.add(Request { max_tokens: 10, ..request(2, 4) });
    world.script.insert(1, (40..60).collect());
    world.proposals.insert((1, 1), vec![41, 42, 43]);
    world.step();
    assert_eq!(world.free(), 1, "free blocks of 4");
    assert_eq!(world.plan(), [(1, 2), (2, 1)], "slots 7 and 8, and 5");
    assert_eq!(world.preempted(), [0; 0], "preempted requests");
    assert_eq!(world.scheduler.view().step().tokens, 3, "tokens of the step");
    world.run();
    assert_eq!(world.answer(1), [40, 41, 42], "output");
    assert_eq!(world.tokens(1).1, 8, "computed tokens");
    world.scheduler.blocks().check_invariants().unwrap();
}

#[test]
fn a_row_says_how_many_blocks_its_table_has_kept() {
    // Two blocks are left for drafts of `a`; `b` needs one of them, and `a` gets the other one back at another place.
    let mut world = World::new(speculative(4));
    for id in [1, 2] {
        world.add(Request { max_tokens: 20, ..request(id, 2) });
        world.proposals.insert((id, 1), vec![9; 3]);
    }
    let mut held: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for _ in 0..12 {
        world.plan();
        for row in world.scheduler.view().rows() {
            let (kept, table) = (row.row.blocks_before, row.table.blocks());
            let held = held.entry(row.row.id.0).or_default();
            assert!(kept <= held.len() && kept <= table.len(), "{kept} of {held:?}, {table:?}");
            held.truncate(kept);
            held.extend(&table[kept..]);
            assert_eq!(held, table, "what an executor holds of {}", row.row.id);
        }
        world.run();
    }
}

#[test]
fn blocks_of_rejected_drafts_are_taken_back_for_an_arrival() {
    let mut world = World::new(speculative(4));
    world.add(Request { max_tokens: 10, ..request(1, 6) });
    world.proposals.insert((1, 1), vec![7; 3]);
    world.step();
    world.step();
    assert_eq!(world.free(), 1, "one block is held for drafts");
    world.add(request(2, 5));
    assert_eq!(world.plan(), [(1, 1), (2, 5)], "the arrival needs two blocks");
}

#[test]
fn drafts_are_cut_for_an_arrival_only_if_it_fits_then() {
    // A sampled token behind a prompt of 5, and three drafts: 9 slots in 3 of 4 blocks, of which one is for drafts only.
    for (arrival, planned) in [(12, vec![(1, 4)]), (8, vec![(1, 3), (2, 8)])] {
        let mut world = world_with(speculative(4), 10, &[41, 42, 43]);
        world.add(request(2, arrival));
        assert_eq!(world.plan(), planned, "an arrival of {arrival} tokens");
    }
}

#[test]
fn drafts_use_free_slots_of_their_own_block() {
    // The pool has no block but those of the request: 6 of 8 slots are used, and the newest token takes one.
    let mut world = world_with(speculative(2), 10, &[41, 42, 43]);
    assert_eq!(world.plan(), [(1, 3)], "slots 6 to 8: a token and two drafts");
    assert_eq!(fed(&world), [(vec![40], vec![41, 42])], "tokens and drafts");
    assert_eq!(world.scheduler.view().step().tokens, 3, "tokens of the step");
    world.run();
    assert_eq!(world.answer(1), [40, 41, 42, 43], "output");
    let stats = world.scheduler.stats();
    assert_eq!((stats.draft_tokens, stats.cut_draft_tokens), (2, 1), "drafts that had no slot");
}

#[test]
fn no_more_drafts_are_kept_than_output_tokens_can_follow() {
    let world = world_with(speculative(8), 10, &[41, 42, 43, 44, 45]);
    let drafts = |world: &World| world.scheduler.request(RequestId(1)).unwrap().drafts().to_vec();
    assert_eq!(drafts(&world), [41, 42, 43], "num_speculative_tokens is 3");
    // One of three output tokens is there. Behind one draft there is the third.
    let world = world_with(speculative(8), 3, &[41, 42, 43]);
    assert_eq!(drafts(&world), [41], "max_tokens is 3");
    let world = world_with(speculative(8), 2, &[41, 42, 43]);
    assert_eq!(drafts(&world), [0; 0], "max_tokens is 2");
    let world = world_with(config(8), 10, &[41]);
    assert_eq!(drafts(&world), [0; 0], "num_speculative_tokens is 0");
}

#[test]
fn no_more_drafts_are_fed_than_the_model_takes() {
    // Of 8 tokens, 5 are the prompt and one is the first output token. Behind one draft there is the eighth.
    let short = SchedulerConfig { max_model_len: 8, ..speculative(8) };
    let mut world = world_with(short, 10, &[41, 42, 43]);
    assert_eq!(world.plan(), [(1, 2)], "a token and a draft");
    assert_eq!(world.run(), [(1, FinishReason::Length)], "8 tokens");
}

#[test]
fn a_request_that_ends_within_its_drafts_has_no_token_behind_the_end() {
    let mut world = World::new(speculative(8));
    world.add(Request { max_tokens: 10, eos: vec![42], ..request(1, 5) });
    world.script.insert(1, (40..60).collect());
    world.proposals.insert((1, 1), vec![41, 42, 43]);
    world.proposals.insert((1, 5), vec![45]);
    world.step();
    world.plan();
    assert_eq!(world.run(), [(1, FinishReason::Stop)]);
    let tokens: Vec<u32> = world.resolved.rows().flat_map(|row| row.tokens.to_vec()).collect();
    assert_eq!(tokens, [41, 42], "tokens of the step");
    assert_eq!(world.free(), 8, "free blocks");
}

#[test]
fn a_prompt_behind_a_request_with_drafts_gets_what_they_leave() {
    let tight = SchedulerConfig { max_num_batched_tokens: 8, ..speculative(16) };
    let mut world = world_with(tight, 10, &[41, 42, 43]);
    world.add(request(2, 20));
    assert_eq!(world.plan(), [(1, 4), (2, 4)], "a row with drafts, and a chunk");
    world.run();
    // The chunk that runs now comes before the next drafts of nobody: there are none.
    assert_eq!(world.plan(), [(1, 1), (2, 7)]);
}

#[test]
fn the_threshold_of_long_prompts_cuts_no_drafts() {
    let threshold = SchedulerConfig { long_prefill_token_threshold: 2, ..speculative(16) };
    let mut world = world_with(threshold, 10, &[41, 42, 43]);
    world.add(request(2, 9));
    assert_eq!(world.plan(), [(1, 4), (2, 2)], "a row with drafts, and a chunk");
}

#[test]
fn drafts_outlive_an_abandoned_step_and_end_with_a_preemption() {
    let mut world = world_with(speculative(8), 10, &[41, 42, 43]);
    assert_eq!(world.plan(), [(1, 4)]);
    let free = world.free();
    world.scheduler.abandon();
    assert_eq!(world.plan(), [(1, 4)], "planned again");
    assert_eq!(world.free(), free, "free blocks, as before");
    world.run();
    assert_eq!(world.answer(1), [40, 41, 42, 43, 44]);
    let mut world = world_with(speculative(8), 10, &[41, 42, 43]);
    world.scheduler.reset_prefix_cache(true).unwrap();
    assert_eq!(world.plan(), [(1, 6)], "the preempted request is computed anew, without drafts");
}

#[test]
fn an_aborted_request_accepts_nothing() {
    let mut world = world_with(speculative(8), 10, &[41, 42, 43]);
    world.plan();
    world.scheduler.abort(RequestId(1));
    assert_eq!(world.run(), [(1, FinishReason::Aborted)]);
    assert_eq!(world.free(), 8, "free blocks");
    let stats = world.scheduler.stats();
    assert_eq!((stats.draft_tokens, stats.accepted_tokens), (3, 0));
}

#[test]
fn what_drafts_left_in_a_block_is_hit_by_no_request() {
    // 7 of 8 slots are fed, the last three with drafts, of which the first is right. The second block is full only when
    // its tokens are verified.
    let mut world = world_with(speculative(16), 10, &[41, 7, 7]);
    world.step();
    let (tokens, computed) = world.tokens(1);
    assert_eq!((tokens.len(), computed), (8, 7), "tokens, and computed ones");
    // The same tokens as a prompt: one block of 4 can be hit, and the second cannot.
    let prompt = [tokens, vec![9]].concat();
    world.add(Request { id: RequestId(2), prompt, max_tokens: 1, ..Request::default() });
    world.plan();
    let hit = world.computed_and_cached();
    assert_eq!(hit[1], (2, 8, 8), "the second block is full with the token that is fed now");
    world.scheduler.abandon();
    world.scheduler.abort(RequestId(1));
    world.plan();
    assert_eq!(world.computed_and_cached()[0].2, 4, "tokens that are hit without that step");
}

#[test]
fn accepted_drafts_fill_blocks_that_can_be_hit() {
    // The prompt and the accepted drafts fill two blocks.
    let mut world = world_with(speculative(16), 10, &[41, 42, 43]);
    world.step();
    let (tokens, computed) = world.tokens(1);
    assert_eq!((tokens.len(), computed), (10, 9), "tokens, and computed ones");
    world.step();
    let prompt = [tokens, vec![9]].concat();
    world.add(Request { id: RequestId(2), prompt, max_tokens: 1, ..Request::default() });
    world.plan();
    assert_eq!(world.computed_and_cached()[1], (2, 8, 8), "two blocks are hit");
}

#[test]
fn proposals_that_do_not_fit_the_step_are_an_error() {
    let tight = SchedulerConfig { max_num_batched_tokens: 10, ..speculative(8) };
    let mut scheduler = Scheduler::new(tight).unwrap();
    // The third row is not complete, so it samples no token.
    for (id, len) in [(1, 5), (2, 3), (3, 5)] {
        scheduler.add_request(request(id, len)).unwrap();
    }
    scheduler.plan(Time::ZERO);
    let resolve = |proposals: &[usize]| {
        let mut output = StepOutput::default();
        output.push(0, &[6], None);
        output.push(1, &[4], None);
        proposals.iter().for_each(|row| output.propose(*row, &[1, 2]));
        scheduler.resolve(&output, &mut Resolved::default())
    };
    for fine in [&[][..], &[0], &[1], &[0, 1]] {
        assert_eq!(resolve(fine), Ok(()), "{fine:?}");
    }
    for wrong in [&[2][..], &[1, 0], &[0, 0], &[0, 1, 7]] {
        assert!(resolve(wrong).is_err(), "{wrong:?}");
    }
}

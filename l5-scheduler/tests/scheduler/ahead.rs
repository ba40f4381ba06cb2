//! Steps that are planned while the step before them runs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use l3_paged_kv::TokenChain;
use l5_scheduler::{
    Compose, FinishReason, Job, KvConnector, Matched, Note, PolicyContext, PolicyEvent, Request,
    RequestId, RequestView, Resolved, Retain, Retention, Scheduler, SchedulerConfig, StepOutput,
    Time,
};

use super::world::{World, config, request};

/// A world with one request of a 5-token prompt, and its first step planned.
fn world_with(config: SchedulerConfig, max_tokens: usize) -> World {
    let mut world = World::new(config);
    world.add(Request { max_tokens, ..request(1, 5) });
    assert_eq!(world.plan(), [(1, 5)]);
    world
}

/// Of each row of the newest step: number of computed tokens, tokens, whether it awaits its token, whether it samples.
fn rows(world: &World) -> Vec<(usize, Vec<u32>, bool, bool)> {
    let rows = world.scheduler.view().rows();
    rows.map(|row| (row.row.computed, row.tokens.to_vec(), row.row.awaits, row.row.samples))
        .collect()
}

/// Outputs of requests with these prompts, at most `max_tokens` each, with steps planned ahead or not.
fn outputs(config: &SchedulerConfig, requests: &[Request], ahead: bool) -> Vec<(u64, Vec<u32>)> {
    let mut world = World::new(config.clone());
    let (mut outputs, mut planned) = (Vec::new(), 0);
    for request in requests {
        world.add(request.clone());
    }
    while world.scheduler.has_unfinished() {
        if !world.scheduler.is_open() {
            world.plan();
        }
        planned += usize::from(ahead && world.plan_ahead().is_some());
        world.run();
        let rows = world.resolved.rows();
        outputs.extend(rows.map(|row| (row.id.0, row.tokens.to_vec())));
    }
    assert_eq!(planned > 0, ahead, "steps planned ahead: {planned}");
    assert_eq!(world.free(), config.capacity(), "free blocks at the end");
    outputs.sort_by_key(|(id, _)| *id);
    outputs
}

#[test]
fn a_row_awaits_the_token_that_the_running_step_samples() {
    let mut world = world_with(config(8), 10);
    assert_eq!(world.plan_ahead().unwrap(), [(1, 1)]);
    assert_eq!(rows(&world), [(5, vec![], true, true)], "planned ahead");
    world.run();
    assert_eq!(rows(&world), [(5, vec![100], true, true)], "when the token is known");
    assert_eq!(world.tokens(1), ([1000, 1001, 1002, 1003, 1004, 100].to_vec(), 5));
    world.run();
    assert_eq!(world.answer(1), [100, 101]);
    assert_eq!(world.tokens(1).1, 6, "computed tokens");
}

#[test]
fn chunks_of_a_prompt_follow_each_other() {
    let config = SchedulerConfig { max_num_batched_tokens: 4, max_num_seqs: 2, ..config(8) };
    let mut world = World::new(config);
    world.add(request(1, 10));
    assert_eq!(world.plan(), [(1, 4)]);
    assert_eq!(world.plan_ahead().unwrap(), [(1, 4)]);
    assert_eq!(rows(&world), [(4, (1004..1008).collect(), false, false)]);
    world.run();
    assert_eq!(world.plan_ahead().unwrap(), [(1, 2)]);
    assert_eq!(rows(&world), [(8, vec![1008, 1009], false, true)]);
    world.run();
    assert_eq!(world.plan_ahead().unwrap(), [(1, 1)]);
    assert_eq!(rows(&world), [(10, vec![], true, true)]);
}

#[test]
fn a_request_that_ends_with_its_next_token_is_not_planned() {
    let at_most = |max_tokens, max_model_len| {
        let mut world = world_with(SchedulerConfig { max_model_len, ..config(8) }, max_tokens);
        let mut ahead = 0;
        while world.plan_ahead().is_some() {
            ahead += 1;
            world.run();
        }
        assert_eq!(world.run(), [(1, FinishReason::Length)]);
        ahead
    };
    assert_eq!(at_most(1, 100), 0, "steps ahead for one output token");
    assert_eq!(at_most(3, 100), 2);
    assert_eq!(at_most(100, 8), 2, "of a model of 8 tokens");
}

#[test]
fn a_request_that_has_ended_keeps_blocks_and_seat_until_its_last_row_is_over() {
    let config = SchedulerConfig { max_num_seqs: 1, ..config(3) };
    let mut world = World::new(config);
    // Token 100 stops it. Its third block is for the slot of token 9, which is of no use then.
    world.add(Request { stop_token_ids: vec![100], max_tokens: 10, ..request(1, 8) });
    world.add(request(2, 4));
    world.plan();
    assert_eq!(world.plan_ahead().unwrap(), [(1, 1)]);
    assert_eq!(world.free(), 0);
    assert_eq!(world.run(), [(1, FinishReason::Stop)], "its end is reported at once");
    assert_eq!(rows(&world), [(8, vec![100], true, false)], "its row samples no more");
    assert_eq!(world.free(), 0, "free blocks while its row runs");
    assert_eq!(world.lists(), (vec![], vec![2]));
    assert!(world.scheduler.request(RequestId(1)).is_none());
    assert_eq!(world.plan_ahead(), None, "neither a seat nor blocks for request 2");
    assert!(world.scheduler.has_unfinished());
    assert_eq!(world.run(), [], "its end is reported once");
    assert_eq!(world.free(), 3);
    assert_eq!(world.plan(), [(2, 4)]);
}

#[test]
fn nothing_is_taken_of_a_row_that_samples_no_more() {
    let mut world = World::new(config(8));
    world.add(Request { stop_token_ids: vec![100], max_tokens: 10, ..request(1, 5) });
    world.plan();
    world.plan_ahead();
    world.run();
    let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
    output.push(0, &[101], None);
    let error = world.scheduler.resolve(&output, &mut resolved).unwrap_err();
    assert_eq!(error.to_string(), "row 0 of a step came with 1 tokens, out of turn");
}

#[test]
fn another_request_can_have_the_id_of_one_that_has_ended() {
    let mut world = World::new(config(8));
    world.add(Request { stop_token_ids: vec![100], max_tokens: 10, ..request(1, 5) });
    world.plan();
    world.plan_ahead();
    assert_eq!(world.run(), [(1, FinishReason::Stop)]);
    world.add(request(1, 3));
    assert_eq!(world.plan_ahead().unwrap(), [(1, 3)]);
    let seats: Vec<_> = world.scheduler.view().rows().map(|row| row.row.seat.index).collect();
    assert_eq!(seats, [1], "the first seat is taken until the last row of the other one is over");
    world.run();
    assert_eq!(world.scheduler.request(RequestId(1)).unwrap().num_tokens(), 3);
    assert_eq!(world.run_to_the_end(), [(1, FinishReason::Length)]);
    assert_eq!(world.free(), 8);
}

#[test]
fn a_row_behind_several_tokens_samples_no_more() {
    let mut world = world_with(config(8), 10);
    world.plan_ahead();
    // A guide has forced two tokens behind the sampled one.
    let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
    output.push(0, &[100, 101, 102], None);
    world.scheduler.resolve(&output, &mut resolved).unwrap();
    world.scheduler.apply(&resolved, Time::ZERO);
    assert_eq!(rows(&world), [(5, vec![100], true, false)], "the token that it feeds is right");
    assert_eq!(world.plan_ahead().unwrap(), [(1, 2)]);
    assert_eq!(rows(&world), [(6, vec![101, 102], false, true)]);
    world.run();
    world.run();
    assert_eq!(world.answer(1), [100, 101, 102, 103]);
}

#[test]
fn an_aborted_request_ends_when_its_last_row_is_over() {
    let mut world = world_with(config(8), 10);
    world.plan_ahead();
    assert!(world.scheduler.abort(RequestId(1)));
    assert!(!world.scheduler.abort(RequestId(1)), "it is aborted already");
    assert_eq!(world.run(), [], "one of its rows runs");
    assert_eq!(rows(&world), [(5, vec![], true, false)], "its token does not count");
    assert_eq!(world.plan_ahead(), None, "it gets no other row");
    assert_eq!(world.run(), [(1, FinishReason::Aborted)]);
    assert_eq!(world.free(), 8);
}

#[test]
fn a_composer_may_ask_for_an_aborted_request_whose_token_was_dropped() {
    let mut world = world_with(SchedulerConfig { compose: Compose::STABLE, ..config(8) }, 10);
    world.plan_ahead();
    assert!(world.scheduler.abort(RequestId(1)));
    world.run();
    assert_eq!(world.plan_ahead(), None);
    assert_eq!(world.run(), [(1, FinishReason::Aborted)]);
}

#[test]
fn a_job_is_forgotten_when_the_end_of_its_last_step_is_reported() {
    let arrival = |ahead: bool| {
        let mut world = World::new(config(8));
        let job = |last_step| Some(Job { id: "job".to_owned(), last_step });
        let last = Request { job: job(true), arrival: Time(1.0), ..request(1, 5) };
        world.add(Request { stop_token_ids: vec![100], ..last });
        world.plan();
        if ahead {
            world.plan_ahead().unwrap();
        }
        assert_eq!(world.run(), [(1, FinishReason::Stop)]);
        world.add(Request { job: job(false), arrival: Time(50.0), ..request(2, 5) });
        world.scheduler.request(RequestId(2)).unwrap().job_arrival()
    };
    assert_eq!(arrival(true), arrival(false));
}

/// Keys and values of the first block of each request, if it is asked twice.
#[derive(Default)]
struct Remote {
    asked: HashSet<RequestId>,
}

impl KvConnector for Remote {
    fn matched_tokens(&mut self, id: RequestId, _: &TokenChain, _: usize) -> Matched {
        if self.asked.insert(id) { Matched::AskAgain } else { Matched::Tokens(4) }
    }
}

#[test]
fn nothing_is_planned_ahead_that_loads_nor_behind_a_load() {
    let connector = Box::new(Remote::default());
    let scheduler = Scheduler::new(config(8)).unwrap().with_kv_connector(connector);
    let mut world = World::of(scheduler);
    world.add(Request { max_tokens: 10, ..request(1, 3) });
    world.plan();
    world.plan_ahead().expect("no load");
    world.add(request(2, 9));
    world.run();
    assert_eq!(world.plan_ahead().unwrap(), [(1, 1)], "the connector does not know yet");
    world.run();
    assert_eq!(world.plan_ahead(), None, "a load would begin");
    world.run();
    world.plan();
    assert_eq!(world.scheduler.view().step().ops.len(), 1);
    assert_eq!(world.plan_ahead(), None, "the running step has begun a load");
    assert!(world.scheduler.abort(RequestId(2)));
    assert!(world.scheduler.kv_arrived(RequestId(2), 4));
    world.run();
    assert_eq!(world.ended(), []);
    assert!(world.scheduler.request(RequestId(2)).is_none());
}

/// Keys and values of all requests but the first.
struct AllButTheFirst;

impl KvConnector for AllButTheFirst {
    fn matched_tokens(&mut self, id: RequestId, chain: &TokenChain, from: usize) -> Matched {
        Matched::Tokens(if id.0 == 1 { 0 } else { chain.len() - from })
    }
}

#[test]
fn steps_are_planned_ahead_while_a_request_waits_for_the_blocks_of_its_load() {
    let scheduler = Scheduler::new(config(8)).unwrap();
    let mut world = World::of(scheduler.with_kv_connector(Box::new(AllButTheFirst)));
    world.add(Request { max_tokens: 8, ..request(1, 9) });
    world.plan();
    // It needs 6 of 8 blocks, and request 1 has 3 or 4.
    world.add(request(2, 22));
    for step in 1..8 {
        let ahead = world.plan_ahead();
        assert_eq!(ahead, Some(vec![(1, 1)]), "the step behind step {step}");
        assert_eq!(world.run(), [], "ends of step {step}");
    }
    assert_eq!(world.plan_ahead(), None, "request 1 ends");
    assert_eq!(world.run(), [(1, FinishReason::Length)]);
    world.plan();
    assert_eq!(world.scheduler.view().step().ops.len(), 1, "the load of request 2");
}

/// Writes down which requests arrive and end.
struct Log(Arc<Mutex<Vec<(&'static str, u64)>>>);

impl Retention for Log {
    fn retain(&mut self, _: &RequestView<'_>, _: Option<&Note>, _: &PolicyContext<'_>) -> Retain {
        Retain::Free
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, _: &PolicyContext<'_>) {
        match event {
            PolicyEvent::Arrived(request) => {
                self.0.lock().unwrap().push(("arrived", request.id().0))
            }
            PolicyEvent::Finished(request, _) => {
                self.0.lock().unwrap().push(("ended", request.id().0))
            }
            _ => {}
        }
    }
}

#[test]
fn a_retention_hears_of_an_end_before_the_next_request_of_that_id_arrives() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let retention = Box::new(Log(log.clone()));
    let mut world = World::of(Scheduler::new(config(8)).unwrap().with_retention(retention));
    world.add(Request { stop_token_ids: vec![100], max_tokens: 10, ..request(1, 5) });
    world.plan();
    world.plan_ahead().unwrap();
    world.run();
    world.add(request(1, 3));
    world.run();
    assert_eq!(*log.lock().unwrap(), [("arrived", 1), ("ended", 1), ("arrived", 1)]);
}

#[test]
fn nothing_is_planned_ahead_that_preempts_a_request() {
    // Two requests of 4 tokens, and one block beside theirs: the second one finds none for its fifth token.
    let mut world = World::new(config(3));
    world.add(Request { max_tokens: 9, ..request(1, 4) });
    world.add(Request { max_tokens: 9, ..request(2, 4) });
    assert_eq!(world.plan(), [(1, 4), (2, 4)]);
    let (free, steps) = (world.free(), world.scheduler.stats());
    assert_eq!(world.plan_ahead(), None);
    assert_eq!((world.free(), world.scheduler.stats()), (free, steps), "nothing has changed");
    world.run();
    assert_eq!(world.plan(), [(1, 1)]);
    assert_eq!(world.preempted(), [2]);
}

#[test]
fn nothing_is_planned_ahead_for_a_request_at_the_end_of_the_pool() {
    let mut world = World::new(SchedulerConfig { max_model_len: 100, ..config(2) });
    world.add(Request { max_tokens: 90, ..request(1, 7) });
    world.plan();
    world.plan_ahead().expect("a slot for the eighth token");
    world.run();
    assert_eq!(world.plan_ahead(), None, "and none for the ninth");
    assert_eq!(world.run(), []);
    assert_eq!(world.plan(), []);
    assert_eq!(world.ended(), [(1, FinishReason::KvExhausted)]);
}

#[test]
fn both_steps_are_taken_back() {
    let mut world = world_with(config(8), 10);
    world.plan_ahead();
    world.run();
    let before = (world.free(), world.tokens(1));
    world.add(request(2, 6));
    world.plan_ahead().unwrap();
    world.scheduler.abandon();
    assert!(!world.scheduler.is_open());
    assert_eq!((world.free(), world.tokens(1)), before);
    assert_eq!(world.lists(), (vec![1], vec![2]));
    assert_eq!(world.plan(), [(1, 1), (2, 6)]);
    assert_eq!(rows(&world)[0], (5, vec![100], false, true), "the token is known now");
    world.run();
    assert_eq!(world.answer(1), [100, 101]);
}

#[test]
fn a_step_ahead_is_taken_back_alone() {
    let mut world = world_with(config(8), 10);
    world.add(request(2, 6));
    let free = world.free();
    world.plan_ahead().unwrap();
    world.scheduler.abandon_ahead();
    world.scheduler.abandon_ahead();
    assert_eq!(world.free(), free);
    assert_eq!(world.lists(), (vec![1], vec![2]));
    assert_eq!(rows(&world).len(), 1, "the running step");
    world.run();
    assert_eq!(world.tokens(1).1, 5, "computed tokens");
    assert_eq!(world.plan(), [(1, 1), (2, 6)]);
}

#[test]
fn an_ended_request_leaves_when_its_last_step_is_taken_back() {
    let mut world = World::new(config(8));
    world.add(Request { stop_token_ids: vec![100], max_tokens: 10, ..request(1, 5) });
    world.plan();
    world.plan_ahead();
    assert_eq!(world.run(), [(1, FinishReason::Stop)]);
    world.scheduler.abandon();
    assert_eq!(world.ended(), []);
    assert_eq!(world.free(), 8);
    assert!(!world.scheduler.has_unfinished());
}

#[test]
fn a_request_hits_what_the_running_step_computes() {
    let mut world = world_with(config(8), 10);
    world.add(Request { prompt: (1000..1006).collect(), ..request(2, 6) });
    assert_eq!(world.plan_ahead().unwrap(), [(1, 1), (2, 2)]);
    assert_eq!(world.computed_and_cached()[1], (2, 4, 4));
    world.scheduler.abandon();
    // The request whose blocks it would have hit was not computed.
    assert!(world.scheduler.abort(RequestId(1)));
    assert_eq!(world.plan(), [(2, 6)]);
}

#[test]
fn the_same_blocks_are_cached_as_without() {
    let cached = |ahead: bool| {
        let mut world = World::new(config(20));
        world.add(Request { max_tokens: 12, ..request(1, 6) });
        world.add(Request { max_tokens: 3, ..request(2, 6) });
        world.add(Request { stop_token_ids: vec![306], max_tokens: 12, ..request(3, 6) });
        world.plan();
        while world.scheduler.is_open() {
            if ahead {
                world.plan_ahead();
            }
            world.run();
            if !world.scheduler.is_open() && world.scheduler.has_unfinished() {
                world.plan();
            }
        }
        world.scheduler.blocks().cache().len()
    };
    assert_eq!(cached(true), cached(false));
    // 17, 8 and 12 computed tokens.
    assert_eq!(cached(false), 4 + 2 + 3);
}

#[test]
fn with_drafts_nothing_is_planned_ahead() {
    let config = SchedulerConfig { num_speculative_tokens: 2, ..config(8) };
    let mut world = world_with(config, 10);
    assert_eq!(world.plan_ahead(), None);
    world.run();
    assert_eq!(world.answer(1), [100]);
}

#[test]
fn at_most_one_step_is_planned_ahead() {
    let mut world = World::new(config(8));
    assert_eq!(world.plan_ahead(), None, "no step runs");
    world.add(request(1, 5));
    world.plan();
    assert!(world.plan_ahead().is_some());
    assert_eq!(world.plan_ahead(), None, "two steps are open");
    assert_eq!(world.scheduler.stats().steps, 2);
}

#[test]
fn tokens_are_the_same_as_without() {
    let requests: Vec<_> = (0..9)
        .map(|id| Request {
            max_tokens: 3 + id as usize % 5,
            stop_token_ids: vec![100 * id as u32 + 2],
            ..request(id, 1 + 3 * id as usize % 11)
        })
        .collect();
    for blocks in [8, 12, 40] {
        let config =
            SchedulerConfig { max_num_seqs: 5, max_num_batched_tokens: 9, ..config(blocks) };
        let without = outputs(&config, &requests, false);
        assert_eq!(outputs(&config, &requests, true), without, "{blocks} blocks");
    }
}

/// Holds the blocks of every request for 10 seconds.
struct Holds;

impl Retention for Holds {
    fn retain(
        &mut self,
        _: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        Retain::LeaseUntil(context.now + 10.0)
    }
}

#[test]
fn a_lease_holds_the_same_blocks_as_without() {
    let lease = |ahead: bool| {
        let scheduler = Scheduler::new(config(8)).unwrap().with_retention(Box::new(Holds));
        let mut world = World::of(scheduler);
        world.add(Request { stop_token_ids: vec![100], max_tokens: 10, ..request(1, 7) });
        world.plan();
        if ahead {
            world.plan_ahead().unwrap();
        }
        assert_eq!(world.run(), [(1, FinishReason::Stop)]);
        if ahead {
            assert_eq!(world.scheduler.leases().len(), 0, "its blocks are being written");
            world.run();
        }
        let lease = world.scheduler.leases().first().expect("a lease");
        (lease.blocks, lease.since, world.free())
    };
    assert_eq!(lease(true), lease(false));
}

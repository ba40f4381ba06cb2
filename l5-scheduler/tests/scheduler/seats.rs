//! Running requests have seats, and keep them.

use std::collections::BTreeMap;

use l5_scheduler::{
    FinishReason, Rejection, Request, RequestId, RequestView, Resolved, SchedulerConfig, Seat,
    StepOutput, Time,
};

use super::world::{World, config, request};

/// Seats of the running requests.
fn seats(world: &World) -> BTreeMap<u64, Seat> {
    let seated = |request: RequestView<'_>| Some((request.id().0, request.seat()?));
    world.scheduler.running().filter_map(seated).collect()
}

/// Index and generation of a request's seat.
fn seat(world: &World, id: u64) -> (u32, u32) {
    let seat = seats(world)[&id];
    (seat.index, seat.generation)
}

#[test]
fn requests_get_seats_in_the_order_of_their_admission() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 2, ..config(32) });
    for id in 1..=3 {
        world.add(request(id, 5));
    }
    assert_eq!(world.plan(), [(1, 5), (2, 5)], "who is admitted");
    let rows = &world.scheduler.view().step().rows;
    assert_eq!(rows.iter().map(|row| row.seat.index).collect::<Vec<_>>(), [0, 1], "of both rows");
    assert_eq!([1, 2].map(|id| seat(&world, id)), [(0, 0), (1, 0)], "of both requests");
}

#[test]
fn a_request_keeps_its_seat_while_others_come_and_go() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 3, ..config(32) });
    for id in 1..=3 {
        world.add(request(id, 5));
    }
    world.step();
    assert_eq!(
        [1, 2, 3].map(|id| seat(&world, id)),
        [(0, 0), (1, 0), (2, 0)],
        "in order of admission"
    );
    world.scheduler.abort(RequestId(1));
    world.step();
    assert_eq!([2, 3].map(|id| seat(&world, id)), [(1, 0), (2, 0)], "the others do not move up");
    world.add(request(4, 5));
    world.step();
    assert_eq!(seat(&world, 4), (0, 1), "the free seat, given for the second time");
    let rows = &world.scheduler.view().step().rows;
    let rows: Vec<_> = rows.iter().map(|row| (row.id.0, row.seat.index)).collect();
    assert_eq!(rows, [(2, 1), (3, 2), (4, 0)], "rows are in the order of admission, seats are not");
}

#[test]
fn a_request_that_waits_has_no_seat() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 1, ..config(32) });
    world.add(request(1, 5));
    world.add(request(2, 5));
    world.step();
    let waiting = world.scheduler.request(RequestId(2)).unwrap();
    assert_eq!(waiting.seat(), None);
    assert_eq!(world.scheduler.view().free_seats().len(), 0, "free seats beside one that is taken");
}

#[test]
fn a_request_that_is_preempted_returns_its_seat_and_may_get_another() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 2, ..config(4) });
    world.add(request(1, 7));
    world.add(request(2, 7));
    world.step();
    world.step();
    assert_eq!(seat(&world, 2), (1, 0));
    // Each of them needs a third block, and the pool has four.
    world.step();
    assert_eq!(world.lists(), (vec![1], vec![2]), "who runs, and who was preempted");
    assert_eq!(world.scheduler.view().free_seats().collect::<Vec<_>>(), [1]);
    assert_eq!(world.scheduler.request(RequestId(2)).unwrap().seat(), None);
    while !seats(&world).contains_key(&2) {
        world.step();
    }
    let (index, generation) = seat(&world, 2);
    assert!((index, generation) != (1, 0), "its old seat in its old generation");
}

#[test]
fn a_request_that_ends_returns_its_seat() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 1, ..config(32) });
    for id in 1..=3 {
        world.add(request(id, 5));
    }
    world.scheduler.plan(Time::ZERO);
    world.scheduler.abort(RequestId(1));
    world.run();
    world.step();
    assert_eq!(seat(&world, 2), (0, 1), "behind an abort");
    let ends = world.run_to_the_end();
    assert_eq!(ends, [(2, FinishReason::Length), (3, FinishReason::Length)]);
    assert_eq!(world.scheduler.view().free_seats().len(), 1, "free seats when all is done");
}

#[test]
fn an_abandoned_admission_returns_its_seat() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 2, ..config(32) });
    world.add(request(1, 5));
    world.step();
    world.add(request(2, 5));
    for generation in 0..3 {
        world.plan();
        assert_eq!(seat(&world, 2), (1, generation), "of the admission");
        world.scheduler.abandon();
        assert_eq!(seats(&world).len(), 1, "requests with seats");
        assert_eq!(seat(&world, 1), (0, 0), "of the request that ran before");
    }
}

#[test]
fn an_id_is_in_use_until_its_end_was_reported() {
    let mut world = World::new(config(32));
    world.add(request(1, 5));
    world.scheduler.abort(RequestId(1));
    assert_eq!(world.try_add(request(1, 5)), Err(Rejection::DuplicateId(RequestId(1))));
    assert_eq!(world.ended(), [(1, FinishReason::Aborted)]);
    assert_eq!(world.try_add(request(1, 5)), Ok(()));
}

#[test]
fn a_resolved_row_names_the_seat_of_its_own_request() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 3, ..config(32) });
    for id in 1..=3 {
        world.add(request(id, 5));
    }
    world.plan();
    world.scheduler.abort(RequestId(1));
    let mut output = StepOutput::default();
    (0..3).for_each(|row| output.push(row, &[7], None));
    let mut resolved = Resolved::default();
    world.scheduler.resolve(&output, &mut resolved).unwrap();
    let rows: Vec<_> = resolved.rows().map(|row| (row.id.0, row.seat)).collect();
    let seat = |index| Seat { index, generation: 0 };
    assert_eq!(rows, [(2, seat(1)), (3, seat(2))], "the first one was aborted");
}

#[test]
fn a_row_has_the_seat_and_generation_of_its_request() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 2, ..config(32) });
    (1..=3).for_each(|id| world.add(request(id, 5)));
    world.step();
    world.scheduler.abort(RequestId(1));
    for _ in 0..2 {
        world.plan();
        let rows: Vec<_> =
            world.scheduler.view().step().rows.iter().map(|row| (row.id.0, row.seat)).collect();
        let want =
            [(2, 1, 0), (3, 0, 1)].map(|(id, index, generation)| (id, Seat { index, generation }));
        assert_eq!(rows, want);
        world.run();
    }
}

#[test]
fn a_preempted_request_returns_its_own_seat() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 3, ..config(6) });
    for id in 1..=3 {
        world.add(Request { max_tokens: 20, ..request(id, 7) });
    }
    world.step();
    world.scheduler.abort(RequestId(1));
    for _ in 0..20 {
        world.step();
        if world.lists() == (vec![2], vec![3]) {
            let mut free: Vec<u32> = world.scheduler.view().free_seats().collect();
            free.sort_unstable();
            assert_eq!(free, [0, 2], "of request 1, which has gone, and of request 3");
            return;
        }
    }
    panic!("request 3 was not preempted");
}

#[test]
fn an_abandoned_admission_leaves_no_seat_at_the_request() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 2, ..config(32) });
    (1..=3).for_each(|id| world.add(request(id, 5)));
    world.step();
    // The third request has key 2, and gets seat 0.
    world.scheduler.abort(RequestId(1));
    world.plan();
    assert_eq!(seat(&world, 3), (0, 1), "of the admission");
    world.scheduler.abandon();
    assert_eq!(world.lists(), (vec![2], vec![3]), "who runs, who waits");
    assert_eq!(
        world.scheduler.request(RequestId(3)).unwrap().seat(),
        None,
        "of a request that waits"
    );
    assert_eq!(world.scheduler.view().free_seats().collect::<Vec<_>>(), [0], "free seats");
}

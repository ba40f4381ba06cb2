//! Running requests have seats, and keep them.

use std::collections::BTreeMap;

use l5_scheduler::{FinishReason, Rejection, RequestId, SchedulerConfig, Seat};

use super::world::{World, config, request};

/// Seats of the running requests.
fn seats(world: &World) -> BTreeMap<u64, Seat> {
    let seated = |request: l5_scheduler::RequestView<'_>| Some((request.id().0, request.seat()?));
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
    world.scheduler.plan(l5_scheduler::Time::ZERO);
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

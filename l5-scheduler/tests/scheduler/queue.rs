//! Whose turn it is, as the scheduler tells it.

use l5_scheduler::{PolicyKind, Request, RequestId, SchedulerConfig, Time};

use super::world::{World, config, request};

fn waiting(policy: PolicyKind, requests: &[Request]) -> World {
    let mut world = World::new(SchedulerConfig { policy, ..config(8) });
    requests.iter().for_each(|request| world.add(request.clone()));
    world
}

fn urgent(id: u64, priority: i64, arrival: f64) -> Request {
    Request { priority, arrival: Time(arrival), ..request(id, 3) }
}

#[test]
fn under_fcfs_they_wait_in_the_order_in_which_they_came() {
    let requests = [urgent(5, 9, 3.0), urgent(3, 0, 2.0), urgent(9, 4, 1.0)];
    let world = waiting(PolicyKind::Fcfs, &requests);
    assert_eq!(world.lists().1, [5, 3, 9], "who waits");
}

#[test]
fn under_priorities_the_most_urgent_is_first_then_who_came_first_then_the_name() {
    let requests = [
        urgent(8, 1, 0.0),
        urgent(5, 0, 2.0),
        urgent(6, 0, 1.0),
        urgent(2, -1, 9.0),
        urgent(1, 0, 2.0),
    ];
    for policy in [PolicyKind::Priority, PolicyKind::StrictPriority] {
        assert_eq!(waiting(policy, &requests).lists().1, [2, 6, 1, 5, 8], "who waits: {policy}");
    }
}

#[test]
fn who_leaves_the_queue_is_missed_by_nobody() {
    let mut world = waiting(PolicyKind::Fcfs, &[1, 2, 3, 4].map(|id| request(id, 3)));
    assert!(world.scheduler.abort(RequestId(2)), "there was such a request");
    assert!(!world.scheduler.abort(RequestId(2)), "there is none any more");
    world.add(request(5, 3));
    assert_eq!(world.lists().1, [1, 3, 4, 5], "who waits");
}

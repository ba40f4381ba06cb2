//! The order of the queue, and the victims of preemption, of each policy.

use l3_paged_kv::{BlockHasher, ExtraKeys, TokenChain};

use super::{Fcfs, Policy, PolicyContext, Priority, StrictPriority, Victim};
use crate::lease::Leases;
use crate::requests::Entry;
use crate::{Request, RequestId, SchedulerConfig, Time};

/// A request with a priority and an arrival; its ticket is its id.
fn entry(id: u64, priority: i64, arrival: f64) -> Entry {
    let request = Request {
        id: RequestId(id),
        prompt: vec![1, 2, 3],
        max_tokens: 4,
        priority,
        arrival: Time(arrival),
        ..Request::default()
    };
    let chain = TokenChain::new(&BlockHasher::new(4), ExtraKeys::default());
    Entry::new(request, chain, id as i64)
}

/// Asks with the context of a scheduler without leases.
fn with_context<T>(ask: impl FnOnce(&PolicyContext<'_>) -> T) -> T {
    let (config, leases) = (SchedulerConfig::new(64, 4), Leases::default());
    let now = Time::ZERO;
    ask(&PolicyContext {
        now,
        config: &config,
        leases: &leases,
        num_free: 0,
        num_running: 0,
        cost: None,
        prefill_seconds_per_token: None,
        second_memory: None,
        promoted: None,
    })
}

/// The victim among these running requests when the first of them needs blocks.
fn victim(policy: &dyn Policy, running: &[Entry]) -> Option<Victim> {
    let needy = running[0].view();
    with_context(|context| {
        policy.victim(&needy, &mut running.iter().map(Entry::view), None, context)
    })
}

/// Request ids in the order of the queue.
fn order(policy: &dyn Policy, entries: &[Entry]) -> Vec<u64> {
    let rank = |e: &Entry| with_context(|context| (policy.order(&e.view(), context), e.id.0));
    let mut ranks: Vec<_> = entries.iter().map(rank).collect();
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn first_come_first_served_goes_by_tickets_alone() {
    let entries = [entry(3, -5, 1.0), entry(1, 0, 9.0), entry(2, 7, 0.0)];
    assert_eq!(order(&Fcfs, &entries), [1, 2, 3], "the order of tickets 3, 1, 2");
}

#[test]
fn who_was_preempted_comes_before_everybody_and_the_last_victim_first_of_all() {
    let mut entries = [entry(1, 0, 0.0), entry(2, 0, 0.0), entry(3, 0, 0.0)];
    // Request 3 was preempted first, then request 2: their tickets are from the front.
    (entries[2].ticket, entries[1].ticket) = (-1, -2);
    assert_eq!(order(&Fcfs, &entries), [2, 3, 1], "2 and 3 are back, 1 has not begun");
}

#[test]
fn the_last_admitted_gives_way() {
    let running = [entry(4, 0, 0.0), entry(9, 0, 0.0), entry(2, 0, 0.0)];
    assert_eq!(victim(&Fcfs, &running), Some(Victim::Running(2)), "the victim among three");
    assert_eq!(victim(&Fcfs, &running[..1]), Some(Victim::Running(0)), "a request alone: itself");
    let needy = running[0].view();
    let none = with_context(|context| Fcfs.victim(&needy, &mut std::iter::empty(), None, context));
    assert_eq!(none, None, "no victim without running requests");
}

#[test]
fn a_lower_number_is_more_urgent_then_who_came_first_then_the_name() {
    let entries = [entry(5, 1, 0.0), entry(4, 0, 2.0), entry(3, 0, 1.0), entry(2, 1, 0.0)];
    for policy in [&Priority as &dyn Policy, &StrictPriority] {
        assert_eq!(order(policy, &entries), [3, 4, 2, 5], "the queue under {}", policy.name());
    }
}

#[test]
fn under_priorities_to_have_given_way_is_no_merit() {
    let mut entries = [entry(1, 0, 0.0), entry(2, 3, 0.0)];
    entries[1].ticket = -1;
    assert_eq!(order(&Priority, &entries), [1, 2], "2 was preempted and is less urgent still");
}

#[test]
fn the_least_urgent_gives_way_and_among_equals_who_came_last() {
    let running = [entry(1, 2, 0.0), entry(2, 5, 1.0), entry(3, 5, 4.0), entry(4, 0, 9.0)];
    assert_eq!(victim(&Priority, &running), Some(Victim::Running(2)), "of two with priority 5");
    assert_eq!(victim(&Priority, &running[..2]), Some(Victim::Running(1)), "of priorities 2 and 5");
    assert_eq!(
        victim(&Priority, &running[..1]),
        Some(Victim::Running(0)),
        "a request alone: itself"
    );
}

#[test]
fn of_those_who_cannot_be_told_apart_the_one_admitted_first_gives_way() {
    let running = [entry(1, 0, 0.0), entry(7, 3, 1.0), entry(6, 3, 1.0)];
    assert_eq!(victim(&Priority, &running), Some(Victim::Running(1)), "of two equals");
}

/// These entries with deadlines.
fn due(entries: [Entry; 5], deadlines: [Option<f64>; 5]) -> [Entry; 5] {
    let mut entries = entries;
    for (entry, deadline) in entries.iter_mut().zip(deadlines) {
        entry.deadline = deadline.map(Time);
    }
    entries
}

#[test]
fn within_a_class_the_earliest_deadline_is_first_and_requests_without_one_are_last() {
    let entries =
        [entry(1, 0, 0.0), entry(2, 0, 1.0), entry(3, 0, 2.0), entry(4, 0, 0.5), entry(5, 1, 0.0)];
    let entries = due(entries, [None, Some(9.0), Some(4.0), Some(9.0), Some(1.0)]);
    let ids = order(&StrictPriority, &entries);
    assert_eq!(ids, [3, 4, 2, 1, 5], "4 and 2 have equal deadlines; 5 is of a later class");
    assert_eq!(order(&Priority, &entries), [1, 4, 2, 3, 5], "`priority` ignores deadlines");
}

#[test]
fn of_a_class_the_request_with_the_latest_deadline_is_preempted_and_one_without_before_it() {
    let entries =
        [entry(1, 1, 0.0), entry(2, 1, 1.0), entry(3, 1, 2.0), entry(4, 1, 3.0), entry(5, 0, 4.0)];
    let entries = due(entries, [Some(5.0), Some(8.0), Some(6.0), None, None]);
    assert_eq!(victim(&StrictPriority, &entries), Some(Victim::Running(3)), "without a deadline");
    assert_eq!(victim(&StrictPriority, &entries[..3]), Some(Victim::Running(1)), "the latest");
    assert_eq!(victim(&Priority, &entries[..3]), Some(Victim::Running(2)), "the last arrival");
}

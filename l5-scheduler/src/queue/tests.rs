//! The order of the waiting queue.

use super::{Rank, WaitingQueue};
use crate::Time;

fn rank(class: i64, arrival: f64, tie: i64) -> Rank {
    Rank { class, arrival: Time(arrival), tie, ..Rank::default() }
}

#[test]
fn whoever_has_the_lowest_rank_is_first() {
    let mut queue = WaitingQueue::default();
    for (key, rank) in [(0, rank(2, 0.0, 0)), (1, rank(1, 9.0, 0)), (2, rank(1, 3.0, 7))] {
        queue.insert(rank, key);
    }
    let first = queue.next(None).map(|(_, key)| key);
    assert_eq!(first, Some(2), "the first: the earliest arrival of the lower class");
    assert_eq!(WaitingQueue::default().next(None), None, "an empty queue has no first");
}

#[test]
fn behind_a_rank_comes_the_next_one_and_never_that_one_again() {
    let mut queue = WaitingQueue::default();
    for tie in [4, 8, 6] {
        queue.insert(rank(0, 0.0, tie), tie as u32);
    }
    let mut asked = Vec::new();
    let mut behind = None;
    while let Some((rank, key)) = queue.next(behind) {
        asked.push(key);
        assert!(asked.len() <= 3, "a request is returned again: {asked:?}");
        behind = Some(rank);
    }
    assert_eq!(asked, [4, 6, 8], "each request once, from the first on");
    let behind_gap = queue.next(Some(rank(0, 0.0, 5))).map(|(_, key)| key);
    assert_eq!(behind_gap, Some(6), "the first behind a rank that no request has");
}

/// Inserts and removes two thousand requests; the model is a list that is sorted again each time.
#[test]
fn it_is_a_sorted_list_however_many_come_and_go() {
    let mut queue = WaitingQueue::default();
    let mut list: Vec<(Rank, u32)> = Vec::new();
    let mut seed = 1_u64;
    for key in 0..2000 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let rank = rank((seed >> 33) as i64 % 5, ((seed >> 40) % 7) as f64, key);
        queue.insert(rank, key as u32);
        list.push((rank, key as u32));
        if seed >> 63 == 1 {
            let (gone, _) = list.swap_remove((seed >> 20) as usize % list.len());
            queue.remove(gone);
        }
        list.sort_unstable();
        assert_eq!(queue.next(None), list.first().copied(), "the first after inserting {key}");
        let middle = list.get(list.len() / 2).map(|(rank, _)| *rank);
        let behind = list.get(list.len() / 2 + 1).copied();
        assert_eq!(queue.next(middle), behind, "the next behind the middle after inserting {key}");
    }
}

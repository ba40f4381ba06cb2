//! Which replica of a lane serves a request.

use l5_scheduler::Load;

/// Seconds of wait that one preemption a second counts as. A replica that preempts computes tokens again, and its rates
/// do not show what it wastes.
pub const PREEMPTION_PENALTY_SECONDS: f64 = 1.0;

/// A replica, as the choice sees it.
///
/// # Example
///
/// ```
/// use l6_ensemble::replica_choice::{ReplicaView, choose_replica};
///
/// let busy = ReplicaView { wait: 0.5, prefill_seconds_per_token: 1e-3, ..ReplicaView::default() };
/// let idle = ReplicaView { wait: 0.1, ..busy };
/// assert_eq!(choose_replica(&[busy, idle]), Some(1), "the shorter wait");
/// let warm = ReplicaView { cached_tokens: 1000, ..busy };
/// assert_eq!(choose_replica(&[warm, idle]), Some(0), "1 s of prefill is saved for 0.4 s of wait");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaView {
    /// Seconds that the request would wait before its first step: the queue time of a quote, or an estimate from the
    /// load.
    pub wait: f64,
    /// Preemptions a second, recently.
    pub preemption_rate: f64,
    /// Number of the request's prompt tokens whose blocks the replica is known to hold: the longest prefix, in whole
    /// blocks.
    pub cached_tokens: usize,
    /// Seconds to compute a prompt token; 0 if unknown.
    pub prefill_seconds_per_token: f64,
    /// Whether the replica accepts no requests: it has ended, or it drains.
    pub closed: bool,
}

impl ReplicaView {
    /// Wait with the penalty for preemptions.
    fn penalized_wait(&self) -> f64 {
        // exercise l6.replica
        self.wait + PREEMPTION_PENALTY_SECONDS * self.preemption_rate
        // end of exercise
    }

    /// Seconds of prefill that the cached prefix saves.
    fn saved(&self) -> f64 {
        self.prefill_seconds_per_token * self.cached_tokens as f64
    }
}

/// Chooses the replica with the least wait, penalties included; or the one with the longest known prefix, if its cache
/// saves more time than it adds wait. Equal replicas: the lowest index. `None` if all are closed.
pub fn choose_replica(replicas: &[ReplicaView]) -> Option<usize> {
    let least = quickest(replicas)?;
    // exercise l6.affinity
    let warm = warmest(replicas)?;
    let (warmest, quickest) = (&replicas[warm], &replicas[least]);
    let saved = warmest.saved() - quickest.saved();
    let waits = warmest.penalized_wait() - quickest.penalized_wait();
    Some(if saved > waits { warm } else { least })
    // end of exercise
}

/// The open replica with the least wait, penalties included; of equal ones the first.
fn quickest(replicas: &[ReplicaView]) -> Option<usize> {
    // exercise l6.replica
    let open = replicas.iter().enumerate().filter(|(_, replica)| !replica.closed);
    let least = open.min_by(|(_, a), (_, b)| a.penalized_wait().total_cmp(&b.penalized_wait()));
    least.map(|(number, _)| number)
    // end of exercise
}

/// The open replica with the longest known prefix; of equal ones that with the least wait, then the first.
fn warmest(replicas: &[ReplicaView]) -> Option<usize> {
    // exercise l6.affinity
    let open = replicas.iter().enumerate().filter(|(_, replica)| !replica.closed);
    // The last of several maxima would be returned, so the order is reversed.
    let warmest = open.rev().max_by(|(_, a), (_, b)| {
        let wait = || b.penalized_wait().total_cmp(&a.penalized_wait());
        a.cached_tokens.cmp(&b.cached_tokens).then_with(wait)
    });
    warmest.map(|(number, _)| number)
    // end of exercise
}

/// Expected wait of a new request: none while a seat is free, or else the time of the present work, of which the part
/// of one seat must end first.
pub fn queue_seconds(load: &Load, seats: usize) -> f64 {
    if load.waiting == 0 && load.running < seats {
        return 0.0;
    }
    let ahead = (load.waiting + 1) as f64 / (load.waiting + load.running).max(1) as f64;
    load.seconds.unwrap_or(0.0) * ahead.min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(wait: f64, cached_tokens: usize) -> ReplicaView {
        let prefill_seconds_per_token = 1e-3;
        ReplicaView { wait, cached_tokens, prefill_seconds_per_token, ..ReplicaView::default() }
    }

    #[test]
    fn a_request_waits_for_nothing_while_a_seat_is_free() {
        let load =
            |running, waiting| Load { running, waiting, seconds: Some(8.0), ..Load::default() };
        assert_eq!(queue_seconds(&load(3, 0), 4), 0.0);
        assert_eq!(queue_seconds(&load(4, 0), 4), 2.0, "one of four must end");
        assert_eq!(queue_seconds(&load(4, 12), 4), 8.0 * 13.0 / 16.0);
        assert_eq!(queue_seconds(&Load { seconds: None, ..load(4, 4) }, 4), 0.0, "not measured");
    }

    #[test]
    fn a_prefix_is_followed_only_if_it_saves_more_than_the_wait_that_it_adds() {
        assert_eq!(choose_replica(&[view(0.0, 0), view(0.099, 100)]), Some(1));
        assert_eq!(choose_replica(&[view(0.0, 0), view(0.101, 100)]), Some(0));
        assert_eq!(
            choose_replica(&[view(0.0, 50), view(0.051, 100)]),
            Some(0),
            "50 are warm anyway"
        );
    }

    #[test]
    fn the_quickest_replica_is_the_open_one_with_the_least_wait() {
        assert_eq!(quickest(&[view(2.0, 9), view(1.0, 0), view(1.5, 0)]), Some(1));
        assert_eq!(quickest(&[view(1.0, 0), view(1.0, 9)]), Some(0), "equal ones by number");
        let closed = ReplicaView { closed: true, ..view(0.0, 0) };
        assert_eq!(quickest(&[closed, view(9.0, 0)]), Some(1));
        assert_eq!(quickest(&[closed]), None);
        assert_eq!(quickest(&[]), None);
    }

    #[test]
    fn one_preemption_a_second_counts_as_a_second_of_wait() {
        let preempts = |wait, preemption_rate| ReplicaView { preemption_rate, ..view(wait, 0) };
        assert_eq!(quickest(&[preempts(0.1, 0.5), preempts(0.59, 0.0)]), Some(1));
        assert_eq!(quickest(&[preempts(0.1, 0.5), preempts(0.61, 0.0)]), Some(0));
        assert_eq!(
            quickest(&[preempts(0.0, 3.0), preempts(2.0, 0.5), preempts(2.9, 0.0)]),
            Some(1)
        );
    }

    #[test]
    fn of_equally_warm_replicas_the_one_with_the_least_wait_is_followed() {
        assert_eq!(choose_replica(&[view(0.0, 0), view(0.09, 100), view(0.05, 100)]), Some(2));
        assert_eq!(choose_replica(&[view(0.0, 0), view(0.05, 100), view(0.05, 100)]), Some(1));
    }

    #[test]
    fn a_prefix_that_saves_just_the_wait_that_it_adds_is_not_followed() {
        let of = |wait, cached_tokens| ReplicaView {
            prefill_seconds_per_token: 0.25,
            ..view(wait, cached_tokens)
        };
        assert_eq!(choose_replica(&[of(1.0, 4), of(0.0, 0)]), Some(1));
        assert_eq!(choose_replica(&[of(1.0, 5), of(0.0, 0)]), Some(0));
    }

    #[test]
    fn preemptions_count_against_a_warm_replica_too() {
        let warm = |preemption_rate| ReplicaView { preemption_rate, ..view(0.0, 100) };
        assert_eq!(choose_replica(&[view(0.0, 0), warm(0.09)]), Some(1));
        assert_eq!(choose_replica(&[view(0.0, 0), warm(0.11)]), Some(0));
    }

    #[test]
    fn a_replica_that_preempts_counts_as_one_that_waits() {
        let preempts = ReplicaView { preemption_rate: 0.5, ..view(0.1, 0) };
        assert_eq!(choose_replica(&[preempts, view(0.59, 0)]), Some(1));
        assert_eq!(choose_replica(&[preempts, view(0.61, 0)]), Some(0));
    }

    #[test]
    fn closed_replicas_are_not_chosen_and_equal_ones_by_number() {
        let closed = ReplicaView { closed: true, ..view(0.0, 1000) };
        assert_eq!(choose_replica(&[closed, view(9.0, 0), view(9.0, 0)]), Some(1));
        assert_eq!(choose_replica(&[closed]), None);
        assert_eq!(choose_replica(&[]), None);
    }

    proptest! {
        /// No replica is better by both: less wait, and a longer prefix.
        #[test]
        fn no_other_replica_is_better_in_both_respects(
            replicas in prop::collection::vec((0_u32..50, 0_usize..500, any::<bool>()), 1..9),
        ) {
            let views: Vec<_> = replicas
                .iter()
                .map(|(wait, cached, closed)| ReplicaView {
                    closed: *closed,
                    ..view(f64::from(*wait) * 0.01, *cached)
                })
                .collect();
            let chosen = choose_replica(&views);
            prop_assert_eq!(chosen.is_none(), views.iter().all(|view| view.closed));
            if let Some(chosen) = chosen {
                let mine = views[chosen];
                prop_assert!(!mine.closed);
                for other in views.iter().filter(|view| !view.closed) {
                    let better = other.wait < mine.wait && other.cached_tokens > mine.cached_tokens;
                    prop_assert!(!better, "{other:?} is better than {mine:?}");
                }
            }
        }
    }
}

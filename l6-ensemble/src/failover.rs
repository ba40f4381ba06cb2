//! Failover: a request whose relay failed before its first output is given to another replica of its lane.
//!
//! A client must not see the beginnings of two responses, so a request moves only before its first output. It moves
//! once: a request that makes servers fail must not visit all of them.

use l5_scheduler::RelayFailure;

use crate::ReplicaId;

/// Where a request may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// To another replica only.
    Elsewhere,
    /// To another replica or, if none accepts it, to the same one again.
    ElsewhereOrAgain,
}

/// Whether one request of a client may still move.
///
/// # Example
///
/// ```
/// use l5_scheduler::RelayFailure;
/// use l6_ensemble::failover::{Failover, Move};
///
/// let mut failover = Failover::default();
/// assert_eq!(failover.may_move(RelayFailure::Transient), Some(Move::ElsewhereOrAgain));
/// assert_eq!(failover.may_move(RelayFailure::Transient), None, "it moves once");
///
/// let mut begun = Failover::default();
/// begun.output();
/// assert_eq!(begun.may_move(RelayFailure::Transient), None, "its client has seen a part");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failover {
    /// Whether it has output, or has moved.
    settled: bool,
}

impl Failover {
    /// The request has output.
    pub fn output(&mut self) {
        self.settled = true;
    }

    /// Where a request that failed may move. It is asked once: whatever the answer, the request does not move again.
    pub fn may_move(&mut self, failure: RelayFailure) -> Option<Move> {
        if std::mem::replace(&mut self.settled, true) {
            return None;
        }
        match failure {
            RelayFailure::Transient => Some(Move::ElsewhereOrAgain),
            RelayFailure::Unserved => Some(Move::Elsewhere),
            RelayFailure::Final => None,
        }
    }
}

/// The replicas that a request is offered to after `failed` failed it: the others in the order of `by_load`, without
/// those that have ended, and `failed` itself last, if it may have the request again and has not ended.
pub fn failover_order(
    failed: ReplicaId,
    may: Move,
    by_load: impl IntoIterator<Item = (ReplicaId, bool)>,
) -> Vec<ReplicaId> {
    let live = by_load.into_iter().filter(|(_, ended)| !ended).map(|(id, _)| id);
    let mut order: Vec<_> = live.collect();
    // Stable: the others stay in their order.
    order.sort_by_key(|id| *id == failed);
    order.retain(|id| *id != failed || may == Move::ElsewhereOrAgain);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_moves_once_and_never_after_its_first_output() {
        for (failure, may) in [
            (RelayFailure::Transient, Some(Move::ElsewhereOrAgain)),
            (RelayFailure::Unserved, Some(Move::Elsewhere)),
            (RelayFailure::Final, None),
        ] {
            let mut failover = Failover::default();
            assert_eq!(failover.may_move(failure), may);
            assert_eq!(failover.may_move(RelayFailure::Transient), None, "after {failure:?}");
            let mut begun = Failover::default();
            begun.output();
            assert_eq!(begun.may_move(failure), None);
        }
    }

    #[test]
    fn live_replicas_are_asked_by_load_and_the_one_that_failed_last_or_not_at_all() {
        let by_load = [(2, false), (0, false), (3, true), (1, false)];
        let by_load = by_load.map(|(id, ended)| (ReplicaId(id), ended));
        let order = |failed, may| {
            let order = failover_order(ReplicaId(failed), may, by_load);
            order.into_iter().map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(order(2, Move::ElsewhereOrAgain), [0, 1, 2]);
        assert_eq!(order(2, Move::Elsewhere), [0, 1]);
        assert_eq!(order(3, Move::ElsewhereOrAgain), [2, 0, 1], "it has ended meanwhile");
        assert_eq!(failover_order(ReplicaId(0), Move::Elsewhere, [(ReplicaId(0), false)]), []);
    }
}

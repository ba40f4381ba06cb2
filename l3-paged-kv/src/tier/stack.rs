//! Several tiers as one, the fastest first.

use std::collections::HashMap;
use std::time::Duration;

use super::{
    ChunkBytes, ChunkKey, KvTier, Presence, Ticket, Tickets, TierCompletion, TierOutcome,
    TierReport, TierStats,
};

/// Tiers in a row: DRAM before a disk. Every chunk is put into all of them, and read from the first that has it. What a
/// slower tier had is put into the faster ones before it, which may have evicted it.
pub struct TierStack {
    tiers: Vec<Box<dyn KvTier>>,
    tickets: Tickets,
    /// Operations under way, by tier and its ticket.
    pending: HashMap<(usize, Ticket), Pending>,
    /// Puts under way: the tiers that have not answered yet, and whether one keeps the chunk.
    puts: HashMap<Ticket, Put>,
    /// Completions of one tier, to be translated. Empty between two polls.
    ended: Vec<TierCompletion>,
    /// The tier of each hit since the last poll began.
    sources: HashMap<Ticket, usize>,
}

enum Pending {
    Get {
        ours: Ticket,
        key: ChunkKey,
    },
    Put {
        ours: Ticket,
    },
    /// A copy for a faster tier. No request waits for it.
    Copy,
}

struct Put {
    left: usize,
    /// The best result so far.
    outcome: TierOutcome,
}

impl TierStack {
    /// A stack of tiers, the fastest first.
    pub fn new(tiers: Vec<Box<dyn KvTier>>) -> Self {
        let (pending, puts, sources) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { tiers, tickets: Tickets::default(), pending, puts, ended: Vec::new(), sources }
    }

    /// Asks the tiers from `from` on for a chunk; ends as a miss if none may have it.
    fn get_from(&mut self, from: usize, ours: Ticket, key: &ChunkKey) {
        // exercise l3.stack
        let behind = self.tiers.iter_mut().enumerate().skip(from);
        for (at, tier) in behind {
            if tier.contains(key) != Presence::Absent {
                let theirs = tier.get(key);
                self.pending.insert((at, theirs), Pending::Get { ours, key: *key });
                return;
            }
        }
        self.tickets.end(ours, TierOutcome::Miss);
        // end of exercise
    }

    /// Tier `at` has answered. A hit is copied into the faster tiers; otherwise the slower ones are asked.
    fn end_get(&mut self, at: usize, ours: Ticket, key: &ChunkKey, outcome: TierOutcome) {
        // exercise l3.stack
        let TierOutcome::Hit(bytes) = outcome else {
            return self.get_from(at + 1, ours, key);
        };
        for (above, tier) in self.tiers[..at].iter_mut().enumerate() {
            let copy = tier.put(key, bytes.clone());
            self.pending.insert((above, copy), Pending::Copy);
        }
        self.tickets.end(ours, TierOutcome::Hit(bytes));
        // end of exercise
    }

    fn end(&mut self, at: usize, theirs: Ticket, outcome: TierOutcome) {
        match self.pending.remove(&(at, theirs)) {
            Some(Pending::Get { ours, key }) => {
                if matches!(outcome, TierOutcome::Hit(_)) {
                    self.sources.insert(ours, at);
                }
                self.end_get(at, ours, &key, outcome);
            }
            Some(Pending::Put { ours }) => {
                let Some(put) = self.puts.get_mut(&ours) else { return };
                put.left -= 1;
                if put.outcome != TierOutcome::Stored {
                    put.outcome = outcome;
                }
                if put.left == 0
                    && let Some(put) = self.puts.remove(&ours)
                {
                    self.tickets.end(ours, put.outcome);
                }
            }
            Some(Pending::Copy) | None => {}
        }
    }
}

impl KvTier for TierStack {
    fn name(&self) -> &'static str {
        "stack"
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        let mut found = Presence::Absent;
        for tier in &mut self.tiers {
            match tier.contains(key) {
                Presence::Present => return Presence::Present,
                Presence::Unknown => found = Presence::Unknown,
                Presence::Absent => {}
            }
        }
        found
    }

    fn needs(&mut self, key: &ChunkKey) -> bool {
        self.contains(key) != Presence::Present && self.tiers.iter_mut().any(|tier| tier.needs(key))
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        let ours = self.tickets.issue();
        self.get_from(0, ours, key);
        ours
    }

    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket {
        let ours = self.tickets.issue();
        let left = self.tiers.len();
        if left == 0 {
            self.tickets.end(ours, TierOutcome::Refused);
            return ours;
        }
        self.puts.insert(ours, Put { left, outcome: TierOutcome::Refused });
        for (at, tier) in self.tiers.iter_mut().enumerate() {
            let theirs = tier.put(key, bytes.clone());
            self.pending.insert((at, theirs), Pending::Put { ours });
        }
        ours
    }

    fn protect(&mut self, key: &ChunkKey, time: Duration) {
        self.tiers.iter_mut().for_each(|tier| tier.protect(key, time));
    }

    /// The largest room of a tier: a chunk is put into all of them, and one that keeps it is enough.
    fn room(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.room()).max().unwrap_or(0)
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        self.sources.clear();
        for at in 0..self.tiers.len() {
            let mut theirs = std::mem::take(&mut self.ended);
            self.tiers[at].poll(&mut theirs);
            for TierCompletion { ticket, outcome } in theirs.drain(..) {
                self.end(at, ticket, outcome);
            }
            self.ended = theirs;
        }
        ended.append(&mut self.tickets.ended);
    }

    /// Sums over the tiers. `misses` are those of each tier, so a chunk that only the second one has counts as a hit and,
    /// if the first one had lost it between lookup and `get`, as a miss.
    fn stats(&self) -> TierStats {
        self.tiers.iter().map(|tier| tier.stats()).fold(TierStats::default(), |sum, own| {
            TierStats {
                chunks: sum.chunks + own.chunks,
                bytes: sum.bytes + own.bytes,
                hits: sum.hits + own.hits,
                misses: sum.misses + own.misses,
                stored: sum.stored + own.stored,
                evicted: sum.evicted + own.evicted,
                refused: sum.refused + own.refused,
                failed: sum.failed + own.failed,
                corrupt: sum.corrupt + own.corrupt,
                stored_bytes: sum.stored_bytes + own.stored_bytes,
                loaded_bytes: sum.loaded_bytes + own.loaded_bytes,
                opened: sum.opened + own.opened,
            }
        })
    }

    fn report(&self, reports: &mut Vec<TierReport>) {
        self.tiers.iter().for_each(|tier| tier.report(reports));
    }

    fn source(&self, ticket: Ticket) -> &'static str {
        let tier = self.sources.get(&ticket).and_then(|at| self.tiers.get(*at));
        tier.map_or(self.name(), |tier| tier.name())
    }

    fn num_unwritten(&self) -> usize {
        self.tiers.iter().map(|tier| tier.num_unwritten()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::DramTier;

    const KEY: ChunkKey = ChunkKey([7; 32]);

    fn stack(first: u64, second: u64) -> TierStack {
        TierStack::new(vec![Box::new(DramTier::new(first)), Box::new(DramTier::new(second))])
    }

    fn reports(stack: &TierStack) -> Vec<TierReport> {
        let mut reports = Vec::new();
        stack.report(&mut reports);
        reports
    }

    fn end_of(stack: &mut TierStack, ticket: Ticket) -> TierOutcome {
        let mut ended = Vec::new();
        // A copy or a second tier may need another poll.
        (0..3).for_each(|_| stack.poll(&mut ended));
        let mut own = ended.into_iter().filter(|end| end.ticket == ticket);
        let outcome = own.next().expect("each operation ends").outcome;
        assert!(own.next().is_none(), "each operation ends once");
        outcome
    }

    #[test]
    fn a_chunk_is_found_in_whichever_tier_has_it_and_copied_to_the_faster_ones() {
        let mut stack = stack(1 << 20, 1 << 20);
        let bytes = ChunkBytes::from(vec![3; 100]);
        stack.tiers[1].put(&KEY, bytes.clone());
        assert_eq!(stack.contains(&KEY), Presence::Present);
        let ticket = stack.get(&KEY);
        let mut ended = Vec::new();
        stack.poll(&mut ended);
        assert_eq!(ended, [TierCompletion { ticket, outcome: TierOutcome::Hit(bytes) }]);
        assert_eq!(stack.source(ticket), "dram");
        assert_eq!(stack.tiers[0].contains(&KEY), Presence::Present);
    }

    #[test]
    fn of_two_tiers_that_have_a_chunk_the_faster_one_is_read() {
        let mut stack = stack(1 << 20, 1 << 20);
        let ticket = stack.put(&KEY, vec![3; 100].into());
        assert_eq!(end_of(&mut stack, ticket), TierOutcome::Stored);
        let ticket = stack.get(&KEY);
        assert!(matches!(end_of(&mut stack, ticket), TierOutcome::Hit(_)));
        let hits: Vec<u64> = reports(&stack).iter().map(|own| own.stats.hits).collect();
        assert_eq!(hits, [1, 0]);
    }

    /// A tier that says this of every chunk, and ends each `get` in the same way.
    struct Says(Presence, TierOutcome, Tickets);

    impl KvTier for Says {
        fn name(&self) -> &'static str {
            "says"
        }

        fn contains(&mut self, _: &ChunkKey) -> Presence {
            self.0
        }

        fn get(&mut self, _: &ChunkKey) -> Ticket {
            self.2.ended(self.1.clone())
        }

        fn put(&mut self, _: &ChunkKey, _: ChunkBytes) -> Ticket {
            self.2.ended(TierOutcome::Refused)
        }

        fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
            ended.append(&mut self.2.ended);
        }

        fn stats(&self) -> TierStats {
            TierStats::default()
        }
    }

    #[test]
    fn what_a_tier_lost_or_cannot_read_is_read_from_the_next_one() {
        let failed = TierOutcome::Failed(crate::tier::TierError::Io("injected".into()));
        for outcome in [TierOutcome::Miss, failed, TierOutcome::Refused] {
            let says = Says(Presence::Present, outcome.clone(), Tickets::default());
            let mut slower = DramTier::new(1 << 20);
            slower.put(&KEY, vec![3; 100].into());
            let mut stack = TierStack::new(vec![Box::new(says), Box::new(slower)]);
            let ticket = stack.get(&KEY);
            assert!(matches!(end_of(&mut stack, ticket), TierOutcome::Hit(_)), "{outcome:?}");
        }
    }

    #[test]
    fn a_tier_that_does_not_know_yet_is_asked() {
        let hit = TierOutcome::Hit(vec![3; 100].into());
        let says = Says(Presence::Unknown, hit.clone(), Tickets::default());
        let mut stack = TierStack::new(vec![Box::new(DramTier::new(1 << 20)), Box::new(says)]);
        assert_eq!(stack.contains(&KEY), Presence::Unknown);
        let ticket = stack.get(&KEY);
        assert_eq!(end_of(&mut stack, ticket), hit);
    }

    #[test]
    fn a_chunk_that_is_too_large_for_the_faster_tier_is_kept_by_the_slower_one() {
        let mut stack = stack(10, 1 << 20);
        let ticket = stack.put(&KEY, vec![3; 100].into());
        assert_eq!(end_of(&mut stack, ticket), TierOutcome::Stored);
        let names: Vec<_> =
            reports(&stack).iter().map(|own| (own.name, own.stats.chunks)).collect();
        assert_eq!(names, [("dram", 0), ("dram", 1)]);
    }

    #[test]
    fn without_the_chunk_a_get_misses_and_without_tiers_a_put_is_refused() {
        let mut two = stack(1 << 20, 1 << 20);
        let ticket = two.get(&KEY);
        assert_eq!(end_of(&mut two, ticket), TierOutcome::Miss);
        let mut none = TierStack::new(Vec::new());
        let ticket = none.put(&KEY, vec![1].into());
        assert_eq!(end_of(&mut none, ticket), TierOutcome::Refused);
        assert_eq!(none.contains(&KEY), Presence::Absent);
    }
}

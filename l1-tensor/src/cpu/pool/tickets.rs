//! Tickets: the chunks of a run that no thread has claimed yet.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A contiguous range of tickets, `first..end`. Both ends are in one word, so that one
/// compare-exchange decides which thread gets a ticket.
///
/// Its owner takes from the front, in ascending order: the order in which memory is laid out and
/// hardware prefetches. A thief takes from the back, which the owner reaches last.
///
/// # Why there is no generation counter
///
/// The usual fault of such a word is ABA: a thread reads `3..5` and is suspended. The run ends,
/// another run begins and its range happens to be `3..5` too. The first thread's compare-exchange
/// then succeeds. Here that is a claim like any other: at that moment ticket 3 *of the new run* was
/// free, and now it is claimed, once. It would be a bug only if the thread went on to use a value
/// from before the exchange, such as the old run's closure. So the rule is:
///
/// > **Claim first, then look up what to do.**
///
/// A claimed ticket keeps its run open until it is reported done. So all that is looked up after
/// the claim belongs to the right run and stays alive.
#[derive(Debug)]
#[repr(align(128))] // A cache line, and the neighbour the prefetcher brings along.
pub(super) struct Tickets {
    range: AtomicU64,
}

impl Tickets {
    /// An empty range.
    pub(super) const fn none() -> Self {
        Self { range: AtomicU64::new(0) }
    }

    /// Offers `range`. Everything written before this call is visible to the thread that takes a
    /// ticket.
    ///
    /// The range must be empty: no thread may be taking from it, though others may read it.
    pub(super) fn offer(&self, range: Range<u32>) {
        // Release, paired with the Acquire of a claim. Claims by others in between do not break
        // the pair: read-modify-writes continue the release sequence that this store heads.
        self.range.store(pack(range), Release);
    }

    /// Takes the lowest ticket: the owner's end.
    pub(super) fn take_first(&self) -> Option<u32> {
        self.take(|r| (r.start, r.start + 1..r.end))
    }

    /// Takes the highest ticket: a thief's end.
    pub(super) fn take_last(&self) -> Option<u32> {
        self.take(|r| (r.end - 1, r.start..r.end - 1))
    }

    /// `split` divides a non-empty range into the ticket to take and the range to leave.
    fn take(&self, split: impl Fn(Range<u32>) -> (u32, Range<u32>)) -> Option<u32> {
        let mut seen = self.range.load(Relaxed);
        loop {
            let range = unpack(seen);
            if range.is_empty() {
                return None;
            }
            let (ticket, rest) = split(range);
            match self.range.compare_exchange_weak(seen, pack(rest), Acquire, Relaxed) {
                Ok(_) => return Some(ticket),
                Err(now) => seen = now,
            }
        }
    }
}

fn pack(range: Range<u32>) -> u64 {
    u64::from(range.end) << 32 | u64::from(range.start)
}

fn unpack(word: u64) -> Range<u32> {
    word as u32..(word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn the_owner_ascends_and_the_thief_descends_until_they_meet() {
        let tickets = Tickets::none();
        assert_eq!(tickets.take_first(), None);
        assert_eq!(tickets.take_last(), None);
        tickets.offer(10..14);
        assert_eq!(tickets.take_first(), Some(10));
        assert_eq!(tickets.take_last(), Some(13));
        assert_eq!(tickets.take_first(), Some(11));
        assert_eq!(tickets.take_first(), Some(12));
        assert_eq!(tickets.take_last(), None);
        assert_eq!(tickets.take_first(), None);
    }

    #[test]
    fn the_ends_of_the_number_range_survive_packing() {
        let tickets = Tickets::none();
        tickets.offer(u32::MAX - 2..u32::MAX);
        assert_eq!(tickets.take_last(), Some(u32::MAX - 1));
        assert_eq!(tickets.take_first(), Some(u32::MAX - 2));
        assert_eq!(tickets.take_first(), None);
    }

    #[test]
    fn every_ticket_goes_to_exactly_one_taker() {
        const N: u32 = 20_000;
        let tickets = Tickets::none();
        let taken: Vec<AtomicU32> = (0..N).map(|_| AtomicU32::new(0)).collect();
        tickets.offer(0..N);
        std::thread::scope(|scope| {
            for thief in [false, true, true] {
                let (tickets, taken) = (&tickets, &taken);
                scope.spawn(move || {
                    let next = || if thief { tickets.take_last() } else { tickets.take_first() };
                    while let Some(t) = next() {
                        taken[t as usize].fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert!(taken.iter().all(|n| n.load(Relaxed) == 1));
    }
}

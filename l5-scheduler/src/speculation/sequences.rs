//! Sequences of a drafter's own KV cache, and the requests that have them.
//!
//! There are as many as requests can run at once. A request that waits keeps its sequence until a running one needs it:
//! the one that was used least recently is taken.

/// Which request has which sequence.
#[derive(Debug)]
pub(super) struct Sequences {
    owners: Vec<Owner>,
    /// Number of steps so far.
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    slot: Option<u32>,
    /// Step in which it was used last.
    used: u64,
}

impl Sequences {
    pub(super) fn new(count: usize) -> Self {
        Self { owners: vec![Owner::default(); count], clock: 0 }
    }

    /// Begins a step.
    pub(super) fn tick(&mut self) {
        self.clock += 1;
    }

    /// Gives a request a sequence: a free one, or the one that was used least recently before this step, with the
    /// request that loses it. `None` if this step uses all of them.
    pub(super) fn claim(&mut self, slot: u32) -> Option<(u32, Option<u32>)> {
        let least = |(_, owner): &(usize, &mut Owner)| (owner.slot.is_some(), owner.used);
        let (seq, owner) = self.owners.iter_mut().enumerate().min_by_key(least)?;
        if owner.slot.is_some() && owner.used == self.clock {
            return None;
        }
        let lost = owner.slot.replace(slot);
        owner.used = self.clock;
        Some((seq as u32, lost))
    }

    /// Notes that this step uses a sequence.
    pub(super) fn touch(&mut self, seq: u32) {
        self.owners[seq as usize].used = self.clock;
    }

    /// Request that has a sequence.
    pub(super) fn owner(&self, seq: u32) -> Option<u32> {
        self.owners[seq as usize].slot
    }

    /// Frees a sequence. Returns the request that had it.
    pub(super) fn release(&mut self, seq: u32) -> Option<u32> {
        self.owners[seq as usize].slot.take()
    }

    /// A sequence that a request has and this step does not use.
    pub(super) fn idle(&self) -> Option<u32> {
        let idle = |owner: &Owner| owner.slot.is_some() && owner.used < self.clock;
        self.owners.iter().position(idle).map(|seq| seq as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_that_was_used_least_recently_is_taken_and_none_of_this_step() {
        let mut sequences = Sequences::new(2);
        sequences.tick();
        assert_eq!(sequences.claim(7), Some((0, None)));
        sequences.tick();
        assert_eq!(sequences.claim(8), Some((1, None)));
        sequences.tick();
        assert_eq!(sequences.idle(), Some(0));
        assert_eq!(sequences.claim(9), Some((0, Some(7))), "request 7 waits longest");
        sequences.touch(1);
        assert_eq!((sequences.claim(10), sequences.idle()), (None, None), "both are in use");
        assert_eq!(sequences.release(0), Some(9));
        assert_eq!(sequences.claim(10), Some((0, None)));
    }
}

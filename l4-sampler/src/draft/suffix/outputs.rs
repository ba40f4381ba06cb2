//! Outputs of all requests, the running ones included, in one ring of tokens.
//!
//! Outputs that are written at the same time mix in the ring, so each token has links: to the token before it in its
//! own output, to the one behind it, and to the place where the same two tokens of the same tenant ended last. When the
//! ring is full, a new token takes the memory of the oldest one. Nothing else is moved, counted or compacted: a suffix
//! tree of the same outputs would need up to one node for each suffix, and a walk of the tree for each token that
//! leaves it.

use super::text::Text;
use crate::draft::positions::{PositionTable, fold, seed};

/// Ring of the newest tokens of all outputs. 28 bytes a token, reserved at the beginning; the system maps pages of it
/// when they are first written.
///
/// A position is the number of tokens that came before, so it is never used again, and the token's place is its
/// remainder. Links are distances, 0 for none.
#[derive(Debug)]
pub(super) struct Outputs {
    entries: Vec<Entry>,
    capacity: usize,
    pushed: u64,
    /// One more than the place of the newest occurrence of each two tokens of a tenant.
    newest: PositionTable,
    seed: u64,
}

/// A token of an output.
#[derive(Clone, Copy, Debug)]
struct Entry {
    token: u32,
    tenant: u32,
    /// Distance to the token before it in its output.
    before: u32,
    /// Distance to the token behind it in its output.
    after: u32,
    /// Distance to the position where the same two tokens ended last.
    older: u32,
}

/// Two tokens of a tenant, one behind the other in an output.
type Pair = (u32, [u32; 2]);

impl Outputs {
    /// Creates a ring of so many tokens.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity),
            capacity,
            pushed: 0,
            newest: PositionTable::with_room(capacity),
            seed: seed(),
        }
    }

    /// Appends a token to the output whose last token is at `last`, or begins an output. Returns the token's position,
    /// and the tenant of the token that had to go, if one had.
    pub(super) fn push(
        &mut self,
        tenant: u32,
        last: Option<u64>,
        token: u32,
    ) -> Option<(u64, Option<u32>)> {
        if self.capacity == 0 {
            return None;
        }
        let evicted = self.evict();
        let at = self.pushed;
        self.pushed += 1;
        let last = last.filter(|last| self.is_live(*last));
        let before = last.map_or(0, |last| (at - last) as u32);
        let entry = Entry { token, tenant, before, after: 0, older: 0 };
        let place = self.place(at);
        match self.entries.get_mut(place) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        if let Some(last) = last {
            let place = self.place(last);
            self.entries[place].after = before;
            self.link(at);
        }
        Some((at, evicted))
    }

    /// The newest position where these two tokens end in an output of the tenant.
    pub(super) fn newest(&self, tenant: u32, tokens: [u32; 2]) -> Option<u64> {
        let pair = (tenant, tokens);
        let is_same = |taken| self.pair(self.position(taken)) == Some(pair);
        self.newest.find(self.hash(pair), is_same).map(|taken| self.position(taken))
    }

    /// Number of tokens in the ring.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.newest.bytes()
    }

    /// Enters the two tokens that end at a position, and links them to where they ended before.
    fn link(&mut self, at: u64) {
        let Some(pair) = self.pair(at) else { return };
        let taken = self.place(at) as u32 + 1;
        // The table is taken out, so that the rest can be read while it is written.
        let mut newest = std::mem::take(&mut self.newest);
        let is_same = |taken| self.pair(self.position(taken)) == Some(pair);
        let slot = newest.slot(self.hash(pair), is_same);
        if *slot != 0 {
            let older = self.position(*slot);
            self.entries[taken as usize - 1].older = (at - older) as u32;
        }
        *slot = taken;
        self.newest = newest;
    }

    /// Makes room for a token: forgets the oldest one if the ring is full, and returns its tenant.
    fn evict(&mut self) -> Option<u32> {
        let oldest = self.pushed.checked_sub(self.capacity as u64)?;
        // The two tokens that end here have lost the first one already. Those that begin here lose it now.
        if let Some(end) = self.after(oldest)
            && let Some(pair) = self.pair(end)
            && self.newest(pair.0, pair.1) == Some(end)
        {
            let mut newest = std::mem::take(&mut self.newest);
            let hash = self.hash(pair);
            let is_same = |taken| self.position(taken) == end;
            match self.older(end) {
                Some(older) => *newest.slot(hash, is_same) = self.place(older) as u32 + 1,
                None => {
                    let hash_of =
                        |taken| self.pair(self.position(taken)).map_or(0, |p| self.hash(p));
                    newest.remove(hash, is_same, hash_of);
                }
            }
            self.newest = newest;
        }
        Some(self.entry(oldest).tenant)
    }

    /// The two tokens that end at a position, unless one of them is gone.
    fn pair(&self, at: u64) -> Option<Pair> {
        let before = self.token(self.before(at)?);
        let Entry { token, tenant, .. } = *self.entry(at);
        Some((tenant, [before, token]))
    }

    fn hash(&self, (tenant, tokens): Pair) -> u64 {
        tokens.iter().fold(fold(self.seed, tenant), |hash, token| fold(hash, *token))
    }

    fn entry(&self, at: u64) -> &Entry {
        &self.entries[self.place(at)]
    }

    fn place(&self, at: u64) -> usize {
        (at % self.capacity as u64) as usize
    }

    /// Position of the token at a place, from what the table stores.
    fn position(&self, taken: u32) -> u64 {
        let newest = self.pushed - 1;
        let capacity = self.capacity as u64;
        newest - (newest % capacity + capacity - (u64::from(taken) - 1)) % capacity
    }

    /// Whether the token at a position is still in the ring.
    fn is_live(&self, at: u64) -> bool {
        self.pushed - at <= self.capacity as u64
    }
}

impl Text for Outputs {
    fn token(&self, at: u64) -> u32 {
        self.entry(at).token
    }

    fn before(&self, at: u64) -> Option<u64> {
        let distance = u64::from(self.entry(at).before);
        Some(at - distance).filter(|before| distance > 0 && self.is_live(*before))
    }

    fn after(&self, at: u64) -> Option<u64> {
        let distance = u64::from(self.entry(at).after);
        Some(at + distance).filter(|_| distance > 0)
    }

    fn older(&self, at: u64) -> Option<u64> {
        let mut at = at;
        loop {
            let distance = u64::from(self.entry(at).older);
            at -= distance;
            if distance == 0 || !self.is_live(at) {
                return None;
            }
            // An output that has been slow may have lost the first of the two tokens before a faster one did.
            if self.before(at).is_some() {
                return Some(at);
            }
        }
    }
}

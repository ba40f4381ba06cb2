//! Prompt and output of one running request, with a link from each two tokens to where they stood before.

use super::text::Text;
use crate::draft::positions::{PositionTable, fold, seed};

/// Tokens of a request. 16 bytes a token.
#[derive(Debug)]
pub(super) struct OwnText {
    tokens: Vec<u32>,
    /// For each token: one more than the position where it and the token before it ended last, or 0.
    older: Vec<u32>,
    /// One more than the newest position of each two tokens.
    newest: PositionTable,
    room: usize,
    seed: u64,
}

impl OwnText {
    /// Creates an empty text with memory for `room` tokens. A longer text allocates.
    pub(super) fn with_room(room: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(room),
            older: Vec::with_capacity(room),
            newest: PositionTable::with_room(room),
            room,
            seed: seed(),
        }
    }

    /// Appends a token. A text of 2^32 - 1 tokens takes no more.
    pub(super) fn push(&mut self, token: u32) {
        if self.tokens.len() == u32::MAX as usize {
            return;
        }
        if self.tokens.len() == self.room {
            self.grow();
        }
        self.tokens.push(token);
        self.older.push(0);
        let Some(at) = self.tokens.len().checked_sub(2) else { return };
        let (tokens, at) = (&self.tokens, at + 1);
        let pair = [tokens[at - 1], tokens[at]];
        let is_same = |end: u32| tokens[end as usize - 2..end as usize] == pair;
        let newest = self.newest.slot(hash(self.seed, pair), is_same);
        self.older[at] = *newest;
        *newest = at as u32 + 1;
    }

    /// The last tokens, at most `most`.
    pub(super) fn last(&self, most: usize) -> &[u32] {
        &self.tokens[self.tokens.len().saturating_sub(most)..]
    }

    /// The newest position before the end where the last two tokens end.
    pub(super) fn newest(&self) -> Option<u64> {
        self.older(self.tokens.len().checked_sub(1)? as u64)
    }

    pub(super) fn bytes(&self) -> usize {
        (self.tokens.capacity() + self.older.capacity()) * size_of::<u32>() + self.newest.bytes()
    }

    /// Makes room for half as many tokens again.
    fn grow(&mut self) {
        self.room += self.room / 2 + 16;
        self.tokens.reserve_exact(self.room - self.tokens.len());
        self.older.reserve_exact(self.room - self.older.len());
        let (tokens, seed) = (&self.tokens, self.seed);
        let pair = |end: u32| [tokens[end as usize - 2], tokens[end as usize - 1]];
        self.newest.grow(self.room, |end| hash(seed, pair(end)));
    }
}

fn hash(seed: u64, pair: [u32; 2]) -> u64 {
    fold(fold(seed, pair[0]), pair[1])
}

impl Text for OwnText {
    fn token(&self, at: u64) -> u32 {
        self.tokens[at as usize]
    }

    fn before(&self, at: u64) -> Option<u64> {
        at.checked_sub(1)
    }

    fn after(&self, at: u64) -> Option<u64> {
        Some(at + 1).filter(|next| *next < self.tokens.len() as u64)
    }

    fn older(&self, at: u64) -> Option<u64> {
        u64::from(self.older[at as usize]).checked_sub(1)
    }
}

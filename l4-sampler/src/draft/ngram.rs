//! Drafts from the request's own text: what followed the last n tokens where they stood first.
//!
//! The rule is that of vLLM 0.33 (`v1/spec_decode/ngram_proposer.py`). Of all n from `min` to `max`, take the largest
//! for which the last n tokens also end somewhere earlier; take the earliest such place; the draft is what follows
//! there. vLLM searches the whole text in every step. Here each token updates an index once, and a proposal copies.

use std::collections::HashMap;

use super::positions::{PositionTable, fold, seed};
use super::{CLASSES, DraftError, DraftRow, Drafter, Drafts, MAX_RESERVED_TOKENS};

/// Longest n-gram that can be looked up.
pub const MAX_NGRAM: usize = 64;

/// Index of the n-grams of one text, with n from `min` to `max`.
///
/// A token costs one lookup for each n, whatever the length of the text; memory is 8 bytes a token and n, at most 12
/// for a text that outgrows what was reserved.
///
/// ```
/// use l4_sampler::draft::{NgramIndex, NgramMatch};
///
/// let mut index = NgramIndex::new(1, 3, 100)?;
/// for token in [5, 6, 7, 8, 6, 7] {
///     index.push(token);
/// }
/// // The last two tokens, 6 7, are also tokens 1 and 2: the match ends before token 3.
/// assert_eq!(index.longest_match(), Some(NgramMatch { len: 2, end: 3 }));
/// assert_eq!(index.propose(2), [8, 6]);
/// # Ok::<(), l4_sampler::draft::DraftError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NgramIndex {
    min: usize,
    max: usize,
    tokens: Vec<u32>,
    /// For each n from `min` on: the end of the earliest occurrence of every n-gram.
    earliest: Vec<PositionTable>,
    /// Number of tokens that the tables have room for.
    room: usize,
    /// Hash of no tokens.
    seed: u64,
    found: Option<NgramMatch>,
}

/// An earlier occurrence of the last tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramMatch {
    /// Number of tokens that are equal, the n of the n-gram.
    pub len: usize,
    /// Index of the token behind the occurrence.
    pub end: usize,
}

impl NgramIndex {
    /// Creates the index of an empty text, with memory for `room` tokens. A longer text allocates.
    ///
    /// # Errors
    /// `min` is 0 or more than `max`, or `max` is more than [`MAX_NGRAM`].
    pub fn new(min: usize, max: usize, room: usize) -> Result<Self, DraftError> {
        if min == 0 || min > max || max > MAX_NGRAM {
            return Err(DraftError::NgramLengths { min, max });
        }
        Ok(Self::with_checked(min, max, room))
    }

    fn with_checked(min: usize, max: usize, room: usize) -> Self {
        Self {
            min,
            max,
            tokens: Vec::with_capacity(room),
            earliest: (min..=max).map(|_| PositionTable::with_room(room)).collect(),
            room,
            seed: seed(),
            found: None,
        }
    }

    /// Appends a token. A text of 2^32 - 1 tokens takes no more.
    pub fn push(&mut self, token: u32) {
        if self.tokens.len() == u32::MAX as usize {
            return;
        }
        if self.tokens.len() == self.room {
            self.grow();
        }
        self.tokens.push(token);
        self.look_up_and_insert();
    }

    /// Looks up each n-gram that ends with the newest token, keeps the longest one that is there already in `found`,
    /// and inserts those that are not. The hash of an n-gram folds its tokens from the last to the first.
    fn look_up_and_insert(&mut self) {
        self.found = None;
        // exercise l4.ngram
        let tokens = &self.tokens;
        let end = tokens.len();
        let mut hash = self.seed;
        for len in 1..=self.max.min(end) {
            let start = end - len;
            hash = fold(hash, tokens[start]);
            if len < self.min {
                continue;
            }
            let is_same = |at: u32| tokens[at as usize - len..at as usize] == tokens[start..];
            let slot = self.earliest[len - self.min].slot(hash, is_same);
            match *slot {
                0 => *slot = end as u32,
                at => self.found = Some(NgramMatch { len, end: at as usize }),
            }
        }
        // end of exercise
    }

    /// The longest match of the last tokens, at its earliest occurrence, or `None` if not even the last `min` tokens
    /// occur before. The two may overlap.
    pub fn longest_match(&self) -> Option<NgramMatch> {
        self.found
    }

    /// The tokens behind [`NgramIndex::longest_match`], at most `most` and at most as many as the text has.
    pub fn propose(&self, most: usize) -> &[u32] {
        // exercise l4.ngram
        let Some(found) = self.found else { return &[] };
        let behind = &self.tokens[found.end..];
        &behind[..behind.len().min(most)]
        // end of exercise
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let tables: usize = self.earliest.iter().map(PositionTable::bytes).sum();
        tables + self.tokens.capacity() * size_of::<u32>()
    }

    /// Makes room for half as many tokens again.
    fn grow(&mut self) {
        self.room += self.room / 2 + 16;
        let tokens = &mut self.tokens;
        tokens.reserve_exact(self.room - tokens.len());
        for (table, len) in self.earliest.iter_mut().zip(self.min..) {
            let backwards = |end: u32| tokens[end as usize - len..end as usize].iter().rev();
            table.grow(self.room, |end| backwards(end).fold(self.seed, |hash, t| fold(hash, *t)));
        }
    }
}

/// Drafter that looks up the last tokens of a request in its own prompt and output.
///
/// The class of a drafted token is the length of the match, 15 for longer ones.
///
/// Beginning a request costs the indexing of its prompt, one lookup for each token and n.
#[derive(Debug)]
pub struct NgramDrafter {
    min: usize,
    max: usize,
    requests: HashMap<u32, NgramIndex>,
}

impl NgramDrafter {
    /// Creates a drafter that looks up the last `min` to `max` tokens: vLLM's `prompt_lookup_min` and
    /// `prompt_lookup_max`.
    ///
    /// # Errors
    /// `min` is 0 or more than `max`, or `max` is more than [`MAX_NGRAM`].
    pub fn new(min: usize, max: usize) -> Result<Self, DraftError> {
        NgramIndex::new(min, max, 0)?;
        Ok(Self { min, max, requests: HashMap::new() })
    }

    /// Bytes of memory of all running requests.
    pub fn bytes(&self) -> usize {
        self.requests.values().map(NgramIndex::bytes).sum()
    }
}

impl Drafter for NgramDrafter {
    fn begin(&mut self, slot: u32, prompt: &[u32], _tenant: Option<&str>, max_new: usize) {
        let room = prompt.len() + max_new.min(MAX_RESERVED_TOKENS);
        let mut index = NgramIndex::with_checked(self.min, self.max, room);
        for token in prompt {
            index.push(*token);
        }
        self.requests.insert(slot, index);
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        let Some(index) = self.requests.get_mut(&slot) else { return };
        for token in tokens {
            index.push(*token);
        }
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        for row in rows {
            if let Some(index) = self.requests.get(&row.slot) {
                let len = index.longest_match().map_or(0, |found| found.len);
                for token in index.propose(row.most) {
                    out.push(*token, len.min(CLASSES - 1) as u8);
                }
            }
            out.end_row();
        }
    }

    fn end(&mut self, slot: u32) {
        self.requests.remove(&slot);
    }
}

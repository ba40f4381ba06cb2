//! Counts of the tokens in a request's prompt and output.
//!
//! Each request has its own exact counts, of the tokens that it has. A padded matrix of histories would penalise
//! padding. The counts can be taken back when a draft is rejected.

use std::collections::HashMap;

/// Tokens of one request: how often each is in the output, and whether it is in the prompt.
///
/// Penalties read all entries in every step, so the entries are in one dense slice; the map only finds a token's index
/// in it.
#[derive(Debug, Default)]
pub struct History {
    entries: Vec<Seen>,
    /// Index of a token's entry.
    places: HashMap<u32, u32>,
    generated: usize,
}

impl Clone for History {
    fn clone(&self) -> Self {
        let Self { entries, places, generated } = self;
        Self { entries: entries.clone(), places: places.clone(), generated: *generated }
    }

    /// Becomes a copy in the memory that it has, if that is enough.
    fn clone_from(&mut self, source: &Self) {
        let Self { entries, places, generated } = source;
        self.entries.clone_from(entries);
        self.places.clone_from(places);
        self.generated = *generated;
    }
}

/// A token of the prompt or the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Token id.
    pub token: u32,
    /// Whether the token is in the prompt.
    pub in_prompt: bool,
    /// Number of times that the token is in the output.
    pub in_output: u32,
}

impl History {
    /// Creates the history of a request without output, with capacity for `max_new` output tokens: [`History::push`]
    /// does not allocate before.
    pub fn new(prompt: &[u32], max_new: usize) -> Self {
        let room = prompt.len() + max_new;
        let mut history = Self {
            entries: Vec::with_capacity(room),
            // Twice the capacity: a hash map from which tokens are also removed rehashes in place as long as it is at
            // most half full, and grows if it is not.
            places: HashMap::with_capacity(2 * room),
            generated: 0,
        };
        for token in prompt {
            history.entry(*token).in_prompt = true;
        }
        history
    }

    /// Appends a token to the output.
    pub fn push(&mut self, token: u32) {
        // exercise l4.penalties
        self.entry(token).in_output += 1;
        self.generated += 1;
        // end of exercise
    }

    /// Removes the last token of the output, which the caller knows. A token that is not in the output changes nothing.
    pub fn pop(&mut self, token: u32) {
        // exercise l4.penalties
        let Some(place) = self.places.get(&token).copied() else { return };
        let seen = &mut self.entries[place as usize];
        if seen.in_output == 0 {
            return;
        }
        seen.in_output -= 1;
        self.generated -= 1;
        if seen.in_output == 0 && !seen.in_prompt {
            self.forget(token, place);
        }
        // end of exercise
    }

    /// Number of output tokens.
    pub fn generated(&self) -> usize {
        self.generated
    }

    /// Every token of the prompt or the output, once, in no particular order.
    pub fn seen(&self) -> impl ExactSizeIterator<Item = Seen> + '_ {
        self.entries.iter().copied()
    }

    /// Entry of a token; a new one if it has none.
    fn entry(&mut self, token: u32) -> &mut Seen {
        let end = self.entries.len() as u32;
        let place = *self.places.entry(token).or_insert(end);
        if place == end {
            self.entries.push(Seen { token, in_prompt: false, in_output: 0 });
        }
        &mut self.entries[place as usize]
    }

    /// Removes the entry of a token that is neither in the prompt nor in the output; the last entry takes its index.
    fn forget(&mut self, token: u32, place: u32) {
        self.places.remove(&token);
        self.entries.swap_remove(place as usize);
        if let Some(moved) = self.entries.get(place as usize) {
            self.places.insert(moved.token, place);
        }
    }
}

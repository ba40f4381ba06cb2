//! Which tokens a request has seen, counted.
//!
//! A batch's histories as a padded matrix is how pads come to be penalised. Here each request has its own counts: exact,
//! as long as the tokens it really has, and they can be taken back when a draft is rejected.

use std::collections::HashMap;

/// The tokens of one request: how often each stands in its answer, and whether it stands in its prompt.
///
/// Penalties walk all entries at every step, so those lie densely in one slice; the map only finds a token's place in
/// it.
#[derive(Clone, Debug, Default)]
pub struct History {
    entries: Vec<Seen>,
    /// Where a token's entry is.
    places: HashMap<u32, u32>,
    generated: usize,
}

/// One token that a request has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The token.
    pub token: u32,
    /// Whether the prompt holds it.
    pub in_prompt: bool,
    /// How often the answer holds it.
    pub in_answer: u32,
}

impl History {
    /// The history of a request that has answered nothing yet, with room for `max_new` tokens (then
    /// [`History::push`] does not allocate).
    pub fn new(prompt: &[u32], max_new: usize) -> Self {
        let room = prompt.len() + max_new;
        let mut history = Self {
            entries: Vec::with_capacity(room),
            // Twice the room: a hash map that tokens also leave tidies itself up in place as long as it is at most half
            // full, and grows if it is not.
            places: HashMap::with_capacity(2 * room),
            generated: 0,
        };
        for token in prompt {
            history.entry(*token).in_prompt = true;
        }
        history
    }

    /// The answer has one more token.
    pub fn push(&mut self, token: u32) {
        // exercise l4.penalties
        self.entry(token).in_answer += 1;
        self.generated += 1;
        // end of exercise
    }

    /// Take the answer's last token back, which the caller knows. A token the answer does not hold changes nothing.
    pub fn pop(&mut self, token: u32) {
        // exercise l4.penalties
        let Some(place) = self.places.get(&token).copied() else { return };
        let seen = &mut self.entries[place as usize];
        if seen.in_answer == 0 {
            return;
        }
        seen.in_answer -= 1;
        self.generated -= 1;
        if seen.in_answer == 0 && !seen.in_prompt {
            self.forget(token, place);
        }
        // end of exercise
    }

    /// Tokens in the answer.
    pub fn generated(&self) -> usize {
        self.generated
    }

    /// Every token that prompt or answer hold, once, in no particular order.
    pub fn seen(&self) -> impl ExactSizeIterator<Item = Seen> + '_ {
        self.entries.iter().copied()
    }

    /// The entry of a token, a new one if it has none.
    fn entry(&mut self, token: u32) -> &mut Seen {
        let end = self.entries.len() as u32;
        let place = *self.places.entry(token).or_insert(end);
        if place == end {
            self.entries.push(Seen { token, in_prompt: false, in_answer: 0 });
        }
        &mut self.entries[place as usize]
    }

    /// Drop the entry of a token that nothing holds any more; the last entry takes its place.
    fn forget(&mut self, token: u32, place: u32) {
        self.places.remove(&token);
        self.entries.swap_remove(place as usize);
        if let Some(moved) = self.entries.get(place as usize) {
            self.places.insert(moved.token, place);
        }
    }
}

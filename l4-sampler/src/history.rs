//! Which tokens a request has seen, counted.
//!
//! A batch's histories as a padded matrix is how pads come to be penalised. Here each request has its own counts: exact,
//! as long as the tokens it really has, and they can be taken back when a draft is rejected.

/// The tokens of one request: how often each stands in its answer, and whether it stands in its prompt.
#[derive(Clone, Debug, Default)]
pub struct History {
    // owner's choice: e.g. entries in order of first appearance (what penalties walk) and a map to them
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
        let _ = (prompt, max_new);
        todo!()
    }

    /// The answer has one more token.
    pub fn push(&mut self, token: u32) {
        let _ = token;
        todo!()
    }

    /// Take the answer's last token back, which the caller knows. A token the answer does not hold changes nothing.
    pub fn pop(&mut self, token: u32) {
        let _ = token;
        todo!()
    }

    /// Tokens in the answer.
    pub fn generated(&self) -> usize {
        todo!()
    }

    /// Every token that prompt or answer hold, once, in no particular order. (A token that was popped again may be
    /// reported with a count of 0.)
    pub fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        std::iter::empty()
    }
}

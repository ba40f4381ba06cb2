//! A set of tokens as bits: what a guide allows next.

/// A token mask: one bit for each token, 32 to a word, the lowest bit first; a set bit allows the token. The layout is
/// that of llguidance, xgrammar and vLLM, so a mask is copied to a device as it is. Tokens beyond the last word are not
/// allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// Creates a mask for `vocab` tokens that allows none.
    pub fn none(vocab: usize) -> Self {
        Self { words: vec![0; vocab.div_ceil(32)] }
    }

    /// The words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Copies the contents of other words.
    pub fn copy_from(&mut self, words: &[u32]) {
        self.words.clear();
        self.words.extend_from_slice(words);
    }

    /// Whether a token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|w| w >> (token % 32) & 1 == 1)
    }

    /// Allows a token for which the mask has a bit.
    pub fn allow(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }

    /// Number of allowed tokens.
    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }
}

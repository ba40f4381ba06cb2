//! Lists of tokens in one buffer.

/// Lists of tokens, one behind the other, each with a key. The memory is reused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLists<K> {
    tokens: Vec<u32>,
    /// Key of each list, and the index behind its last token.
    ends: Vec<(K, usize)>,
}

impl<K> Default for TokenLists<K> {
    fn default() -> Self {
        Self { tokens: Vec::new(), ends: Vec::new() }
    }
}

impl<K: Copy> TokenLists<K> {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.ends.clear();
    }

    pub(crate) fn push(&mut self, key: K, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.ends.push((key, self.tokens.len()));
    }

    /// Iterates over the lists, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &[u32])> + '_ {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |&(key, end)| (key, &self.tokens[std::mem::replace(&mut start, end)..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::TokenLists;

    #[test]
    fn lists_come_back_in_their_order() {
        let mut lists = TokenLists::default();
        lists.push('a', &[1, 2]);
        lists.push('b', &[]);
        lists.push('c', &[3]);
        let got: Vec<_> = lists.iter().collect();
        assert_eq!(got, [('a', &[1, 2][..]), ('b', &[]), ('c', &[3])]);
        lists.clear();
        assert_eq!(lists.iter().count(), 0);
    }
}

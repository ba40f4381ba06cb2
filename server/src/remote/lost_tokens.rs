//! Finds tokens that llama-server leaves out of its stream.
//!
//! While its text ends in the middle of a character, llama-server sends no event. The event that completes the character
//! has the text of all these tokens, and the id of the last one only. So the bytes of the lost tokens and their number
//! are known. Tokens that end within a character are few, and mostly there is one way to write the bytes with them.

use l2_model::tokenizer::Tokenizer;

/// Maximum number of lost tokens in a row: a character has four bytes, but a token may end one and begin the next.
const MAX_LOST: usize = 16;

/// Maximum number of comparisons of a search.
const MAX_STEPS: usize = 1 << 20;

/// The tokens after which a text can end within a character: their own bytes are no whole characters.
#[derive(Debug)]
pub(super) struct CutTokens(Vec<(Box<[u8]>, u32)>);

impl CutTokens {
    /// Those of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        Self::new(ids.filter_map(|id| Some((tokenizer.token_bytes(id).ok()?, id))))
    }

    fn new<'a>(tokens: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let cut = tokens.filter(|(bytes, _)| std::str::from_utf8(bytes).is_err());
        Self(cut.map(|(bytes, id)| (bytes.into(), id)).collect())
    }

    /// Finds `count` tokens that write `text` together, so that it ends within a character after each of them. Of
    /// several ways the first one in the order of the vocabulary is found: their texts are equal.
    pub fn find(&self, text: &[u8], count: usize) -> Option<Vec<u32>> {
        if count > MAX_LOST {
            return None;
        }
        let (mut found, mut steps) = (Vec::with_capacity(count), MAX_STEPS);
        self.search(text, 0, count, &mut found, &mut steps).then_some(found)
    }

    /// Writes the text from `at` on with `count` tokens.
    fn search(
        &self,
        text: &[u8],
        at: usize,
        count: usize,
        found: &mut Vec<u32>,
        steps: &mut usize,
    ) -> bool {
        if count == 0 {
            return at == text.len();
        }
        for (bytes, id) in &self.0 {
            let Some(left) = steps.checked_sub(1) else { return false };
            *steps = left;
            let end = at + bytes.len();
            if !text[at..].starts_with(bytes) || !ends_within_a_character(&text[..end]) {
                continue;
            }
            found.push(*id);
            if self.search(text, end, count - 1, found, steps) {
                return true;
            }
            found.pop();
        }
        false
    }
}

fn ends_within_a_character(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_err_and(|why| why.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: [&[u8]; 8] = [
        b"a",
        b"\xf0",
        b"\x9f",
        b"\x98",
        b" \xf0\x9f",
        b"\xf0\x9f\x98",
        b"\x80\xe6",
        "\u{1f600}".as_bytes(),
    ];

    fn find(text: &[u8], count: usize) -> Option<Vec<u32>> {
        CutTokens::new(VOCABULARY.into_iter().zip(0..)).find(text, count)
    }

    #[test]
    fn the_number_of_lost_tokens_decides_between_the_ways_to_write_a_character() {
        assert_eq!(find(b"\xf0\x9f\x98", 1), Some(vec![5]));
        assert_eq!(find(b"\xf0\x9f\x98", 3), Some(vec![1, 2, 3]));
        assert_eq!(find(b"\xf0\x9f\x98", 2), None);
        assert_eq!(find(b" \xf0\x9f\x98", 2), Some(vec![4, 3]), "a token may begin before it");
    }

    #[test]
    fn a_token_may_end_one_character_and_begin_the_next() {
        assert_eq!(find(b"\xf0\x9f\x98\x80\xe6", 2), Some(vec![5, 6]));
    }

    #[test]
    fn what_would_have_been_sent_is_not_found() {
        assert_eq!(find(b"a\xf0", 2), None, "`a` is a whole character");
        assert_eq!(find(b"\x9f", 1), None, "no character begins with this byte");
        assert_eq!(find(&[0xf0; 64], 64), None);
    }
}

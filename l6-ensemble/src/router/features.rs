//! Features of the linear classifier: hashed n-grams of characters and of tokens.
//!
//! Three kinds, all without case:
//!
//! * each word (an identifier counts as one word);
//! * each pair of neighbouring tokens, where punctuation is a token and every number is the same token;
//! * each run of 3, 4 or 5 characters of a word with a mark before and after it, as in fastText's subwords
//!   (Bojanowski et al. 2017), so that a word that was never seen still shares most of its features with its
//!   relatives.
//!
//! A feature is a bucket: the hash of the n-gram, cut to `bits` bits (feature hashing, Weinberger et al. 2009). It
//! counts once for a request, however often it occurs: a log repeats its lines, and a file the names of its package.

use super::input::View;
use super::scan::{Token, tokens};

/// Characters of a word that become n-grams. Longer ones are encoded data more often than identifiers.
const MAX_WORD: usize = 48;

/// Distinct buckets of one request, grouped by the weight of the part in which they occurred first.
///
/// Parts come in the order of their weights, so a bucket has the weight of its most important part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// Buckets of all groups, in the order of first occurrence.
    pub buckets: Vec<u32>,
    /// (end of the group in `buckets`, weight).
    pub groups: Vec<(usize, f32)>,
}

impl Features {
    /// Extracts the features of a request, each below `2^bits`.
    pub fn extract(views: &[View<'_>], bits: u32) -> Self {
        let mut sink = Sink {
            seen: vec![0; (1_usize << bits).div_ceil(64)],
            shift: 64 - bits,
            buckets: Vec::new(),
        };
        let mut groups = Vec::with_capacity(views.len());
        for view in views {
            for text in [view.head, view.tail] {
                text_features(text, &mut |hash| sink.add(hash));
            }
            groups.push((sink.buckets.len(), view.weight));
        }
        Self { buckets: sink.buckets, groups }
    }

    /// Factor that gives the vector of weights the length 1: `1 / sqrt(sum of weight^2)`; 0 without features.
    pub fn norm(&self) -> f32 {
        let sum: f32 = self.groups().map(|(buckets, w)| buckets.len() as f32 * w * w).sum();
        if sum > 0.0 { sum.sqrt().recip() } else { 0.0 }
    }

    /// The groups: buckets and their weight.
    pub fn groups(&self) -> impl Iterator<Item = (&[u32], f32)> {
        let starts = std::iter::once(0).chain(self.groups.iter().map(|(end, _)| *end));
        starts.zip(&self.groups).map(|(start, (end, weight))| (&self.buckets[start..*end], *weight))
    }
}

/// Keeps the first occurrence of each bucket.
struct Sink {
    /// One bit for each bucket.
    seen: Vec<u64>,
    /// Bits of a hash that are dropped.
    shift: u32,
    buckets: Vec<u32>,
}

impl Sink {
    #[inline]
    fn add(&mut self, hash: u64) {
        // The high bits of a product depend on all bits of the factor.
        let bucket = (hash.wrapping_mul(MULTIPLIER) >> self.shift) as usize;
        let (word, bit) = (bucket / 64, 1 << (bucket % 64));
        if self.seen[word] & bit == 0 {
            self.seen[word] |= bit;
            self.buckets.push(bucket as u32);
        }
    }
}

/// FNV-1a's prime and offset for 64 bits, and the golden ratio of 2^64 (Knuth's multiplicative hashing).
const PRIME: u64 = 0x0000_0100_0000_01b3;
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn mix(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(PRIME)
}

/// Calls `emit` with the hash of each feature of a text.
fn text_features(text: &str, emit: &mut impl FnMut(u64)) {
    // exercise l6.features
    let mut before = OFFSET;
    for token in tokens(text) {
        let this = match token {
            Token::Word { text, .. } => word_features(text.as_bytes(), emit),
            Token::Number => mix(OFFSET, b'0'),
            Token::Punct(byte) => mix(OFFSET, byte),
            Token::Line => continue,
        };
        emit((before.rotate_left(23) ^ this).wrapping_mul(PRIME));
        before = this;
    }
    // end of exercise
}

/// Emits the word and its character n-grams, and returns the hash of the word.
fn word_features(word: &[u8], emit: &mut impl FnMut(u64)) -> u64 {
    let mut marked = [0; MAX_WORD + 2];
    let len = word.len().min(MAX_WORD);
    marked[0] = b'<';
    for (to, from) in marked[1..].iter_mut().zip(&word[..len]) {
        *to = from.to_ascii_lowercase();
    }
    marked[len + 1] = b'>';
    let marked = &marked[..len + 2];
    let hash = marked.iter().fold(OFFSET, |hash, byte| mix(hash, *byte));
    emit(hash);
    // exercise l6.features
    for start in 0..marked.len().saturating_sub(2) {
        let mut gram = OFFSET.rotate_left(17);
        for (i, byte) in marked[start..].iter().take(5).enumerate() {
            gram = mix(gram, *byte);
            if i >= 2 {
                emit(gram.wrapping_add(i as u64));
            }
        }
    }
    // end of exercise
    hash
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::super::input::{Part, PartKind, RouteInput};
    use super::*;

    fn features(parts: &[Part<'_>], bits: u32) -> Features {
        Features::extract(&RouteInput { intent: None, parts }.views(1 << 16), bits)
    }

    fn buckets(text: &str) -> HashSet<u32> {
        features(&[Part::user(text)], 22).buckets.into_iter().collect()
    }

    #[test]
    fn case_and_repetition_do_not_matter() {
        assert_eq!(buckets("Mutex lock"), buckets("mutex LOCK"));
        assert_eq!(buckets("lock lock"), buckets("lock lock lock lock"));
    }

    #[test]
    fn the_order_of_tokens_matters_through_pairs_only() {
        let (ab, ba) = (buckets("alpha beta"), buckets("beta alpha"));
        // Each order has two pairs of its own: the first token with the beginning, and the second with the first.
        assert_eq!(ab.difference(&ba).count(), 2);
    }

    #[test]
    fn a_related_word_shares_features() {
        let (one, other) = (buckets("allocator"), buckets("allocators"));
        assert!(one.intersection(&other).count() * 3 > one.len() * 2);
    }

    #[test]
    fn a_bucket_has_the_weight_of_its_most_important_part() {
        let file = Part { kind: PartKind::Snippet, text: "shared only", name: None };
        let f = features(&[file, Part::user("shared")], 22);
        let groups: Vec<_> = f.groups().collect();
        assert_eq!(groups.len(), 2);
        assert_eq!((groups[0].1, groups[1].1), (1.0, 0.7));
        assert_eq!(groups[0].0.len(), buckets("shared").len());
        let all: HashSet<_> = f.buckets.iter().collect();
        assert_eq!(all.len(), f.buckets.len(), "no bucket is there twice");
    }

    fn hash(start: u64, bytes: &[u8]) -> u64 {
        bytes.iter().fold(start, |hash, byte| mix(hash, *byte))
    }

    /// The features of a text, one by one: words and their n-grams, then pairs.
    fn naive(text: &str) -> Vec<u64> {
        let (mut features, mut before) = (Vec::new(), OFFSET);
        for token in tokens(text) {
            let this = match token {
                Token::Line => continue,
                Token::Number => hash(OFFSET, b"0"),
                Token::Punct(byte) => hash(OFFSET, &[byte]),
                Token::Word { text, .. } => {
                    let start: String = text.to_ascii_lowercase().chars().take(MAX_WORD).collect();
                    let word = format!("<{start}>").into_bytes();
                    features.push(hash(OFFSET, &word));
                    for n in 3..=5 {
                        let grams = word.windows(n).map(|gram| hash(OFFSET.rotate_left(17), gram));
                        features.extend(grams.map(|gram| gram.wrapping_add(n as u64 - 1)));
                    }
                    hash(OFFSET, &word)
                }
            };
            features.push((before.rotate_left(23) ^ this).wrapping_mul(PRIME));
            before = this;
        }
        features.sort_unstable();
        features
    }

    fn emitted(text: &str) -> Vec<u64> {
        let mut features = Vec::new();
        text_features(text, &mut |hash| features.push(hash));
        features.sort_unstable();
        features
    }

    #[test]
    fn a_word_gives_itself_its_runs_of_3_to_5_characters_and_a_pair() {
        // <lock> has 6 characters: 4 runs of 3, 3 of 4 and 2 of 5.
        assert_eq!(emitted("lock").len(), 1 + (4 + 3 + 2) + 1);
        // <a> is one run of 3.
        assert_eq!(emitted("a").len(), 1 + 1 + 1);
        assert_eq!(emitted("Lock"), naive("lock"));
    }

    #[test]
    fn all_numbers_are_one_token_and_the_end_of_a_line_is_none() {
        assert_eq!(emitted("case 1:"), emitted("case 234:"));
        assert_eq!(emitted("a\nb"), emitted("a b"));
        assert_ne!(emitted("a + b"), emitted("a - b"));
    }

    proptest! {
        #[test]
        fn the_features_of_a_text_are_those_of_a_search_for_every_run(
            text in "[ -~]{0,60}|([A-Za-z_]{1,60}[ (:;0-9\n]){0,6}",
        ) {
            prop_assert_eq!(emitted(&text), naive(&text));
        }

        #[test]
        fn buckets_are_in_range_and_the_vector_has_length_one(text in "\\PC{0,200}", bits in 8..=22u32) {
            let f = features(&[Part::user(&text)], bits);
            prop_assert!(f.buckets.iter().all(|b| *b < 1 << bits));
            let length = f.buckets.len() as f32 * f.norm() * f.norm();
            prop_assert!(f.buckets.is_empty() || (length - 1.0).abs() < 1e-4);
        }
    }
}

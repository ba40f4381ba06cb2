//! The index of n-grams: the longest match, its earliest occurrence, and what follows there.

use std::fs;
use std::path::Path;

use l4_sampler::draft::{DraftError, MAX_NGRAM, NgramIndex, NgramMatch};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Deserialize;
use sha2::{Digest, Sha256};

fn index(tokens: &[u32], min: usize, max: usize) -> NgramIndex {
    let mut index = NgramIndex::new(min, max, tokens.len()).unwrap();
    tokens.iter().for_each(|token| index.push(*token));
    index
}

fn found(len: usize, end: usize) -> Option<NgramMatch> {
    Some(NgramMatch { len, end })
}

/// The match by its definition: every n from the longest on, every place from the first on.
fn searched(tokens: &[u32], min: usize, max: usize) -> Option<NgramMatch> {
    let lengths = (min..=max.min(tokens.len())).rev();
    lengths.into_iter().find_map(|len| {
        let last = &tokens[tokens.len() - len..];
        let end = (len..tokens.len()).find(|end| &tokens[end - len..*end] == last)?;
        Some(NgramMatch { len, end })
    })
}

#[test]
fn the_longest_match_wins() {
    // 2 3 is at 0, but 1 2 3 at 4.
    let tokens = [2, 3, 7, 8, 1, 2, 3, 9, 1, 2, 3];
    assert_eq!(index(&tokens, 1, 4).longest_match(), found(3, 7));
    assert_eq!(index(&tokens, 1, 4).propose(2), [9, 1]);
    // With at most two tokens the earlier place counts.
    assert_eq!(index(&tokens, 1, 2).longest_match(), found(2, 2));
}

#[test]
fn of_equal_matches_the_earliest_wins() {
    let tokens = [5, 6, 1, 5, 6, 2, 5, 6, 3, 5, 6];
    assert_eq!(index(&tokens, 2, 3).longest_match(), found(2, 2));
    assert_eq!(index(&tokens, 2, 3).propose(1), [1]);
}

#[test]
fn the_last_tokens_do_not_match_themselves() {
    for tokens in [vec![], vec![4], vec![4, 5, 6], vec![1, 2, 1, 3]] {
        let index = index(&tokens, 1, 4);
        assert_eq!(index.longest_match(), None, "{tokens:?}");
        assert_eq!(index.propose(8), [0; 0], "{tokens:?}");
    }
    // A shorter match than `min` is none.
    assert_eq!(index(&[1, 2, 3, 9, 2, 3], 3, 5).longest_match(), None);
}

#[test]
fn a_match_may_overlap_the_last_tokens() {
    assert_eq!(index(&[8, 8, 8, 8], 1, 3).longest_match(), found(3, 3));
    assert_eq!(index(&[1, 2, 1, 2, 1], 2, 3).longest_match(), found(3, 3));
}

#[test]
fn a_draft_is_what_follows_the_match_as_far_as_the_text_goes() {
    let index = index(&[1, 2, 3, 4, 1, 2], 2, 2);
    assert_eq!(index.propose(0), [0; 0]);
    assert_eq!(index.propose(1), [3]);
    assert_eq!(index.propose(4), [3, 4, 1, 2]);
    assert_eq!(index.propose(100), [3, 4, 1, 2]);
}

#[test]
fn lengths_that_cannot_be_looked_up_are_refused() {
    for (min, max) in [(0, 3), (4, 3), (1, MAX_NGRAM + 1), (usize::MAX, usize::MAX)] {
        let refused = NgramIndex::new(min, max, 0).unwrap_err();
        assert_eq!(refused, DraftError::NgramLengths { min, max });
    }
}

/// The generator that the fixture's script describes.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

#[derive(Debug, Deserialize, PartialEq)]
struct Case {
    tokens: Vec<u32>,
    min: usize,
    max: usize,
    k: usize,
    #[serde(default)]
    draft: Vec<u32>,
}

impl Case {
    fn of(seed: usize) -> Self {
        let mut draw = SplitMix64(seed as u64);
        let (vocab, length) = (2 + draw.below(49), draw.below(201));
        let min = 1 + draw.below(4);
        let max = min + draw.below(5);
        let k = 1 + draw.below(8);
        let mut tokens: Vec<u32> = Vec::new();
        while tokens.len() < length {
            if draw.below(16) == 0 && !tokens.is_empty() {
                let (count, start) = (draw.below(12) + 1, draw.below(tokens.len()));
                (start..start + count).for_each(|i| tokens.push(tokens[i]));
            } else {
                tokens.push(draw.below(vocab) as u32);
            }
        }
        tokens.truncate(length);
        Self { tokens, min, max, k, draft: Vec::new() }
    }

    fn proposed(&self) -> Vec<u32> {
        index(&self.tokens, self.min, self.max).propose(self.k).to_vec()
    }
}

#[derive(Deserialize)]
struct Golden {
    cases: usize,
    group: usize,
    shown: Vec<Case>,
    digests: Vec<String>,
}

#[test]
fn drafts_are_those_of_vllm() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/drafts/ngram.json");
    let golden: Golden = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for (i, case) in golden.shown.iter().enumerate() {
        assert_eq!(case.proposed(), case.draft, "case {i}: {case:?}");
        assert_eq!(Case::of(i).tokens, case.tokens, "case {i} is drawn as the script does");
    }
    assert_eq!(golden.digests.len() * golden.group, golden.cases);
    for (group, expected) in golden.digests.iter().enumerate() {
        let line = |i: usize| {
            let case = Case::of(i);
            let words = case.proposed().iter().map(|token| format!(" {token}")).collect::<String>();
            format!("{}{words}\n", case.tokens.len())
        };
        let first = group * golden.group;
        let text: String = (first..first + golden.group).map(line).collect();
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hex, expected, "a draft of cases {first}.. is not vLLM's");
    }
}

proptest! {
    #[test]
    fn an_index_finds_what_a_search_of_the_whole_text_finds(
        (vocab, min, more, room) in (1u32..8, 1usize..5, 0usize..5, 0usize..80),
        choices in vec(any::<u32>(), 0..80),
        most in 0usize..6,
    ) {
        let max = min + more;
        let tokens: Vec<u32> = choices.iter().map(|choice| choice % vocab).collect();
        // Less room than tokens: the index grows on the way.
        let mut index = NgramIndex::new(min, max, room).unwrap();
        for end in 1..=tokens.len() {
            index.push(tokens[end - 1]);
            let expected = searched(&tokens[..end], min, max);
            prop_assert_eq!(index.longest_match(), expected, "after {:?}", &tokens[..end]);
            let draft = expected.map_or(&[][..], |found| {
                &tokens[found.end..(found.end + most).min(end)]
            });
            prop_assert_eq!(index.propose(most), draft);
        }
    }
}

#[test]
fn memory_is_bounded_by_tokens_times_lengths() {
    for (min, max) in [(1, 1), (2, 4), (1, MAX_NGRAM)] {
        for room in [0, 5000] {
            // All n-grams are different, so each takes a slot.
            let mut index = NgramIndex::new(min, max, room).unwrap();
            for token in 0..5000u32 {
                index.push(token);
                if room > 0 || token >= 1000 {
                    let tokens = room.max(token as usize + 1);
                    let most = tokens * (24 * (max - min + 1) + 8);
                    assert!(index.bytes() <= most, "{} > {most} at {token}", index.bytes());
                }
            }
        }
    }
}

//! Merges for a SentencePiece vocabulary, which has none.
//!
//! SentencePiece stores a score per piece and merges, at every step, the adjacent pair whose joined piece scores
//! best. BPE stores an ordered list of pairs. One becomes the other by listing **every** way to cut every piece into
//! two pieces of the vocabulary, best piece first. Formula: `generate_merges` in transformers'
//! `tokenization_utils_base.py`, whose order of ties is kept because ids depend on it.

use std::cmp::Ordering;
use std::collections::HashMap;

/// All merges of the vocabulary `tokens` in order of rank. Without `scores`, earlier tokens are better.
///
/// `tokens` and `scores` run in parallel. Cost: one lookup per character of the vocabulary and a sort.
pub(super) fn merges_from_scores(
    tokens: &[String],
    scores: Option<&[f32]>,
) -> Vec<(String, String)> {
    // As in a Python dict, a repeated token keeps its first position and its last id.
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(tokens.len());
    let mut order = Vec::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if ids.insert(token, id as u32).is_none() {
            order.push(token.as_str());
        }
    }
    struct Cut<'a> {
        left: &'a str,
        right: &'a str,
        score: f32,
        lengths: (usize, usize),
    }
    let mut cuts: Vec<Cut> = Vec::new();
    for piece in order {
        let id = ids[piece];
        let score = scores.map_or(id as f32, |scores| scores[id as usize]);
        let first = cuts.len();
        let chars = piece.chars().count();
        for (n, (at, _)) in piece.char_indices().enumerate().skip(1) {
            let (left, right) = piece.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                cuts.push(Cut { left, right, score, lengths: (n, chars - n) });
            }
        }
        cuts[first..].sort_by_key(|cut| (ids[cut.left], ids[cut.right]));
    }
    let by_rank = |a: &Cut, b: &Cut| -> Ordering {
        a.score.total_cmp(&b.score).then(a.lengths.cmp(&b.lengths))
    };
    // Both sorts are stable, so equal cuts stay in the order of the vocabulary.
    match scores {
        Some(_) => cuts.sort_by(|a, b| by_rank(b, a)),
        None => cuts.sort_by(by_rank),
    }
    cuts.into_iter().map(|cut| (cut.left.to_owned(), cut.right.to_owned())).collect()
}

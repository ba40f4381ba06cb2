//! Drafts of rows, as vectors.

use l4_sampler::draft::{DraftRow, Drafter, Drafts};

/// Tokens and classes for each row, which is a slot and the most tokens that it takes.
pub fn propose(drafter: &mut dyn Drafter, rows: &[(u32, usize)]) -> Vec<(Vec<u32>, Vec<u8>)> {
    let rows: Vec<DraftRow> = rows.iter().map(|&(slot, most)| DraftRow { slot, most }).collect();
    let mut out = Drafts::default();
    drafter.propose(&rows, &mut out);
    assert_eq!(out.len(), rows.len());
    (0..out.len()).map(|i| (out.row(i).0.to_vec(), out.row(i).1.to_vec())).collect()
}

/// Tokens for one row.
pub fn draft(drafter: &mut dyn Drafter, slot: u32, most: usize) -> Vec<u32> {
    propose(drafter, &[(slot, most)]).remove(0).0
}

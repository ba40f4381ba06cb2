//! Questions about the kernels: threads, bytes, and sums that are not finished.

mod butterfly;
mod fragment_lane;
mod memory_floor;
mod merged_parts;
mod padded_width;
mod running_softmax;
mod split_blocks;
mod warp_pieces;

use super::kind::Kind;

/// In the order of the chapters.
pub const KINDS: &[Kind] = &[
    memory_floor::KIND,
    butterfly::KIND,
    warp_pieces::KIND,
    running_softmax::KIND,
    merged_parts::KIND,
    split_blocks::KIND,
    fragment_lane::KIND,
    padded_width::KIND,
];

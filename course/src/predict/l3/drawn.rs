//! What several kinds of questions draw.

use crate::predict::draw::Draw;

/// `n` different blocks of a pool with blocks 1 to `last`, in no order: what tables look like after
/// a while. Block 0 is the null block and in no table.
pub fn blocks(draw: &mut Draw, n: usize, last: usize) -> Vec<usize> {
    let mut free: Vec<usize> = (1..=last).collect();
    (0..n.min(last)).map(|_| free.swap_remove(draw.below(free.len()))).collect()
}

/// The slot of a position.
pub fn slot(table: &[usize], block_size: usize, position: usize) -> usize {
    table[position / block_size] * block_size + position % block_size
}

/// `block` or `blocks`, with its number.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

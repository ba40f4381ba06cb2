//! What several kinds of questions draw and show.

use std::fmt::Display;

use crate::predict::draw::Draw;

/// A table with a heading: columns as wide as they must be, numbers below each other.
pub fn table<T: Display>(columns: &[&str], rows: &[Vec<T>]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(T::to_string).collect()).collect();
    let heading = columns.iter().map(|name| (*name).to_string()).collect();
    let all: Vec<Vec<String>> = std::iter::once(heading).chain(cells).collect();
    let wide = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(i, cell)| format!("{cell:>width$}", width = wide(i).unwrap_or(0)));
        cells.collect::<Vec<_>>().join("  ")
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// `n` different names of requests, each a digit, in no order.
pub fn names(draw: &mut Draw, n: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (1..=9).collect();
    (0..n.min(9)).map(|_| left.swap_remove(draw.below(left.len()))).collect()
}

/// Blocks that hold so many tokens.
pub fn blocks(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}

/// `a`, `a and b`, `a, b and c`.
pub fn listed<T: Display>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    match items.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => items.concat(),
    }
}

/// `1 block`, `2 blocks`.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

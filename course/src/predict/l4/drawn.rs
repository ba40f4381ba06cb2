//! What several kinds of questions draw and show.

use std::fmt::Display;

use crate::predict::draw::Draw;

/// Rows of a table: a name and its cells, columns as wide as they must be.
pub struct Table {
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// A table without rows.
    pub fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// One more row.
    pub fn row<T: Display>(mut self, name: &str, cells: &[T]) -> Self {
        self.rows.push((name.into(), cells.iter().map(T::to_string).collect()));
        self
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
        let wide = |column: usize| {
            let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        let name = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (i, (first, cells)) in self.rows.iter().enumerate() {
            let mut line = format!("{first:<name$}");
            for (cell, width) in cells.iter().zip(&widths) {
                line += &format!("  {cell:>width$}");
            }
            let end = if i + 1 == self.rows.len() { "" } else { "\n" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `n` whole numbers above 0 that sum to `total`, in no order.
pub fn parts(draw: &mut Draw, n: usize, total: usize) -> Vec<usize> {
    let mut parts = vec![1; n];
    // Tokens are drawn by what they have: some become likely, as in a model's rows.
    for _ in n..total {
        let mut at = draw.below(parts.iter().sum());
        let mut i = 0;
        while at >= parts[i] {
            at -= parts[i];
            i += 1;
        }
        parts[i] += 1;
    }
    parts
}

/// `n` different token ids below `vocab`, ascending.
pub fn ids(draw: &mut Draw, n: usize, vocab: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..vocab).collect();
    let mut ids: Vec<usize> =
        (0..n.min(vocab)).map(|_| left.swap_remove(draw.below(left.len()))).collect();
    ids.sort_unstable();
    ids
}

/// Tokens from the likeliest down, equal ones by id: the order that every filter is defined on.
pub fn likeliest(weights: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(weights[*i]), *i));
    order
}

/// Hundredths as a decimal: 35 as `0.35`, 50 as `0.5`.
pub fn hundredths(n: usize) -> String {
    format!("{}", n as f64 / 100.0)
}

/// `a`, `a and b`, `a, b and c`.
pub fn listed<T: Display>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    match items.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => items.concat(),
    }
}

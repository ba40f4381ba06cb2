//! The largest of many numbers, in one pass.

use std::cmp::Ordering;

/// Collects the `n` largest values with their ids.
///
/// As in [`l1_tensor::ops::top_k`]: candidates are collected in a buffer of `2 n`; when it is full, a selection keeps
/// the better half, and values that are not above the worst of them are skipped from then on.
#[derive(Clone, Debug, Default)]
pub(super) struct Best {
    n: usize,
    kept: Vec<(f32, u32)>,
    bar: f32,
}

impl Best {
    /// Starts again, in the same memory.
    pub(super) fn start(&mut self, n: usize) {
        self.n = n;
        self.kept.clear();
        self.kept.reserve(n.saturating_mul(2));
        // Nothing is above infinity: with `n` of 0, no value is taken.
        self.bar = if n == 0 { f32::INFINITY } else { f32::NEG_INFINITY };
    }

    /// Bar that a value must exceed to be [offered](Best::offer).
    #[inline(always)]
    pub(super) fn bar(&self) -> f32 {
        self.bar
    }

    /// Offers a value. Ids ascend, so a value that equals the worst kept one is too late.
    #[inline(always)]
    pub(super) fn offer(&mut self, value: f32, id: u32) {
        if value > self.bar {
            self.keep(value, id);
        }
    }

    fn keep(&mut self, value: f32, id: u32) {
        self.kept.push((value, id));
        if self.kept.len() == 2 * self.n {
            let (_, last, _) = self.kept.select_nth_unstable_by(self.n - 1, better_first);
            self.bar = last.0;
            self.kept.truncate(self.n);
        }
    }

    /// The `n` largest values, or as many as there were: the largest first, equal ones by id.
    pub(super) fn finish(&mut self) -> impl Iterator<Item = (f32, u32)> + '_ {
        self.kept.sort_unstable_by(better_first);
        self.kept.iter().copied().take(self.n)
    }
}

fn better_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    // 0 and -0 are equal.
    (b.0 + 0.0).total_cmp(&(a.0 + 0.0)).then(a.1.cmp(&b.1))
}

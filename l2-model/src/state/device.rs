//! What a step's kernels read of a [`ContiguousState`](super::ContiguousState), on a device.

use l1_tensor::ops::DeviceSequences;
use l1_tensor::{DType, Index, Runtime, Staging};

use crate::Result;

// Longest last: a copy ends where the last array ends that was written.
const CU_SEQLENS_Q: usize = 0;
const SEQ_LENS_KV: usize = 1;
const BLOCK_TABLE: usize = 2;
const SLOTS: usize = 3;

/// The arrays of the step that was staged last; none on a CPU.
#[derive(Default)]
pub(super) struct OnDevice {
    /// Made by the first step, for the largest there can be, so that they never move.
    staging: Option<Staging>,
    /// Of this step.
    sequences: usize,
    max_q_len: usize,
    max_kv_len: usize,
}

impl OnDevice {
    /// Make room for steps over `slots` sequences of at most `max_len` tokens, if there is none.
    pub(super) fn prepare(&mut self, rt: &Runtime, slots: usize, max_len: usize) -> Result<()> {
        if rt.gpu().is_none() || self.staging.is_some() {
            return Ok(());
        }
        let tokens = slots.saturating_mul(max_len);
        let arrays = [
            (DType::I32, slots + 1),
            (DType::I32, slots),
            (DType::I32, slots),
            (DType::I64, tokens),
        ];
        self.staging = Some(Staging::new(rt, &arrays)?);
        self.max_kv_len = max_len;
        Ok(())
    }

    /// Enqueue the copy of a step's arrays.
    pub(super) fn stage(
        &mut self,
        cu_seqlens_q: &[i32],
        seq_lens_kv: &[i32],
        block_table: &[i32],
        slots: &[i64],
    ) -> Result<()> {
        let Some(staging) = &mut self.staging else { return Ok(()) };
        staging.write(CU_SEQLENS_Q, cu_seqlens_q)?;
        staging.write(SEQ_LENS_KV, seq_lens_kv)?;
        staging.write(BLOCK_TABLE, block_table)?;
        staging.write(SLOTS, slots)?;
        self.sequences = seq_lens_kv.len();
        let lens = cu_seqlens_q.windows(2).map(|w| (w[1] - w[0]) as usize);
        self.max_q_len = lens.max().unwrap_or(0);
        Ok(staging.upload()?)
    }

    /// Where each token's key and value go.
    pub(super) fn slots<'a>(&'a self, host: &'a [i64]) -> Result<Index<'a, i64>> {
        let view = |staging: &'a Staging| staging.view(SLOTS, host.len());
        Ok(Index::new(host, self.staging.as_ref().map(view).transpose()?))
    }

    /// The sequences of the step. Each may have as many keys as there is room for, not only as many as it
    /// has now: when a recorded step is replayed there are more.
    pub(super) fn sequences(&self) -> Result<Option<DeviceSequences<'_>>> {
        let Self { staging: Some(staging), sequences, max_q_len, max_kv_len } = self else {
            return Ok(None);
        };
        Ok(Some(DeviceSequences {
            cu_seqlens_q: staging.view(CU_SEQLENS_Q, sequences + 1)?,
            seq_lens_kv: staging.view(SEQ_LENS_KV, *sequences)?,
            block_table: staging.view(BLOCK_TABLE, *sequences)?,
            max_q_len: *max_q_len,
            max_kv_len: *max_kv_len,
        }))
    }
}

//! The numbers of a batch that the ops read: where the ops run.
//!
//! On a CPU that is where the caller has them, and nothing is copied. On a device they are brought into
//! buffers whose addresses stay, so a recorded step finds the next batch in the place of this one.

use l1_tensor::{DType, Index, Result, Runtime, Staging};

use crate::Batch;

/// Places of the arrays in the staging memory.
const TOKENS: usize = 0;
const POSITIONS: usize = 1;
const LOGIT_ROWS: usize = 2;

/// Token ids, positions and logit rows of the step that was staged last.
pub(crate) struct Staged {
    /// `None` on a CPU.
    device: Option<Staging>,
}

impl Staged {
    /// For steps of at most so many tokens and rows.
    pub(crate) fn new(rt: &Runtime, max_tokens: usize, max_rows: usize) -> Result<Self> {
        let arrays = [(DType::U32, max_tokens), (DType::I32, max_tokens), (DType::U32, max_rows)];
        let device = rt.gpu().map(|_| Staging::new(rt, &arrays)).transpose()?;
        Ok(Self { device })
    }

    /// Enqueue the copy of a checked batch's arrays to the device. Lengths must be within those of
    /// [`Staged::new`].
    pub(crate) fn stage(&mut self, batch: &Batch) -> Result<()> {
        let Some(device) = &mut self.device else { return Ok(()) };
        device.write(TOKENS, batch.tokens)?;
        device.write(POSITIONS, batch.positions)?;
        device.write(LOGIT_ROWS, batch.logit_rows)?;
        device.upload()
    }

    /// `[T]`: the token ids.
    pub(crate) fn tokens<'a>(&'a self, batch: &Batch<'a>) -> Result<Index<'a, u32>> {
        self.index(TOKENS, batch.tokens)
    }

    /// `[T]`: their positions.
    pub(crate) fn positions<'a>(&'a self, batch: &Batch<'a>) -> Result<Index<'a, i32>> {
        self.index(POSITIONS, batch.positions)
    }

    /// `[R]`: the rows whose logits are wanted.
    pub(crate) fn logit_rows<'a>(&'a self, batch: &Batch<'a>) -> Result<Index<'a, u32>> {
        self.index(LOGIT_ROWS, batch.logit_rows)
    }

    fn index<'a, T>(&'a self, array: usize, host: &'a [T]) -> Result<Index<'a, T>> {
        let device = self.device.as_ref().map(|d| d.view(array, host.len())).transpose()?;
        Ok(Index::new(host, device))
    }
}

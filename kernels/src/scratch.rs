//! Scratch memory between two kernels of one op.
//!
//! Attention in splits, or a matmul whose result is folded afterwards, needs memory for intermediate results.
//! A caller requests it by purpose and size. A region is kept until the process ends, because a captured
//! graph may hold its address. Sizes are rounded up to powers of two, so all regions of a purpose together
//! are less than twice its largest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::{Buffer, Gpu};

/// Purpose of a region. Regions that are needed at the same time have different purposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Outputs, maxima and sums of the splits of attention.
    AttentionSplits,
    /// Gates and ups before they are folded.
    GateUp,
    /// Rows of a weight that were expanded for one matmul.
    ExpandedRows,
    /// Workspace of cuBLASLt.
    MatmulWorkspace,
    /// Bytes on their way from the device or to it.
    Exchange,
    /// Where these bytes come from or go to.
    ExchangeLists,
    /// Partial results of sampling.
    Sampling,
}

/// Locks the scratch for several launches, or a recording of such, that pass intermediate results through
/// it: no other launch may come between them. (It is not the lock of the regions, since a launch inside may
/// request a region.)
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The regions of a device.
#[derive(Default)]
pub struct Scratch {
    regions: Vec<(Purpose, Buffer)>,
}

impl Scratch {
    /// Address of at least `bytes` bytes for this purpose. The contents are undefined.
    pub(crate) fn region(&mut self, gpu: &Arc<Gpu>, purpose: Purpose, bytes: usize) -> Result<u64> {
        let fits = |(p, b): &&(Purpose, Buffer)| *p == purpose && b.len() >= bytes;
        if let Some((_, region)) = self.regions.iter().find(fits) {
            return Ok(region.view().ptr());
        }
        let size = bytes.max(1 << 16).checked_next_power_of_two();
        let size = size.ok_or(Error::OutOfMemory { bytes, free: 0 })?;
        let region = Buffer::zeroed(gpu, size)?;
        let at = region.view().ptr();
        self.regions.push((purpose, region));
        Ok(at)
    }

    /// Number of bytes of all regions.
    pub fn bytes(&self) -> usize {
        self.regions.iter().map(|(_, b)| b.len()).sum()
    }
}

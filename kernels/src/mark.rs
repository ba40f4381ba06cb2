//! A place in the stream that the host can wait for.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::Gpu;
use crate::error::{Called, Result};

/// A mark behind what was enqueued, for a host that must not overwrite what is still being copied.
pub struct Mark {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: the event is the driver's and owned by this value.
unsafe impl Send for Mark {}
// SAFETY: waiting for an event and recording it may be called from any thread.
unsafe impl Sync for Mark {}

impl Mark {
    /// A mark that is nowhere yet: waiting for it does not wait.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).called("cuEventCreate")?;
        Ok(Self { gpu: Arc::clone(gpu), event })
    }

    /// Put it behind everything enqueued so far.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn set(&mut self) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(self.event, self.gpu.stream()) }.called("cuEventRecord")
    }

    /// Wait until the device has come past it.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn wait(&self) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the event is alive; one that was never recorded is done.
        unsafe { result::event::synchronize(self.event) }.called("cuEventSynchronize")
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // The thread that drops it may not have called the driver before.
        let _ = self.gpu.bind();
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

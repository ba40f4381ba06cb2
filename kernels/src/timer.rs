//! How long the device takes, measured on the device.

use std::time::Duration;

use cudarc::driver::{result, sys};

use crate::Gpu;
use crate::error::{Called, Result};

/// Two marks in the stream and the time between them.
pub struct Timer {
    start: sys::CUevent,
    end: sys::CUevent,
}

// SAFETY: the handles are the driver's and owned by this value.
unsafe impl Send for Timer {}

impl Timer {
    /// A timer for a device.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        gpu.bind()?;
        let event = || {
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
            result::event::create(flags).called("cuEventCreate")
        };
        Ok(Self { start: event()?, end: event()? })
    }

    /// Run `work` and wait for what it enqueued: the time that took on the device.
    ///
    /// # Errors
    /// Those of `work`; the driver's.
    pub fn time<E: From<crate::Error>>(
        &mut self,
        gpu: &Gpu,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Duration, E> {
        gpu.bind()?;
        // SAFETY: events and stream are alive.
        unsafe { result::event::record(self.start, gpu.stream()) }.called("cuEventRecord")?;
        work()?;
        // SAFETY: as above.
        unsafe {
            result::event::record(self.end, gpu.stream()).called("cuEventRecord")?;
            result::event::synchronize(self.end).called("cuEventSynchronize")?;
            let ms = result::event::elapsed(self.start, self.end).called("cuEventElapsedTime")?;
            Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe {
            let _ = result::event::destroy(self.start);
            let _ = result::event::destroy(self.end);
        }
    }
}

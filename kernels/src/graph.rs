//! A sequence of launches, recorded once and replayed with one call.
//!
//! A decode step of a small model is hundreds of kernels of a few microseconds each; launching them
//! one by one takes the host longer than running them takes the device. A captured step is launched
//! as a whole. It reads the same addresses in every replay, so what changes from step to step has to
//! be written into the same buffers before, and its grids are those of the padded step.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::Gpu;
use crate::error::{Called, Error, Result};
use crate::scratch::alone;

/// A captured sequence of launches and copies.
pub struct Graph {
    gpu: Arc<Gpu>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

// SAFETY: the handles are the driver's and owned by this value; it is used from one thread at a time
// (`&mut self`), and every call makes the context current first.
unsafe impl Send for Graph {}

impl Graph {
    /// Record what `work` enqueues on this thread; nothing of it runs, and what other threads enqueue
    /// meanwhile does, as ever. `work` must have run once before, so that its
    /// kernels are compiled and its scratch is there; it must not allocate, copy to or from pageable
    /// memory, or wait.
    ///
    /// # Errors
    /// Those of `work`, then nothing was recorded; [`Error::State`] for an empty graph; the driver's.
    pub fn capture<E: From<Error>>(
        gpu: &Arc<Gpu>,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let (worked, graph) = gpu.recording(|stream| {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the stream is alive, and it is not the null stream.
            unsafe { result::stream::begin_capture(stream, mode) }
                .called("cuStreamBeginCapture")?;
            let worked = work();
            // SAFETY: the capture began above. It must end even if the work failed.
            Ok::<_, Error>((worked, unsafe { result::stream::end_capture(stream) }))
        })??;
        if let Err(e) = worked {
            if let Ok(graph) = graph
                && !graph.is_null()
            {
                // SAFETY: made above and not used anywhere.
                let _ = unsafe { result::graph::destroy(graph) };
            }
            return Err(e);
        }
        let graph = graph.called("cuStreamEndCapture")?;
        if graph.is_null() {
            return Err(
                Error::State("the capture was broken off: something in it waited".into()).into()
            );
        }
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph was made above.
        let exec = unsafe { result::graph::instantiate(graph, flags) };
        let exec = exec.called("cuGraphInstantiate").inspect_err(|_| {
            // SAFETY: made above and not used anywhere.
            let _ = unsafe { result::graph::destroy(graph) };
        })?;
        Ok(Self { gpu: Arc::clone(gpu), graph, exec })
    }

    /// Enqueue all of it.
    ///
    /// # Safety
    /// All memory that was used while it was recorded is still there.
    ///
    /// # Errors
    /// Errors of the driver.
    pub unsafe fn replay(&mut self) -> Result<()> {
        self.gpu.bind()?;
        let (exec, stream) = (self.exec, self.gpu.stream());
        let _alone = alone();
        // Not between two launches of another thread that share scratch: the recording may use the same.
        // A matmul of the library is several launches with one workspace, too.
        self.gpu.blas.alone(|| {
            self.gpu.scratch(|_| {
                // SAFETY: the graph is alive, and so is what it uses (the caller's promise).
                unsafe { result::graph::launch(exec, stream) }.called("cuGraphLaunch")
            })
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.gpu.synchronize();
        // SAFETY: made by `capture`, destroyed once.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}

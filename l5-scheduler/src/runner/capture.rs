//! Captured decode steps (CUDA graphs): each is launched as a whole, with one call.
//!
//! A step that only decodes consists of hundreds of small kernels, and launching them takes the host longer than
//! running them takes the device. Two steps of one width have the same launches over the same addresses; only the
//! contents of the input arrays differ. So a step of padding rows is captured for each of a few widths, and replayed
//! from then on:
//!
//! ```text
//! pack     the step is padded to the next captured width; padding rows read no keys and values and store none
//! stage    tokens, positions, lengths, tables -> the arrays that the graph reads
//! replay   the whole forward pass
//! ```
//!
//! A step with drafts is one of as many rows as it has tokens ([`Packed::pack_decodes`](super::Packed::pack_decodes)).
//! Steps with a prompt, or with a row that does not sample, are launched kernel by kernel, because they have too many
//! different shapes to capture.
//!
//! A graph holds addresses: of weights, the workspace, keys and values, the staged arrays, and the scratch memory that
//! launchers share. Scratch memory lives until the process ends; the rest belongs to the [`ModelRunner`], which drops
//! its graphs first. None of it may be reallocated while a graph exists.

use l1_tensor::cuda::Graph;
use l2_model::Batch;
use l3_paged_kv::StepState;

use super::ModelRunner;
use crate::ExecuteError;

/// One graph for each captured width.
#[derive(Default)]
pub(super) struct Captured {
    graphs: Vec<(usize, Graph)>,
}

impl Captured {
    /// The graph of steps of `width` rows.
    pub(super) fn of(&mut self, width: usize) -> Option<&mut Graph> {
        self.graphs.iter_mut().find(|(of, _)| *of == width).map(|(_, graph)| graph)
    }
}

/// Widths that [`ModelRunner::capture`] captures: 1, 2, 4, 8, then every 8 up to 64 and every 16 up to 256; the last is
/// `most` if that is less. Padding at most doubles a small step, and adds at most an eighth to a large one.
fn widths(most: usize) -> Vec<usize> {
    let all = [1, 2, 4].into_iter().chain((8..64).step_by(8)).chain((64..=256).step_by(16));
    let mut widths: Vec<_> = all.filter(|width| *width < most).collect();
    widths.push(most.min(256));
    widths.dedup();
    widths
}

impl ModelRunner {
    /// Captures steps that only decode, of up to 256 rows and drafts, and replays them from now on:
    /// [`ModelRunner::capture_widths`] with 1, 2, 4, 8 rows, then every 8 up to 64 and every 16 above.
    ///
    /// # Errors
    /// Errors of the device; too little memory for the largest step.
    pub fn capture(&mut self) -> Result<(), ExecuteError> {
        self.capture_widths(widths(self.max_width()))
    }

    /// Captures steps that only decode, of these numbers of rows. From now on each such step is padded to the next of
    /// these widths and replayed. Each width is run once before it is captured, which compiles the kernels that it
    /// needs. Earlier graphs are dropped. On a CPU there is nothing to capture.
    ///
    /// # Errors
    /// Errors of the device; too little memory for the largest step.
    pub fn capture_widths(&mut self, mut widths: Vec<usize>) -> Result<(), ExecuteError> {
        let rt = self.ws.runtime().clone();
        let Some(gpu) = rt.gpu() else { return Ok(()) };
        self.captured.graphs.clear();
        self.caps.decode_widths.clear();
        widths.retain(|width| (1..=self.max_width()).contains(width));
        widths.sort_unstable();
        widths.dedup();
        // The widest first: it allocates the scratch memory that all the others use.
        for width in widths.iter().rev() {
            self.packed.fill(&mut self.meta, *width)?;
            let Self { decoder, ws, kv, meta, packed, captured, taps, .. } = self;
            let batch = Batch { taps, ..packed.batch(meta) };
            let mut state = StepState { kv, meta, captured: true };
            decoder.stage(&batch, &mut state, ws)?;
            decoder.run(&batch, &mut state, ws)?;
            gpu.synchronize()?;
            let run = || decoder.run(&batch, &mut state, ws).map_err(ExecuteError::from);
            captured.graphs.push((*width, Graph::capture(gpu, run)?));
        }
        self.caps.decode_widths = widths;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::widths;

    #[test]
    fn widths_grow_by_doubling_then_by_8_then_by_16_and_end_with_everybody() {
        assert_eq!(widths(1), [1]);
        assert_eq!(widths(3), [1, 2, 3]);
        assert_eq!(widths(8), [1, 2, 4, 8]);
        assert_eq!(widths(20), [1, 2, 4, 8, 16, 20]);
        let most = widths(1000);
        assert_eq!(most[..10], [1, 2, 4, 8, 16, 24, 32, 40, 48, 56]);
        assert_eq!(most[10..], (4..=16).map(|n| n * 16).collect::<Vec<_>>());
        assert_eq!(widths(256), most);
    }
}

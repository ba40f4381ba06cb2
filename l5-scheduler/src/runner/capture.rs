//! Decode steps that were captured: launched as a whole, with one call.
//!
//! A step that only decodes is hundreds of small kernels, and telling a device of each of them takes the host longer than
//! running them takes the device. Steps of one width are the same launches over the same addresses, with other numbers in
//! the arrays that say who takes part. So each of a few widths is run once on filler, recorded, and from then on replayed:
//!
//! ```text
//! pack     the step is filled up to the next captured width; filler sees no keys and stores none
//! stage    tokens, positions, lengths, tables -> the arrays that the recording reads
//! replay   the whole forward pass
//! ```
//!
//! Prompts, and steps in which somebody's token is not yet to be chosen, are run launch by launch: their shapes are too many.
//!
//! A recording holds addresses: of weights, of the workspace, of keys and values, of the staged arrays, and of scratch that
//! launchers share. Scratch stays until the process ends, the rest belongs to the [`ModelRunner`], which drops its
//! recordings first. None of it may be made anew while there are any.

use l1_tensor::cuda::Graph;
use l3_paged_kv::StepState;

use super::ModelRunner;
use crate::ExecuteError;

/// One recording for each captured width.
#[derive(Default)]
pub(super) struct Captured {
    graphs: Vec<(usize, Graph)>,
}

impl Captured {
    /// That of steps of so many rows.
    pub(super) fn of(&mut self, width: usize) -> Option<&mut Graph> {
        self.graphs.iter_mut().find(|(of, _)| *of == width).map(|(_, graph)| graph)
    }
}

/// The widths that [`ModelRunner::capture`] takes: 1, 2, 4, 8, from there in steps of 8 to 64 and of 16 to 256, and at last
/// as many as there may be, if that is less. So a step is at most doubled, and a large one grows by an eighth.
fn widths(max_seqs: usize) -> Vec<usize> {
    let all = [1, 2, 4].into_iter().chain((8..64).step_by(8)).chain((64..=256).step_by(16));
    let mut widths: Vec<_> = all.filter(|width| *width < max_seqs).collect();
    widths.push(max_seqs.min(256));
    widths.dedup();
    widths
}

impl ModelRunner {
    /// Capture steps that only decode, of up to 256 rows, and replay them from now on: [`ModelRunner::capture_widths`] for
    /// 1, 2, 4, 8 rows, from there in steps of 8 to 64, and of 16.
    ///
    /// # Errors
    /// What the device reports; no memory for the largest step.
    pub fn capture(&mut self) -> Result<(), ExecuteError> {
        self.capture_widths(widths(self.caps.max_seqs))
    }

    /// Capture steps that only decode, of these numbers of rows; from now on each such step is filled up to the next of them
    /// and replayed. Each is run once before: kernels that were never needed are compiled now. Nothing that was captured
    /// before is left. On a CPU there is nothing to capture.
    ///
    /// # Errors
    /// What the device reports; no memory for the largest step.
    pub fn capture_widths(&mut self, mut widths: Vec<usize>) -> Result<(), ExecuteError> {
        let rt = self.ws.runtime().clone();
        let Some(gpu) = rt.gpu() else { return Ok(()) };
        self.captured.graphs.clear();
        self.caps.decode_widths.clear();
        widths.retain(|width| (1..=self.caps.max_seqs).contains(width));
        widths.sort_unstable();
        widths.dedup();
        // The widest first: it finds out how much scratch is needed, and the others use the same.
        for width in widths.iter().rev() {
            self.packed.fill(&mut self.meta, *width)?;
            let Self { decoder, ws, kv, meta, packed, captured, .. } = self;
            let batch = packed.batch(meta);
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

//! The two passes over a tensor, on all threads: its largest magnitude, then codes and scales.

use super::nvfp4;
use super::source::SourceTensor;
use crate::checkpoint::nvfp4::GROUP;
use crate::finite::first_not_finite;
use crate::{Error, Result};

/// Rows that a thread takes, for a number of rows.
fn share(rows: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    rows.div_ceil(threads).max(1)
}

/// Largest magnitude of a tensor.
///
/// # Errors
/// [`Error::NotFinite`] for a number that is not finite in bf16.
pub(super) fn amax(tensor: &SourceTensor<'_>) -> Result<f32> {
    let stored = &tensor.stored;
    let rows = stored.n_rows();
    let of = &|from: usize, to: usize| -> Result<f32> {
        let (mut values, mut largest) = (vec![0.0; stored.row_len()], 0.0f32);
        for row in from..to {
            tensor.row(row, &mut values)?;
            if let Some((column, value)) = first_not_finite(&values) {
                let (name, at) = (stored.name.into(), tensor.stored_index(row, column));
                return Err(Error::NotFinite { tensor: name, at, value });
            }
            largest = largest.max(nvfp4::amax(&values));
        }
        Ok(largest)
    };
    std::thread::scope(|scope| {
        let chunk = share(rows);
        let parts: Vec<_> = (0..rows)
            .step_by(chunk)
            .map(|from| scope.spawn(move || of(from, rows.min(from + chunk))))
            .collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Result<f32>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().try_fold(0.0f32, |largest, part| Ok(largest.max(join(part)?)))
    })
}

/// Codes and scales of a matrix.
pub(super) fn quantize(tensor: &SourceTensor<'_>, global: f32) -> Result<(Vec<u8>, Vec<u8>)> {
    let (rows, k) = (tensor.stored.n_rows(), tensor.stored.row_len());
    let (mut codes, mut scales) = (vec![0; rows * k / 2], vec![0; rows * k / GROUP]);
    if k == 0 {
        return Ok((codes, scales));
    }
    let chunk = share(rows);
    let of = &|from: usize, codes: &mut [u8], scales: &mut [u8]| -> Result<()> {
        let mut values = vec![0.0; k];
        let rows = codes.chunks_exact_mut(k / 2).zip(scales.chunks_exact_mut(k / GROUP));
        for (row, (codes, scales)) in rows.enumerate() {
            tensor.row(from + row, &mut values)?;
            nvfp4::quantize_row(&values, global, codes, scales);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let parts = codes.chunks_mut(chunk * k / 2).zip(scales.chunks_mut(chunk * k / GROUP));
        let parts: Vec<_> = parts
            .enumerate()
            .map(|(i, (codes, scales))| scope.spawn(move || of(i * chunk, codes, scales)))
            .collect();
        parts.into_iter().try_for_each(|part| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok((codes, scales))
}

//! Weights in NVFP4 that stay packed in a device's memory.
//!
//! `kernels` decides how codes and scales lie ([`Nvfp4`]): 4.5 bits a weight. It decodes them where it multiplies, to
//! the bf16 values that expansion would give, so results are the bits of the expanded weight. The other block formats
//! have no kernels and are expanded.

use std::sync::Mutex;

use kernels::Nvfp4;

use super::blocks::{Levels, Scale};
use super::device::{DeviceFormat, check_shape, upload_rows};
use super::panels::lock;
use super::{BlockFormat, BlockPart, DeviceWeight, RowOrder, StoredRow};
use crate::{Error, Result, Runtime};

/// Number of inputs that share a scale.
const GROUP: usize = 16;

/// Returns the blocks of a row, or an error.
type BlocksFn<'a, R, E> = dyn Fn(usize) -> std::result::Result<R, E> + Sync + 'a;

impl DeviceWeight {
    /// Whether rows of these parts can stay packed on a device: all in NVFP4, in whole blocks.
    pub(super) fn can_upload_blocks(k: usize, parts: &[BlockPart]) -> bool {
        let mut parts = parts.iter().filter(|part| part.rows > 0).peekable();
        let nvfp4 = |format| matches!(format, BlockFormat::NVFP4 | BlockFormat::NVFP4_SPLIT);
        k > 0
            && parts.peek().is_some()
            && parts.all(|part| nvfp4(part.format) && k.is_multiple_of(part.format.block_len()))
    }

    /// Uploads the rows of `parts`, `k` weights each. `row` is called as by
    /// [`PackedBlocks::pack`](super::PackedBlocks::pack), whose errors these are.
    pub(super) fn upload_blocks<'a, R, E>(
        rt: &Runtime,
        k: usize,
        order: RowOrder,
        parts: &[BlockPart],
        row: &BlocksFn<'_, R, E>,
    ) -> std::result::Result<Self, E>
    where
        R: Into<StoredRow<'a>>,
        E: Send + From<Error>,
    {
        if !Self::can_upload_blocks(k, parts) {
            let formats: Vec<_> = parts.iter().map(|part| part.format.name()).collect();
            let why = format!(
                "rows of {k} weights in {formats:?} cannot stay packed on CUDA: only whole blocks of NVFP4 can, \
                 expand others with Weight::load"
            );
            return Err(Error::BadParameter { op: "pack", why }.into());
        }
        let n = parts.iter().fold(0usize, |n, part| n.saturating_add(part.rows));
        check_shape(n, k, order)?;
        let format = |mut i: usize| {
            let of = parts.iter().find(|part| {
                let found = i < part.rows;
                i = i.saturating_sub(part.rows);
                found
            });
            of.map_or(BlockFormat::NVFP4_SPLIT, |part| part.format)
        };
        let scratch: Vec<Mutex<_>> = (0..rt.pool().threads())
            .map(|_| Mutex::new((vec![0; k / 2], vec![0; k / GROUP])))
            .collect();
        let storage = upload_rows(rt, n, Nvfp4::row_bytes(k), &|i, worker, out: &mut [u8]| {
            let (codes, scales) = &mut *lock(&scratch[worker]);
            let stored: StoredRow<'_> = row(i)?.into();
            stored.nvfp4(format(i), codes, scales).map_err(|why| Error::BadRow {
                op: "pack",
                row: i,
                why,
            })?;
            Nvfp4::pack_row(codes, scales, out).map_err(Error::from)?;
            Ok::<_, E>(())
        })?;
        Ok(Self { n, k, order, format: DeviceFormat::Nvfp4, storage })
    }
}

/// Writes a row of codes and scales, as the device has it, to `out` (`[k]`).
pub(super) fn expand_nvfp4(bytes: &[u8], out: &mut [f32]) -> Result<()> {
    let (codes, scales) = Nvfp4::unpack_row(bytes, out.len())?;
    let levels = Levels::E2m1.table();
    let groups = out.chunks_exact_mut(GROUP).zip(codes.chunks_exact(GROUP / 2)).zip(scales);
    for ((out, codes), scale) in groups {
        let scale = Scale::E4m3.of_byte(scale);
        for (out, both) in out.chunks_exact_mut(2).zip(codes) {
            out[0] = levels[usize::from(both & 15)] * scale;
            out[1] = levels[usize::from(both >> 4)] * scale;
        }
    }
    Ok(())
}

//! Weights: the matrices that a matmul multiplies by.
//!
//! A weight is not a tensor. A tensor's elements lie where its layout puts them; a weight's lie in the order
//! in which a kernel reads them, and a quantised one has no elements, only codes and scales. So
//! [`crate::ops::linear()`] takes a [`Weight`], and each storage scheme is one variant with its own file
//! here.

mod blocks;
mod device;
mod device_nvfp4;
mod memory;
mod packed;
mod panels;
mod scaled;

pub use blocks::{BlockFormat, BlockPart, PackedBlocks, StoredRow};
pub(crate) use blocks::{BlockPanel, Levels, STEP, Scale, Shape};
pub use device::DeviceWeight;
pub(crate) use packed::{Line, PANEL};
pub use packed::{PackedBf16, RowOrder};
pub(crate) use scaled::Factors;
pub use scaled::ScaledWeight;

use std::sync::Arc;

use kernels::{Gpu, Weights};
use memory::Place;

use crate::storage::Storage;
use crate::{Device, Error, Layout, Result, Runtime};

/// A weight `[n, k]`: `n` outputs by `k` inputs, one variant per storage scheme.
///
/// ```
/// use l1_tensor::{Error, RowOrder, Runtime, RuntimeOptions, Weight};
///
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// // Row i is [i, i + 0.5]: two outputs of two inputs each.
/// let fill = |i: usize, out: &mut [f32]| -> Result<(), Error> {
///     out.copy_from_slice(&[i as f32, i as f32 + 0.5]);
///     Ok(())
/// };
/// let weight = Weight::load(&rt, 2, 2, RowOrder::Plain, &fill)?;
/// assert_eq!((weight.n(), weight.k()), (2, 2));
/// let mut row = [0.0; 2];
/// weight.row(1, &mut row)?;
/// assert_eq!(row, [1.0, 1.5]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub enum Weight {
    /// Dense bf16, packed for a CPU.
    Bf16(PackedBf16),
    /// Codes and scales of block formats, packed for a CPU.
    Blocks(PackedBlocks),
    /// Rows in a device's memory: dense bf16, or codes and scales of NVFP4.
    Device(DeviceWeight),
    /// One of the others, with a factor for each row.
    Scaled(ScaledWeight),
}

/// A weight in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostWeight<'a> {
    Bf16(&'a PackedBf16),
    Blocks(&'a PackedBlocks),
}

impl Weight {
    /// Creates a weight of `n` rows of `k` values, rounded to bf16, in the format of the runtime's device:
    /// packed in panels for a CPU, row by row in the memory of a CUDA device. `row(i, out)` writes logical row
    /// `i` as f32 into `out` (`[k]`); it is called once per row, from all threads of the pool. Blocks of a
    /// quantised checkpoint can be kept instead: [`Weight::load_blocks`].
    ///
    /// # Errors
    /// The first error `row` returns; as [`PackedBf16::pack`]; [`Error::Cuda`].
    #[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
    pub fn load<E>(
        rt: &Runtime,
        n: usize,
        k: usize,
        order: RowOrder,
        row: &(dyn Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync),
    ) -> std::result::Result<Self, E>
    where
        E: Send + From<Error>,
    {
        Ok(match rt.gpu() {
            None => Self::Bf16(PackedBf16::pack_at(Place::Region, rt.pool(), n, k, order, row)?),
            Some(_) => Self::Device(DeviceWeight::upload(rt, n, k, order, row)?),
        })
    }

    /// As [`Weight::load`], in plain order and in memory that is free again when the weight is dropped: for what comes
    /// and goes beside weights that stay, as an adapter. The weights of a model share memory, which is read faster.
    ///
    /// # Errors
    /// As [`Weight::load`].
    #[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
    pub fn load_apart<E>(
        rt: &Runtime,
        n: usize,
        k: usize,
        row: &(dyn Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync),
    ) -> std::result::Result<Self, E>
    where
        E: Send + From<Error>,
    {
        match rt.gpu() {
            None => Ok(Self::Bf16(PackedBf16::pack(rt.pool(), n, k, RowOrder::Plain, row)?)),
            Some(_) => Self::load(rt, n, k, RowOrder::Plain, row),
        }
    }

    /// Number of outputs: logical rows.
    pub fn n(&self) -> usize {
        match self {
            Weight::Bf16(w) => w.n(),
            Weight::Blocks(w) => w.n(),
            Weight::Device(w) => w.n(),
            Weight::Scaled(w) => w.n(),
        }
    }

    /// Number of inputs: length of a logical row.
    pub fn k(&self) -> usize {
        match self {
            Weight::Bf16(w) => w.k(),
            Weight::Blocks(w) => w.k(),
            Weight::Device(w) => w.k(),
            Weight::Scaled(w) => w.k(),
        }
    }

    /// Order of the logical rows in panels.
    pub fn order(&self) -> RowOrder {
        match self {
            Weight::Bf16(w) => w.order(),
            Weight::Blocks(w) => w.order(),
            Weight::Device(w) => w.order(),
            Weight::Scaled(w) => w.order(),
        }
    }

    /// Size in memory, in bytes: what one pass over the weight reads.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::Bf16(w) => w.bytes(),
            Weight::Blocks(w) => w.bytes(),
            Weight::Device(w) => w.bytes(),
            Weight::Scaled(w) => w.bytes(),
        }
    }

    /// Reads logical row `i` back into `out` (`[k]`), as f32.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for a row that does not exist, [`crate::Error::ShapeMismatch`]
    /// when `out` is not `k` long.
    pub fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        match self {
            Weight::Bf16(w) => w.row(i, out),
            Weight::Blocks(w) => w.row(i, out),
            Weight::Device(w) => w.row(i, out),
            Weight::Scaled(w) => w.row(i, out),
        }
    }

    /// Creates a weight that keeps the blocks of a checkpoint, `k` weights a row. `row(i)` returns the blocks of
    /// logical row `i` as a file stores them: bytes, or a [`StoredRow`]. A matmul's result is the same bits as with
    /// rows that [`Weight::load`] expands, in about the memory of the file. A CUDA device has kernels for NVFP4 only.
    ///
    /// # Errors
    /// As [`PackedBlocks::pack`], also for other formats on a CUDA device; [`Error::Cuda`].
    #[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
    pub fn load_blocks<'a, R, E>(
        rt: &Runtime,
        k: usize,
        order: RowOrder,
        parts: &[BlockPart],
        row: &(dyn Fn(usize) -> std::result::Result<R, E> + Sync),
    ) -> std::result::Result<Self, E>
    where
        R: Into<StoredRow<'a>>,
        E: Send + From<Error>,
    {
        Ok(match rt.gpu() {
            None => Self::Blocks(PackedBlocks::pack(rt.pool(), k, order, parts, row)?),
            Some(_) => Self::Device(DeviceWeight::upload_blocks(rt, k, order, parts, row)?),
        })
    }

    /// Whether [`load_blocks`](Self::load_blocks) can keep these parts on the runtime's device, and the runtime wants
    /// it ([`Runtime::keeps_blocks`]).
    pub fn keeps_blocks(rt: &Runtime, k: usize, order: RowOrder, parts: &[BlockPart]) -> bool {
        rt.keeps_blocks()
            && match rt.gpu() {
                None => PackedBlocks::can_pack(k, order, parts),
                Some(_) => DeviceWeight::can_upload_blocks(k, parts),
            }
    }

    /// Formats of the weights in memory: `"bf16"`, or the names of block formats.
    pub fn formats(&self) -> impl Iterator<Item = &'static str> {
        let of = match self {
            Weight::Scaled(w) => w.unscaled(),
            other => other,
        };
        let (dense, blocks) = match of {
            Weight::Bf16(_) | Weight::Scaled(_) => (Some("bf16"), None),
            Weight::Device(w) => (Some(w.format()), None),
            Weight::Blocks(w) => (None, Some(w.formats().map(BlockFormat::name))),
        };
        dense.into_iter().chain(blocks.into_iter().flatten())
    }

    /// Returns the panels and the factors of the rows, or an error for a weight on a device.
    pub(crate) fn on_host(&self, op: &'static str) -> Result<(HostWeight<'_>, Option<&Factors>)> {
        match self {
            Weight::Bf16(w) => Ok((HostWeight::Bf16(w), None)),
            Weight::Blocks(w) => Ok((HostWeight::Blocks(w), None)),
            Weight::Scaled(w) => Ok((w.unscaled().on_host(op)?.0, Some(w.factors()))),
            Weight::Device(_) => Err(Error::Device {
                device: self.memory().map_or(Device::Cpu, Storage::device).to_string(),
                why: format!(
                    "{op} runs on the CPU, but this weight is in the memory of the device"
                ),
            }),
        }
    }

    /// Returns the matrix on the device and the factors of its rows, or an error for a weight packed for a CPU.
    pub(crate) fn on_cuda(&self, op: &'static str, gpu: &Arc<Gpu>) -> Result<Weights<'_>> {
        match self {
            Weight::Device(w) => w.view(op, gpu),
            Weight::Scaled(w) => w.on_cuda(op, gpu),
            Weight::Bf16(_) | Weight::Blocks(_) => Err(Error::Device {
                device: "cpu".into(),
                why: format!(
                    "{op} runs on CUDA, and this weight is packed for a CPU: Weight::load"
                ),
            }),
        }
    }

    /// Memory on a device.
    fn memory(&self) -> Option<&Storage> {
        match self {
            Weight::Device(w) => Some(w.storage()),
            Weight::Scaled(w) => w.unscaled().memory(),
            Weight::Bf16(_) | Weight::Blocks(_) => None,
        }
    }

    /// The shape as a layout, for error messages.
    pub(crate) fn layout(&self) -> Result<Layout> {
        Layout::contiguous(&[self.n(), self.k()])
    }
}

/// Checks that the row exists and that the buffer holds it.
fn check_row([n, k]: [usize; 2], i: usize, out: &[f32]) -> Result<()> {
    if i >= n {
        let (index, limit) = (i as i64, n);
        return Err(Error::OutOfRange { op: "weight row", what: "row", index, limit });
    }
    if out.len() != k {
        return Err(Error::ShapeMismatch {
            op: "weight row",
            why: "the buffer must hold one row",
            lhs: Layout::contiguous(&[out.len()])?,
            rhs: Layout::contiguous(&[n, k])?,
        });
    }
    Ok(())
}

/// A low-rank side term, LoRA (Hu et al. 2021, arXiv 2106.09685): `y += scale * (x A^T) B^T`.
/// With `r` far below `n` and `k` it costs `r (n + k)` multiplications a row instead of `n k`.
#[derive(Debug)]
pub struct LowRank {
    /// `[r, k]`: down to the rank.
    pub a: Weight,
    /// `[n, r]`: up to the outputs.
    pub b: Weight,
    /// Usually `alpha / r`.
    pub scale: f32,
}

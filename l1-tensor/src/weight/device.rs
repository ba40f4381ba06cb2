//! Weights in a device's memory: `[n, k]`, row by row.
//!
//! A GPU's matmul reads rows in their order and copies tiles of them into shared memory itself. So the rows
//! are not put in panels here: gates lie before ups, outputs behind each other. Their values are bf16, or codes and
//! scales in NVFP4 (`device_nvfp4.rs`).

use std::sync::{Arc, Mutex};

use kernels::{Float, Gpu, Mat, Nvfp4, Weights};

use super::device_nvfp4::expand_nvfp4;
use super::panels::lock;
use super::{BlockFormat, RowOrder};
use crate::cpu::ThreadPool;
use crate::cpu::lanes::round_bf16;
use crate::storage::Storage;
use crate::{Device, Error, Layout, Result, Runtime};

/// Number of rows that a thread takes at once.
const ROWS: usize = 16;

/// A `[n, k]` matrix on a CUDA device, row-major, without the factors of its rows. Made by
/// [`Weight::load`](super::Weight::load) and [`Weight::load_blocks`](super::Weight::load_blocks).
#[derive(Debug)]
pub struct DeviceWeight {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) order: RowOrder,
    pub(super) format: DeviceFormat,
    pub(super) storage: Storage,
}

/// How a weight on a device is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceFormat {
    /// 16 bits a weight.
    Bf16,
    /// Codes and scales, in the order of the kernels.
    Nvfp4,
}

/// Writes one row, or returns an error.
type RowFn<'a, E> = dyn Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync + 'a;

impl DeviceWeight {
    /// Uploads `n` rows of `k` values to the runtime's device, each rounded to the nearest bf16 (ties to
    /// even). `row` is called as by [`PackedBf16::pack`](super::PackedBf16::pack). The host holds two pieces
    /// of pinned memory, never the matrix.
    pub(super) fn upload<E: Send + From<Error>>(
        rt: &Runtime,
        n: usize,
        k: usize,
        order: RowOrder,
        row: &RowFn<'_, E>,
    ) -> std::result::Result<Self, E> {
        check_shape(n, k, order)?;
        let scratch: Vec<Mutex<Vec<f32>>> =
            (0..rt.pool().threads()).map(|_| Mutex::new(vec![0.0; k])).collect();
        let storage = upload_rows(rt, n, k * size_of::<u16>(), &|i, worker, out: &mut [u8]| {
            let mut values = lock(&scratch[worker]);
            row(i, &mut values)?;
            for (out, v) in out.chunks_exact_mut(size_of::<u16>()).zip(values.iter()) {
                out.copy_from_slice(&round_bf16(*v).to_bits().to_le_bytes());
            }
            Ok::<_, E>(())
        })?;
        Ok(Self { n, k, order, format: DeviceFormat::Bf16, storage })
    }

    /// Reads logical row `i` back into `out` (`[k]`), as f32: waits for the device.
    pub(super) fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        super::check_row([self.n, self.k], i, out)?;
        let memory = self.storage.on_cuda("weight row")?;
        let size = self.bytes() / self.n;
        let bytes = memory.view().part(i * size, size).to_vec(memory.gpu())?;
        match self.format {
            DeviceFormat::Bf16 => {
                let (pairs, _) = bytes.as_chunks();
                for (out, pair) in out.iter_mut().zip(pairs) {
                    *out = half::bf16::from_le_bytes(*pair).to_f32();
                }
            }
            DeviceFormat::Nvfp4 => expand_nvfp4(&bytes, out)?,
        }
        Ok(())
    }

    /// Number of outputs: logical rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs: length of a logical row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Order of the rows: plain, or gates before ups.
    pub fn order(&self) -> RowOrder {
        self.order
    }

    /// Number of bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.storage.len()
    }

    /// Device of the weight.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Memory of the weight.
    pub(super) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Name of the format.
    pub(super) fn format(&self) -> &'static str {
        match self.format {
            DeviceFormat::Bf16 => "bf16",
            DeviceFormat::Nvfp4 => BlockFormat::NVFP4.name(),
        }
    }

    /// View for the launchers.
    pub(super) fn view(&self, op: &'static str, gpu: &Arc<Gpu>) -> Result<Weights<'_>> {
        let memory = self.storage.on_cuda(op)?;
        crate::gpu::same_device(op, gpu, memory.gpu())?;
        Ok(match self.format {
            DeviceFormat::Bf16 => Mat::dense(memory.view(), Float::Bf16, self.n, self.k)?.into(),
            DeviceFormat::Nvfp4 => Nvfp4::new(memory.view(), self.n, self.k)?.into(),
        })
    }
}

/// Checks the shape of a matrix and, for gates and ups, that they come in pairs.
pub(super) fn check_shape(n: usize, k: usize, order: RowOrder) -> Result<()> {
    if order == RowOrder::GateUp && !n.is_multiple_of(2) {
        let why = format!("gates and ups come in pairs, but there are {n} rows");
        return Err(Error::BadParameter { op: "pack", why });
    }
    Layout::contiguous(&[n, k])?;
    Ok(())
}

/// Error of the function that writes the rows, or one of this crate.
struct Failure<E>(E);

impl<E: From<Error>> From<kernels::Error> for Failure<E> {
    fn from(e: kernels::Error) -> Self {
        Self(Error::from(e).into())
    }
}

/// Writes row `i` as bytes, on the thread of this index, or returns an error.
type WriteFn<'a, E> = dyn Fn(usize, usize, &mut [u8]) -> std::result::Result<(), E> + Sync + 'a;

/// Uploads `n` rows of `row_bytes` bytes, which `write` writes on all threads.
pub(super) fn upload_rows<E: Send + From<Error>>(
    rt: &Runtime,
    n: usize,
    row_bytes: usize,
    write: &WriteFn<'_, E>,
) -> std::result::Result<Storage, E> {
    let bytes = Layout::contiguous(&[n, row_bytes])?.elem_count();
    let mut storage = Storage::zeroed(rt.device(), bytes)?;
    let mut uploader = rt.uploader(bytes)?;
    if let Some(uploader) = uploader.as_deref_mut().and_then(Option::as_mut) {
        let mut to = storage.on_cuda_mut("weight")?.view_mut();
        let filled = uploader.upload(&mut to, row_bytes, |offset, piece| {
            fill(rt.pool(), offset / row_bytes, row_bytes, piece, write).map_err(Failure)
        });
        // Copies under way must finish or stop before the memory is used or freed.
        uploader.finish().map_err(Error::from)?;
        filled.map_err(|Failure(e)| e)?;
    }
    Ok(storage)
}

/// Writes the rows from `first` on, as many as `piece` holds, on all threads.
fn fill<E: Send + From<Error>>(
    pool: &ThreadPool,
    first: usize,
    row_bytes: usize,
    piece: &mut [u8],
    write: &WriteFn<'_, E>,
) -> std::result::Result<(), E> {
    // One lock for each chunk of rows. It is never contended; it only gives `&mut` to the thread.
    let chunks: Vec<Mutex<&mut [u8]>> =
        piece.chunks_mut((ROWS * row_bytes).max(1)).map(Mutex::new).collect();
    pool.try_run(chunks.len(), &|i, worker| {
        let mut chunk = lock(&chunks[i]);
        let mut rows = chunk.chunks_exact_mut(row_bytes).enumerate();
        rows.try_for_each(|(r, out)| write(first + i * ROWS + r, worker, out))
    })
}

//! Dense bf16 weights in a device's memory: `[n, k]`, row by row.
//!
//! A GPU's matmul reads rows in their order and copies tiles of them into shared memory itself. So the rows
//! are not packed here: gates lie before ups, outputs behind each other.

use std::sync::{Arc, Mutex};

use kernels::{Float, Gpu, Mat};

use super::RowOrder;
use super::panels::lock;
use crate::cpu::ThreadPool;
use crate::cpu::lanes::round_bf16;
use crate::storage::Storage;
use crate::{Device, Error, Layout, Result, Runtime};

/// Number of rows that a thread takes at once.
const ROWS: usize = 16;

/// A dense `[n, k]` matrix in bf16 on a CUDA device, row-major. Made by
/// [`Weight::load`](super::Weight::load).
#[derive(Debug)]
pub struct DeviceWeight {
    n: usize,
    k: usize,
    order: RowOrder,
    storage: Storage,
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
        if order == RowOrder::GateUp && !n.is_multiple_of(2) {
            let why = format!("gates and ups come in pairs, but there are {n} rows");
            return Err(Error::BadParameter { op: "pack", why }.into());
        }
        Layout::contiguous(&[n, k])?;
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
        Ok(Self { n, k, order, storage })
    }

    /// Reads logical row `i` back into `out` (`[k]`), as f32: waits for the device.
    pub(super) fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        super::check_row([self.n, self.k], i, out)?;
        let memory = self.storage.on_cuda("weight row")?;
        let bits = memory.view().cast::<u16>().part(i * self.k, self.k).to_vec(memory.gpu())?;
        for (out, bits) in out.iter_mut().zip(bits) {
            *out = f32::from_bits(u32::from(bits) << 16);
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

    /// View for the launchers.
    pub(super) fn mat(&self, op: &'static str, gpu: &Arc<Gpu>) -> Result<Mat<'_>> {
        let memory = self.storage.on_cuda(op)?;
        crate::gpu::same_device(op, gpu, memory.gpu())?;
        Ok(Mat::dense(memory.view(), Float::Bf16, self.n, self.k)?)
    }
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

//! Keys and values in blocks.

use std::sync::Arc;

use cudarc::driver::result;

use super::rows::{Rows, THREADS, fits, tiles, typed, whole};
use crate::error::{Called, Error, Result};
use crate::{Args, Float, Gpu, Heads, KvMut, KvShape, Launch, View};

const FILE: &str = "kv_cache";

/// Keys and values of a cache as rows of `width` elements each.
fn halves(cache: &KvMut<'_>, rows: usize, width: usize) -> [Rows; 2] {
    let dtype = cache.shape.dtype;
    [cache.k, cache.v].map(|ptr| Rows { ptr, dtype, rows, width, stride: width })
}

/// Stores keys and values (f32 `[T, heads, dim]`, rounded to the cache's type) at `slots[T]`, a slot being
/// `block * block_size + offset`. A slot of -1, or beyond the cache, stores nothing. No slot may occur twice.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn kv_write(
    gpu: &Arc<Gpu>,
    cache: KvMut<'_>,
    slots: View<'_, i64>,
    k: Heads<'_>,
    v: Heads<'_>,
) -> Result<()> {
    const OP: &str = "kv_write";
    let KvShape { blocks, block_size, heads, dim, dtype } = cache.shape;
    for (name, x) in [("k", &k), ("v", &v)] {
        typed(OP, name, x.dtype, Float::F32)?;
        if (x.tokens, x.heads, x.dim) != (slots.len(), heads, dim) {
            let why = format!(
                "{name} is [{}, {}, {}] for {} slots of [{heads}, {dim}]",
                x.tokens,
                x.heads,
                x.dim,
                slots.len()
            );
            return Err(Error::shape(OP, why));
        }
    }
    let (k, v) = (Rows::from(&k), Rows::from(&v));
    fits(OP, k)?;
    let [keys, values] = halves(&cache, blocks * block_size, k.width);
    let quads = k.width.div_ceil(4);
    let threads = quads.next_multiple_of(32).clamp(32, THREADS);
    let tiles = quads.div_ceil(threads);
    let name = match dtype {
        Float::F32 => "kv_write_f32",
        Float::Bf16 => "kv_write_bf16",
    };
    let args = Args::new().ptr(k.ptr).ptr(v.ptr).view(slots).ptr(keys.ptr).ptr(values.ptr);
    let args = args.long(keys.rows).int(tiles).int(k.width).long(k.stride).long(v.stride);
    let args = args.int(whole([k, v, keys, values]));
    // SAFETY: a block reads elements of one token's keys and values, of which there are as many as slots,
    // and writes them to a slot that the cache has.
    unsafe { Launch::new(FILE, name, k.rows * tiles, threads).enqueue(gpu, args) }
}

/// Copies whole blocks: `pairs` is `[n, 2]`, source and target. No block may be a target twice, or both
/// source and target. A pair with an invalid block is skipped.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn copy_blocks(gpu: &Arc<Gpu>, cache: KvMut<'_>, pairs: View<'_, i32>) -> Result<()> {
    const OP: &str = "copy_blocks";
    if !pairs.len().is_multiple_of(2) {
        let why = format!("{} numbers are no pairs of blocks", pairs.len());
        return Err(Error::shape(OP, why));
    }
    let KvShape { blocks, block_size, heads, dim, dtype } = cache.shape;
    let all = halves(&cache, blocks, block_size * heads * dim);
    let [keys, values] = all;
    fits(OP, keys)?;
    let (threads, tiles) = tiles(keys.width);
    let name = match dtype {
        Float::F32 => "copy_blocks_f32",
        Float::Bf16 => "copy_blocks_bf16",
    };
    let args = Args::new().ptr(keys.ptr).ptr(values.ptr).view(pairs).int(blocks).int(tiles);
    let launch = Launch::new(FILE, name, 0, threads).grid([pairs.len() / 2 * tiles, 2, 1]);
    // SAFETY: a block reads elements of one block of the cache and writes those of another; both numbers
    // are below those it has.
    unsafe { launch.enqueue(gpu, args.long(keys.width).int(whole(all))) }
}

/// Zeroes the slots of a block from offset `from` on. The driver does it: there is no kernel.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn clear_slots(gpu: &Arc<Gpu>, cache: KvMut<'_>, block: usize, from: usize) -> Result<()> {
    let KvShape { blocks, block_size, heads, dim, dtype } = cache.shape;
    if block >= blocks || from > block_size {
        let why =
            format!("block {block} from slot {from} of {blocks} blocks of {block_size} slots");
        return Err(Error::shape("clear_slots", why));
    }
    let place = heads * dim * dtype.size();
    let (start, bytes) = ((block * block_size + from) * place, (block_size - from) * place);
    if bytes == 0 {
        return Ok(());
    }
    gpu.bind()?;
    for half in [cache.k, cache.v] {
        // SAFETY: the slots lie within the block, and the block within the cache.
        unsafe { result::memset_d8_async(half + start as u64, 0, bytes, gpu.stream()) }
            .called("cuMemsetD8Async")?;
    }
    Ok(())
}

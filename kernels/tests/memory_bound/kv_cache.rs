//! Keys and values in blocks.

use std::sync::Arc;

use half::bf16;
use kernels::{Buffer, Float, Gpu, KvMut, KvShape, ops};

use crate::common::{gpu, under_every_order};
use crate::field::{Field, Layout, numbers};
use crate::refused;

/// A cache and its twin on the host, both full of bytes that nothing writes by chance.
struct Cache {
    shape: KvShape,
    device: [Buffer; 2],
    host: [Vec<u8>; 2],
}

impl Cache {
    fn new(gpu: &Arc<Gpu>, shape: KvShape) -> Self {
        let fill = |seed: usize| -> Vec<u8> {
            (0..shape.bytes()).map(|i| ((i + seed) * 131 % 251) as u8).collect()
        };
        let host = [fill(0), fill(7)];
        let device = [0, 1].map(|i| Buffer::from_slice(gpu, &host[i]).unwrap());
        Self { shape, device, host }
    }

    fn device(&mut self) -> KvMut<'_> {
        let [k, v] = &mut self.device;
        KvMut::new(self.shape, k.view_mut(), v.view_mut()).unwrap()
    }

    /// An element, as bytes.
    fn put(&mut self, half: usize, at: usize, value: f32) {
        let size = self.shape.dtype.size();
        let place = &mut self.host[half][at * size..(at + 1) * size];
        match self.shape.dtype {
            Float::F32 => place.copy_from_slice(&value.to_le_bytes()),
            Float::Bf16 => place.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.device.iter().flat_map(|half| half.to_vec::<u8>().unwrap()).collect()
    }

    fn expect_equal(&self, what: &str) {
        for (device, host) in self.device.iter().zip(&self.host) {
            let device = device.to_vec::<u8>().unwrap();
            let differs = device.iter().zip(host).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{what}: a byte of {:?}", self.shape);
        }
    }
}

fn shapes() -> impl Iterator<Item = KvShape> {
    let sizes = [(5, 16, 2, 64), (7, 3, 3, 18), (4, 1, 1, 1), (3, 5, 8, 160), (2, 4, 5, 7)];
    sizes.into_iter().flat_map(|(blocks, block_size, heads, dim)| {
        [Float::F32, Float::Bf16].map(|dtype| KvShape { blocks, block_size, heads, dim, dtype })
    })
}

#[test]
fn a_token_is_stored_at_its_slot_and_padding_nowhere() {
    let Some(gpu) = gpu() else { return };
    for shape in shapes() {
        let places = shape.blocks * shape.block_size;
        let last = places as i64 - 1;
        let slots = [last, -1, 0, places as i64, i64::MAX, i64::MIN, 2, -1];
        let (tokens, width) = (slots.len(), shape.heads * shape.dim);
        let (mut k, v) = (numbers(1, tokens * width), numbers(2, tokens * width));
        k[0] = 1.0 + 1.0 / 256.0;
        k[width - 1] = f32::INFINITY;
        let s = Buffer::from_slice(&gpu, &slots).unwrap();
        for (of_keys, of_values) in [(0, 0), (1, 1), (2, 0), (0, 2)] {
            let layouts = Layout::all(tokens, width);
            let keys = Field::new(&gpu, Float::F32, layouts[of_keys], &k);
            let values = Field::new(&gpu, Float::F32, layouts[of_values], &v);
            let mut cache = Cache::new(&gpu, shape);
            let (h, s) = (shape.heads, s.view().cast());
            ops::kv_write(&gpu, cache.device(), s, keys.heads(h), values.heads(h)).unwrap();
            for (t, slot) in slots.iter().enumerate() {
                for i in 0..width {
                    if (0..places as i64).contains(slot) {
                        cache.put(0, *slot as usize * width + i, k[t * width + i]);
                        cache.put(1, *slot as usize * width + i, v[t * width + i]);
                    }
                }
            }
            cache.expect_equal("kv_write");
        }
    }
}

#[test]
fn a_step_of_padding_leaves_every_byte_of_the_cache() {
    let Some(gpu) = gpu() else { return };
    for shape in shapes() {
        let width = shape.heads * shape.dim;
        let x = Field::new(&gpu, Float::F32, Layout::dense(9, width), &numbers(3, 9 * width));
        let slots = Buffer::from_slice(&gpu, &[-1i64; 9]).unwrap();
        let mut cache = Cache::new(&gpu, shape);
        let x = x.heads(shape.heads);
        ops::kv_write(&gpu, cache.device(), slots.view().cast(), x, x).unwrap();
        cache.expect_equal("padding");
    }
}

#[test]
fn blocks_are_copied_whole_and_pairs_of_nothing_are_left_out() {
    let Some(gpu) = gpu() else { return };
    for shape in shapes() {
        let blocks = shape.blocks as i32;
        let pairs = [0, blocks - 1, -1, 0, 0, -1, blocks, 0, 0, blocks, 0, 1];
        let p = Buffer::from_slice(&gpu, &pairs).unwrap();
        let mut cache = Cache::new(&gpu, shape);
        ops::copy_blocks(&gpu, cache.device(), p.view().cast()).unwrap();
        let bytes = shape.bytes() / shape.blocks;
        for half in &mut cache.host {
            let first = half[..bytes].to_vec();
            half[bytes * (shape.blocks - 1)..].copy_from_slice(&first);
            half[bytes..2 * bytes].copy_from_slice(&first);
        }
        cache.expect_equal("copy_blocks");
    }
}

#[test]
fn places_are_cleared_from_one_to_the_end_of_its_block() {
    let Some(gpu) = gpu() else { return };
    for shape in shapes() {
        for from in [0, shape.block_size / 2, shape.block_size] {
            let mut cache = Cache::new(&gpu, shape);
            ops::clear_slots(&gpu, cache.device(), 1, from).unwrap();
            let bytes = shape.bytes() / shape.blocks;
            for half in &mut cache.host {
                half[bytes + from * bytes / shape.block_size..2 * bytes].fill(0);
            }
            cache.expect_equal("clear_slots");
        }
    }
}

#[test]
fn no_order_of_threads_changes_the_cache() {
    let Some(gpu) = gpu() else { return };
    for shape in shapes() {
        let width = shape.heads * shape.dim;
        let x = Field::new(&gpu, Float::F32, Layout::dense(3, width), &numbers(4, 3 * width));
        let slots = Buffer::from_slice(&gpu, &[1i64, -1, 3]).unwrap();
        let pairs = Buffer::from_slice(&gpu, &[1i32, 0]).unwrap();
        under_every_order(|| {
            let mut cache = Cache::new(&gpu, shape);
            let x = x.heads(shape.heads);
            ops::kv_write(&gpu, cache.device(), slots.view().cast(), x, x).unwrap();
            ops::copy_blocks(&gpu, cache.device(), pairs.view().cast()).unwrap();
            cache.bytes()
        });
    }
}

#[test]
fn a_nan_stays_one_in_the_cache() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape { blocks: 1, block_size: 1, heads: 1, dim: 4, dtype: Float::Bf16 };
    // The second has nothing but bits that bf16 does not keep.
    let x = [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xff80_0001), 1.0];
    let x = Field::new(&gpu, Float::F32, Layout::dense(1, 4), &x);
    let slots = Buffer::from_slice(&gpu, &[0i64]).unwrap();
    let mut cache = Cache::new(&gpu, shape);
    ops::kv_write(&gpu, cache.device(), slots.view().cast(), x.heads(1), x.heads(1)).unwrap();
    for half in &cache.device {
        let stored: Vec<u16> = half.to_vec().unwrap();
        let stored: Vec<f32> = stored.iter().map(|b| bf16::from_bits(*b).to_f32()).collect();
        assert!(stored[..3].iter().all(|v| v.is_nan()) && stored[3] == 1.0, "{stored:?}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_named_with_their_numbers() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape { blocks: 4, block_size: 2, heads: 2, dim: 8, dtype: Float::Bf16 };
    let mut cache = Cache::new(&gpu, shape);
    let x = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 16));
    let narrow = Field::unwritten(&gpu, Float::Bf16, Layout::dense(3, 16));
    let slots = Buffer::zeroed(&gpu, 8 * 3).unwrap();
    let s = slots.view().cast();
    let mut write = |s, k, v| ops::kv_write(&gpu, cache.device(), s, k, v);
    refused(write(s, x.heads(4), x.heads(2)), &["k is [3, 4, 4]", "[2, 8]"]);
    refused(write(s.part(0, 2), x.heads(2), x.heads(2)), &["[3, 2, 8]", "2 slots"]);
    refused(write(s, x.heads(2), narrow.heads(2)), &["v is Bf16", "F32"]);
    let odd = slots.view().cast().part(0, 3);
    refused(ops::copy_blocks(&gpu, cache.device(), odd), &["3 numbers"]);
    refused(ops::clear_slots(&gpu, cache.device(), 4, 0), &["block 4", "4 blocks"]);
    refused(ops::clear_slots(&gpu, cache.device(), 0, 3), &["slot 3", "2 slots"]);
    cache.expect_equal("refused");
}

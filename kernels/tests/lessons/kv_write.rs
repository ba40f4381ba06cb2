//! `l0.kv_write`.

use std::sync::Arc;

use half::bf16;
use kernels::{Buffer, Float, Gpu, Heads, KvMut, KvShape, ops};

use crate::common::under_every_order;
use crate::{numbers, upload};

/// What lies in the cache before anything is written: a pattern that no number here rounds to.
const BEFORE: u16 = 0x4321;

/// Store keys and values at these slots; the cache's keys and values afterwards. The cache lies between other
/// memory, which must not change.
fn run(gpu: &Arc<Gpu>, shape: KvShape, slots: &[i64], k: &[f32], v: &[f32]) -> [Vec<u16>; 2] {
    let (k, v) = (upload(gpu, k), upload(gpu, v));
    let slots_on_device = Buffer::from_slice(gpu, slots).unwrap();
    let (margin, n) = (4 * shape.heads * shape.dim, shape.elements());
    let before = vec![BEFORE; margin + n + margin];
    let both = under_every_order(|| {
        let mut memory = [0, 1].map(|_| Buffer::from_slice(gpu, &before).unwrap());
        let [keys, values] = &mut memory;
        let cache = KvMut::new(
            shape,
            keys.view_mut().part(2 * margin, 2 * n),
            values.view_mut().part(2 * margin, 2 * n),
        )
        .unwrap();
        let heads = [slots.len(), shape.heads, shape.dim];
        let stride = shape.heads * shape.dim;
        let heads = |b| Heads::new(Buffer::view(b), Float::F32, heads, stride).unwrap();
        ops::kv_write(gpu, cache, slots_on_device.view().cast(), heads(&k), heads(&v)).unwrap();
        memory.map(|b| b.to_vec::<u8>().unwrap()).concat()
    });
    let both: Vec<u16> = both.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    let (keys, values) = both.split_at(before.len());
    [keys, values].map(|memory| {
        let (front, rest) = memory.split_at(margin);
        let (cache, behind) = rest.split_at(n);
        assert!(front.iter().all(|x| *x == BEFORE), "memory in front of the cache was written");
        assert!(behind.iter().all(|x| *x == BEFORE), "memory behind the cache was written");
        cache.to_vec()
    })
}

fn shape(heads: usize, dim: usize) -> KvShape {
    KvShape { blocks: 5, block_size: 4, heads, dim, dtype: Float::Bf16 }
}

/// The cache after writing rows of `x` at the slots.
fn expected(shape: KvShape, slots: &[i64], x: &[f32]) -> Vec<u16> {
    let width = shape.heads * shape.dim;
    let mut cache = vec![BEFORE; shape.elements()];
    for (slot, row) in slots.iter().zip(x.chunks(width)) {
        if let Ok(slot) = usize::try_from(*slot)
            && slot < shape.blocks * shape.block_size
        {
            for (to, x) in cache[slot * width..][..width].iter_mut().zip(row) {
                *to = bf16::from_f32(*x).to_bits();
            }
        }
    }
    cache
}

#[test]
fn every_token_goes_to_its_slot_and_nothing_else_changes() {
    let gpu = crate::gpu();
    for (heads, dim) in [(1, 3), (2, 8), (3, 18), (2, 64)] {
        let shape = shape(heads, dim);
        let slots = [7, 0, 19, 4];
        let (k, v) = (numbers(1, 4 * heads * dim), numbers(2, 4 * heads * dim));
        let [keys, values] = run(&gpu, shape, &slots, &k, &v);
        assert_eq!(keys, expected(shape, &slots, &k), "keys, {heads} heads of {dim}");
        assert_eq!(values, expected(shape, &slots, &v), "values, {heads} heads of {dim}");
    }
}

#[test]
fn a_padded_row_is_stored_nowhere() {
    let gpu = crate::gpu();
    let shape = shape(2, 8);
    let x = numbers(3, 4 * 16);
    let [keys, values] = run(&gpu, shape, &[-1, 6, -1, -1], &x, &x);
    assert_eq!(keys, expected(shape, &[-1, 6, -1, -1], &x));
    assert_eq!(values, keys);
    let [keys, values] = run(&gpu, shape, &[-1, -1, -1, -1], &x, &x);
    let untouched = vec![BEFORE; shape.elements()];
    assert!(keys == untouched && values == untouched, "all rows are padding");
}

#[test]
fn a_slot_behind_the_cache_is_stored_nowhere() {
    let gpu = crate::gpu();
    let shape = shape(1, 8);
    let x = numbers(4, 3 * 8);
    let slots = [20, 19, 1 << 40];
    let [keys, _] = run(&gpu, shape, &slots, &x, &x);
    assert_eq!(keys, expected(shape, &slots, &x));
}

#[test]
fn halves_round_to_even() {
    let gpu = crate::gpu();
    // Between two neighbours of bf16: 1 + 2^-8 lies in the middle of 1 and 1 + 2^-7.
    let x = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -2.5, f32::INFINITY];
    let [keys, values] = run(&gpu, shape(1, 4), &[2], &x, &x.map(|x| -x));
    assert_eq!(keys[8..12], [0x3f80, 0x3f82, 0xc020, 0x7f80]);
    assert_eq!(values[8..12], [0xbf80, 0xbf82, 0x4020, 0xff80]);
}

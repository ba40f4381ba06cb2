//! Blocks that move between a device and the host as bytes.

use l1_tensor::{DType, Precision, Runtime, Tensor};
use l3_paged_kv::tier::{ChunkKey, DramTier, KvTier, TierOutcome};
use l3_paged_kv::{BlockTable, ForwardMeta, KvError, PagedKv};

use crate::judge;
use crate::models::{device, host, load};

const BLOCKS: usize = 6;

/// A memory whose blocks 1, 3, 4 hold made-up tokens, in every layer others.
fn filled(rt: &Runtime, size: usize, dtype: DType) -> (PagedKv, usize) {
    let decoder = load("tiny-llama", &host(Precision::F32));
    let config = decoder.config();
    let mut kv = PagedKv::new_on(rt.device(), config, BLOCKS, size, dtype).unwrap();
    let mut meta = ForwardMeta::new(3 * size, 1, 3, size);
    meta.push(&BlockTable::from_blocks(size, &[1, 3, 4]), 0, 3 * size).unwrap();
    for (layer, a) in config.attention_layers() {
        let dims = [3 * size, a.kv_heads, a.head_dim];
        let rows = |seed: usize| {
            let n = dims.iter().product();
            let x: Vec<f32> = (0..n).map(|i| ((i * 7 + seed) % 31) as f32 / 8.0 - 1.9).collect();
            Tensor::from_slice(&x, &dims).unwrap().to_device(rt.device()).unwrap()
        };
        let (k, v) = (rows(layer), rows(layer + 13));
        kv.write(rt, layer, &meta, k.view(), v.view()).unwrap();
    }
    (kv, config.layers.len())
}

fn bytes(kv: &PagedKv, blocks: &[u32], layer: usize) -> Vec<u8> {
    let mut out = vec![0; blocks.len() * kv.exchange_bytes(layer)];
    kv.read_blocks(blocks, layer, &mut out).unwrap();
    out
}

#[test]
fn bytes_of_blocks_are_the_same_on_a_device_and_on_a_cpu() {
    for (precision, dtype) in [(Precision::F32, DType::F32), (Precision::Bf16, DType::BF16)] {
        let (rt, host) = (device(precision), host(precision));
        for size in [8, 16, 32] {
            let ((there, layers), (here, _)) =
                (filled(&rt, size, dtype), filled(&host, size, dtype));
            for layer in 0..layers {
                let (got, want) = (bytes(&there, &[4, 1], layer), bytes(&here, &[4, 1], layer));
                assert!(got == want, "layer {layer} in {dtype}, blocks of {size}");
                assert!(got.iter().any(|b| *b != 0), "something was stored");
            }
        }
    }
}

#[test]
fn blocks_of_a_cpu_go_to_a_device_and_back() {
    let (rt, host) = (device(Precision::Bf16), host(Precision::Bf16));
    for size in [8, 16, 32] {
        let ((mut there, layers), (here, _)) =
            (filled(&rt, size, DType::BF16), filled(&host, size, DType::BF16));
        for layer in 0..layers {
            let (sent, beside) = (bytes(&here, &[1, 3], layer), bytes(&there, &[0, 4], layer));
            there.write_blocks(&[5, 2], layer, &sent).unwrap();
            assert!(bytes(&there, &[5, 2], layer) == sent, "layer {layer}, blocks of {size}");
            assert!(bytes(&there, &[0, 4], layer) == beside, "blocks beside it, layer {layer}");
        }
    }
}

#[test]
fn a_chunk_is_kept_in_pinned_memory_and_used_again() {
    let (rt, host) = (device(Precision::Bf16), host(Precision::Bf16));
    let ((mut there, _), (mut here, _)) =
        (filled(&rt, 8, DType::BF16), filled(&host, 8, DType::BF16));
    let mut chunk = there.host_buffer(there.chunk_bytes(2));
    assert!(chunk.is_pinned() && !here.host_buffer(8).is_pinned());
    there.read_chunk(&[1, 3], &mut chunk).unwrap();
    let at = chunk.as_ptr();
    let mut tier = DramTier::new(1 << 20);
    let key = ChunkKey([1; 32]);
    tier.put(&key, chunk.into());
    tier.get(&key);
    let mut ended = Vec::new();
    tier.poll(&mut ended);
    let Some(TierOutcome::Hit(bytes)) = ended.pop().map(|end| end.outcome) else { panic!() };
    assert_eq!(bytes.as_ptr(), at, "the tier keeps this memory");
    there.write_chunk(&[5, 2], 0, 2, &bytes).unwrap();
    here.write_chunk(&[5, 2], 0, 2, &bytes).unwrap();
    for layer in 0..there.num_layers() {
        let want = self::bytes(&there, &[1, 3], layer);
        assert!(self::bytes(&there, &[5, 2], layer) == want, "layer {layer}");
        assert!(self::bytes(&here, &[5, 2], layer) == want, "layer {layer} on the CPU");
    }
    drop((tier, bytes, ended));
    assert_eq!(there.host_buffer(there.chunk_bytes(2)).as_ptr(), at, "and gives it back");
}

#[test]
fn the_rest_of_a_chunk_comes_to_a_device_from_memory_of_either_kind() {
    let (rt, host) = (device(Precision::Bf16), host(Precision::Bf16));
    for size in [8, 16] {
        let (here, _) = filled(&host, size, DType::BF16);
        let mut sent = vec![0; here.chunk_bytes(3)];
        here.read_chunk(&[1, 4, 3], &mut sent).unwrap();
        for pinned in [true, false] {
            let (mut there, _) = filled(&rt, size, DType::BF16);
            let mut got = there.host_buffer(sent.len());
            there.read_chunk(&[1, 4, 3], &mut got).unwrap();
            assert!(*got == *sent, "blocks of {size}");
            let before: Vec<_> =
                (0..there.num_layers()).map(|layer| bytes(&there, &[0, 1, 3, 4], layer)).collect();
            if !pinned {
                got = sent.clone().into();
            }
            there.write_chunk(&[5, 2], 1, 3, &got).unwrap();
            for (layer, before) in before.iter().enumerate() {
                let want = bytes(&here, &[4, 3], layer);
                assert!(bytes(&there, &[5, 2], layer) == want, "layer {layer}");
                assert!(bytes(&there, &[0, 1, 3, 4], layer) == *before, "beside, layer {layer}");
            }
        }
    }
}

#[test]
fn wrong_bytes_are_refused_on_a_device() {
    let rt = device(Precision::Bf16);
    let (mut kv, _) = filled(&rt, 8, DType::BF16);
    let one = vec![0; kv.exchange_bytes(0)];
    judge::fails_with!("two blocks", kv.write_blocks(&[1, 2], 0, &one), KvError::Tensor(_));
    let unknown = kv.write_blocks(&[BLOCKS as u32], 0, &one);
    judge::fails_with!("a block beyond the pool", unknown, KvError::UnknownBlock { .. });
}

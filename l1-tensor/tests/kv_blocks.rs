//! The cache as a pool of blocks: what is written is what is read, neighbours in a tile do not touch
//! each other, copies are copies, and eight bits are as good as they say.

mod support;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::KvCache;
use l1_tensor::{DType, Error, Runtime, Tensor, bf16};
use proptest::prelude::*;
use support::*;

const HEADS: usize = 2;
/// Odd, and beyond sixteen.
const DIM: usize = 19;
const ROW: usize = HEADS * DIM;
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F8E4M3];
const SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 48];

/// The key at a slot: small whole numbers, exact in every dtype, that tell tokens and heads apart.
fn key(token: usize) -> Vec<f32> {
    (0..ROW).map(|i| (1 + (token * 5 + i * 3) % 15) as f32).collect()
}

fn value(token: usize) -> Vec<f32> {
    key(token + 1).iter().map(|x| -x).collect()
}

fn write(rt: &Runtime, cache: &mut KvCache, slots: &[usize], token: impl Fn(usize) -> usize) {
    let dims = [slots.len(), HEADS, DIM];
    let tensor = |f: fn(usize) -> Vec<f32>| {
        let all: Vec<f32> = slots.iter().flat_map(|s| f(token(*s))).collect();
        Tensor::from_slice(&all, &dims).unwrap()
    };
    let at: Vec<i64> = slots.iter().map(|s| *s as i64).collect();
    cache.write(rt, &at, tensor(key).view(), tensor(value).view()).unwrap();
}

/// What a block holds: a token for every offset, `None` for zeros.
fn assert_holds(cache: &KvCache, block: usize, what: &str, want: &[Option<usize>]) {
    let (k, v) = cache.gather(&[block as i32], cache.block_size()).unwrap();
    for (offset, want) in want.iter().enumerate() {
        let nothing = || vec![0.0; ROW];
        let (want_k, want_v) = want.map_or((nothing(), nothing()), |t| (key(t), value(t)));
        let at = offset * ROW..(offset + 1) * ROW;
        let (dtype, size) = (cache.dtype(), cache.block_size());
        let what = format!("{what}, {dtype}, blocks of {size}: offset {offset} of block {block}");
        assert_eq!(k[at.clone()], want_k, "{what}, the key");
        assert_eq!(v[at], want_v, "{what}, the value");
    }
}

/// A pool of three tiles or more, whose every slot holds the token of its number.
fn full(rt: &Runtime, size: usize, dtype: DType) -> KvCache {
    let mut cache = KvCache::new(48usize.div_ceil(size).max(3), size, HEADS, DIM, dtype).unwrap();
    let slots: Vec<usize> = (0..cache.blocks() * size).collect();
    write(rt, &mut cache, &slots, |slot| slot);
    cache
}

fn each(mut test: impl FnMut(&Runtime, KvCache)) {
    let rt = runtime(Isa::best(), 2);
    for dtype in DTYPES {
        for size in SIZES {
            test(&rt, full(&rt, size, dtype));
        }
    }
}

/// The tokens that a full pool has in a block.
fn own(block: usize, size: usize) -> Vec<Option<usize>> {
    (block * size..(block + 1) * size).map(Some).collect()
}

#[test]
fn what_is_written_is_what_is_read() {
    each(|_, cache| {
        for block in 0..cache.blocks() {
            assert_holds(
                &cache,
                block,
                "after all slots were written",
                &own(block, cache.block_size()),
            );
        }
    });
}

#[test]
fn the_first_token_of_a_block_clears_its_own_places_only() {
    each(|rt, mut cache| {
        let size = cache.block_size();
        write(rt, &mut cache, &[size], |_| 7);
        // Of a long block the first tile: the others wait for their own first token.
        let mut mine = own(1, size);
        mine[..size.min(16)].fill(None);
        mine[0] = Some(7);
        assert_holds(&cache, 1, "a block begun anew", &mine);
        for neighbour in [0, 2] {
            assert_holds(&cache, neighbour, "beside a block begun anew", &own(neighbour, size));
        }
    });
}

#[test]
fn clearing_the_end_of_a_block_keeps_its_beginning_and_its_neighbours() {
    each(|rt, _| {
        let (dtypes, sizes) = (DTYPES, SIZES);
        for (dtype, size) in dtypes.into_iter().flat_map(|d| sizes.map(|s| (d, s))) {
            for from in [0, 1, size / 2, size - 1, size] {
                let mut cache = full(rt, size, dtype);
                cache.clear(1, from).unwrap();
                let mut mine = own(1, size);
                // To the end of the tile in which `from` lies.
                let end = (from + 1).next_multiple_of(size.min(16)).min(size);
                mine[from..end.max(from)].fill(None);
                assert_holds(&cache, 1, &format!("cleared from {from}"), &mine);
                for neighbour in [0, 2] {
                    assert_holds(&cache, neighbour, "beside a cleared one", &own(neighbour, size));
                }
            }
        }
        assert!(full(rt, 8, DType::F32).clear(6, 0).is_err(), "no such block");
    });
}

#[test]
fn a_copy_is_a_copy_and_ends_where_it_was_cut() {
    each(|rt, cache| {
        let size = cache.block_size();
        let last = cache.blocks() - 1;
        // Into a pool where others left what is no number.
        let mut other = KvCache::new(3, size, HEADS, DIM, cache.dtype()).unwrap();
        let slots: Vec<i64> = (0..3 * size as i64).collect();
        let nan =
            Tensor::from_slice(&vec![f32::NAN; slots.len() * ROW], &[slots.len(), HEADS, DIM]);
        let nan = nan.unwrap();
        other.write(rt, &slots, nan.view(), nan.view()).unwrap();
        other.copy_blocks(&[1, 0], &cache, &[last as u32, 1]).unwrap();
        assert_holds(&other, 1, "the last block, copied to 1", &own(last, size));
        assert_holds(&other, 0, "block 1, copied to 0", &own(1, size));

        for tokens in [0, 1, size / 2, size] {
            let mut cache = full(rt, size, cache.dtype());
            cache.copy_within(0, last as u32, tokens).unwrap();
            let mut mine = own(last, size);
            let end = tokens.next_multiple_of(size.min(16)).min(size);
            mine[tokens..end].fill(None);
            mine[end..].clone_from_slice(&own(0, size)[end..]);
            assert_holds(&cache, 0, &format!("{tokens} tokens of the last block"), &mine);
            assert_holds(&cache, last, "the block that was copied", &own(last, size));
            assert_holds(&cache, 1, "the neighbour of a copy", &own(1, size));
        }
        let mut cache = full(rt, size, cache.dtype());
        assert!(cache.copy_within(0, 1, size + 1).is_err(), "more than a block");
        assert!(cache.copy_within(0, 1 << 20, 1).is_err(), "no such block");
        assert!(cache.copy_blocks(&[0], &other, &[3]).is_err(), "no such block");
        assert!(cache.copy_blocks(&[0, 1], &other, &[1]).is_err(), "two from one");
        let wide = KvCache::new(3, size, HEADS, DIM + 1, cache.dtype()).unwrap();
        assert!(cache.copy_blocks(&[0], &wide, &[0]).is_err(), "another head dim");
    });
}

#[test]
fn a_prefix_moves_between_long_blocks_of_different_sizes() {
    let rt = runtime(Isa::best(), 1);
    for dtype in DTYPES {
        let long = full(&rt, 48, dtype);
        for tokens in [0, 1, 15, 16, 17, 32] {
            let mut short = full(&rt, 32, dtype);
            short.copy_prefix(1, &long, 2, tokens).unwrap();
            let mut mine = own(1, 32);
            mine[..tokens].clone_from_slice(&own(2, 48)[..tokens]);
            mine[tokens..tokens.next_multiple_of(16)].fill(None);
            assert_holds(&short, 1, &format!("{tokens} tokens from a longer block"), &mine);
        }
        let mut short = full(&rt, 32, dtype);
        assert!(short.copy_prefix(1, &long, 2, 33).is_err(), "more than the block has");
        assert!(full(&rt, 8, dtype).copy_prefix(0, &long, 0, 4).is_err(), "parts of a tile");
    }
}

#[test]
fn bytes_are_those_of_keys_values_and_scales() {
    // Llama-3.1-8B, one layer: 8 KV heads of 128. 4096 bytes a token in bf16.
    let bytes = |size, dtype| KvCache::new(3, size, 8, 128, dtype).unwrap().block_bytes();
    assert_eq!(bytes(1, DType::BF16), 4096, "a token in bf16");
    assert_eq!(bytes(16, DType::BF16), 64 << 10, "a block of 16 in bf16");
    assert_eq!(bytes(256, DType::F32), 256 * 8192, "a block of 256 in f32");
    assert_eq!(
        bytes(8, DType::F8E4M3),
        8 * (2048 + 16),
        "a block of 8 in 8 bits, with 16 scales a token"
    );
    let cache = KvCache::new(4, 4, 2, 19, DType::F8E4M3).unwrap();
    assert_eq!(cache.bytes(), 4 * cache.block_bytes(), "a pool of whole tiles");
}

#[test]
fn block_sizes_that_do_not_fit_tiles_are_refused() {
    for size in [0, 3, 6, 12, 17, 24, 40] {
        assert!(KvCache::new(2, size, 1, 4, DType::F32).is_err(), "blocks of {size}");
    }
    assert!(KvCache::new(2, 16, 1, 4, DType::F16).is_err(), "another dtype");
    assert!(KvCache::new(1 << 40, 16, 1, 4, DType::F32).is_err(), "more blocks than an i32 names");
    let cache = KvCache::new(2, 8, 1, 4, DType::F32).unwrap();
    assert!(cache.gather(&[1], 9).is_err(), "a table too short");
    assert!(cache.gather(&[0, -1], 9).is_err(), "a block that is missing");
    assert!(cache.gather(&[0, 2], 9).is_err(), "a block beyond the pool");
}

/// Rows from the tiniest to the largest numbers, neighbours far apart and near.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![
        4 => -1.0f32..1.0,
        1 => Just(0.0),
        1 => (any::<bool>(), -30i32..1, 1.0f32..2.0)
            .prop_map(|(minus, e, m)| m * 2f32.powi(e) * if minus { -1.0 } else { 1.0 }),
    ];
    (prop::collection::vec(number, DIM), -126i32..127)
        .prop_map(|(row, e)| row.into_iter().map(|x| x * 2f32.powi(e)).collect())
}

proptest! {
    #![proptest_config(random_cases(200))]

    /// Within half an ulp of three mantissa bits, or half of the smallest code times the scale.
    #[test]
    fn eight_bits_are_as_near_as_promised(k in rows(), v in rows(), slot in 0usize..32) {
        for isa in Isa::available() {
            let rt = runtime(isa, 1);
            let mut cache = KvCache::new(32, 1, 1, DIM, DType::F8E4M3).unwrap();
            let tensor = |x: &[f32]| Tensor::from_slice(x, &[1, 1, DIM]).unwrap();
            cache.write(&rt, &[slot as i64], tensor(&k).view(), tensor(&v).view()).unwrap();
            let (got_k, got_v) = cache.gather(&[slot as i32], 1).unwrap();
            for (name, row, got) in [("key", &k, got_k), ("value", &v, got_v)] {
                let largest = row.iter().fold(0.0f64, |m, x| m.max(f64::from(x.abs())));
                // The scale by its definition, in f64.
                let mut power = -117;
                while 448.0 * 2f64.powi(power) < largest && power < 120 {
                    power += 1;
                }
                let floor = 2f64.powi(power - 10);
                prop_assert!(floor <= (largest * 2f64.powi(-17)).max(2f64.powi(-127)));
                for (x, got) in row.iter().zip(got) {
                    let (x, got) = (f64::from(*x), f64::from(got));
                    let allowed = (x.abs() / 16.0).max(floor);
                    prop_assert!(
                        (x - got).abs() <= allowed,
                        "a {name} in 8 bits on {isa}, the largest of its head {largest:e}\n  \
                         expected  {x:e}\n  got       {got:e}\n  allowed   {allowed:e}"
                    );
                    prop_assert!(f64::from(bf16::from_f64(got).to_f32()) == got, "{got:e} is no bf16");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_place() {
    let rt = runtime(Isa::best(), 1);
    let mut cache = KvCache::new(1, 2, 1, 4, DType::F8E4M3).unwrap();
    let row = [1.0f32, f32::NAN, f32::INFINITY, -0.5, 2.0, 2.0, 2.0, 2.0];
    let x = Tensor::from_slice(&row, &[2, 1, 4]).unwrap();
    cache.write(&rt, &[0, 1], x.view(), x.view()).unwrap();
    let (k, v) = cache.gather(&[0], 2).unwrap();
    for got in [k, v] {
        assert!(got[1].is_nan(), "a NaN stays one, got {}", got[1]);
        // 1 is the largest finite one: the scale is 2^-8, and 448 of those are 1.75.
        assert_eq!([got[0], got[2], got[3]], [1.0, 1.75, -0.5], "the neighbours of a NaN");
        assert_eq!(got[4..], [2.0; 4], "the next token");
    }
}

/// The bytes of a block outside of a cache, made from what `gather` reads: every number is exact in every dtype.
fn exchanged(cache: &KvCache, block: usize) -> Vec<u8> {
    let (k, v) = cache.gather(&[block as i32], cache.block_size()).unwrap();
    let bits = |x: &f32| match cache.dtype() {
        DType::F32 => x.to_le_bytes().to_vec(),
        _ => bf16::from_f32(*x).to_le_bytes().to_vec(),
    };
    k.iter().chain(&v).flat_map(bits).collect()
}

#[test]
fn blocks_leave_as_rows_of_tokens_keys_before_values() {
    each(|_, cache| {
        let blocks = [2, 0, 1];
        let mut bytes = vec![0xaa; 3 * cache.exchange_bytes()];
        cache.read_blocks(&blocks, &mut bytes).unwrap();
        if cache.dtype() == DType::F8E4M3 {
            return;
        }
        let want: Vec<u8> = blocks.iter().flat_map(|b| exchanged(&cache, *b as usize)).collect();
        let what = format!("blocks of {} in {}", cache.block_size(), cache.dtype());
        assert!(
            bytes == want,
            "{what}: another layout than keys, then values, of the tokens in order"
        );
    });
}

/// Codes and scales of eight bits, decoded by hand.
#[test]
fn blocks_of_eight_bits_leave_as_codes_and_their_scales() {
    let rt = runtime(Isa::best(), 2);
    for size in SIZES {
        let cache = full(&rt, size, DType::F8E4M3);
        let mut bytes = vec![0xaa; cache.exchange_bytes()];
        cache.read_blocks(&[1], &mut bytes).unwrap();
        assert_eq!(bytes.len(), size * 2 * (ROW + HEADS), "codes, and a scale for each head");
        let (codes, scales) = bytes.split_at(2 * size * ROW);
        let number = |i: usize| {
            let scale = f32::from_bits(u32::from(scales[i / DIM]) << 23);
            scale * l1_tensor::e4m3::to_f32(codes[i])
        };
        let (k, v) = cache.gather(&[1], size).unwrap();
        for (i, want) in k.iter().chain(&v).enumerate() {
            assert_eq!(number(i), *want, "number {i} of a block of {size}");
        }
    }
}

#[test]
fn blocks_that_come_back_are_what_they_were_and_leave_the_others_as_they_are() {
    each(|rt, source| {
        let (size, blocks) = (source.block_size(), source.blocks());
        let mut bytes = vec![0; 2 * source.exchange_bytes()];
        source.read_blocks(&[1, 0], &mut bytes).unwrap();
        let mut cache = full(rt, size, source.dtype());
        cache.write_blocks(&[0, 2], &bytes).unwrap();
        assert_holds(&cache, 0, "a block that was written", &own(1, size));
        assert_holds(&cache, 2, "a block that was written", &own(0, size));
        for other in (0..blocks).filter(|b| ![0, 2].contains(b)) {
            assert_holds(&cache, other, "a block beside it", &own(other, size));
        }
        let mut again = vec![0; bytes.len()];
        cache.read_blocks(&[0, 2], &mut again).unwrap();
        assert!(again == bytes, "bytes of blocks of {size} in {} change", source.dtype());
    });
}

#[test]
fn bytes_of_another_length_and_blocks_that_do_not_exist_change_nothing() {
    each(|_, mut cache| {
        let (size, one) = (cache.block_size(), cache.exchange_bytes());
        let mut bytes = vec![0; 2 * one];
        let last = cache.blocks() as u32;
        for (blocks, len) in [(&[0, 1][..], one), (&[0], one - 1), (&[0], one + 1), (&[], 1)] {
            let refused = cache.write_blocks(blocks, &bytes[..len]);
            assert!(matches!(refused, Err(Error::BadParameter { .. })), "{blocks:?}, {len} bytes");
            let refused = cache.read_blocks(blocks, &mut bytes[..len]);
            assert!(matches!(refused, Err(Error::BadParameter { .. })), "{blocks:?}, {len} bytes");
        }
        let refused = cache.write_blocks(&[0, last], &bytes);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
        assert!(matches!(cache.read_blocks(&[last, 0], &mut bytes), Err(Error::OutOfRange { .. })));
        assert_holds(&cache, 0, "a block after an error", &own(0, size));
        cache.write_blocks(&[], &[]).unwrap();
    });
}

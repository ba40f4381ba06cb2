use super::*;
use crate::RuntimeOptions;
use crate::cpu::Isa;

const HEADS: usize = 2;
/// Odd and above sixteen: a half pair at the end, and a second group of sixteen.
const DIM: usize = 19;

fn runtime(isa: Isa) -> Runtime {
    Runtime::new(RuntimeOptions { isa: Some(isa), threads: Some(2), ..RuntimeOptions::cpu() })
        .unwrap()
}

/// Element `d` of head `h` of token `t`: a small integer, exact in bf16, never 0.
fn key(t: usize, h: usize, d: usize) -> f32 {
    (1 + (t * 41 + h * 23 + d) % 200) as f32
}

fn value(t: usize, h: usize, d: usize) -> f32 {
    -key(t, h, d)
}

fn tokens(from: usize, n: usize, f: impl Fn(usize, usize, usize) -> f32) -> Tensor {
    let mut all = Vec::new();
    for t in from..from + n {
        for h in 0..HEADS {
            all.extend((0..DIM).map(|d| f(t, h, d)));
        }
    }
    Tensor::from_slice(&all, &[n, HEADS, DIM]).unwrap()
}

/// Writes tokens `from..from + n` to the slots of the same number.
fn write(cache: &mut KvCache, rt: &Runtime, from: usize, n: usize) {
    let slots: Vec<i64> = (from..from + n).map(|s| s as i64).collect();
    let (k, v) = (tokens(from, n, key), tokens(from, n, value));
    cache.write(rt, &slots, k.view(), v.view()).unwrap();
}

/// Checks that every slot of the cache holds its token where `there` says so, else zeros.
fn assert_holds(cache: &KvCache, what: &str, there: impl Fn(usize) -> bool) {
    for slot in 0..cache.blocks() * cache.block_size() {
        for h in 0..HEADS {
            for d in 0..DIM {
                let want =
                    if there(slot) { (key(slot, h, d), value(slot, h, d)) } else { (0.0, 0.0) };
                let got = cache.read(slot, h, d);
                let dtype = cache.dtype();
                assert_eq!(
                    got, want,
                    "{what}, {dtype}: key and value of slot {slot}, head {h}, element {d}"
                );
            }
        }
    }
}

fn each(mut test: impl FnMut(&Runtime, KvCache)) {
    for isa in Isa::available() {
        for dtype in [DType::F32, DType::BF16] {
            test(&runtime(isa), KvCache::new(3, TILE, HEADS, DIM, dtype).unwrap());
        }
    }
}

#[test]
fn keys_are_columns_and_values_are_rows_of_a_tile() {
    each(|rt, mut cache| {
        write(&mut cache, rt, 0, 37);
        assert_holds(&cache, "37 tokens at once", |slot| slot < 37);
    });
}

#[test]
fn bf16_is_rounded_to_the_nearest() {
    let rt = runtime(Isa::Portable);
    let mut cache = KvCache::new(3, TILE, HEADS, DIM, DType::BF16).unwrap();
    // Three quarters of the way from 1 to the next bf16: rounding to nearest goes up, truncation
    // goes down.
    let x = Tensor::from_slice(&[1.005_859_4f32; HEADS * DIM], &[1, HEADS, DIM]).unwrap();
    cache.write(&rt, &[5], x.view(), x.view()).unwrap();
    assert_eq!(cache.read(5, 0, 0), (1.0078125, 1.0078125), "1.0058594 as bf16");
}

#[test]
fn the_first_token_of_a_tile_clears_what_was_there() {
    each(|rt, mut cache| {
        write(&mut cache, rt, 0, 48);
        write(&mut cache, rt, 16, 1);
        assert_holds(&cache, "three tiles, the second begun anew", |s| s <= 16 || s >= 32);
    });
}

#[test]
fn a_value_keeps_the_token_that_shares_its_words() {
    each(|rt, mut cache| {
        for slot in [0, 1, 2, 5, 4, 16, 17] {
            write(&mut cache, rt, slot, 1);
        }
        let there = [0, 1, 2, 4, 5, 16, 17];
        assert_holds(&cache, "tokens one by one", |s| there.contains(&s));
        // A slot may be written again: the last write counts, its neighbour is unchanged.
        let (k, v) = (tokens(9, 1, key), tokens(9, 1, value));
        cache.write(rt, &[4], k.view(), v.view()).unwrap();
        write(&mut cache, rt, 4, 1);
        assert_holds(&cache, "a token written again", |s| there.contains(&s));
        cache.write(rt, &[-1], k.view(), v.view()).unwrap();
        assert_holds(&cache, "a token for no slot", |s| there.contains(&s));
    });
}

#[test]
fn clearing_the_end_of_a_tile_keeps_its_beginning_and_other_tiles() {
    for keep in 0..=17 {
        each(|rt, mut cache| {
            write(&mut cache, rt, 0, 48);
            cache.clear(1, keep).unwrap();
            let what = format!("tile 1 of three cleared from {keep}");
            assert_holds(&cache, &what, |s| s < 16 + keep || s >= 32);
        });
    }
}

#[test]
fn the_first_token_of_a_small_block_clears_its_own_places_only() {
    for dtype in [DType::F32, DType::BF16] {
        for size in [1, 2, 8] {
            let rt = runtime(Isa::Portable);
            let mut cache = KvCache::new(32 / size, size, HEADS, DIM, dtype).unwrap();
            write(&mut cache, &rt, 0, 32);
            // The first slot's token clears the second block of the first tile before it is
            // written.
            write(&mut cache, &rt, size, 1);
            let what = format!("blocks of {size}, the second begun anew");
            assert_holds(&cache, &what, |slot| slot <= size || slot >= 2 * size);
        }
    }
}

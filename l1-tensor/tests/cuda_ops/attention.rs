//! Caches and attention over them.

use l1_tensor::ops::{
    AttentionParams, AttentionScratch, DeviceSequences, KvCache, Sequences, attention,
};
use l1_tensor::{DType, Device, Error, Result, Runtime, Tensor};

use crate::support::{SAME_BITS, noise, within};
use crate::{on_cpu, on_cuda, refused, same, same_error, tensor, zeros};

/// A cache of some shape, and the heads that attend to it.
#[derive(Clone, Copy, Debug)]
struct Shape {
    blocks: usize,
    block_size: usize,
    q_heads: usize,
    kv_heads: usize,
    dim: usize,
    dtype: DType,
}

impl Shape {
    fn cache(&self, rt: &Runtime) -> KvCache {
        let Self { blocks, block_size, kv_heads, dim, dtype, .. } = *self;
        KvCache::on(rt.device(), blocks, block_size, kv_heads, dim, dtype).unwrap()
    }

    /// Keys and values of `n` tokens.
    fn tokens(&self, rt: &Runtime, n: usize, seed: u64) -> [Tensor; 2] {
        let shape = [n, self.kv_heads, self.dim];
        let len = n * self.kv_heads * self.dim;
        [tensor(rt, &noise(len, seed), &shape), tensor(rt, &noise(len, seed + 1), &shape)]
    }

    /// A cache whose every slot was written.
    fn full(&self, rt: &Runtime, seed: u64) -> KvCache {
        let mut cache = self.cache(rt);
        let n = self.blocks * self.block_size;
        let [k, v] = self.tokens(rt, n, seed);
        let slots: Vec<i64> = (0..n as i64).collect();
        cache.write(rt, &slots, k.view(), v.view()).unwrap();
        cache
    }

    /// All that is in a cache.
    fn all(&self, cache: &KvCache) -> Result<Vec<f32>> {
        let table: Vec<i32> = (0..self.blocks as i32).collect();
        let (k, v) = cache.gather(&table, self.blocks * self.block_size)?;
        Ok([k, v].concat())
    }
}

const SMALL: Shape =
    Shape { blocks: 5, block_size: 16, q_heads: 4, kv_heads: 2, dim: 18, dtype: DType::F32 };

#[test]
fn what_is_written_is_read_back_and_padding_writes_nothing() {
    for (block_size, dtype) in [(4, DType::F32), (16, DType::BF16), (48, DType::F32)] {
        let shape = Shape { block_size, dtype, ..SMALL };
        same("kv_write", SAME_BITS, |rt| {
            let mut cache = shape.full(rt, 1);
            // Heads inside of a packed buffer; the second token is padding.
            let wide = tensor(rt, &noise(3 * 80, 3), &[3, 80]);
            let part = |at| wide.view().narrow(1, at, 36).unwrap().reshape(&[3, 2, 18]).unwrap();
            let second = block_size as i64 + 1;
            cache.write(rt, &[second, -1, second + 1], part(2), part(40))?;
            shape.all(&cache)
        });
    }
}

/// Caches of different shapes, as the layers of a model; one layer has none.
fn layers(rt: &Runtime, seed: u64) -> [Option<KvCache>; 3] {
    let wide = Shape { kv_heads: 3, dim: 64, dtype: DType::BF16, ..SMALL };
    [Some(SMALL.full(rt, seed)), None, Some(wide.full(rt, seed + 2))]
}

#[test]
fn blocks_of_all_layers_leave_and_come_back_as_on_the_cpu() {
    let one = 4 * 16 * (2 * 18) * 2 + 2 * 16 * (3 * 64) * 2;
    let read = |layers: &[Option<KvCache>], blocks: &[u32]| -> Result<Vec<u8>> {
        let mut out = vec![0; blocks.len() * one];
        KvCache::read_layers(layers, blocks, &mut out)?;
        Ok(out)
    };
    let numbers = |bytes: Vec<u8>| bytes.into_iter().map(f32::from).collect::<Vec<_>>();
    same("read_layers", SAME_BITS, |rt| Ok(numbers(read(&layers(rt, 1), &[3, 0, 3])?)));
    // Blocks 1 to 3 of four; the second one is overwritten by the third.
    for (blocks, first) in [(&[0, 4, 4][..], 1), (&[2], 3), (&[], 4)] {
        same("write_layers", SAME_BITS, |rt| {
            let (sent, mut to) = (read(&layers(rt, 1), &[1, 2, 4, 3])?, layers(rt, 7));
            KvCache::write_layers(&mut to, blocks, (first, 4), &sent)?;
            Ok(numbers(read(&to, &[0, 1, 2, 3, 4])?))
        });
    }
    for (blocks, first, of, len) in
        [(&[0, 5][..], 0, 2, 2 * one), (&[0], 0, 1, one - 1), (&[0, 1], 1, 2, 2 * one)]
    {
        same_error(|rt| {
            let bytes = vec![0; len];
            KvCache::write_layers(&mut layers(rt, 1), blocks, (first, of), &bytes)?;
            Ok(vec![])
        });
    }
    same_error(|rt| KvCache::read_layers(&layers(rt, 1), &[5], &mut vec![0; one]).map(|()| vec![]));
    same_error(|rt| KvCache::read_layers(&layers(rt, 1), &[0], &mut [0; 1]).map(|()| vec![]));
    same("no layers", SAME_BITS, |_| {
        KvCache::read_layers(&[None, None], &[7], &mut [])?;
        KvCache::write_layers(&mut [], &[7], (0, 1), &[]).map(|()| vec![])
    });
}

#[test]
fn a_cache_has_the_sizes_it_says() {
    let shape = Shape { dtype: DType::BF16, ..SMALL };
    let rt = on_cuda();
    let cache = shape.cache(&rt);
    assert_eq!(cache.device(), Device::Cuda(0));
    assert_eq!(cache.block_bytes(), 2 * 16 * 2 * 18 * 2);
    assert_eq!(cache.bytes(), 5 * cache.block_bytes());
    let eight = KvCache::on(Device::Cuda(0), 5, 16, 2, 18, DType::F8E4M3).map(|_| ());
    assert!(eight.unwrap_err().to_string().contains("use bf16"));
    let odd = |device| KvCache::on(device, 5, 17, 2, 18, DType::F32).map(|_| ());
    let words = |device| odd(device).unwrap_err().to_string();
    assert_eq!(words(Device::Cuda(0)), words(Device::Cpu));
}

#[test]
fn blocks_are_copied_and_cleared_as_on_the_cpu() {
    for dtype in [DType::F32, DType::BF16] {
        let shape = Shape { dtype, ..SMALL };
        same("clear", SAME_BITS, |rt| {
            let mut cache = shape.full(rt, 1);
            cache.clear(2, 5)?;
            cache.clear(3, 0)?;
            cache.clear(1, 16)?;
            shape.all(&cache)
        });
        same("copy_within", SAME_BITS, |rt| {
            let mut cache = shape.full(rt, 1);
            cache.copy_within(0, 3, 16)?;
            cache.copy_within(4, 1, 7)?;
            cache.copy_within(2, 2, 9)?;
            shape.all(&cache)
        });
        same("copy_blocks", SAME_BITS, |rt| {
            let (mut cache, source) = (shape.full(rt, 1), shape.full(rt, 9));
            cache.copy_blocks(&[4, 0], &source, &[1, 3])?;
            shape.all(&cache)
        });
        // Of a cache with larger blocks, as a snapshot of one long block is.
        same("copy_prefix", SAME_BITS, |rt| {
            let long = Shape { blocks: 2, block_size: 48, ..shape };
            let (mut cache, source) = (shape.full(rt, 1), long.full(rt, 9));
            cache.copy_prefix(2, &source, 1, 11)?;
            cache.copy_prefix(3, &source, 0, 16)?;
            shape.all(&cache)
        });
    }
    same_error(|rt| SMALL.full(rt, 1).copy_within(0, 5, 3).map(|()| vec![]));
    same_error(|rt| SMALL.full(rt, 1).copy_within(0, 1, 17).map(|()| vec![]));
    refused("both caches need the same heads", |rt| {
        let other = Shape { dim: 20, ..SMALL };
        SMALL.full(rt, 1).copy_prefix(0, &other.full(rt, 2), 0, 3)
    });
}

#[test]
fn blocks_do_not_move_between_devices_unasked() {
    let (cpu, cuda) = (on_cpu(), on_cuda());
    for (ours, theirs) in [(&cpu, &*cuda), (&*cuda, &cpu)] {
        let (mut to, from) = (SMALL.full(ours, 1), SMALL.full(theirs, 2));
        let copied = to.copy_prefix(0, &from, 0, 3);
        assert!(matches!(copied, Err(Error::Device { .. })), "{copied:?}");
    }
}

/// Three sequences and a padding row: a prefill, a decode, a chunk behind a prefix.
const CU: [i32; 5] = [0, 5, 6, 9, 10];
const KV: [i32; 5] = [5, 23, 9, 0, 0];
const TABLE: [i32; 8] = [3, -1, 0, 4, 1, -1, -1, -1];

/// The step's output. What the cache held before is NaN: none of it may be seen.
fn attend(
    rt: &Runtime,
    shape: Shape,
    window: Option<usize>,
    to: DType,
    staged: bool,
) -> Result<Vec<f32>> {
    let mut cache = shape.cache(rt);
    let places = shape.blocks * shape.block_size;
    let old = vec![f32::NAN; places * shape.kv_heads * shape.dim];
    let old = tensor(rt, &old, &[places, shape.kv_heads, shape.dim]);
    let slots: Vec<i64> = (0..places as i64).collect();
    cache.write(rt, &slots, old.view(), old.view())?;
    for s in 0..4 {
        let n = KV[s] as usize;
        let slots: Vec<i64> = (0..n)
            .map(|i| {
                let block = TABLE[2 * s + i / shape.block_size] as usize;
                (block * shape.block_size + i % shape.block_size) as i64
            })
            .collect();
        let [k, v] = shape.tokens(rt, n, 20 + s as u64);
        cache.write(rt, &slots, k.view(), v.view())?;
    }
    let (tokens, q_width) = (10, shape.q_heads * shape.dim);
    let wide = tensor(rt, &noise(tokens * (q_width + 6), 5), &[tokens, q_width + 6]);
    let q = wide.view().narrow(1, 4, q_width)?.reshape(&[tokens, shape.q_heads, shape.dim])?;
    let there = |data: &[i32]| Tensor::from_slice(data, &[data.len()])?.to_device(rt.device());
    let (cu, kv, table) = (there(&CU)?, there(&KV[..4])?, there(&TABLE)?);
    let device = DeviceSequences {
        cu_seqlens_q: cu.view(),
        seq_lens_kv: kv.view(),
        block_table: table.view(),
        max_q_len: 8,
        max_kv_len: 2 * shape.block_size,
    };
    let sequences = Sequences {
        cu_seqlens_q: &CU,
        seq_lens_kv: &KV[..4],
        block_table: &TABLE,
        max_blocks: 2,
        device: staged.then_some(device),
    };
    let mut scratch = AttentionScratch::new(rt, 16, 64, shape.q_heads, shape.dim)?;
    if rt.gpu().is_some() {
        assert!(scratch.bytes() < 1024, "a device has a place of its own: {}", scratch.bytes());
    }
    let params = AttentionParams { scale: 0.3, window };
    let mut out = zeros(rt, &[tokens, q_width], to);
    attention(rt, q, &cache, sequences, params, &mut scratch, out.view_mut())?;
    out.to_vec_f32()
}

#[test]
fn attention_over_blocks_is_the_cpus() {
    let shapes = [
        SMALL,
        Shape { dim: 32, q_heads: 6, ..SMALL },
        Shape { dim: 64, q_heads: 2, kv_heads: 1, ..SMALL },
        Shape { dim: 128, q_heads: 2, kv_heads: 2, ..SMALL },
    ];
    for shape in shapes {
        for window in [None, Some(4)] {
            same(&format!("{shape:?} {window:?}"), within(1e-4, 1e-5), |rt| {
                attend(rt, shape, window, DType::F32, false)
            });
        }
        // Rounded keys, values and weights, by tensor cores in another order.
        let shape = Shape { dtype: DType::BF16, ..shape };
        same(&format!("{shape:?}"), within(2e-2, 1e-2), |rt| {
            attend(rt, shape, None, DType::BF16, false)
        });
    }
}

#[test]
fn lengths_that_are_on_the_device_give_the_same_bits() {
    for dtype in [DType::F32, DType::BF16] {
        let shape = Shape { dtype, ..SMALL };
        let rt = on_cuda();
        let brought = attend(&rt, shape, None, DType::F32, false).unwrap();
        let staged = attend(&rt, shape, None, DType::F32, true).unwrap();
        // A larger launch may cut a context differently.
        for (a, b) in brought.iter().zip(&staged) {
            assert!((a - b).abs() <= 2e-3 * b.abs() + 1e-4, "{a} and {b}");
        }
    }
}

/// A call with something wrong.
fn broken(rt: &Runtime, break_it: impl Fn(&mut Sequences<'_>)) -> Result<Vec<f32>> {
    let cache = SMALL.cache(rt);
    let mut sequences = Sequences {
        cu_seqlens_q: &[0, 2],
        seq_lens_kv: &[3],
        block_table: &[0, -1],
        max_blocks: 2,
        device: None,
    };
    break_it(&mut sequences);
    let q = zeros(rt, &[2, 4, 18], DType::F32);
    let mut out = zeros(rt, &[2, 72], DType::F32);
    let mut scratch = AttentionScratch::new(rt, 4, 40, 4, 18)?;
    let params = AttentionParams { scale: 1.0, window: None };
    attention(rt, q.view(), &cache, sequences, params, &mut scratch, out.view_mut())?;
    out.to_vec_f32()
}

#[test]
fn what_does_not_fit_is_said_in_the_cpus_words() {
    same("nothing broken", SAME_BITS, |rt| broken(rt, |_| ()));
    same_error(|rt| broken(rt, |s| s.cu_seqlens_q = &[0, 3]));
    same_error(|rt| broken(rt, |s| s.seq_lens_kv = &[1]));
    same_error(|rt| broken(rt, |s| s.seq_lens_kv = &[17]));
    same_error(|rt| broken(rt, |s| s.seq_lens_kv = &[33]));
    same_error(|rt| broken(rt, |s| s.seq_lens_kv = &[41]));
    same_error(|rt| broken(rt, |s| s.block_table = &[5, -1]));
    same_error(|rt| broken(rt, |s| s.block_table = &[-1, 2]));
    same_error(|rt| {
        let (mut cache, [k, v]) = (SMALL.cache(rt), SMALL.tokens(rt, 1, 1));
        cache.write(rt, &[80], k.view(), v.view()).map(|()| vec![])
    });
    same_error(|rt| {
        let (mut cache, [k, v]) = (SMALL.cache(rt), SMALL.tokens(rt, 1, 1));
        cache.write(rt, &[-2], k.view(), v.view()).map(|()| vec![])
    });
}

#[test]
fn a_launch_that_is_too_small_for_its_step_is_refused() {
    let rt = on_cuda();
    let there = |data: &[i32]| {
        Tensor::from_slice(data, &[data.len()]).unwrap().to_device(rt.device()).unwrap()
    };
    let (cu, kv, table) = (there(&[0, 2]), there(&[3]), there(&[0, -1]));
    for (max_q_len, max_kv_len) in [(1, 40), (2, 2)] {
        let device = DeviceSequences {
            cu_seqlens_q: cu.view(),
            seq_lens_kv: kv.view(),
            block_table: table.view(),
            max_q_len,
            max_kv_len,
        };
        let sequences = Sequences {
            cu_seqlens_q: &[0, 2],
            seq_lens_kv: &[3],
            block_table: &[0, -1],
            max_blocks: 2,
            device: Some(device),
        };
        let cache = SMALL.cache(&rt);
        let q = zeros(&rt, &[2, 4, 18], DType::F32);
        let mut out = zeros(&rt, &[2, 72], DType::F32);
        let mut scratch = AttentionScratch::new(&rt, 4, 40, 4, 18).unwrap();
        let params = AttentionParams { scale: 1.0, window: None };
        let run = attention(&rt, q.view(), &cache, sequences, params, &mut scratch, out.view_mut());
        let error = run.expect_err("the launch is too small").to_string();
        assert!(error.contains("in a launch for"), "{error}");
    }
}

#[test]
fn a_cache_of_the_other_side_is_refused() {
    let (cpu, cuda) = (on_cpu(), on_cuda());
    for (ours, theirs) in [(&cpu, &*cuda), (&*cuda, &cpu)] {
        let mut cache = SMALL.cache(theirs);
        let [k, v] = SMALL.tokens(ours, 1, 1);
        let run = cache.write(ours, &[0], k.view(), v.view());
        assert!(matches!(run, Err(Error::Device { .. })), "{run:?}");
    }
}

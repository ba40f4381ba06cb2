//! Memory-bound kernels: the bytes that each moves, and its bandwidth relative to a copy's.

use anyhow::Result;
use kernels::ops::{self, Accumulate, Activation, Arithmetic, SampleRow};
use kernels::{Buffer, Float, Heads, HeadsMut, KvMut, KvShape, Mat, MatMut, Nvfp4};

use super::{Limits, Measure, Runs, by_bandwidth, filled, time};
use crate::{Context, Numbers};

/// Target fraction of a copy's bandwidth for a kernel that moves at least 64 MiB.
const LEAST: f64 = 0.85;

/// Measures every memory-bound kernel on some hundreds of MiB: far more than any cache holds, so that one run
/// leaves nothing in it that helps the next.
pub(super) fn run(ctx: &Context, limits: &Limits, take: &mut dyn FnMut(Measure)) -> Result<()> {
    let gpu = &ctx.gpu;
    let (h, rows) = if ctx.tiny() { (64, 4) } else { (4096, 24_576) };
    let n = rows * h;
    let x = filled(gpu, 4 * n)?;
    let mut residual = filled(gpu, 4 * n)?;
    let mut out = Buffer::zeroed(gpu, 4 * n)?;
    let w = filled(gpu, 4 * h)?;
    let short = Runs::short(ctx);
    let mut add = |name: &str, workload: String, bytes: usize, took| {
        take(by_bandwidth(limits, name, workload, bytes, took, Some(LEAST)));
    };

    let took = time(gpu, short, |_| {
        let out = MatMut::dense(out.view_mut(), Float::Bf16, rows, h)?;
        Ok(ops::rms_norm(gpu, mat(&x, rows, h)?, w.view().cast(), 1e-6, out)?)
    })?;
    add("rms_norm", format!("[{rows}, {h}] f32 to bf16"), 6 * n, took);

    let took = time(gpu, short, |_| {
        let residual = MatMut::dense(residual.view_mut(), Float::F32, rows, h)?;
        let out = MatMut::dense(out.view_mut(), Float::Bf16, rows, h)?;
        Ok(ops::add_rms_norm(gpu, residual, mat(&x, rows, h)?, w.view().cast(), 1e-6, out)?)
    })?;
    add("add_rms_norm", format!("[{rows}, {h}] f32 to bf16"), 14 * n, took);

    let took = time(gpu, short, |_| {
        let residual = MatMut::dense(residual.view_mut(), Float::F32, rows, h)?;
        Ok(ops::add_in_place(gpu, residual, mat(&x, rows, h)?)?)
    })?;
    add("add_in_place", format!("[{rows}, {h}] f32"), 12 * n, took);

    let took = time(gpu, short, |_| {
        Ok(ops::convert(
            gpu,
            mat(&x, rows, h)?,
            MatMut::dense(out.view_mut(), Float::Bf16, rows, h)?,
        )?)
    })?;
    add("convert", format!("[{rows}, {h}] f32 to bf16"), 6 * n, took);

    let took = time(gpu, short, |_| {
        let gate_up = Mat::dense(x.view(), Float::F32, rows, h)?;
        let out = MatMut::dense(out.view_mut(), Float::Bf16, rows, h / 2)?;
        Ok(ops::gated(gpu, Activation::Silu, gate_up, out)?)
    })?;
    add("gated (silu)", format!("[{rows}, {h}] f32 to [{rows}, {}] bf16", h / 2), 4 * n + n, took);

    // Heads of 128: the same memory as another shape.
    let (dim, heads) = if ctx.tiny() { (16, 4) } else { (128, 32) };
    let angles = filled(gpu, 4 * rows * dim / 2)?;
    let took = time(gpu, short, |_| {
        let x = HeadsMut::new(residual.view_mut(), Float::F32, [rows, heads, dim], h)?;
        let cos = Mat::dense(angles.view(), Float::F32, rows, dim / 2)?;
        Ok(ops::rope(gpu, x, cos, cos)?)
    })?;
    let bytes = 8 * n + 8 * rows * dim / 2;
    add("rope", format!("[{rows}, {heads}, {dim}] f32"), bytes, took);

    let took = time(gpu, short, |_| {
        let x = HeadsMut::new(residual.view_mut(), Float::F32, [rows, heads, dim], h)?;
        Ok(ops::rms_norm_heads(gpu, x, w.view().cast::<f32>().part(0, dim), 1e-6)?)
    })?;
    add("rms_norm_heads", format!("[{rows}, {heads}, {dim}] f32"), 8 * n, took);

    blocks(ctx, &mut add)?;
    by_number(ctx, &mut add)?;
    logits(ctx, &mut add)?;
    sampled(ctx, limits, take)
}

/// The same rows as a matrix of f32.
fn mat(buffer: &Buffer, rows: usize, width: usize) -> Result<Mat<'_>> {
    Ok(Mat::dense(buffer.view(), Float::F32, rows, width)?)
}

type Add<'a> = dyn FnMut(&str, String, usize, std::time::Duration) + 'a;

fn blocks(ctx: &Context, add: &mut Add<'_>) -> Result<()> {
    let gpu = &ctx.gpu;
    let (tokens, heads, dim, block_size) =
        if ctx.tiny() { (32, 2, 16, 4) } else { (65_536, 8, 128, 16) };
    let shape = KvShape { blocks: tokens / block_size, block_size, heads, dim, dtype: Float::Bf16 };
    let (mut k, mut v) = (Buffer::zeroed(gpu, shape.bytes())?, Buffer::zeroed(gpu, shape.bytes())?);
    let rows = filled(gpu, 4 * tokens * heads * dim)?;
    // Tokens of a block stay together; blocks come in any order.
    let mut numbers = Numbers::new("slots");
    let mut order: Vec<usize> = (0..shape.blocks).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, numbers.below(i + 1));
    }
    let slots: Vec<i64> = order
        .iter()
        .flat_map(|block| (0..block_size).map(move |at| (block * block_size + at) as i64))
        .collect();
    let slots = Buffer::from_slice(gpu, &slots)?;
    let took = time(gpu, Runs::short(ctx), |_| {
        let cache = KvMut::new(shape, k.view_mut(), v.view_mut())?;
        let x = Heads::new(rows.view(), Float::F32, [tokens, heads, dim], heads * dim)?;
        Ok(ops::kv_write(gpu, cache, slots.view().cast(), x, x)?)
    })?;
    // Keys and values are read from the same rows here, the second time perhaps from a cache.
    let n = tokens * heads * dim;
    add(
        "kv_write",
        format!("{tokens} tokens of {heads} heads of {dim}, bf16"),
        2 * n * (4 + 2),
        took,
    );

    let half = shape.blocks / 2;
    let pairs: Vec<i32> =
        (0..half).flat_map(|i| [order[i] as i32, order[half + i] as i32]).collect();
    let pairs = Buffer::from_slice(gpu, &pairs)?;
    let took = time(gpu, Runs::short(ctx), |_| {
        let cache = KvMut::new(shape, k.view_mut(), v.view_mut())?;
        Ok(ops::copy_blocks(gpu, cache, pairs.view().cast())?)
    })?;
    let bytes = 2 * 2 * half * (shape.bytes() / shape.blocks);
    add("copy_blocks", format!("{half} blocks of {block_size} tokens"), bytes, took);
    Ok(())
}

fn by_number(ctx: &Context, add: &mut Add<'_>) -> Result<()> {
    let gpu = &ctx.gpu;
    let (vocab, h, n) = if ctx.tiny() { (50, 64, 8) } else { (151_936, 4096, 16_384) };
    let table = filled(gpu, 2 * vocab * h)?;
    let mut out = Buffer::zeroed(gpu, 4 * n * h)?;
    let ids = Buffer::from_slice(gpu, &Numbers::new("ids").tokens(n, vocab))?;
    let took = time(gpu, Runs::short(ctx), |_| {
        let table = Mat::dense(table.view(), Float::Bf16, vocab, h)?;
        let out = MatMut::dense(out.view_mut(), Float::F32, n, h)?;
        Ok(ops::embedding(gpu, table, ids.view().cast(), out)?)
    })?;
    add("embedding", format!("{n} of [{vocab}, {h}] bf16 to f32"), 6 * n * h, took);

    let rows = vocab / 2;
    let ids = Buffer::from_slice(gpu, &Numbers::new("rows").tokens(n, rows))?;
    let took = time(gpu, Runs::short(ctx), |_| {
        let x = Mat::dense(table.view(), Float::F32, rows, h)?;
        let out = MatMut::dense(out.view_mut(), Float::F32, n, h)?;
        Ok(ops::gather_rows(gpu, x, ids.view().cast(), out)?)
    })?;
    add("gather_rows", format!("{n} of [{rows}, {h}] f32"), 8 * n * h, took);
    Ok(())
}

fn logits(ctx: &Context, add: &mut Add<'_>) -> Result<()> {
    let gpu = &ctx.gpu;
    let (rows, vocab) = if ctx.tiny() { (3, 100) } else { (256, 151_936) };
    let x = filled(gpu, 4 * rows * vocab)?;
    let mut out = Buffer::zeroed(gpu, 4 * rows)?;
    let all = || mat(&x, rows, vocab);
    let workload = format!("[{rows}, {vocab}] f32");
    let took =
        time(gpu, Runs::short(ctx), |_| Ok(ops::argmax(gpu, all()?, out.view_mut().cast())?))?;
    add("argmax", workload.clone(), 4 * rows * vocab, took);

    let k = 8;
    let (mut values, mut ids) =
        (Buffer::zeroed(gpu, 4 * rows * k)?, Buffer::zeroed(gpu, 4 * rows * k)?);
    let took = time(gpu, Runs::short(ctx), |_| {
        let values = MatMut::dense(values.view_mut(), Float::F32, rows, k)?;
        Ok(ops::top_k(gpu, all()?, k, values, ids.view_mut().cast())?)
    })?;
    add("top_k (8)", workload.clone(), 4 * rows * vocab, took);

    let rule = SampleRow { temperature: 0.8, top_p: 0.95, min_p: 0.0, uniform: 0.4, top_k: 0 };
    let rules = Buffer::from_slice(gpu, &vec![rule; rows])?;
    let took = time(gpu, Runs::short(ctx), |_| {
        Ok(ops::sample(gpu, all()?, rules.view().cast(), out.view_mut().cast())?)
    })?;
    add("sample (0.8, top-p 0.95)", workload, 4 * rows * vocab, took);
    Ok(())
}

/// Rows of logits as a model has them: normally distributed, and a few tokens far above the rest.
fn model_logits(ctx: &Context, rows: usize, vocab: usize) -> Result<Buffer> {
    let mut numbers = Numbers::new("logits");
    let mut row = numbers.normals(vocab, 2.0);
    let mut buffer = Buffer::zeroed(&ctx.gpu, 4 * rows * vocab)?;
    for r in 0..rows {
        // Each row has likely tokens of its own. The others are those of the row before, rotated.
        row.rotate_left(numbers.below(vocab));
        let likely: Vec<(usize, f32)> =
            (0..8).map(|_| (numbers.below(vocab), 10.0 + 10.0 * numbers.unit())).collect();
        let before: Vec<(usize, f32)> = likely.iter().map(|(id, _)| (*id, row[*id])).collect();
        likely.iter().for_each(|(id, x)| row[*id] = *x);
        buffer.view_mut().cast::<f32>().part(r * vocab, vocab).copy_from(&ctx.gpu, &row)?;
        before.iter().rev().for_each(|(id, x)| row[*id] = *x);
    }
    Ok(buffer)
}

/// The sampler on logits as a model has them: all rows, and the time of one row alone.
fn sampled(ctx: &Context, limits: &Limits, take: &mut dyn FnMut(Measure)) -> Result<()> {
    const KIND: &str = "f32, N(0, 2) and eight of 10 to 20";
    let gpu = &ctx.gpu;
    let (rows, vocab) = if ctx.tiny() { (3, 100) } else { (256, 151_936) };
    let x = model_logits(ctx, rows, vocab)?;
    let mut out = Buffer::zeroed(gpu, 4 * rows)?;
    let off = SampleRow { temperature: 0.8, top_p: 1.0, min_p: 0.0, uniform: 0.4, top_k: 0 };
    let rules = [
        ("sample (0.8, top-p 0.95)", SampleRow { top_p: 0.95, ..off }),
        ("sample (0.8, top-k 50, top-p 0.95)", SampleRow { top_k: 50, top_p: 0.95, ..off }),
        ("sample (0.8)", off),
    ];
    for (name, rule) in rules {
        let rules = Buffer::from_slice(gpu, &vec![rule; rows])?;
        let mut time = |n: usize| {
            // One row stays in the second-level cache, where a step's last matmul leaves it too.
            time(gpu, Runs::short(ctx), |_| {
                let logits = x.view().cast::<f32>().part(0, n * vocab).cast();
                let logits = Mat::dense(logits, Float::F32, n, vocab)?;
                let rules = rules.view().cast().part(0, n);
                Ok(ops::sample(gpu, logits, rules, out.view_mut().cast().part(0, n))?)
            })
        };
        let (all, one) = (time(rows)?, time(1)?);
        let workload = |n: usize| format!("[{n}, {vocab}] {KIND}");
        take(by_bandwidth(limits, name, workload(rows), 4 * rows * vocab, all, None));
        let seconds = one.as_secs_f64();
        let (name, workload, value) = (name.to_string(), workload(1), 1e6 * seconds);
        take(Measure { name, workload, value, unit: "us", seconds, ratio: None });
    }
    Ok(())
}

/// One row by the matrices of Qwen3-8B, in bf16 and in NVFP4: each weight is read once.
pub(super) fn gemv(ctx: &Context, limits: &Limits, take: &mut dyn FnMut(Measure)) -> Result<()> {
    let gpu = &ctx.gpu;
    let shapes: &[(&str, usize, usize)] = if ctx.tiny() {
        &[("qkv", 48, 32), ("down", 32, 96)]
    } else {
        &[
            ("qkv", 6144, 4096),
            ("o", 4096, 4096),
            ("gate and up", 24_576, 4096),
            ("down", 4096, 12_288),
            ("head", 151_936, 4096),
        ]
    };
    for &(name, n, k) in shapes {
        // Several weights in turn, more than a cache holds.
        let several = |bytes| match ctx.tiny() {
            true => 1,
            false => (512_usize << 20).div_ceil(bytes).max(1),
        };
        let packed_bytes = n * Nvfp4::row_bytes(k);
        let filled_with = |bytes| -> Result<Vec<Buffer>> {
            (0..several(bytes)).map(|_| filled(gpu, bytes)).collect()
        };
        let (weights, packed) = (filled_with(2 * n * k)?, filled_with(packed_bytes)?);
        for t in [1, 8] {
            let x = filled(gpu, 2 * t * k)?;
            let mut out = Buffer::zeroed(gpu, 4 * t * n)?;
            let took = time(gpu, Runs::short(ctx), |i| {
                let x = Mat::dense(x.view(), Float::Bf16, t, k)?;
                let w = Mat::dense(weights[i % weights.len()].view(), Float::Bf16, n, k)?;
                let out = MatMut::dense(out.view_mut(), Float::F32, t, n)?;
                Ok(ops::linear(gpu, x, w, Accumulate::Store, Arithmetic::Fast, out)?)
            })?;
            // Small matrices have no target; those of 64 MiB and more are memory-bound.
            let least = (2 * n * k >= 64 << 20).then_some(LEAST);
            let workload = format!("{t} rows by [{n}, {k}] bf16");
            let label = format!("linear, {name}");
            take(by_bandwidth(limits, label.clone(), workload, 2 * n * k, took, least));
            let took = time(gpu, Runs::short(ctx), |i| {
                let x = Mat::dense(x.view(), Float::Bf16, t, k)?;
                let w = Nvfp4::new(packed[i % packed.len()].view(), n, k)?;
                let out = MatMut::dense(out.view_mut(), Float::F32, t, n)?;
                Ok(ops::linear(gpu, x, w, Accumulate::Store, Arithmetic::Fast, out)?)
            })?;
            // Without a target: decoding may be the limit.
            let workload = format!("{t} rows by [{n}, {k}] NVFP4");
            take(by_bandwidth(limits, label, workload, packed_bytes, took, None));
        }
    }
    Ok(())
}

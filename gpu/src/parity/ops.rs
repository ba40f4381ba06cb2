//! Single ops, over shapes that are odd, empty or large.

use anyhow::Result;
use l1_tensor::ops::{
    Epilogue, Gelu, RopeScaling, RopeTable, add_in_place, convert, embedding, gather_rows,
    gelu_mul, layer_norm, linear, rms_norm, rms_norm_in_place, rope, scale, silu_mul,
};
use l1_tensor::{DType, RowOrder};

use super::{Check, Outcome, Tolerance, both};
use crate::context::{tensor, weight, zeros};
use crate::{Context, Numbers};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "adding and scaling are exact", run: add_and_scale },
    Check { name: "conversions round to nearest even", run: conversions },
    Check { name: "rms norm", run: rms_norms },
    Check { name: "norms of heads", run: head_norms },
    Check { name: "layer norm", run: layer_norms },
    Check { name: "rotations and their angles", run: rotations },
    Check { name: "gated activations", run: gates },
    Check { name: "rows by their indices", run: rows },
    Check { name: "matmuls of f32 rows", run: |ctx| matmuls(ctx, DType::F32) },
    Check { name: "matmuls of bf16 rows", run: |ctx| matmuls(ctx, DType::BF16) },
    Check { name: "matmuls with a bias, added to the output, and folded", run: epilogues },
];

/// Rows and widths: single, odd, wider than a block of threads, and sizes of real models.
fn shapes(ctx: &Context) -> &'static [(usize, usize)] {
    const ALL: [(usize, usize); 9] = [
        (0, 8),
        (1, 1),
        (1, 60),
        (3, 171),
        (2, 1024),
        (5, 2048),
        (33, 576),
        (7, 4096),
        (257, 5120),
    ];
    if ctx.tiny() { &ALL[..6] } else { &ALL }
}

fn tolerance(dtype: DType) -> Tolerance {
    if dtype == DType::F32 { Tolerance::F32 } else { Tolerance::BF16 }
}

fn add_and_scale(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("add"));
    for &(rows, width) in shapes(ctx) {
        let (a, b) = (numbers.normals(rows * width, 1.0), numbers.normals(rows * width, 3.0));
        outcome.add(both(ctx, &format!("[{rows}, {width}]"), Tolerance::EXACT, |rt| {
            let mut x = tensor(rt, &a, &[rows, width], DType::F32)?;
            let y = tensor(rt, &b, &[rows, width], DType::F32)?;
            add_in_place(rt, x.view_mut(), y.view())?;
            scale(rt, x.view_mut(), 0.3)?;
            Ok(x.to_vec_f32()?)
        })?);
    }
    Ok(outcome)
}

fn conversions(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("convert"));
    for &(rows, width) in shapes(ctx) {
        let mut values = numbers.normals(rows * width, 100.0);
        // Ties, the smallest and the largest numbers, infinities and NaN.
        let half = 1.0 / 256.0;
        let special = [1.0 + half, 1.0 + 3.0 * half, 1e-40, 3.4e38, f32::INFINITY, f32::NAN, -0.0];
        for (value, special) in values.iter_mut().zip(special) {
            *value = special;
        }
        outcome.add(both(ctx, &format!("[{rows}, {width}]"), Tolerance::EXACT, |rt| {
            let x = tensor(rt, &values, &[rows, width], DType::F32)?;
            let mut narrow = zeros(rt, &[rows, width], DType::BF16)?;
            let mut wide = zeros(rt, &[rows, width], DType::F32)?;
            convert(rt, x.view(), narrow.view_mut())?;
            convert(rt, narrow.view(), wide.view_mut())?;
            Ok(wide.to_vec_f32()?)
        })?);
    }
    Ok(outcome)
}

fn rms_norms(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("rms_norm"));
    for &(rows, width) in shapes(ctx) {
        let (x, w) = (numbers.normals(rows * width, 4.0), numbers.normals(width, 1.0));
        for dtype in [DType::F32, DType::BF16] {
            outcome.add(both(
                ctx,
                &format!("[{rows}, {width}] to {dtype}"),
                tolerance(dtype),
                |rt| {
                    let x = tensor(rt, &x, &[rows, width], DType::F32)?;
                    let w = tensor(rt, &w, &[width], DType::F32)?;
                    let mut out = zeros(rt, &[rows, width], dtype)?;
                    rms_norm(rt, x.view(), w.view(), 1e-6, out.view_mut())?;
                    Ok(out.to_vec_f32()?)
                },
            )?);
        }
    }
    Ok(outcome)
}

fn head_norms(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("heads"));
    for [tokens, heads, dim] in [[0, 2, 8], [1, 1, 18], [3, 5, 64], [9, 8, 128]] {
        let (x, w) = (numbers.normals(tokens * heads * dim, 2.0), numbers.normals(dim, 1.0));
        outcome.add(both(ctx, &format!("[{tokens}, {heads}, {dim}]"), Tolerance::F32, |rt| {
            let mut x = tensor(rt, &x, &[tokens, heads, dim], DType::F32)?;
            let w = tensor(rt, &w, &[dim], DType::F32)?;
            rms_norm_in_place(rt, x.view_mut(), w.view(), 1e-6)?;
            Ok(x.to_vec_f32()?)
        })?);
    }
    Ok(outcome)
}

fn layer_norms(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("layer_norm"));
    for &(rows, width) in shapes(ctx) {
        let x = numbers.normals(rows * width, 4.0);
        let (w, b) = (numbers.normals(width, 1.0), numbers.normals(width, 1.0));
        for with_bias in [false, true] {
            let what = format!("[{rows}, {width}], bias {with_bias}");
            outcome.add(both(ctx, &what, Tolerance::F32, |rt| {
                let x = tensor(rt, &x, &[rows, width], DType::F32)?;
                let w = tensor(rt, &w, &[width], DType::F32)?;
                let b = tensor(rt, &b, &[width], DType::F32)?;
                let bias = with_bias.then(|| b.view());
                let mut out = zeros(rt, &[rows, width], DType::F32)?;
                layer_norm(rt, x.view(), w.view(), bias, 1e-5, out.view_mut())?;
                Ok(out.to_vec_f32()?)
            })?);
        }
    }
    Ok(outcome)
}

fn rotations(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("rope"));
    // Only half of a head is rotated.
    for ([tokens, heads, dim], turned) in
        [([0, 1, 4], 4), ([1, 1, 18], 18), ([5, 3, 64], 32), ([17, 8, 128], 128)]
    {
        let x = numbers.normals(tokens * heads * dim, 1.0);
        let positions: Vec<i32> = (0..tokens).map(|_| numbers.below(40_000) as i32).collect();
        // Cosines of large angles differ in their last bits between libraries.
        let tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };
        outcome.add(both(ctx, &format!("[{tokens}, {heads}, {dim}]"), tolerance, |rt| {
            let table = RopeTable::new(turned, 1e6, &RopeScaling::None)?;
            let mut x = tensor(rt, &x, &[tokens, heads, dim], DType::F32)?;
            let mut cos = zeros(rt, &[tokens, turned / 2], DType::F32)?;
            let mut sin = zeros(rt, &[tokens, turned / 2], DType::F32)?;
            table.angles(rt, &positions, cos.view_mut(), sin.view_mut())?;
            rope(rt, x.view_mut(), cos.view(), sin.view())?;
            Ok([x.to_vec_f32()?, cos.to_vec_f32()?, sin.to_vec_f32()?].concat())
        })?);
    }
    Ok(outcome)
}

fn gates(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("gates"));
    for &(rows, width) in shapes(ctx) {
        let both_halves = numbers.normals(rows * 2 * width, 3.0);
        for (kind, dtype) in [
            (None, DType::F32),
            (None, DType::BF16),
            (Some(Gelu::Tanh), DType::F32),
            (Some(Gelu::Erf), DType::F32),
        ] {
            let what = format!("[{rows}, {width}] to {dtype}");
            outcome.add(both(ctx, &what, tolerance(dtype), |rt| {
                let packed = tensor(rt, &both_halves, &[rows, 2 * width], DType::F32)?;
                let gate = packed.view().narrow(1, 0, width)?;
                let up = packed.view().narrow(1, width, width)?;
                let mut out = zeros(rt, &[rows, width], dtype)?;
                match kind {
                    None => silu_mul(rt, gate, up, out.view_mut())?,
                    Some(kind) => gelu_mul(rt, kind, gate, up, out.view_mut())?,
                }
                Ok(out.to_vec_f32()?)
            })?);
        }
    }
    Ok(outcome)
}

fn rows(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("rows"));
    for (vocab, width, n) in [(1, 1, 1), (50, 60, 7), (300, 171, 0), (211, 1024, 33)] {
        let table = numbers.normals(vocab * width, 1.0);
        let ids = numbers.tokens(n, vocab);
        outcome.add(both(ctx, &format!("{n} of [{vocab}, {width}]"), Tolerance::EXACT, |rt| {
            let w = weight(rt, &table, vocab, width, RowOrder::Plain)?;
            let x = tensor(rt, &table, &[vocab, width], DType::F32)?;
            let mut embedded = zeros(rt, &[n, width], DType::F32)?;
            let mut gathered = zeros(rt, &[n, width], DType::F32)?;
            embedding(rt, &w, &ids, embedded.view_mut())?;
            gather_rows(rt, x.view(), &ids, gathered.view_mut())?;
            Ok([embedded.to_vec_f32()?, gathered.to_vec_f32()?].concat())
        })?);
    }
    Ok(outcome)
}

/// Rows, outputs and inputs: one row, a few, a tile, more than one tile; sizes that fill no tile.
fn products(ctx: &Context) -> &'static [(usize, usize, usize)] {
    const ALL: [(usize, usize, usize); 9] = [
        (1, 1, 1),
        (1, 96, 60),
        (3, 171, 200),
        (8, 64, 256),
        (17, 130, 129),
        (40, 256, 64),
        (1, 4096, 1024),
        (64, 1024, 4096),
        (300, 2048, 1536),
    ];
    if ctx.tiny() { &ALL[..6] } else { &ALL }
}

/// Tolerance for the sum of `k` products of ordinary numbers.
fn of_sum(k: usize, dtype: DType) -> Tolerance {
    let absolute = 3e-6 * (k as f32).sqrt();
    // With weights of deviation 1 / sqrt(k) the sums are about 1 for every k.
    if dtype == DType::F32 {
        Tolerance { absolute, relative: 1e-5 }
    } else {
        Tolerance { absolute: absolute + 1e-3, relative: 1.0 / 128.0 }
    }
}

fn matmuls(ctx: &Context, dtype: DType) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("matmul"));
    for &(t, n, k) in products(ctx) {
        let x = numbers.normals(t * k, 1.0);
        let w = numbers.normals(n * k, 1.0 / (k as f32).sqrt());
        for to in [DType::F32, dtype] {
            let what = format!("[{t}, {k}] {dtype} by [{n}, {k}] to {to}");
            outcome.add(both(ctx, &what, of_sum(k, to), |rt| {
                let x = tensor(rt, &x, &[t, k], dtype)?;
                let w = weight(rt, &w, n, k, RowOrder::Plain)?;
                let mut out = zeros(rt, &[t, n], to)?;
                linear(rt, x.view(), &w, None, Epilogue::Store, out.view_mut())?;
                Ok(out.to_vec_f32()?)
            })?);
        }
    }
    Ok(outcome)
}

fn epilogues(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("epilogues"));
    for &(t, n, k) in products(ctx) {
        let n = 2 * n;
        let x = numbers.normals(t * k, 1.0);
        let w = numbers.normals(n * k, 1.0 / (k as f32).sqrt());
        let (b, before) = (numbers.normals(n, 1.0), numbers.normals(t * n, 1.0));
        for (epilogue, order, width) in [
            (Epilogue::Store, RowOrder::Plain, n),
            (Epilogue::Add, RowOrder::Plain, n),
            (Epilogue::SiluMul, RowOrder::GateUp, n / 2),
            (Epilogue::GeluTanhMul, RowOrder::GateUp, n / 2),
            (Epilogue::GeluMul, RowOrder::GateUp, n / 2),
        ] {
            for dtype in [DType::F32, DType::BF16] {
                let what = format!("{epilogue:?} of [{t}, {k}] {dtype} by [{n}, {k}]");
                let tolerance = of_sum(k, DType::F32);
                let tolerance = Tolerance {
                    absolute: 3.0 * tolerance.absolute,
                    relative: 3.0 * tolerance.relative,
                };
                outcome.add(both(ctx, &what, tolerance, |rt| {
                    let x = tensor(rt, &x, &[t, k], dtype)?;
                    let w = weight(rt, &w, n, k, order)?;
                    let b = tensor(rt, &b, &[n], DType::F32)?;
                    let mut out = tensor(rt, &before[..t * width], &[t, width], DType::F32)?;
                    linear(rt, x.view(), &w, Some(b.view()), epilogue, out.view_mut())?;
                    Ok(out.to_vec_f32()?)
                })?);
            }
        }
    }
    Ok(outcome)
}

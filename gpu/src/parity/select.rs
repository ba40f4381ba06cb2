//! From logits to tokens, and copies of blocks: launchers that are tested on their own.

use anyhow::{Result, ensure};
use kernels::ops::{self, SampleRow};
use kernels::{Buffer, Float, KvMut, KvShape, Mat, MatMut};
use l1_tensor::ops::{argmax_reference, softmax_reference, top_k_reference};

use super::{Check, Outcome};
use crate::{Context, Numbers};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "the most likely token", run: largest },
    Check { name: "the most likely tokens in order", run: several },
    Check {
        name: "a sampled token has a probability, and at temperature 0 is the most likely",
        run: drawn,
    },
    Check { name: "copies of blocks", run: copies },
];

/// Rows and vocabularies.
fn shapes(ctx: &Context) -> &'static [(usize, usize)] {
    const ALL: [(usize, usize); 6] =
        [(1, 1), (3, 171), (2, 1024), (5, 4099), (64, 50_257), (256, 151_936)];
    if ctx.tiny() { &ALL[..4] } else { &ALL }
}

fn logits(numbers: &mut Numbers, rows: usize, vocab: usize) -> Vec<f32> {
    let mut x = numbers.normals(rows * vocab, 2.0);
    // Two equal elements, the largest ones: the first of them counts.
    for row in x.chunks_mut(vocab).filter(|row| row.len() > 10) {
        let at = numbers.below(row.len() - 1);
        row[at] = 20.0;
        row[at + 1] = 20.0;
    }
    x
}

fn largest(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("argmax"));
    for &(rows, vocab) in shapes(ctx) {
        let x = logits(&mut numbers, rows, vocab);
        let on_device = Buffer::from_slice(&ctx.gpu, &x)?;
        let mut out = Buffer::zeroed(&ctx.gpu, 4 * rows)?;
        let mat = Mat::dense(on_device.view(), Float::F32, rows, vocab)?;
        ops::argmax(&ctx.gpu, mat, out.view_mut().cast())?;
        let got: Vec<u32> = out.to_vec()?;
        let wanted: Vec<u32> = x.chunks(vocab).map(argmax_reference).collect();
        ensure!(got == wanted, "[{rows}, {vocab}]: {got:?}, the CPU has {wanted:?}");
        outcome.add(0.0);
    }
    Ok(outcome)
}

fn several(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("top_k"));
    for &(rows, vocab) in shapes(ctx) {
        let x = logits(&mut numbers, rows, vocab);
        let on_device = Buffer::from_slice(&ctx.gpu, &x)?;
        for k in [1, 5, 64].into_iter().filter(|k| *k <= vocab) {
            let mut values = Buffer::zeroed(&ctx.gpu, 4 * rows * k)?;
            let mut ids = Buffer::zeroed(&ctx.gpu, 4 * rows * k)?;
            let mat = Mat::dense(on_device.view(), Float::F32, rows, vocab)?;
            let out = MatMut::dense(values.view_mut(), Float::F32, rows, k)?;
            ops::top_k(&ctx.gpu, mat, k, out, ids.view_mut().cast())?;
            let (values, ids): (Vec<f32>, Vec<u32>) = (values.to_vec()?, ids.to_vec()?);
            // To sort rows takes a CPU longer than all else here, so of many it sorts some.
            for (r, row) in x.chunks(vocab).enumerate().step_by(rows.div_ceil(16)) {
                let got: Vec<(u32, f32)> = ids[r * k..][..k]
                    .iter()
                    .copied()
                    .zip(values[r * k..][..k].iter().copied())
                    .collect();
                let wanted = top_k_reference(row, k);
                ensure!(
                    got == wanted,
                    "{k} of row {r} of [{rows}, {vocab}]: {got:?}, not {wanted:?}"
                );
            }
            outcome.add(0.0);
        }
    }
    Ok(outcome)
}

/// Which token belongs to a random number is the kernel's choice, and the tests of layer 4 check frequencies.
/// Here, no token may be drawn that has no probability.
fn drawn(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("sample"));
    for &(rows, vocab) in shapes(ctx) {
        let x = logits(&mut numbers, rows, vocab);
        let rules: Vec<SampleRow> = (0..rows)
            .map(|r| SampleRow {
                temperature: [1.0, 0.0, 0.7][r % 3],
                top_p: 1.0,
                min_p: 0.0,
                uniform: numbers.unit(),
                top_k: 0,
            })
            .collect();
        let on_device = Buffer::from_slice(&ctx.gpu, &x)?;
        let rules_on_device = Buffer::from_slice(&ctx.gpu, &rules)?;
        let mut out = Buffer::zeroed(&ctx.gpu, 4 * rows)?;
        let mat = Mat::dense(on_device.view(), Float::F32, rows, vocab)?;
        ops::sample(&ctx.gpu, mat, rules_on_device.view().cast(), out.view_mut().cast())?;
        let got: Vec<u32> = out.to_vec()?;
        for (r, (row, rule)) in x.chunks(vocab).zip(&rules).enumerate() {
            if rule.temperature == 0.0 {
                let wanted = argmax_reference(row);
                ensure!(got[r] == wanted, "row {r} of [{rows}, {vocab}]: {}, not {wanted}", got[r]);
                continue;
            }
            let scaled: Vec<f32> = row.iter().map(|x| x / rule.temperature).collect();
            let mut p = vec![0.0; vocab];
            softmax_reference(&scaled, &mut p);
            ensure!((got[r] as usize) < vocab, "row {r}: token {} of {vocab}", got[r]);
            ensure!(p[got[r] as usize] > 0.0, "row {r}: token {} cannot come", got[r]);
        }
        outcome.add(0.0);
    }
    Ok(outcome)
}

fn copies(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("copies"));
    for (dtype, [blocks, block_size, heads, dim]) in
        [(Float::F32, [6, 4, 2, 18]), (Float::Bf16, [9, 16, 3, 64]), (Float::Bf16, [5, 1, 1, 5])]
    {
        let shape = KvShape { blocks, block_size, heads, dim, dtype };
        let bytes = |numbers: &mut Numbers| -> Vec<u8> {
            (0..shape.bytes()).map(|_| numbers.bits() as u8).collect()
        };
        let (mut k, mut v) = (bytes(&mut numbers), bytes(&mut numbers));
        let mut k_there = Buffer::from_slice(&ctx.gpu, &k)?;
        let mut v_there = Buffer::from_slice(&ctx.gpu, &v)?;
        let pairs = [0_i32, 3, 0, 1, 4, 2];
        let pairs_there = Buffer::from_slice(&ctx.gpu, &pairs)?;
        let cache = KvMut::new(shape, k_there.view_mut(), v_there.view_mut())?;
        ops::copy_blocks(&ctx.gpu, cache, pairs_there.view().cast())?;
        let cache = KvMut::new(shape, k_there.view_mut(), v_there.view_mut())?;
        let from = block_size / 2;
        ops::clear_slots(&ctx.gpu, cache, 1, from)?;
        let block = shape.bytes() / blocks;
        for memory in [&mut k, &mut v] {
            for pair in pairs.chunks(2) {
                let start = pair[0] as usize * block;
                memory.copy_within(start..start + block, pair[1] as usize * block);
            }
            memory[block + block / block_size * from..2 * block].fill(0);
        }
        ensure!(k_there.to_vec::<u8>()? == k, "keys of {shape:?}");
        ensure!(v_there.to_vec::<u8>()? == v, "values of {shape:?}");
        outcome.add(0.0);
    }
    Ok(outcome)
}

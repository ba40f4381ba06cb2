//! Weights in NVFP4 that stay packed: the same weight expanded on the device, and on the CPU.

use anyhow::{Result, ensure};
use l1_tensor::ops::{Epilogue, embedding, linear};
use l1_tensor::{
    BlockFormat, BlockPart, DType, Error, Precision, RowOrder, Runtime, StoredRow, Weight,
};

use super::{Check, Outcome, Tolerance, close};
use crate::context::{tensor, zeros};
use crate::{Context, Numbers};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "every NVFP4 code times every scale is exact", run: codes_and_scales },
    Check { name: "packed NVFP4 gives the same bits as expanded to bf16", run: products },
];

/// Codes of `[n, k]`, two in a byte, and the scales of 16 each.
struct Stored {
    n: usize,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    /// Any codes; scales of 1/8 to 2.
    fn random(n: usize, k: usize, numbers: &mut Numbers) -> Self {
        let codes = (0..n * k / 2).map(|_| numbers.below(256) as u8).collect();
        let scales = (0..n * k / 16).map(|_| 0x20 + numbers.below(0x21) as u8).collect();
        Self { n, k, codes, scales }
    }

    fn row(&self, i: usize) -> StoredRow<'_> {
        let (codes, scales) = (self.k / 2, self.k / 16);
        let codes = &self.codes[i * codes..][..codes];
        StoredRow::split(codes, &self.scales[i * scales..][..scales])
    }

    /// As blocks; on a CPU rows must be whole units of 32 weights for that.
    fn packed(&self, rt: &Runtime, order: RowOrder) -> Result<Weight> {
        let parts = [BlockPart { rows: self.n, format: BlockFormat::NVFP4_SPLIT }];
        let row = |i: usize| Ok::<_, Error>(self.row(i));
        Ok(Weight::load_blocks(rt, self.k, order, &parts, &row)?)
    }

    /// As bf16: the rows of the CPU's blocks.
    fn expanded(&self, ctx: &Context, rt: &Runtime, order: RowOrder) -> Result<Weight> {
        let blocks = self.packed(ctx.cpu(), RowOrder::Plain)?;
        let row = |i: usize, out: &mut [f32]| blocks.row(i, out);
        Ok(Weight::load(rt, self.n, self.k, order, &row)?)
    }
}

/// A factor for the rows of each half.
fn scaled(weight: Weight) -> Result<Weight> {
    let n = weight.n();
    Ok(weight.scaled(&[(n / 2, 0.37), (n - n / 2, 1.25e-2)])?)
}

fn codes_and_scales(ctx: &Context) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    // A row for each scale, with every code in an even and in an odd column.
    let (n, k) = (0x7f, 32);
    let codes = (0..n).flat_map(|_| (0..16u8).map(|code| code | (15 - code) << 4)).collect();
    let scales = (0..n as u8).flat_map(|scale| [scale; 2]).collect();
    let stored = Stored { n, k, codes, scales };
    let ids: Vec<u32> = (0..n as u32).collect();
    let rows = |rt: &Runtime| -> Result<Vec<f32>> {
        let weight = stored.packed(rt, RowOrder::Plain)?;
        let mut out = zeros(rt, &[n, k], DType::F32)?;
        embedding(rt, &weight, &ids, out.view_mut())?;
        Ok(out.to_vec_f32()?)
    };
    let (got, wanted) = (rows(ctx.device(Precision::Bf16, false))?, rows(ctx.cpu())?);
    outcome.add(close("codes times scales", &got, &wanted, Tolerance::EXACT)?);
    Ok(outcome)
}

/// Rows, outputs and inputs: a kernel for few rows of each size, and rows that are expanded before.
fn shapes(ctx: &Context) -> &'static [(usize, usize, usize)] {
    const ALL: [(usize, usize, usize); 8] = [
        (1, 34, 32),
        (3, 66, 160),
        (9, 40, 1184),
        (19, 66, 96),
        (1, 4096, 4096),
        (16, 6144, 4096),
        (8, 4096, 12_288),
        (300, 2048, 1536),
    ];
    if ctx.tiny() { &ALL[..4] } else { &ALL }
}

fn products(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("nvfp4"));
    for &(t, n, k) in shapes(ctx) {
        let stored = Stored::random(n, k, &mut numbers);
        let x = numbers.normals(t * k, 1.0 / (k as f32).sqrt());
        let before = numbers.normals(t * n, 1.0);
        for (epilogue, order, width) in [
            (Epilogue::Store, RowOrder::Plain, n),
            (Epilogue::Add, RowOrder::Plain, n),
            (Epilogue::SiluMul, RowOrder::GateUp, n / 2),
        ] {
            let what = format!("{epilogue:?} of [{t}, {k}] by [{n}, {k}]");
            let product = |rt: &Runtime, weight: &Weight| -> Result<Vec<f32>> {
                let x = tensor(rt, &x, &[t, k], DType::BF16)?;
                let mut out = tensor(rt, &before[..t * width], &[t, width], DType::F32)?;
                linear(rt, x.view(), weight, None, epilogue, out.view_mut())?;
                Ok(out.to_vec_f32()?)
            };
            let wanted = product(ctx.cpu(), &scaled(stored.packed(ctx.cpu(), order)?)?)?;
            for batch_invariant in [false, true] {
                let rt = ctx.device(Precision::Bf16, batch_invariant);
                let packed = scaled(stored.packed(rt, order)?)?;
                ensure!(packed.formats().eq(["NVFP4"]), "{what}: it did not stay packed");
                let got = product(rt, &packed)?;
                let expanded = product(rt, &scaled(stored.expanded(ctx, rt, order)?)?)?;
                // A library may choose by where a matrix lies.
                let exact = batch_invariant || t <= 16;
                let tolerance = if exact { Tolerance::EXACT } else { Tolerance::F32 };
                outcome.add(close(&format!("{what}, expanded"), &got, &expanded, tolerance)?);
                let tolerance = Tolerance { absolute: 2e-3, relative: 1e-3 };
                outcome.add(close(&what, &got, &wanted, tolerance)?);
            }
        }
    }
    Ok(outcome)
}

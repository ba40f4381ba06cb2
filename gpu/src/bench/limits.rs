//! Limits of the device.

use std::time::Duration;

use anyhow::Result;
use kernels::ops::{Accumulate, Arithmetic, linear};
use kernels::{Buffer, Float, Mat, MatMut};
use serde::Serialize;

use super::{Measure, Runs, filled, time};
use crate::Context;

/// The two limits: each kernel is bound by one of them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Bytes read and written per second by a copy within the device's memory.
    pub copy: f64,
    /// Operations per second of a large bf16 matmul.
    pub matmul: f64,
    /// Bytes of that copy's source.
    pub copied: usize,
    /// Number of rows, outputs and inputs of that matmul.
    pub edge: usize,
    copy_took: f64,
    matmul_took: f64,
}

impl Limits {
    /// Measures the limits.
    ///
    /// # Errors
    /// Too little memory, or errors of the driver.
    pub fn measure(ctx: &Context) -> Result<Self> {
        let (copied, edge) = if ctx.tiny() { (1 << 16, 32) } else { (1 << 30, 8192) };
        let copy = copy(ctx, copied)?;
        let matmul = matmul(ctx, edge)?;
        let operations = 2.0 * (edge as f64).powi(3);
        Ok(Self {
            copy: 2.0 * copied as f64 / copy.as_secs_f64().max(1e-9),
            matmul: operations / matmul.as_secs_f64().max(1e-9),
            copied,
            edge,
            copy_took: copy.as_secs_f64(),
            matmul_took: matmul.as_secs_f64(),
        })
    }

    pub(super) fn measures(&self) -> Vec<Measure> {
        let Self { copied, edge, .. } = *self;
        vec![
            Measure {
                name: "copy bandwidth".into(),
                workload: format!("{} MiB within the device, read and written", copied >> 20),
                value: self.copy / 1e9,
                unit: "GB/s",
                seconds: self.copy_took,
                ratio: None,
            },
            Measure {
                name: "matmul peak".into(),
                workload: format!("{edge} x {edge} x {edge}, bf16, {}", library()),
                value: self.matmul / 1e12,
                unit: "TFLOP/s",
                seconds: self.matmul_took,
                ratio: None,
            },
        ]
    }
}

fn library() -> &'static str {
    if kernels::gemm_library() { "cuBLASLt" } else { "own kernel: cuBLASLt is missing" }
}

fn copy(ctx: &Context, bytes: usize) -> Result<Duration> {
    let from = filled(&ctx.gpu, bytes)?;
    let mut to = Buffer::zeroed(&ctx.gpu, bytes)?;
    time(&ctx.gpu, Runs::long(ctx), |_| {
        Ok(to.view_mut().copy_within_device(&ctx.gpu, from.view())?)
    })
}

fn matmul(ctx: &Context, edge: usize) -> Result<Duration> {
    let (x, w) = (filled(&ctx.gpu, 2 * edge * edge)?, filled(&ctx.gpu, 2 * edge * edge)?);
    let mut out = Buffer::zeroed(&ctx.gpu, 2 * edge * edge)?;
    time(&ctx.gpu, Runs::long(ctx), |_| {
        let x = Mat::dense(x.view(), Float::Bf16, edge, edge)?;
        let w = Mat::dense(w.view(), Float::Bf16, edge, edge)?;
        let out = MatMut::dense(out.view_mut(), Float::Bf16, edge, edge)?;
        Ok(linear(&ctx.gpu, x, w, Accumulate::Store, Arithmetic::Fast, out)?)
    })
}

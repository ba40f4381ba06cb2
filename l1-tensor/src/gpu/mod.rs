//! The ops on CUDA: from checked views to what the launchers of `kernels` take.
//!
//! An op checks shapes and dtypes once, for every device, and then asks its runtime where to run. What
//! is here begins behind those checks: it turns views into addresses and strides ([`views`]) and
//! enqueues. Nothing waits for the device, but for an op whose answer the host wants (argmax).
//!
//! A kernel knows fewer layouts than a loop on the host: rows lie at one stride, heads behind each
//! other, gates and ups are halves of one buffer. Everything the decoder makes is like that; another
//! view is refused by [`Error::UnsupportedLayout`].

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod gated;
mod indices;
pub(crate) mod kv_cache;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod select;
mod views;

use std::sync::Arc;

use kernels::Gpu;

use crate::{Device, Error, Result, Runtime};

/// Refuse an op that has no kernel.
pub(crate) fn no_kernel(rt: &Runtime, op: &'static str) -> Result<()> {
    if rt.gpu().is_none() {
        return Ok(());
    }
    let why = format!("{op} has no CUDA kernel: run it on a CPU, over a copy of its tensors there");
    Err(Error::Device { device: rt.device().to_string(), why })
}

/// Refuse memory of another device than the one that runs.
pub(crate) fn same_device(op: &'static str, ours: &Arc<Gpu>, theirs: &Arc<Gpu>) -> Result<()> {
    if Arc::ptr_eq(ours, theirs) {
        return Ok(());
    }
    let why = format!("{op} runs on {}, and this memory is elsewhere", name(ours));
    Err(Error::Device { device: name(theirs).to_string(), why })
}

fn name(gpu: &Gpu) -> Device {
    Device::Cuda(gpu.ordinal())
}

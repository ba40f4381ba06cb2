//! The engine on a CUDA device: captured steps, many requests at once, and what they would be alone.
//!
//! Where there is no GPU, a CPU stands in for one and runs the same kernels; `STRATA_TEST_DEVICE=cuda` takes the real one.

#[path = "../support/naive.rs"]
#[allow(dead_code)]
mod naive;
#[path = "../../../l1-tensor/tests/support/runtime.rs"]
#[allow(dead_code)]
mod runtime;
#[path = "../runner/support.rs"]
#[allow(dead_code)]
mod support;
#[path = "../support/tiny.rs"]
#[allow(dead_code)]
mod tiny;

mod capture;
mod engine;

use l1_tensor::{
    Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions, cuda,
};

/// A runtime on the device.
pub fn device(precision: Precision, batch_invariant: bool) -> Runtime {
    if std::env::var_os("STRATA_TEST_DEVICE").is_none_or(|device| device != "cuda") {
        cuda::emulate().unwrap_or_else(|e| panic!("no CPU can stand in for a device: {e}"));
    }
    Runtime::new(RuntimeOptions {
        device: DeviceRequest::Exactly(Device::Cuda(0)),
        precision: PrecisionRequest::Exactly(precision),
        threads: Some(2),
        batch_invariant,
        ..Default::default()
    })
    .unwrap()
}

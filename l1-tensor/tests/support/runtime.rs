//! A runtime for tests.

use l1_tensor::{Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions};

pub fn runtime(precision: Precision, threads: usize) -> Runtime {
    Runtime::new(RuntimeOptions {
        device: DeviceRequest::Exactly(Device::Cpu),
        precision: PrecisionRequest::Exactly(precision),
        threads: Some(threads),
        ..Default::default()
    })
    .unwrap()
}

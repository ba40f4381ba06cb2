//! A runtime for tests.

use l1_tensor::{Precision, PrecisionRequest, Runtime, RuntimeOptions};

pub fn runtime(precision: Precision, threads: usize) -> Runtime {
    Runtime::new(RuntimeOptions {
        precision: PrecisionRequest::Exactly(precision),
        threads: Some(threads),
        ..Default::default()
    })
    .unwrap()
}

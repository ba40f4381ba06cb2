//! The device that tests run on.
#![allow(dead_code)]

use std::sync::Arc;

use kernels::{Gpu, Order};

/// A CPU that stands in for a device or, with `STRATA_TEST_DEVICE=cuda`, device 0 itself.
///
/// Panics, saying what is missing, when there is neither: a test that does not run must not pass.
pub fn gpu() -> Option<Arc<Gpu>> {
    if std::env::var_os("STRATA_TEST_DEVICE").is_none_or(|device| device != "cuda") {
        kernels::emulate().unwrap_or_else(|e| panic!("no CPU can stand in for a device: {e}"));
    }
    Some(Gpu::open(0).unwrap_or_else(|e| panic!("no device to test on: {e}")))
}

/// A CPU that stands in for a device, whatever else there is: for tests of the stand-in itself.
pub fn emulated() -> Arc<Gpu> {
    kernels::emulate().unwrap_or_else(|e| panic!("no CPU can stand in for a device: {e}"));
    Gpu::open(0).unwrap_or_else(|e| panic!("no device to test on: {e}"))
}

/// Run `work` with the threads of each block taken in several orders, and give its result. Panics when an
/// order changes a byte: then a barrier is missing. On a device, where nobody can choose, it runs once.
pub fn under_every_order(mut work: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    if !kernels::is_emulated() {
        return work();
    }
    let orders = [Order::Forward, Order::Backward, Order::Random(1), Order::Random(2)];
    let mut first = None;
    for order in orders {
        kernels::shim_order(Some(order));
        let bytes = work();
        kernels::shim_order(None);
        match &first {
            None => first = Some(bytes),
            Some(forward) => {
                let same = forward.iter().zip(&bytes).position(|(a, b)| a != b);
                assert_eq!(forward.len(), bytes.len(), "{order:?} changes the length");
                assert_eq!(same, None, "{order:?} changes the result from that byte on");
            }
        }
    }
    first.unwrap_or_default()
}

/// Numbers as bytes, for [`under_every_order`].
pub fn bytes<T: kernels::Pod>(values: &[T]) -> Vec<u8> {
    // SAFETY: a `Pod` has no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }.to_vec()
}

//! Every op on CUDA against the same op on the CPU.
//!
//! The device is a CPU that stands in for one and runs the real kernels, or a real one with
//! `STRATA_TEST_DEVICE=cuda`. Each case is a function of a runtime: it makes its tensors there, runs the
//! op and hands back what came out, or the error. The CPU's answer is the one expected; that the CPU is
//! right is what the other tests of this layer are about.

mod attention;
mod elementwise;
mod linear;
mod memory;
mod norm;
mod nvfp4;
mod rope;
mod select;

#[path = "../support/mod.rs"]
mod support;

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use l1_tensor::{
    DType, Device, DeviceRequest, Result, Runtime, RuntimeOptions, Tensor, bf16, cuda,
};
use support::{Allowed, differences};

/// The device, for one test at a time: it has one stream, and a test that records what is enqueued there
/// must not record its neighbours.
pub struct OnCuda {
    rt: Runtime,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for OnCuda {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        &self.rt
    }
}

/// A runtime on the device. Whoever has it must not ask for another.
pub fn on_cuda() -> OnCuda {
    on_cuda_with(RuntimeOptions::default())
}

/// The same with other options.
pub fn on_cuda_with(options: RuntimeOptions) -> OnCuda {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if std::env::var_os("STRATA_TEST_DEVICE").is_none_or(|device| device != "cuda") {
        cuda::emulate().expect("a CPU stands in for a device");
    }
    let options = RuntimeOptions {
        device: DeviceRequest::Exactly(Device::Cuda(0)),
        threads: Some(2),
        ..options
    };
    OnCuda { rt: Runtime::new(options).expect("the device opens"), _alone }
}

/// A runtime beside it.
pub fn on_cpu() -> Runtime {
    let options = RuntimeOptions { threads: Some(1), ..RuntimeOptions::cpu() };
    Runtime::new(options).expect("the CPU is there")
}

/// f32 numbers in the runtime's memory.
pub fn tensor(rt: &Runtime, data: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(data, shape).unwrap().to_device(rt.device()).unwrap()
}

/// The same, rounded to bf16.
pub fn bf16_tensor(rt: &Runtime, data: &[f32], shape: &[usize]) -> Tensor {
    let data: Vec<bf16> = data.iter().map(|v| bf16::from_f32(*v)).collect();
    Tensor::from_slice(&data, shape).unwrap().to_device(rt.device()).unwrap()
}

/// The same, of either type.
pub fn tensor_of(rt: &Runtime, dtype: DType, data: &[f32], shape: &[usize]) -> Tensor {
    match dtype {
        DType::F32 => tensor(rt, data, shape),
        _ => bf16_tensor(rt, data, shape),
    }
}

/// Zeros in the runtime's memory.
pub fn zeros(rt: &Runtime, shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, rt.device()).unwrap()
}

/// Run a case on both and compare what it hands back.
#[track_caller]
pub fn same(what: &str, allowed: Allowed, case: impl Fn(&Runtime) -> Result<Vec<f32>>) {
    let want = case(&on_cpu()).unwrap_or_else(|e| panic!("{what} on the CPU: {e}"));
    let got = case(&on_cuda()).unwrap_or_else(|e| panic!("{what} on CUDA: {e}"));
    if let Some(wrong) = differences(what, &[want.len()], &got, &want, allowed) {
        panic!("{wrong}");
    }
}

/// Run a case that must fail on both, and with the same words.
#[track_caller]
pub fn same_error(case: impl Fn(&Runtime) -> Result<Vec<f32>>) {
    let words = |rt: &Runtime| match case(rt) {
        Ok(out) => panic!("{}: no error, but {} numbers", rt.device(), out.len()),
        Err(e) => e.to_string(),
    };
    let (cpu, cuda) = (words(&on_cpu()), words(&on_cuda()));
    assert_eq!(cuda, cpu, "the devices say different things");
}

/// The words of a case that must fail on CUDA.
#[track_caller]
pub fn refused(says: &str, case: impl Fn(&Runtime) -> Result<()>) {
    let error = case(&on_cuda()).expect_err("must be refused").to_string();
    assert!(error.contains(says), "`{error}` does not say `{says}`");
}

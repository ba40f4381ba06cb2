//! A steady decode step allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;

use std::path::Path;

use counting::fewest_allocations;
use l1_tensor::{Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions};
use l2_model::{ModelFiles, Session};

#[test]
fn a_steady_decode_step_allocates_nothing() {
    for (name, precision, threads) in [
        ("tiny-llama", Precision::F32, 1),
        ("tiny-llama", Precision::Bf16, 2),
        ("tiny-mistral", Precision::Bf16, 1),
        ("tiny-qwen2", Precision::F32, 2),
        ("tiny-qwen3", Precision::Bf16, 2),
    ] {
        let rt = Runtime::new(RuntimeOptions {
            device: DeviceRequest::Exactly(Device::Cpu),
            precision: PrecisionRequest::Exactly(precision),
            threads: Some(threads),
            ..Default::default()
        })
        .unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
        let decoder = ModelFiles::open(&path).unwrap().decoder(&rt).unwrap();
        let mut session = Session::new(&decoder, &rt, 64).unwrap();
        session.feed(&[1, 2, 3]).unwrap();
        session.feed(&[4]).unwrap();
        let made = fewest_allocations(5, || {
            session.rollback(4).unwrap();
            for token in 5..40 {
                session.feed(&[token]).unwrap();
            }
        });
        assert_eq!(made, 0, "{name}, {precision}, {threads} threads");
    }
}

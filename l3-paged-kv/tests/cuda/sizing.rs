//! What a device has, and what a step takes of it.

use l1_tensor::{DeviceRequest, Precision, Runtime, RuntimeOptions, WeightStorage};
use l2_model::{Workspace, WorkspaceSpec};
use l3_paged_kv::sizing::{Bytes, device_memory, peak_activation};

use crate::models::{device, load};

/// What is between two kernels of an op is not in the workspace, and is counted.
#[test]
fn the_largest_step_is_measured_on_the_device_itself() {
    let rt = device(Precision::Bf16);
    let decoder = load("tiny-llama", &rt);
    let spec = WorkspaceSpec { max_tokens: 24, max_rows: 2, max_context: 16 };
    let peak = peak_activation(&decoder, &rt, spec, None).unwrap();
    let workspace = Workspace::new(&rt, decoder.config(), spec).unwrap().bytes();
    let between = rt.gpu().unwrap().scratch_bytes();
    assert!(between > 0, "gates and ups of 24 tokens lie in scratch");
    assert_eq!(peak, Bytes((workspace + between) as u64));
}

/// Weights in NVFP4 stay packed, and for more rows than their kernel takes some of them are expanded.
#[test]
fn memory_for_rows_of_packed_weights_is_part_of_the_largest_step() {
    let alone = device(Precision::Bf16);
    let options = RuntimeOptions {
        device: DeviceRequest::Exactly(alone.device()),
        weights: WeightStorage::Packed,
        ..RuntimeOptions::default()
    };
    let rt = Runtime::new(options).unwrap();
    let (plain, packed) = (load("tiny-llama", &rt), load("tiny-llama-nvfp4", &rt));
    assert!(packed.weight_storage().contains("NVFP4"), "{}", packed.weight_storage());
    let spec = WorkspaceSpec { max_tokens: 24, max_rows: 2, max_context: 16 };
    peak_activation(&plain, &rt, spec, None).unwrap();
    let before = rt.gpu().unwrap().scratch_bytes();
    let peak = peak_activation(&packed, &rt, spec, None).unwrap();
    let after = rt.gpu().unwrap().scratch_bytes();
    assert!(after > before, "rows of weights are expanded in scratch");
    let workspace = Workspace::new(&rt, packed.config(), spec).unwrap().bytes();
    assert_eq!(peak, Bytes((workspace + after) as u64));
}

#[test]
fn the_memory_that_counts_is_the_devices() {
    let rt = device(Precision::F32);
    let (_, total) = rt.gpu().unwrap().memory().unwrap();
    let nothing = device_memory(&rt, Bytes(0)).unwrap();
    assert!(nothing > Bytes(0) && nothing <= Bytes(total as u64), "{nothing} of {total}");
    let all = device_memory(&rt, Bytes(u64::MAX)).unwrap();
    assert_eq!(all, Bytes(total as u64), "no more than there is, whatever is held");
}

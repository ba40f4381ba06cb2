//! What a device cannot do yet, or not with this: typed, and it says what to do.

use l1_tensor::{DType, Precision};
use l2_model::{ContiguousState, Error, SequenceState};

use crate::judge;
use crate::models::{Bench, Step, device, host, load};

#[test]
fn keys_and_values_in_eight_bits_are_refused_on_a_device() {
    let rt = device(Precision::Bf16, false);
    let decoder = load("tiny-llama", &host(Precision::F32));
    let config = decoder.config();
    let made = ContiguousState::new_on(rt.device(), config, 1, 16, DType::F8E4M3).map(|_| ());
    let error = judge::refused("a cache in eight bits", "an error that names bf16", made);
    assert!(error.to_string().contains("bf16"), "{error}");
}

/// Weights, state or workspace of the CPU in a step of the device, or the other way round.
#[test]
fn parts_of_a_step_on_different_devices_are_refused() {
    let (device, host) = (device(Precision::F32, false), host(Precision::F32));
    let (there, here) = (load("tiny-llama", &device), load("tiny-llama", &host));
    let tried = |what: &str, weights, rt, state_rt| {
        let mut bench = Bench::new(rt, weights);
        bench.state = Bench::new(state_rt, weights).state;
        let refused = bench.step(&[(0, &[1, 2, 3])]).map(|_| ());
        judge::fails_with!(what, refused, Error::Tensor(_));
        assert_eq!(bench.state.len(0), 0, "{what}: the step did not happen");
    };
    tried("weights of the CPU", &here, &device, &device);
    tried("weights of the device", &there, &host, &host);
    tried("a state on the CPU", &there, &device, &host);
    tried("a state on the device", &here, &host, &device);
}

#[test]
fn a_snapshot_of_a_state_elsewhere_is_refused() {
    let (device, host) = (device(Precision::F32, false), host(Precision::F32));
    let (there, here) = (load("tiny-llama", &device), load("tiny-llama", &host));
    let (mut on_device, mut on_host) = (Bench::new(&device, &there), Bench::new(&host, &here));
    on_host.step(&[(0, &[1, 2, 3])]).unwrap();
    let snapshot = on_host.state.snapshot(0).unwrap();
    let restored = on_device.state.restore(1, &snapshot);
    judge::fails_with!("a snapshot of the CPU's", restored, Error::Tensor(_) | Error::Batch(_));
    assert_eq!(on_device.state.len(1), 0);
    let step = Step::of(&on_device.state, &[(1, &[4])]);
    assert_eq!(step.positions, [0]);
}

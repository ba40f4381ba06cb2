//! A profile of a forward pass: every op is in it, its bytes and operations are those of the model, and the logits keep
//! their bits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use l1_tensor::{
    DeviceRequest, OpKind, OpTotals, Profile, Runtime, RuntimeOptions, WeightId, WeightStorage,
};
use l2_model::{
    Batch, ContiguousState, Decoder, Matrix, ModelFiles, SequenceState, Workspace, WorkspaceSpec,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

fn runtime(weights: WeightStorage) -> Runtime {
    let device = DeviceRequest::Exactly(l1_tensor::Device::Cpu);
    let options = RuntimeOptions { device, threads: Some(2), weights, ..Default::default() };
    Runtime::new(options).unwrap()
}

/// Two sequences of five and three tokens, then a step of one more token for each. Returns the bits of all logits.
fn two_steps(decoder: &Decoder, rt: &Runtime) -> Vec<u32> {
    let spec = WorkspaceSpec { max_tokens: 8, max_rows: 2, max_context: 16 };
    let mut ws = Workspace::new(rt, decoder.config(), spec).unwrap();
    let dtype = rt.activation_dtype();
    let mut state = ContiguousState::new(decoder.config(), 2, 16, dtype).unwrap();
    let first = Batch {
        tokens: &[11, 12, 13, 14, 15, 21, 22, 23],
        positions: &[0, 1, 2, 3, 4, 0, 1, 2],
        cu_seqlens_q: &[0, 5, 8],
        state_slots: &[0, 1],
        logit_rows: &[4, 7],
        ..Batch::default()
    };
    let second = Batch {
        tokens: &[16, 24],
        positions: &[5, 3],
        cu_seqlens_q: &[0, 1, 2],
        state_slots: &[0, 1],
        logit_rows: &[0, 1],
        ..Batch::default()
    };
    let mut bits = Vec::new();
    for batch in [first, second] {
        let logits = decoder.forward(&batch, &mut state, &mut ws).unwrap().to_vec_f32().unwrap();
        bits.extend(logits.into_iter().map(f32::to_bits));
    }
    assert_eq!((state.len(0), state.len(1)), (6, 4));
    bits
}

/// Totals of the matmuls by the name of their matrix.
fn by_matrix(decoder: &Decoder, totals: &BTreeMap<OpKind, OpTotals>) -> BTreeMap<Matrix, OpTotals> {
    let mut all = BTreeMap::<Matrix, OpTotals>::new();
    for (name, weight) in decoder.matrices() {
        let totals = totals.get(&OpKind::Matmul(WeightId::of(weight)));
        *all.entry(name).or_default() += *totals.unwrap_or_else(|| panic!("no {name}"));
    }
    all
}

#[test]
fn a_step_reads_all_weights_and_computes_the_models_operations() {
    for (model, weights) in [
        ("tiny-llama", WeightStorage::Auto),
        ("tiny-llama-untied", WeightStorage::Auto),
        ("tiny-qwen3", WeightStorage::Auto),
        ("tiny-gguf/llama-q4_1.gguf", WeightStorage::Packed),
        ("tiny-gguf/llama-q4_1.gguf", WeightStorage::Bf16),
    ] {
        let rt = runtime(weights);
        let decoder = ModelFiles::open(&fixture(model)).unwrap().decoder(&rt).unwrap();
        let profile = Arc::new(Profile::default());
        let expected = two_steps(&decoder, &rt);
        assert!(profile.take().is_empty());
        let bits = two_steps(&decoder, &rt.profiled(&profile).unwrap());
        assert_eq!(bits, expected, "{model}: a profile changes no bit");

        let totals = profile.take();
        let matmuls = by_matrix(&decoder, &totals);
        let sum = |of: fn(&OpTotals) -> u64| matmuls.values().map(of).sum::<u64>();
        assert_eq!(sum(|t| t.work.bytes), 2 * decoder.bytes_per_step() as u64, "{model}");
        // Ten tokens, and four rows of logits.
        let (token, row) = decoder.flops();
        assert_eq!(sum(|t| t.work.flops), (10 * token + 4 * row) as u64, "{model}");
        let layers = decoder.config().layers.len() as u64;
        for (name, totals) in &matmuls {
            let each = if *name == Matrix::LmHead { 1 } else { layers };
            assert_eq!(totals.calls, 2 * each, "{model}: {name}");
        }
        for kind in [OpKind::Attention, OpKind::KvWrite] {
            assert_eq!(totals[&kind].calls, 2 * layers, "{model}: {kind:?}");
        }
        assert_eq!(totals[&OpKind::Embedding].calls, 2, "{model}");
        // Two norms a layer and the last one, and those of queries and keys where a model has them.
        let heads = if model == "tiny-qwen3" { 2 * layers } else { 0 };
        assert_eq!(totals[&OpKind::Norm].calls, 2 * (2 * layers + 1 + heads), "{model}");
        // The angles once, queries and keys in each layer.
        assert_eq!(totals[&OpKind::Rope].calls, 2 * (1 + 2 * layers), "{model}");
        let inside: std::time::Duration = totals.values().map(|t| t.waited).sum();
        assert!(inside <= totals.values().map(|t| t.time).sum(), "{model}: waits are part of ops");
    }
}

#[test]
fn packed_weights_count_as_stored() {
    let model = fixture("tiny-gguf/llama-q4_1.gguf");
    let read = [WeightStorage::Packed, WeightStorage::Bf16].map(|weights| {
        let rt = runtime(weights);
        let decoder = ModelFiles::open(&model).unwrap().decoder(&rt).unwrap();
        let profile = Arc::new(Profile::default());
        two_steps(&decoder, &rt.profiled(&profile).unwrap());
        let all = by_matrix(&decoder, &profile.take());
        all.values().map(|totals| totals.work.bytes).sum::<u64>()
    });
    assert!(2 * read[0] < read[1], "{read:?}");
}

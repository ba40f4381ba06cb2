//! Adapters that share a step: every sequence has the bits that it has alone.

use std::sync::Arc;

use l1_tensor::{Precision, Runtime};
use l2_model::adapter::{AdapterError, LoraAdapter};
use l2_model::{
    Activation, Batch, BatchError, ContiguousState, Decoder, Error, ModelFiles, Op, SequenceState,
    Tap, Workspace, WorkspaceSpec,
};

use super::runtime::runtime;
use super::{Bench, fixtures, judge, load, open};

const TOKENS: [u32; 9] = [384, 17, 250, 3, 99, 101, 5, 64, 200];

/// tiny-llama, and three adapters of it, which change different projections.
fn llama(rt: &Runtime) -> (Decoder, Vec<Arc<LoraAdapter>>) {
    let decoder = load("tiny-llama", rt);
    let dir = fixtures().join("adapters");
    let names = ["tiny-llama-all", "tiny-llama-rslora", "tiny-llama-gate"];
    let adapters = names.iter().map(|name| open(&dir.join(name), &decoder, rt)).collect();
    (decoder, adapters)
}

#[test]
fn a_sequence_has_the_bits_it_has_alone_whatever_adapters_run_beside_it() {
    for (precision, threads) in [(Precision::F32, 1), (Precision::Bf16, 2)] {
        let rt = runtime(precision, threads);
        let (decoder, adapters) = llama(&rt);
        let vocab = decoder.config().vocab;
        // Steps of a batch: (slot, number of tokens, adapter). Runs of one adapter, runs apart, none between.
        let steps: [&[(u32, usize, i32)]; 4] = [
            &[(0, 5, 0), (1, 3, 0), (2, 4, -1), (3, 1, 1), (4, 6, 2), (5, 2, 0)],
            &[(4, 1, 2), (3, 1, 1), (2, 1, -1), (1, 1, 0), (0, 1, 0), (5, 1, 0)],
            &[(2, 1, -1), (0, 1, 0), (3, 2, 1)],
            &[(3, 1, 1)],
        ];
        let tokens = |slot: u32, from: usize, n: usize| -> Vec<u32> {
            (from..from + n).map(|i| TOKENS[(i + slot as usize) % TOKENS.len()]).collect()
        };
        let mut together = Bench::new(&rt, &decoder, &adapters);
        let mut alone: Vec<_> = (0..6).map(|_| Bench::new(&rt, &decoder, &adapters)).collect();
        let mut base = Bench::new(&rt, &decoder, &[]);
        for step in steps {
            let fed: Vec<_> = step
                .iter()
                .map(|(slot, n, adapter)| {
                    (*slot, tokens(*slot, together.state.len(*slot), *n), *adapter)
                })
                .collect();
            let sequences: Vec<_> = fed.iter().map(|(s, t, a)| (*s, &t[..], *a)).collect();
            let got = together.step(&sequences);
            let mut row = 0;
            for (slot, tokens, adapter) in sequences {
                let rows = &got[row * vocab..(row + tokens.len()) * vocab];
                let expected = alone[slot as usize].step(&[(slot, tokens, adapter)]);
                let what = format!("{precision:?}, slot {slot} with adapter {adapter}");
                judge::same_bits(&what, &[tokens.len(), vocab], rows, &expected);
                if adapter < 0 {
                    let plain = base.step(&[(slot, tokens, -1)]);
                    judge::same_bits("without adapters", &[tokens.len(), vocab], rows, &plain);
                } else {
                    assert_ne!(rows, base.step(&[(slot, tokens, -1)]), "{what} changes nothing");
                }
                row += tokens.len();
            }
        }
    }
}

/// Gates and ups of an adapted layer are stored for some hundred rows at a time.
#[test]
fn a_long_prompt_has_the_bits_of_its_chunks() {
    let rt = runtime(Precision::Bf16, 2);
    let (decoder, adapters) = llama(&rt);
    let vocab = decoder.config().vocab;
    let prompt: Vec<u32> = (0..500).map(|i| (i * 7 % 380) as u32).collect();
    // Behind five tokens of another sequence, so that no part begins at a multiple of anything.
    let beside = &TOKENS[..5];
    let whole = Bench::new(&rt, &decoder, &adapters).step(&[(1, beside, 0), (0, &prompt, 2)]);
    let mut bench = Bench::new(&rt, &decoder, &adapters);
    let mut parts = bench.step(&[(1, beside, 0)]);
    for chunk in prompt.chunks(77) {
        parts.extend(bench.step(&[(0, chunk, 2)]));
    }
    judge::same_bits("a prompt of 500 tokens", &[505, vocab], &whole, &parts);
}

#[test]
fn looking_at_a_tap_changes_no_bit_of_an_adapted_row() {
    let rt = runtime(Precision::Bf16, 1);
    let (decoder, adapters) = llama(&rt);
    let logits = |taps: &[Tap]| {
        let Bench { mut state, mut ws, .. } = Bench::new(&rt, &decoder, &adapters);
        let batch = Batch {
            tokens: &TOKENS[..4],
            positions: &[0, 1, 2, 3],
            cu_seqlens_q: &[0, 4],
            state_slots: &[0],
            adapters: &[0],
            logit_rows: &[3],
            taps,
        };
        decoder.forward(&batch, &mut state, &mut ws).unwrap().to_vec_f32().unwrap()
    };
    let all = Tap::all(decoder.config().layers.len());
    judge::same_bits("logits", &[1, decoder.config().vocab], &logits(&all), &logits(&[]));
}

/// Rows without an adapter go through the stored gates and ups beside one that changes gate. Every activation, and a
/// branch that is scaled.
#[test]
fn stored_gates_are_activated_as_the_fused_matmul_does_it() {
    let rt = runtime(Precision::Bf16, 1);
    let files = ModelFiles::open(&fixtures().join("tiny-llama")).unwrap();
    for (activation, scale) in
        [(Activation::Silu, 0.5), (Activation::Gelu, 1.0), (Activation::GeluTanh, 1.0)]
    {
        let mut config = files.config().clone();
        for branch in config.layers.iter_mut().flat_map(|layer| &mut layer.branches) {
            branch.scale = scale;
            if let Op::Mlp(mlp) = &mut branch.op {
                mlp.activation = activation;
            }
        }
        let decoder = Decoder::load(&rt, files.checkpoint(), config).unwrap();
        let adapter = open(&fixtures().join("adapters/tiny-llama-all"), &decoder, &rt);
        let plain = Bench::new(&rt, &decoder, &[]).step(&[(0, &TOKENS, -1)]);
        let beside =
            Bench::new(&rt, &decoder, &[adapter]).step(&[(0, &TOKENS, -1), (1, &TOKENS, 0)]);
        let (without, with) = beside.split_at(plain.len());
        let dims = [TOKENS.len(), decoder.config().vocab];
        judge::same_bits(&format!("{activation:?}"), &dims, without, &plain);
        assert_ne!(with, without, "{activation:?}");
    }
}

#[test]
fn an_index_can_be_freed_and_given_again() {
    let rt = runtime(Precision::F32, 1);
    let (decoder, adapters) = llama(&rt);
    let fed = &TOKENS[..3];
    let of = |index: usize| Bench::new(&rt, &decoder, &adapters).step(&[(0, fed, index as i32)]);
    let mut bench = Bench::new(&rt, &decoder, &adapters);
    bench.ws.set_adapter(1, None).unwrap();
    let batch = Batch {
        tokens: fed,
        positions: &[0, 1, 2],
        cu_seqlens_q: &[0, 3],
        state_slots: &[0],
        adapters: &[1],
        logit_rows: &[2],
        ..Batch::default()
    };
    let refused = decoder.forward(&batch, &mut bench.state, &mut bench.ws).map(|_| ());
    judge::fails_with!("a freed index", refused, Error::Batch(BatchError::Malformed(_)));
    assert_eq!(bench.state.len(0), 0, "a refused step changed the state");
    bench.ws.set_adapter(1, Some(adapters[2].clone())).unwrap();
    let dims = [3, decoder.config().vocab];
    judge::same_bits("adapter 2 at index 1", &dims, &bench.step(&[(0, fed, 1)]), &of(2));
}

#[test]
fn steps_with_adapters_that_cannot_be_are_refused() {
    let rt = runtime(Precision::F32, 1);
    let (decoder, adapters) = llama(&rt);
    let mut bench = Bench::new(&rt, &decoder, &adapters);
    let good = Batch {
        tokens: &[1, 2],
        positions: &[0, 0],
        cu_seqlens_q: &[0, 1, 2],
        state_slots: &[0, 1],
        adapters: &[0, -1],
        logit_rows: &[1],
        ..Batch::default()
    };
    for (what, adapters) in [
        ("an index without adapter", &[0, 3][..]),
        ("a large index", &[i32::MAX, 0]),
        ("too few", &[0]),
        ("too many", &[0, 1, 2]),
    ] {
        let batch = Batch { adapters, ..good };
        let refused = decoder.forward(&batch, &mut bench.state, &mut bench.ws).map(|_| ());
        judge::fails_with!(what, refused, Error::Batch(BatchError::Malformed(_)));
    }
    // Any negative number is none, as everywhere where vLLM pads with -1.
    for adapters in [&[-1, -1][..], &[i32::MIN, 0]] {
        let batch = Batch { adapters, ..good };
        decoder.forward(&batch, &mut bench.state, &mut bench.ws).unwrap();
        bench.state = ContiguousState::new(decoder.config(), 8, 16, rt.activation_dtype()).unwrap();
    }
}

#[test]
fn a_workspace_takes_adapters_up_to_its_rank_only() {
    let rt = runtime(Precision::F32, 1);
    let (decoder, adapters) = llama(&rt);
    let spec = WorkspaceSpec { max_tokens: 4, max_rows: 1, max_context: 8 };
    let mut ws = Workspace::new(&rt, decoder.config(), spec).unwrap();
    let refused = ws.set_adapter(0, Some(adapters[0].clone()));
    let max = |e: &Error| matches!(e, Error::Adapter(AdapterError::NoRoom { rank: 4, max: 0 }));
    judge::fails_with!("without buffers", refused, e if max(e));
    let before = ws.bytes();
    ws.allow_adapters(4).unwrap();
    assert!(ws.bytes() > before);
    let qwen = load("tiny-qwen2", &rt);
    let other = open(&fixtures().join("adapters/tiny-qwen2-attention"), &qwen, &rt);
    let refused = ws.set_adapter(0, Some(other));
    judge::fails_with!("another model", refused, Error::Adapter(AdapterError::OtherModel));
    ws.set_adapter(0, Some(adapters[0].clone())).unwrap();
    let refused = ws.set_adapter(1, Some(adapters[1].clone()));
    let wide = |e: &Error| matches!(e, Error::Adapter(AdapterError::NoRoom { rank: 8, max: 4 }));
    judge::fails_with!("rank 8 of 4", refused, e if wide(e));
}

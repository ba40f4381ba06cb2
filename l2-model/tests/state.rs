//! What a sequence remembers: keys and values through steps, batches, rollbacks and snapshots,
//! against attention written out over all keys, in f64.

mod judge;

use std::ops::Range;
use std::path::Path;

use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{
    DType, Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions, Tensor,
    TensorRef,
};
use l2_model::{Batch, BatchError, ContiguousState, Error, ModelConfig, SequenceState};

const Q_HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 16;
const LAYERS: usize = 3;
/// Two tiles and a half.
const MAX_LEN: usize = 40;
const PARAMS: AttentionParams = AttentionParams { scale: 0.25, window: None };
/// Sums of at most 40 numbers below 1, in f32.
const ALLOWED: f32 = 2e-6;

/// The numbers of one head of a query, key or value: any that differ in all they depend on.
fn numbers(what: u64, layer: usize, text: u64, position: usize, head: usize) -> [f32; DIM] {
    let mut x = what;
    for part in [layer as u64, text, position as u64, head as u64] {
        x = (x ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 29;
    }
    std::array::from_fn(|i| {
        let y = (x ^ (i as u64) << 40).wrapping_mul(0x94d0_49bb_1331_11eb);
        (y >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

const QUERY: u64 = 1;
const KEY: u64 = 2;
const VALUE: u64 = 3;

/// Attention of a text's query at `position` over all keys up to it: `[H_q * D]`.
fn expected(layer: usize, text: u64, position: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for h in 0..Q_HEADS {
        let kv = h / (Q_HEADS / KV_HEADS);
        let q = numbers(QUERY, layer, text, position, h);
        let score = |p: usize| {
            let k = numbers(KEY, layer, text, p, kv);
            let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(b)).sum();
            (dot * f64::from(PARAMS.scale)).exp()
        };
        let scores: Vec<f64> = (0..=position).map(score).collect();
        let sum: f64 = scores.iter().sum();
        let mut head = [0.0f64; DIM];
        for (p, s) in scores.iter().enumerate() {
            let v = numbers(VALUE, layer, text, p, kv);
            head.iter_mut().zip(v).for_each(|(o, v)| *o += s / sum * f64::from(v));
        }
        out.extend(head.map(|x| x as f32));
    }
    out
}

/// Some tokens of a text, in a slot.
#[derive(Clone)]
struct Part {
    slot: u32,
    text: u64,
    at: Range<usize>,
    /// Stored in place of the text's values.
    values: Option<f32>,
}

fn part(slot: u32, text: u64, at: Range<usize>) -> Part {
    Part { slot, text, at, values: None }
}

struct Bench {
    rt: Runtime,
    state: ContiguousState,
    scratch: AttentionScratch,
}

impl Bench {
    fn new(slots: usize) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama/config.json");
        let config = ModelConfig::from_hf_file(&path).unwrap();
        assert_eq!(config.layers.len(), LAYERS);
        let rt = Runtime::new(RuntimeOptions {
            device: DeviceRequest::Exactly(Device::Cpu),
            precision: PrecisionRequest::Exactly(Precision::F32),
            threads: Some(1),
            ..Default::default()
        })
        .unwrap();
        let state = ContiguousState::new(&config, slots, MAX_LEN, DType::F32).unwrap();
        let scratch = AttentionScratch::new(&rt, 4 * MAX_LEN, MAX_LEN, Q_HEADS, DIM).unwrap();
        Self { rt, state, scratch }
    }

    /// Begin a step and attend in every layer; commit if asked to. The outputs, layer by layer.
    fn run(&mut self, parts: &[Part], commit: bool) -> Result<Vec<Tensor>, Error> {
        let positions: Vec<i32> =
            parts.iter().flat_map(|p| p.at.clone().map(|p| p as i32)).collect();
        let slots: Vec<u32> = parts.iter().map(|p| p.slot).collect();
        let mut cu = vec![0];
        for p in parts {
            cu.push(cu[cu.len() - 1] + p.at.len() as i32);
        }
        let t = positions.len();
        let batch = Batch {
            tokens: &vec![0; t],
            positions: &positions,
            cu_seqlens_q: &cu,
            state_slots: &slots,
            ..Batch::default()
        };
        self.state.begin(&batch)?;
        let mut outputs = Vec::new();
        for layer in 0..LAYERS {
            let fill = |what: u64, heads: usize| {
                let mut all = Vec::new();
                for part in parts {
                    for (position, head) in
                        part.at.clone().flat_map(|p| (0..heads).map(move |h| (p, h)))
                    {
                        all.extend(match part.values.filter(|_| what == VALUE) {
                            Some(value) => [value; DIM],
                            None => numbers(what, layer, part.text, position, head),
                        });
                    }
                }
                Tensor::from_slice(&all, &[t, heads, DIM]).unwrap()
            };
            let (q, k, v) = (fill(QUERY, Q_HEADS), fill(KEY, KV_HEADS), fill(VALUE, KV_HEADS));
            let mut out = Tensor::zeros(&[t, Q_HEADS * DIM], DType::F32, Device::Cpu).unwrap();
            self.state.attend(
                &self.rt,
                layer,
                &batch,
                q.view(),
                k.view(),
                v.view(),
                PARAMS,
                &mut self.scratch,
                out.view_mut(),
            )?;
            outputs.push(out);
        }
        if commit {
            self.state.commit(&batch);
        }
        Ok(outputs)
    }

    /// A step whose every output row is what attention over all keys gives.
    fn step(&mut self, what: &str, parts: &[Part]) {
        let outputs = self.run(parts, true).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut row = 0;
        for p in parts {
            let n = p.at.len();
            for (layer, out) in outputs.iter().enumerate() {
                let got: TensorRef = out.view().narrow(0, row, n).unwrap();
                let want: Vec<f32> =
                    p.at.clone().flat_map(|at| expected(layer, p.text, at)).collect();
                let what = format!(
                    "attention in layer {layer}, slot {}, from position {}, {what}",
                    p.slot, p.at.start
                );
                let dims = [n, Q_HEADS * DIM];
                judge::close(&what, &dims, &got.to_vec_f32().unwrap(), &want, ALLOWED);
            }
            row += n;
            assert_eq!(self.state.len(p.slot), p.at.end, "tokens in slot {}, {what}", p.slot);
        }
    }
}

#[test]
fn attending_in_steps_equals_attending_over_all_keys_at_once() {
    // Cuts inside of tiles and between them (a tile has 16 tokens), and one token alone.
    for cuts in [&[0, 40][..], &[0, 1, 2, 3], &[0, 5, 16, 17, 32, 40], &[0, 15, 31, 33]] {
        let mut bench = Bench::new(1);
        for pair in cuts.windows(2) {
            bench.step(&format!("fed in steps cut at {cuts:?}"), &[part(0, 7, pair[0]..pair[1])]);
        }
    }
}

#[test]
fn sequences_in_one_batch_do_not_see_each_other() {
    let mut bench = Bench::new(3);
    bench.step("two of three slots", &[part(2, 20, 0..18), part(0, 10, 0..3)]);
    bench.step(
        "all slots, another order",
        &[part(0, 10, 3..4), part(1, 30, 0..17), part(2, 20, 18..30)],
    );
    bench.step("one token each", &[part(1, 30, 17..18), part(2, 20, 30..31), part(0, 10, 4..5)]);
    // A slot that was dropped begins again, whatever lies in it.
    bench.state.drop_sequence(2);
    bench.step("after slot 2 was dropped", &[part(2, 21, 0..5), part(0, 10, 5..6)]);
}

#[test]
fn positions_must_continue_the_sequence_and_fit() {
    let mut bench = Bench::new(2);
    bench.step("the first five", &[part(1, 3, 0..5)]);
    for (at, why) in [(1..3, "it has five"), (6..7, "one was left out"), (4..6, "one came twice")] {
        let error = bench.run(&[part(1, 3, at.clone())], true).err();
        assert!(
            matches!(error, Some(Error::Batch(BatchError::Malformed(_)))),
            "a sequence of 5 tokens continued at positions {at:?}: {why}\n  expected  BatchError::Malformed\n  got       {error:?}"
        );
        assert_eq!(bench.state.len(1), 5, "tokens after a step that was refused");
    }
    let error = bench.run(&[part(0, 1, 0..MAX_LEN), part(1, 3, 5..MAX_LEN + 1)], true).err();
    assert!(
        matches!(&error, Some(Error::Batch(BatchError::TooLong { len: 41, capacity: 40 }))),
        "41 tokens in a slot of 40\n  expected  BatchError::TooLong\n  got       {error:?}"
    );
    assert_eq!((bench.state.len(0), bench.state.len(1)), (0, 5), "tokens after that");
    bench.step("going on after refusals", &[part(1, 3, 5..MAX_LEN)]);
}

#[test]
fn a_step_that_was_not_committed_leaves_no_trace() {
    let mut bench = Bench::new(2);
    bench.step("before", &[part(0, 1, 0..10)]);
    // Another text's keys are written, then the step is given up.
    bench.run(&[part(0, 2, 10..20), part(1, 2, 0..3)], false).unwrap();
    assert_eq!(
        (bench.state.len(0), bench.state.len(1)),
        (10, 0),
        "tokens in both slots after a step without a commit"
    );
    bench.step("after a step that was given up", &[part(1, 4, 0..2), part(0, 1, 10..12)]);
}

#[test]
fn after_a_rollback_a_sequence_goes_on_as_if_it_had_never_been_longer() {
    for len in [0, 1, 7, 15, 16, 17, 31, 32] {
        let mut bench = Bench::new(2);
        bench.step("before", &[part(1, 5, 0..len.max(1))]);
        // A draft that is not accepted. Its values are no numbers, and a mask that multiplies by
        // zero keeps them: what is rolled back must be gone, not only out of sight.
        let from = len.max(1);
        let draft = Part { values: Some(f32::NAN), ..part(1, 6, from..40) };
        bench.run(&[draft], true).unwrap();
        bench.state.rollback(1, len).unwrap();
        assert_eq!(bench.state.len(1), len, "tokens after a rollback to {len}");
        let what = format!("after a rollback to {len}");
        bench.step(&what, &[part(1, 5, len..len + 1)]);
        bench.step(&what, &[part(1, 5, len + 1..len + 4), part(0, 9, 0..2)]);
        assert!(bench.state.rollback(1, 37).is_err(), "there are at most 36 tokens");
    }
}

#[test]
fn a_snapshot_goes_on_in_another_slot() {
    for len in [1, 16, 21] {
        let mut bench = Bench::new(3);
        bench.step("before", &[part(1, 8, 0..len), part(0, 2, 0..5)]);
        let snapshot = bench.state.snapshot(1).unwrap();
        assert_eq!(snapshot.len, len, "tokens of the snapshot");
        bench.step("the original goes on", &[part(1, 8, len..len + 9)]);
        bench.state.restore(2, &snapshot).unwrap();
        let what = format!("from a snapshot of {len} tokens");
        bench.step(&what, &[part(2, 8, len..len + 4), part(1, 8, len + 9..len + 10)]);
    }
}

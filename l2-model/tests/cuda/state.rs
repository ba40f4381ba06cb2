//! What sequences remember, in a device's memory.

use l1_tensor::Precision;
use l2_model::{Batch, BatchError, Error, SequenceState};

use crate::judge;
use crate::models::{Bench, device, load};

const TOKENS: [u32; 12] = [5, 17, 100, 3, 64, 200, 9, 11, 300, 2, 2, 41];

/// Alone, beside others, in any chunks, through a snapshot and after a rollback: the same bits, where the
/// runtime was asked for them.
#[test]
fn logits_on_a_device_have_the_same_bits_however_the_tokens_were_fed() {
    for precision in [Precision::F32, Precision::Bf16] {
        let rt = device(precision, true);
        for name in ["tiny-qwen3", "tiny-mistral"] {
            let decoder = load(name, &rt);
            let vocab = decoder.config().vocab;
            let expected = Bench::new(&rt, &decoder).step(&[(0, &TOKENS)]).unwrap();
            let same = |how: &str, got: &[f32]| {
                let expected = &expected[expected.len() - got.len()..];
                let what = format!("logits of {name} in {precision} on a device, {how}");
                judge::same_bits(&what, &[got.len() / vocab, vocab], got, expected);
            };
            let mut bench = Bench::new(&rt, &decoder);
            bench.step(&[(1, &TOKENS[..5]), (0, &[9, 9])]).unwrap();
            let snapshot = bench.state.snapshot(1).unwrap();
            same("in chunks", &bench.step(&[(1, &TOKENS[5..])]).unwrap());
            bench.state.rollback(1, 3).unwrap();
            bench.step(&[(1, &[77, 78, 79])]).unwrap();
            bench.state.rollback(1, 3).unwrap();
            let mixed = bench.step(&[(1, &TOKENS[3..]), (0, &[4])]).unwrap();
            same("after a rollback, beside another", &mixed[..(TOKENS.len() - 3) * vocab]);
            bench.state.restore(2, &snapshot).unwrap();
            assert_eq!(bench.state.len(2), 5);
            let first = bench.step(&[(2, &TOKENS[5..11])]).unwrap();
            assert_eq!(first.len(), 6 * vocab);
            same(
                "from a snapshot, the last one alone",
                &bench.step(&[(2, &TOKENS[11..])]).unwrap(),
            );
        }
    }
}

/// What an earlier sequence left in the slot is never read.
#[test]
fn a_slot_used_again_on_a_device_is_as_good_as_new() {
    let rt = device(Precision::F32, false);
    let decoder = load("tiny-llama", &rt);
    let expected = Bench::new(&rt, &decoder).step(&[(0, &TOKENS[..4])]).unwrap();
    let mut bench = Bench::new(&rt, &decoder);
    bench.step(&[(0, &TOKENS)]).unwrap();
    bench.state.rollback(0, 0).unwrap();
    let got = bench.step(&[(0, &TOKENS[..4])]).unwrap();
    judge::same_bits("logits of a slot used again", &[4, got.len() / 4], &got, &expected);
}

#[test]
fn a_step_that_is_refused_changes_nothing_on_a_device() {
    let rt = device(Precision::F32, false);
    let decoder = load("tiny-llama", &rt);
    let (vocab, mut bench) = (decoder.config().vocab, Bench::new(&rt, &decoder));
    bench.step(&[(0, &TOKENS[..4])]).unwrap();
    let cu = [0, 1];
    let good = Batch {
        tokens: &TOKENS[4..5],
        positions: &[4],
        cu_seqlens_q: &cu,
        state_slots: &[0],
        logit_rows: &[0],
        ..Batch::default()
    };
    let unknown = [vocab as u32];
    for (what, batch) in [
        ("a token that is not", Batch { tokens: &unknown, ..good }),
        ("a position that is not next", Batch { positions: &[7], ..good }),
        ("a slot that is not", Batch { state_slots: &[9], ..good }),
        ("a logit row that is not", Batch { logit_rows: &[3], ..good }),
        ("an adapter", Batch { adapters: &[0], ..good }),
    ] {
        let Bench { decoder, state, ws } = &mut bench;
        let refused = decoder.forward(&batch, state, ws).map(|_| ());
        judge::fails_with!(
            what,
            refused,
            Error::Batch(BatchError::Malformed(_) | BatchError::TokenOutOfRange { .. })
        );
    }
    assert_eq!(bench.state.len(0), 4);
    let got = bench.step(&[(0, &TOKENS[4..5])]).unwrap();
    let mut other = Bench::new(&rt, &decoder);
    other.step(&[(0, &TOKENS[..4])]).unwrap();
    let expected = other.step(&[(0, &TOKENS[4..5])]).unwrap();
    judge::same_bits("logits after what was refused", &[1, vocab], &got, &expected);
}

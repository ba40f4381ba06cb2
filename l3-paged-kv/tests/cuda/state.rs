//! Sequences over blocks on a device, against sequences in one run of memory there.

use l1_tensor::Precision;
use l2_model::SequenceState;

use crate::judge;
use crate::models::{LEN, Model, device, load, text};

/// Blocks of any size, a sequence alone or beside others, whole or in chunks: the bits of one run of memory.
#[test]
fn logits_over_blocks_on_a_device_have_the_bits_of_one_run_of_memory() {
    for precision in [Precision::F32, Precision::Bf16] {
        let rt = device(precision);
        for name in ["tiny-mistral", "tiny-qwen3"] {
            let decoder = load(name, &rt);
            let mut model = Model::new(&decoder, &rt);
            let (tokens, other) = (text(LEN, 1), text(LEN, 2));
            let expected = model.step(&mut model.contiguous(), &[(0, &tokens)]).unwrap();
            let vocab = model.vocab();
            for block_size in [1, 4, 16, 32] {
                let same = |how: &str, from: usize, got: &[f32]| {
                    let expected = &expected[from * vocab..][..got.len()];
                    let what = format!(
                        "logits of {name} in {precision}, blocks of {block_size} on a device, {how}"
                    );
                    judge::same_bits(&what, &[got.len() / vocab, vocab], got, expected);
                };
                let mut state = model.paged(block_size);
                let got = model.step(&mut state, &[(2, &other[..5]), (0, &tokens[..7])]).unwrap();
                same("beside another", 0, &got[5 * vocab..]);
                let got = model.step(&mut state, &[(0, &tokens[7..8]), (2, &other[5..6])]).unwrap();
                same("one token", 7, &got[..vocab]);
                let got = model.step(&mut state, &[(0, &tokens[8..])]).unwrap();
                same("the rest of it", 8, &got);
            }
        }
    }
}

/// A rollback into the middle of a block that others see goes on in a copy; a snapshot comes back in other blocks; what
/// another sequence has computed is found again.
#[test]
fn blocks_on_a_device_are_copied_saved_and_shared() {
    let rt = device(Precision::Bf16);
    let decoder = load("tiny-llama", &rt);
    let mut model = Model::new(&decoder, &rt);
    let (tokens, vocab) = (text(LEN, 3), model.vocab());
    let expected = model.step(&mut model.contiguous(), &[(0, &tokens)]).unwrap();
    let same = |how: &str, from: usize, got: &[f32]| {
        let expected = &expected[from * vocab..][..got.len()];
        let what = format!("logits over blocks on a device, {how}");
        judge::same_bits(&what, &[got.len() / vocab, vocab], got, expected);
    };
    let mut state = model.paged(4);
    model.step(&mut state, &[(0, &tokens[..18])]).unwrap();
    let snapshot = state.snapshot(0).unwrap();
    let found = state.resume(1, &tokens);
    assert_eq!(found, 16, "four full blocks were computed before");
    same(
        "behind what another computed",
        16,
        &model.step(&mut state, &[(1, &tokens[16..])]).unwrap(),
    );
    // Slot 1 sees the block, too: slot 0 writes on in a copy of its beginning.
    state.rollback(0, 14).unwrap();
    model.step(&mut state, &[(0, &[7, 8, 9])]).unwrap();
    state.rollback(0, 14).unwrap();
    same(
        "after a rollback into a shared block",
        14,
        &model.step(&mut state, &[(0, &tokens[14..20])]).unwrap(),
    );
    state.drop_sequence(1);
    state.restore(2, &snapshot).unwrap();
    same("from a snapshot", 18, &model.step(&mut state, &[(2, &tokens[18..])]).unwrap());
}

/// Nothing is taken when a step is refused, and the next one runs as if it had not been tried.
#[test]
fn a_step_that_does_not_fit_changes_nothing_on_a_device() {
    let rt = device(Precision::F32);
    let decoder = load("tiny-llama", &rt);
    let mut model = Model::new(&decoder, &rt);
    let (tokens, vocab) = (text(LEN + 1, 4), model.vocab());
    let expected = model.step(&mut model.contiguous(), &[(0, &tokens[..6])]).unwrap();
    let mut state = model.paged(4);
    model.step(&mut state, &[(0, &tokens[..5])]).unwrap();
    let free = state.manager().num_free();
    let refused = model.step(&mut state, &[(0, &tokens[5..])]).map(|_| ());
    judge::refused("a sequence that is too long", "an error", refused);
    assert_eq!((state.len(0), state.manager().num_free()), (5, free));
    let got = model.step(&mut state, &[(0, &tokens[5..6])]).unwrap();
    judge::same_bits("logits after it", &[1, vocab], &got, &expected[5 * vocab..]);
}

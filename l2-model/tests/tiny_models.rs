//! Every family against Hugging Face transformers: the tiny models of `fixtures/`, whose weights
//! are exact in bf16. Goldens are made by `fixtures/reference/make_tiny_goldens.py` and
//! `make_tiny_gguf.py`.

#[path = "support/golden.rs"]
mod golden;
mod judge;
#[path = "support/logits.rs"]
mod logits;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::path::{Path, PathBuf};

use golden::Golden;
use l1_tensor::{Precision, Runtime};
use l2_model::compare::{compare, default_tolerance};
use l2_model::{
    Batch, ContiguousState, Decoder, GenerateOptions, ModelFiles, SequenceState, Session,
    Workspace, WorkspaceSpec, generate,
};
use logits::{all_logits, logits_of};
use runtime::runtime;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// (name, model, golden) of every tiny model.
fn models() -> Vec<(String, PathBuf, PathBuf)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "tiny-gguf" {
            for entry in std::fs::read_dir(path).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|e| e == "gguf") {
                    let golden = path.with_extension("golden.safetensors");
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    all.push((name, path, golden));
                }
            }
        } else if name.starts_with("tiny-") {
            let golden = path.join("golden.safetensors");
            all.push((name, path, golden));
        }
    }
    all.sort();
    assert!(all.len() >= 15, "only {} tiny models found", all.len());
    all
}

fn load(path: &Path, rt: &Runtime) -> Decoder {
    ModelFiles::open(path).unwrap().decoder(rt).unwrap()
}

#[test]
fn f32_logits_are_within_2e_3_of_transformers_at_every_position() {
    let rt = runtime(Precision::F32, 2);
    for (name, model, golden) in models() {
        let golden = Golden::open(&golden);
        let got = all_logits(&rt, &load(&model, &rt), &golden.tokens);
        let dims = [golden.tokens.len(), golden.logits.len() / golden.tokens.len()];
        judge::close(&format!("logits of {name} in f32"), &dims, &got, &golden.logits, 2e-3);
    }
}

/// Some rows in any order, the same row twice, none: each is the row of all rows.
#[test]
fn the_rows_that_are_asked_for_are_the_rows_that_come() {
    let rt = runtime(Precision::F32, 1);
    for (name, model, golden) in models() {
        let tokens = Golden::open(&golden).tokens;
        let decoder = load(&model, &rt);
        let vocab = decoder.config().vocab;
        let all = all_logits(&rt, &decoder, &tokens);
        let last = tokens.len() as u32 - 1;
        for rows in [&[last][..], &[0], &[7, 2, last, 2], &[]] {
            let got = logits_of(&rt, &decoder, &tokens, rows);
            let expected: Vec<f32> =
                rows.iter().flat_map(|r| &all[*r as usize * vocab..][..vocab]).copied().collect();
            let what = format!("logits of {name} in f32, of rows {rows:?}");
            judge::same_bits(&what, &[rows.len(), vocab], &got, &expected);
        }
    }
}

#[test]
fn every_greedy_token_is_that_of_transformers() {
    let rt = runtime(Precision::F32, 2);
    for (name, model, golden) in models() {
        let golden = Golden::open(&golden);
        let decoder = load(&model, &rt);
        let len = golden.tokens.len() + golden.greedy.len();
        let mut session = Session::new(&decoder, &rt, len).unwrap();
        let options = GenerateOptions { max_tokens: golden.greedy.len(), ..Default::default() };
        let got = generate::generate(&mut session, &golden.tokens, &options, |_| true);
        let got = judge::works(format!("generating with {name} in f32"), got);
        let what = format!("the greedy continuation of {name} in f32");
        judge::same_tokens(&what, &got.tokens, &golden.greedy);
        assert!(golden.margins.iter().all(|m| *m > 0.02), "{name}: margins must mean something");
    }
}

#[test]
fn every_tap_agrees_with_transformers() {
    let rt = runtime(Precision::F32, 1);
    for (name, model, golden) in models() {
        let decoder = load(&model, &rt);
        let report = compare(&rt, &decoder, &golden, default_tolerance(Precision::F32)).unwrap();
        assert!(report.first_wrong().is_none(), "{name}: {report}");
        assert_eq!(report.taps.len(), 3 + 3 * decoder.config().layers.len(), "{name}");
    }
}

#[test]
fn bf16_stays_near_f32() {
    let rt = runtime(Precision::Bf16, 2);
    for (name, model, golden) in models() {
        let golden = Golden::open(&golden);
        let got = all_logits(&rt, &load(&model, &rt), &golden.tokens);
        let size = golden.logits.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let mean = got.iter().zip(&golden.logits).map(|(g, e)| (g - e).abs()).sum::<f32>()
            / got.len() as f32;
        assert!(
            mean <= 0.01 * size,
            "logits of {name} in bf16, mean error against f32\n  expected  at most {} (a hundredth of the largest)\n  got       {mean}",
            0.01 * size
        );
    }
}

/// The promise of batch invariance, for the whole model: the same bits alone, in a batch, chunked
/// anywhere, token by token, on any number of threads, after a snapshot and a rollback.
#[test]
fn logits_have_the_same_bits_however_the_tokens_were_fed() {
    for precision in [Precision::F32, Precision::Bf16] {
        let one = runtime(precision, 1);
        let three = runtime(precision, 3);
        for (name, model, golden) in models() {
            let tokens = Golden::open(&golden).tokens;
            let decoder = load(&model, &one);
            let vocab = decoder.config().vocab;
            let same = |how: &str, got: &[f32], expected: &[f32]| {
                let what = format!("logits of {name} in {precision}, {how}");
                judge::same_bits(&what, &[expected.len() / vocab, vocab], got, expected);
            };
            let expected = all_logits(&one, &decoder, &tokens);
            let last = &expected[expected.len() - vocab..];
            same("on three threads", &all_logits(&three, &decoder, &tokens), &expected);

            let mut session = Session::new(&decoder, &three, tokens.len()).unwrap();
            for (i, token) in tokens.iter().enumerate() {
                let got = judge::works("feeding one token", session.feed(&[*token]));
                let got = got.to_vec_f32().unwrap();
                same(&format!("token {i} fed alone"), &got, &expected[i * vocab..][..vocab]);
            }
            session.rollback(5).unwrap();
            session.feed(&tokens[5..11]).unwrap();
            let got = session.feed(&tokens[11..]).unwrap().to_vec_f32().unwrap();
            same("in chunks after a rollback", &got, last);
            same("in a batch with others", &beside_others(&three, &decoder, &tokens), last);
        }
    }
}

/// The last logits of `tokens`, fed in two steps among other sequences, by way of a snapshot.
fn beside_others(rt: &Runtime, decoder: &Decoder, tokens: &[u32]) -> Vec<f32> {
    let cut = tokens.len() / 3;
    let other: Vec<u32> = tokens.iter().rev().copied().collect();
    let spec = WorkspaceSpec { max_tokens: 64, max_rows: 3, max_context: 64 };
    let mut ws = Workspace::new(rt, decoder.config(), spec).unwrap();
    let mut state = ContiguousState::new(decoder.config(), 4, 40, rt.activation_dtype()).unwrap();
    let mut step = |state: &mut ContiguousState, parts: &[(u32, &[u32])]| {
        let (mut ids, mut positions, mut cu, mut slots) = (vec![], vec![], vec![0], vec![]);
        for (slot, part) in parts {
            let from = state.len(*slot) as i32;
            positions.extend(from..from + part.len() as i32);
            ids.extend_from_slice(part);
            cu.push(ids.len() as i32);
            slots.push(*slot);
        }
        let rows: Vec<u32> = cu[1..].iter().map(|end| *end as u32 - 1).collect();
        let batch = Batch {
            tokens: &ids,
            positions: &positions,
            cu_seqlens_q: &cu,
            state_slots: &slots,
            logit_rows: &rows,
            ..Batch::default()
        };
        decoder.forward(&batch, state, &mut ws).unwrap().to_vec_f32().unwrap()
    };
    step(&mut state, &[(3, &other[..7]), (1, &tokens[..cut])]);
    let snapshot = state.snapshot(1).unwrap();
    // The slot goes on with something else, then comes back to where it was, in another slot.
    step(&mut state, &[(1, &other[..9])]);
    state.drop_sequence(1);
    state.restore(2, &snapshot).unwrap();
    let logits = step(&mut state, &[(2, &tokens[cut..]), (3, &other[7..8]), (0, &other[..3])]);
    logits[..decoder.config().vocab].to_vec()
}

//! SmolLM2-135M-Instruct over blocks: the tokens it gives over one run of memory, and a prompt that
//! finds its beginning in the cache.
//!
//! These tests need the model's file: `cargo x test --full` fetches it and names it in
//! `STRATA_SMOLLM2`. Without that variable they say so and pass.

#[path = "../../l2-model/tests/judge/mod.rs"]
mod judge;
mod models;
#[path = "../../l2-model/tests/support/smollm2.rs"]
mod real;

use std::path::Path;

use l1_tensor::{DType, Precision, Runtime};
use l2_model::{
    ContiguousState, Decoder, GenerateOptions, ModelFiles, SequenceState, Session, generate,
};
use l3_paged_kv::{PagedOptions, PagedState};
use models::{Model, fixture, runtime};
use serde_json::Value;

/// New tokens of each prompt.
const NEW: usize = 24;

fn load(path: &Path, rt: &Runtime) -> Decoder {
    ModelFiles::open(path).unwrap().decoder(rt).unwrap()
}

/// (name, prompt) of the goldens.
fn prompts() -> Vec<(String, Vec<u32>)> {
    let text = std::fs::read(fixture("smollm2/greedy.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let prompt = |p: &Value| {
        let ids = p["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
        (p["name"].as_str().unwrap().to_string(), ids.collect())
    };
    let prompts: Vec<_> = golden["prompts"].as_array().unwrap().iter().map(prompt).collect();
    assert!(prompts.len() >= 10);
    prompts
}

/// The tokens after each prompt, in one session: prompts that begin alike share what they can.
fn answers(rt: &Runtime, decoder: &Decoder, state: impl SequenceState + 'static) -> Vec<Vec<u32>> {
    let mut session = Session::with_state(decoder, rt, Box::new(state), 700).unwrap();
    let options = GenerateOptions { max_tokens: NEW, ignore_eos: true, ..Default::default() };
    let one = |(_, prompt): &(String, Vec<u32>)| {
        generate::generate(&mut session, prompt, &options, |_| true).unwrap().tokens
    };
    prompts().iter().map(one).collect()
}

#[test]
fn tokens_over_blocks_are_those_over_one_run_of_memory() {
    let Some(path) = real::file() else { return };
    for (precision, dtype, sizes) in [
        (Precision::F32, DType::F32, &[16][..]),
        (Precision::Bf16, DType::BF16, &[1, 8, 16, 256]),
        (Precision::Bf16, DType::F8E4M3, &[16]),
    ] {
        let rt = runtime(precision, 2);
        let decoder = load(&path, &rt);
        let state = ContiguousState::new(decoder.config(), 1, 700, dtype).unwrap();
        let expected = answers(&rt, &decoder, state);
        for block_size in sizes {
            let options = PagedOptions::new(1, 700, *block_size, dtype);
            let state = PagedState::new(decoder.config(), options).unwrap();
            let got = answers(&rt, &decoder, state);
            for (((name, _), got), expected) in prompts().iter().zip(&got).zip(&expected) {
                let what = format!(
                    "SmolLM2 in {precision}, KV in {dtype}, blocks of {block_size}, {name}"
                );
                judge::same_tokens(&what, got, expected);
            }
        }
    }
}

/// Alone over one run of memory; behind a cached prefix, in a batch with others, over blocks.
#[test]
fn logits_have_the_same_bits_behind_a_cached_prefix_and_in_a_batch() {
    let Some(path) = real::file() else { return };
    let rt = runtime(Precision::Bf16, 2);
    let decoder = load(&path, &rt);
    let prompts = prompts();
    let longest = prompts.iter().map(|(_, p)| p).max_by_key(|p| p.len()).unwrap();
    let prompt = &longest[..longest.len().min(400)];
    let mut model = Model::new(&decoder, &rt, prompt.len() + 80, prompt.len());
    let vocab = model.vocab();
    let expected = model.truth(prompt, DType::BF16);
    let options = PagedOptions {
        max_step_tokens: 1024,
        ..PagedOptions::new(3, prompt.len(), 16, DType::BF16)
    };
    let mut state = PagedState::new(decoder.config(), options).unwrap();
    model.step(&mut state, &[(0, &prompt[..prompt.len() / 2])]).unwrap();
    state.drop_sequence(0);
    let found = state.resume(1, prompt);
    assert_eq!(found, prompt.len() / 2 / 16 * 16, "tokens that were still there");
    let got = model.step(&mut state, &[(2, &prompts[0].1), (1, &prompt[found..])]).unwrap();
    let from = prompts[0].1.len() * vocab;
    let what = "logits of SmolLM2 behind a cached prefix, beside another prompt";
    let dims = [prompt.len() - found, vocab];
    judge::same_bits(what, &dims, &got[from..], &expected[found * vocab..]);
}

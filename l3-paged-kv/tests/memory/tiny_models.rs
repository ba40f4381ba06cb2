//! Every tiny model over blocks: the tokens of transformers, and those of the state in one run of
//! memory.

use crate::judge;
use crate::models::{Model, all, ids, load, runtime};
use l1_tensor::{DType, Precision, Runtime};
use l2_model::{ContiguousState, Decoder, GenerateOptions, SequenceState, Session, generate};
use l3_paged_kv::{PagedOptions, PagedState};

fn greedy(
    rt: &Runtime,
    decoder: &Decoder,
    state: impl SequenceState + 'static,
    prompt: &[u32],
    n: usize,
) -> Vec<u32> {
    let len = prompt.len() + n;
    let mut session = Session::with_state(decoder, rt, Box::new(state), len).unwrap();
    let options = GenerateOptions { max_tokens: n, ..Default::default() };
    generate::generate(&mut session, prompt, &options, |_| true).unwrap().tokens
}

#[test]
fn every_greedy_token_over_blocks_is_that_of_transformers() {
    let rt = runtime(Precision::F32, 2);
    for (name, golden) in all() {
        let (prompt, expected) = (ids(&golden, "tokens"), ids(&golden, "greedy"));
        let decoder = load(&name, &rt);
        let len = prompt.len() + expected.len();
        for block_size in [1, 8, 16, 256] {
            let options = PagedOptions::new(1, len, block_size, DType::F32);
            let state = PagedState::new(decoder.config(), options).unwrap();
            let got = greedy(&rt, &decoder, state, &prompt, expected.len());
            let what = format!("the greedy continuation of {name} in f32, blocks of {block_size}");
            judge::same_tokens(&what, &got, &expected);
        }
    }
}

#[test]
fn every_greedy_token_over_blocks_is_that_over_one_run_of_memory() {
    for (dtype, precision) in [(DType::BF16, Precision::Bf16), (DType::F8E4M3, Precision::Bf16)] {
        let rt = runtime(precision, 2);
        for (name, golden) in all() {
            let prompt = ids(&golden, "tokens");
            let decoder = load(&name, &rt);
            let len = prompt.len() + 24;
            let state = ContiguousState::new(decoder.config(), 1, len, dtype).unwrap();
            let expected = greedy(&rt, &decoder, state, &prompt, 24);
            for block_size in [1, 8, 16, 256] {
                let options = PagedOptions::new(1, len, block_size, dtype);
                let state = PagedState::new(decoder.config(), options).unwrap();
                let got = greedy(&rt, &decoder, state, &prompt, 24);
                let what = format!(
                    "the greedy continuation of {name}, KV in {dtype}, blocks of {block_size}"
                );
                judge::same_tokens(&what, &got, &expected);
            }
        }
    }
}

/// What eight bits cost, in logits: stated here, and printed.
#[test]
fn keys_and_values_in_eight_bits_move_logits_by_little() {
    let rt = runtime(Precision::F32, 2);
    let (mut worst, mut sum) = (0.0f32, 0.0);
    let models = all();
    for (name, golden) in &models {
        let tokens = ids(golden, "tokens");
        let decoder = load(name, &rt);
        let mut model = Model::new(&decoder, &rt, tokens.len(), tokens.len());
        let exact = model.truth(&tokens, DType::F32);
        let options = PagedOptions::new(1, tokens.len(), 16, DType::F8E4M3);
        let mut state = PagedState::new(decoder.config(), options).unwrap();
        let got = model.step(&mut state, &[(0, &tokens)]).unwrap();
        let size = exact.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let off = got.iter().zip(&exact).map(|(g, e)| (g - e).abs());
        let mean = off.sum::<f32>() / exact.len() as f32 / size;
        worst = worst.max(mean);
        sum += mean;
        assert!(
            mean <= 0.025,
            "logits of {name}, KV in eight bits, mean error against f32\n  expected  at most 0.025 of the largest\n  got       {mean}"
        );
    }
    let mean = sum / models.len() as f32;
    println!(
        "KV in F8E4M3: logits off by {mean:.4} of the largest on average, {worst:.4} at worst"
    );
}

//! A hundred thousand draws for each filter, and for all of them: do they come from the probabilities that the reference
//! says? (Pearson's test, significance 1e-4, fixed seeds: see `support/chi_square.rs`.)

use l1_tensor::cpu::Isa;
use l4_sampler::processors::process_reference;
use l4_sampler::{Logits, Row, Sampled, Sampler, SamplingParams};

use crate::chi_square::check_draws;
use crate::given::{Asked, Shape, runtime, tensor};

const VOCAB: usize = 300;
const DRAWS: u32 = 100_000;

/// Draw at as many positions, a batch of positions at a time.
fn check(what: &str, asked: &Asked, seed: u64) {
    const BATCH: usize = 1000;
    let logits = Shape::Words.row(VOCAB, 77);
    let want = process_reference(&logits, &asked.row()).unwrap();
    let rt = runtime(Isa::best(), 2);
    let mut sampler = Sampler::new(&rt, VOCAB);
    let batch = tensor(&vec![logits; BATCH]);
    let mut out = vec![Sampled::default(); BATCH];
    let mut counts = vec![0; VOCAB];
    for first in (0..DRAWS).step_by(BATCH) {
        let keys: Vec<_> = (first..).take(BATCH).map(|at| asked.keyed(seed, at).key).collect();
        let rows: Vec<Row<'_>> = keys.iter().map(|key| Row { key: *key, ..asked.row() }).collect();
        sampler.sample(Logits::Shared(batch.view()), &rows, &mut out).unwrap();
        for sampled in &out {
            counts[sampled.token.unwrap() as usize] += 1;
        }
    }
    let want: Vec<f64> = want.into_iter().map(f64::from).collect();
    check_draws(format!("{DRAWS} draws with {what}"), &counts, &want);
}

fn check_params(what: &str, params: SamplingParams, seed: u64) {
    check(what, &Asked::new(params), seed);
}

#[test]
fn of_the_models_own_distribution() {
    check_params("nothing changed", SamplingParams::default(), 1);
}

#[test]
fn with_temperature() {
    check_params("temperature 1.5", SamplingParams { temperature: 1.5, ..Default::default() }, 2);
}

#[test]
fn with_top_k() {
    check_params("top-k 20", SamplingParams { top_k: 20, ..Default::default() }, 3);
}

#[test]
fn with_top_p() {
    check_params("top-p 0.9", SamplingParams { top_p: 0.9, ..Default::default() }, 4);
}

#[test]
fn with_min_p() {
    check_params("min-p 0.05", SamplingParams { min_p: 0.05, ..Default::default() }, 5);
}

#[test]
fn with_typical_p() {
    check_params("typical-p 0.8", SamplingParams { typical_p: 0.8, ..Default::default() }, 6);
}

#[test]
fn with_penalties_bias_and_bans() {
    let mut asked = Asked::new(SamplingParams {
        logit_bias: vec![(3, 4.0), (5, -2.0)],
        banned_tokens: vec![7, 8],
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        ..SamplingParams::default()
    });
    (0..VOCAB as u32).step_by(7).for_each(|token| asked.history.push(token));
    check("penalties, bias and bans", &asked, 7);
}

#[test]
fn with_all_of_them() {
    let mut asked = Asked::new(SamplingParams {
        logit_bias: vec![(3, 4.0)],
        banned_tokens: vec![7],
        repetition_penalty: 1.2,
        temperature: 1.3,
        top_k: 60,
        top_p: 0.95,
        min_p: 0.01,
        typical_p: 0.95,
        ..SamplingParams::default()
    });
    (0..VOCAB as u32).step_by(5).for_each(|token| asked.history.push(token));
    check("everything", &asked, 8);
}

//! The fast path beside the one that one reads.
//!
//! Both must keep the same tokens with the same probabilities, on every instruction set. One thing is left open: where
//! the mass in front of a token equals p but for rounding (the fast path's shares are f32, those of the reference f64),
//! it may stay or go. Such cases are counted, and must be few.

use std::cell::Cell;

use l1_tensor::cpu::Isa;
use l4_sampler::processors::process_reference;
use l4_sampler::{Distribution, Error, History, Row, RowError, Sampler, SamplingParams};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::given::{Asked, SHAPES, Shape, Stages, asked, runtime};
use crate::judge::{Allowed, differences};

const ALLOWED: Allowed = Allowed { relative: 3e-5, absolute: 1e-12 };

/// What the sampler says of a row, written out.
fn fast(isa: Isa, logits: &[f32], row: &Row<'_>) -> Result<Vec<f32>, RowError> {
    let mut sampler = Sampler::new(&runtime(isa, 1), logits.len());
    match sampler.distribution(logits, row) {
        Ok(made) => Ok(written_out(&made, logits.len())),
        Err(Error::Row(e)) => Err(e),
        Err(e) => panic!("{e}"),
    }
}

fn written_out(made: &Distribution, vocab: usize) -> Vec<f32> {
    let mut probs = vec![0.0; vocab];
    for (id, p) in made.iter() {
        probs[id as usize] = p as f32;
    }
    probs
}

/// Whether `got` is what the reference says for a p that differs by rounding.
fn by_rounding(logits: &[f32], asked: &Asked, got: &[f32]) -> bool {
    const ROUNDING: [f32; 3] = [1.0, 1.0 - 5e-6, 1.0 + 5e-6];
    let near = |top_p: f32, typical: f32| {
        let mut asked = asked.clone();
        // A p below 1 stays on, and one of 1 off.
        let scaled = |p: f32, by: f32| if p < 1.0 { (p * by).min(1.0f32.next_down()) } else { p };
        asked.params.top_p = scaled(asked.params.top_p, top_p);
        asked.params.typical_p = scaled(asked.params.typical_p, typical);
        let want = process_reference(logits, &asked.row()).unwrap_or_default();
        differences("", "", got, &want, ALLOWED).is_none()
    };
    ROUNDING.iter().any(|top_p| ROUNDING.iter().any(|typical| near(*top_p, *typical)))
}

/// Hold the two together over rows of all shapes.
fn agree(cases: u32, stages: Stages, largest_vocab: usize) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let vocab = prop_oneof![1..100usize, select(vec![64, 128, 640]), 1..largest_vocab];
    let rounded = Cell::new(0);
    let outcome = TestRunner::new_with_rng(config, rng).run(
        &(select(&SHAPES[..]), vocab, any::<u64>()),
        |(shape, vocab, seed)| {
            let (logits, asked) = (shape.row(vocab, seed), asked(stages, vocab, seed ^ 1));
            let want = process_reference(&logits, &asked.row());
            let mut in_doubt = false;
            for isa in Isa::available() {
                let got = fast(isa, &logits, &asked.row());
                let what = format!("{shape:?} row on {isa}, vocab {vocab}, {:?}", asked.params);
                match (&got, &want) {
                    (Ok(got), Ok(want)) => {
                        let wrong = differences(what, "probabilities", got, want, ALLOWED);
                        let Some(wrong) = wrong else { continue };
                        prop_assert!(by_rounding(&logits, &asked, got), "{}", wrong);
                        in_doubt = true;
                    }
                    (got, want) => {
                        let (got, want) = (got.as_ref().err(), want.as_ref().err());
                        prop_assert_eq!(got, want, "what is wrong with this {}", what);
                    }
                }
            }
            rounded.set(rounded.get() + u32::from(in_doubt));
            Ok(())
        },
    );
    if let Err(e) = outcome {
        panic!("{e}");
    }
    let most = cases / 20;
    assert!(rounded.get() <= most, "{} of {cases} rows passed as rounding", rounded.get());
}

#[test]
fn temperature_alone() {
    agree(150, Stages { temperature: true, ..Stages::default() }, 2000);
}

#[test]
fn what_comes_before_temperature() {
    agree(200, Stages { before: true, ..Stages::default() }, 1500);
}

#[test]
fn top_k_and_temperature() {
    agree(250, Stages { temperature: true, top_k: true, ..Stages::default() }, 4000);
}

#[test]
fn top_p_and_temperature() {
    agree(300, Stages { temperature: true, top_p: true, ..Stages::default() }, 4000);
}

#[test]
fn min_p_and_temperature() {
    agree(200, Stages { temperature: true, min_p: true, ..Stages::default() }, 2000);
}

#[test]
fn typical_p_and_temperature() {
    agree(300, Stages { temperature: true, typical_p: true, ..Stages::default() }, 2000);
}

#[test]
fn filters_one_after_another() {
    let filters =
        Stages { top_k: true, top_p: true, min_p: true, typical_p: true, ..Stages::default() };
    agree(300, filters, 3000);
}

#[test]
fn everything_at_once() {
    let (temperature, before) = (true, true);
    let all =
        Stages { before, temperature, top_k: true, top_p: true, min_p: true, typical_p: true };
    agree(300, all, 2000);
}

#[test]
fn greedy_rows_too() {
    for (seed, shape) in (0u64..).zip(SHAPES.iter().cycle().take(80)) {
        let vocab = 1 + (seed as usize * 37) % 700;
        let logits = shape.row(vocab, seed);
        for before in [false, true] {
            let mut asked = asked(Stages { before, top_k: true, ..Stages::default() }, vocab, seed);
            asked.params.temperature = 0.0;
            let want = process_reference(&logits, &asked.row());
            for isa in Isa::available() {
                let got = fast(isa, &logits, &asked.row());
                assert_eq!(got, want, "the one token of a {shape:?} row of {vocab} on {isa}");
            }
        }
    }
}

/// The ids that are left, and nothing of the reference in it.
fn left(logits: &[f32], params: SamplingParams) -> Vec<u32> {
    let mut sampler = Sampler::new(&runtime(Isa::best(), 1), logits.len());
    let made = sampler.distribution(logits, &Asked::new(params).row()).unwrap();
    made.iter().map(|(id, _)| id).collect()
}

/// `ln` of each.
fn logs<const N: usize>(probs: [f32; N]) -> [f32; N] {
    probs.map(f32::ln)
}

#[test]
fn temperature_comes_before_the_filters() {
    // At temperature 1 the first token has 0.7 for itself; at 2 the probabilities are .42 .29 .22 .07, roughly.
    let row = logs([0.7, 0.15, 0.1, 0.05]);
    let params = SamplingParams { top_p: 0.6, ..SamplingParams::default() };
    assert_eq!(left(&row, params.clone()), [0], "at temperature 1");
    let hot = SamplingParams { temperature: 2.0, ..params };
    assert_eq!(left(&row, hot), [0, 1], "at temperature 2");
}

#[test]
fn each_filter_looks_at_what_the_one_before_has_left() {
    // Of the first two, which top-k leaves, the first is two thirds: enough for 0.6, though it is 0.4 of all.
    let row = logs([0.4, 0.2, 0.19, 0.11, 0.1]);
    let params = SamplingParams { top_k: 2, top_p: 0.6, ..SamplingParams::default() };
    assert_eq!(left(&row, params), [0], "top-k 2, top-p 0.6");
    // In the other order three tokens would stay.
    let params = SamplingParams { top_p: 0.6, min_p: 0.49, ..SamplingParams::default() };
    assert_eq!(left(&row, params), [0, 1], "top-p 0.6, min-p 0.49 (token 2 is at 0.475)");
}

#[test]
fn the_token_that_crosses_p_stays() {
    let row = logs([0.5, 0.25, 0.125, 0.125]);
    for (p, want) in [(0.0, 1), (0.4, 1), (0.6, 2), (0.8, 3), (0.9, 4)] {
        let params = SamplingParams { top_p: p, ..SamplingParams::default() };
        assert_eq!(left(&row, params).len(), want, "tokens of 1/2 1/4 1/8 1/8 with top-p {p}");
    }
    // Of four equal tokens two are exactly one half.
    let params = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
    assert_eq!(left(&[0.0; 4], params), [0, 1], "tokens of four equal ones with top-p 0.5");
}

#[test]
fn of_equal_tokens_those_with_lower_ids_stay() {
    let mut row = [0.0; 300];
    row[250] = 1.0;
    let params = SamplingParams { top_k: 4, ..SamplingParams::default() };
    assert_eq!(left(&row, params.clone()), [0, 1, 2, 250], "top-k 4 of 299 equal tokens and one");
    row[1] = -0.0;
    assert_eq!(left(&row, params), [0, 1, 2, 250], "and 0 equals -0");
}

#[test]
fn more_than_the_vocabulary_is_all_of_it() {
    for shape in [Shape::Normal, Shape::Flat] {
        let row = shape.row(100, 3);
        for top_k in [0, 100, 101, usize::MAX] {
            let params = SamplingParams { top_k, ..SamplingParams::default() };
            assert_eq!(left(&row, params).len(), 100, "tokens of a {shape:?} row, top-k {top_k}");
        }
    }
}

#[test]
fn a_row_at_a_temperature_near_zero_is_all_but_greedy() {
    let row = [30.0, 29.9, -3e38, 3e4, 3e4 - 0.1];
    let params = SamplingParams { temperature: 1e-4, ..SamplingParams::default() };
    assert_eq!(left(&row, params), [3], "tokens with a probability at temperature 1e-4");
}

#[test]
fn several_infinite_logits_share_the_probability() {
    let row = [1.0, f32::INFINITY, f32::NAN, f32::INFINITY, 3e38];
    assert_eq!(left(&row, SamplingParams::default()), [1, 3], "tokens of a row with two +inf");
    let params = SamplingParams { top_k: 1, ..SamplingParams::default() };
    assert_eq!(left(&row, params), [1], "the first of them");
}

#[test]
fn penalties_can_push_the_last_tokens_beyond_what_f32_holds() {
    // Both tokens were said before, and twice -2e38 is -inf.
    let repetitive = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    let asked = Asked { history: History::new(&[0, 1], 1), ..Asked::new(repetitive) };
    let logits = [-2e38, -3e38];
    for isa in Isa::available() {
        let nothing = Err(RowError::NothingLeft);
        assert_eq!(fast(isa, &logits, &asked.row()), nothing, "two tokens pushed to -inf");
    }
    assert!(process_reference(&logits, &asked.row()).is_err(), "the same, by the reference");
}

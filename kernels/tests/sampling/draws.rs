//! Draws, against a scalar one in f64 that sorts.

use std::sync::Arc;

use kernels::ops::{NO_TOKEN, SampleRow, sample};
use kernels::{Buffer, Error, Gpu};

use crate::{Logits, Random, common};

/// Nothing but temperature 1.
pub(crate) const PLAIN: SampleRow =
    SampleRow { temperature: 1.0, top_p: 1.0, min_p: 0.0, uniform: 0.5, top_k: 0 };

fn draw(gpu: &Arc<Gpu>, rows: &[Vec<f32>], rules: &[SampleRow]) -> Vec<u32> {
    let logits = Logits::new(gpu, rows, 2);
    let rules = Buffer::from_slice(gpu, rules).unwrap();
    let mut out = Buffer::from_slice(gpu, &vec![77u32; rows.len()]).unwrap();
    sample(gpu, logits.mat(), rules.view().cast(), out.view_mut().cast()).unwrap();
    out.to_vec().unwrap()
}

/// What is kept of a row: ids, ascending, with their shares.
fn kept(row: &[f32], rule: &SampleRow) -> Vec<(u32, f64)> {
    let there = |x: f32| !x.is_nan() && x != f32::NEG_INFINITY;
    let mut line: Vec<(u32, f64)> = (0..row.len() as u32)
        .filter(|id| there(row[*id as usize]))
        .map(|id| (id, f64::from(row[id as usize].min(f32::MAX))))
        .collect();
    // A stable sort: of equal ones the lower id is in front.
    line.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some(&(first, max)) = line.first() else { return Vec::new() };
    if rule.temperature == 0.0 {
        return vec![(first, 1.0)];
    }
    for (_, x) in &mut line {
        *x = ((*x - max) / f64::from(rule.temperature)).exp();
    }
    if rule.top_k > 0 {
        line.truncate(rule.top_k as usize);
    }
    if rule.top_p < 1.0 {
        let enough = f64::from(rule.top_p) * line.iter().map(|(_, share)| share).sum::<f64>();
        let mut mass = 0.0;
        let before = line.iter().take_while(|(_, share)| {
            let goes_on = mass < enough;
            mass += share;
            goes_on
        });
        let n = before.count().max(1);
        line.truncate(n);
    }
    if rule.min_p > 0.0 {
        line.retain(|(_, share)| *share >= f64::from(rule.min_p));
    }
    line.sort_by_key(|(id, _)| *id);
    line
}

/// The first token at which the sum of shares exceeds `uniform` of all.
pub(crate) fn drawn(row: &[f32], rule: &SampleRow) -> u32 {
    let kept = kept(row, rule);
    let dart = f64::from(rule.uniform) * kept.iter().map(|(_, share)| share).sum::<f64>();
    let mut walked = 0.0;
    for (id, share) in &kept {
        walked += share;
        if walked > dart {
            return *id;
        }
    }
    kept.last().map_or(NO_TOKEN, |(id, _)| *id)
}

pub(crate) fn assert_drawn(rows: &[Vec<f32>], rules: &[SampleRow]) {
    let gpu = common::gpu().unwrap();
    let tokens = draw(&gpu, rows, rules);
    for ((token, row), rule) in tokens.iter().zip(rows).zip(rules) {
        assert_eq!(*token, drawn(row, rule), "{rule:?}");
    }
}

/// Every combination of these, with random uniform numbers.
fn rules(random: &mut Random) -> Vec<SampleRow> {
    let mut rules = Vec::new();
    for temperature in [0.0, 0.3, 1.0, 1.7] {
        for top_k in [0, 1, 20] {
            for top_p in [0.4, 0.95, 1.0] {
                for min_p in [0.0, 0.05] {
                    let uniform = random.uniform();
                    rules.push(SampleRow { temperature, top_p, min_p, uniform, top_k });
                }
            }
        }
    }
    rules
}

#[test]
fn every_mixture_of_rules_draws_what_sorting_draws() {
    let mut random = Random::new(1);
    let rules = rules(&mut random);
    let rows: Vec<_> = rules.iter().map(|_| random.logits(351, 2.0)).collect();
    assert_drawn(&rows, &rules);
}

#[test]
fn a_row_of_a_whole_vocabulary_draws_what_sorting_draws() {
    let mut random = Random::new(2);
    let rules = [
        SampleRow { temperature: 0.8, top_k: 50, top_p: 0.9, uniform: 0.77, ..PLAIN },
        SampleRow { temperature: 1.2, uniform: 0.31, ..PLAIN },
    ];
    let rows: Vec<_> = rules.iter().map(|_| random.logits(151_936, 2.5)).collect();
    assert_drawn(&rows, &rules);
}

#[test]
fn of_equally_likely_tokens_the_first_are_kept() {
    let mut random = Random::new(3);
    let mut rules = Vec::new();
    for top_k in [1, 5, 33, 200] {
        for top_p in [0.3, 0.77, 1.0] {
            for uniform in [0.0, 0.5, 0.999_99] {
                rules.push(SampleRow { top_k, top_p, uniform, ..PLAIN });
            }
        }
    }
    let rows: Vec<_> = rules.iter().map(|_| random.steps(300, 4)).collect();
    assert_drawn(&rows, &rules);
    // All of them: half the mass is half the tokens.
    let half = SampleRow { top_p: 0.5, uniform: 0.999_99, ..PLAIN };
    let gpu = common::gpu().unwrap();
    assert_eq!(draw(&gpu, &[vec![1.25; 300]], &[half]), [149]);
}

#[test]
fn a_draw_walks_in_the_order_of_ids() {
    let gpu = common::gpu().unwrap();
    // Probabilities 1/8, 1/2, 1/8, 1/4.
    let row: Vec<f32> = [1.0f32, 4.0, 1.0, 2.0].iter().map(|share| share.ln()).collect();
    let at = |uniform| SampleRow { uniform, ..PLAIN };
    let darts = [0.0, 0.12, 0.13, 0.62, 0.63, 0.74, 0.76, 0.999_999_9];
    let rules: Vec<SampleRow> = darts.into_iter().map(at).collect();
    let rows = vec![row; rules.len()];
    assert_eq!(draw(&gpu, &rows, &rules), [0, 0, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn rules_at_their_limits_keep_one_or_all() {
    let mut random = Random::new(4);
    let row = random.logits(200, 1.0);
    let likeliest = drawn(&row, &SampleRow { temperature: 0.0, ..PLAIN });
    let one = [
        SampleRow { top_p: 0.0, ..PLAIN },
        SampleRow { top_k: 1, ..PLAIN },
        SampleRow { min_p: 1.0, ..PLAIN },
        SampleRow { temperature: 1e-6, ..PLAIN },
        SampleRow { temperature: 1e-45, uniform: 0.999, ..PLAIN },
        SampleRow { temperature: 0.0, top_k: 3, ..PLAIN },
    ];
    let all = [
        SampleRow { top_k: 200, uniform: 0.9, ..PLAIN },
        SampleRow { top_k: 100_000, uniform: 0.9, ..PLAIN },
        SampleRow { top_k: -1, uniform: 0.9, ..PLAIN },
        SampleRow { top_p: 2.0, uniform: 0.9, ..PLAIN },
        SampleRow { min_p: 1e-30, uniform: 0.9, ..PLAIN },
    ];
    let gpu = common::gpu().unwrap();
    assert_eq!(draw(&gpu, &vec![row.clone(); 6], &one), [likeliest; 6]);
    let any = drawn(&row, &SampleRow { uniform: 0.9, ..PLAIN });
    assert_eq!(draw(&gpu, &vec![row; 5], &all), [any; 5]);
}

#[test]
fn what_cannot_be_drawn_is_not() {
    let gpu = common::gpu().unwrap();
    let mut random = Random::new(5);
    let mut rows: Vec<_> = (0..6).map(|_| random.logits(80, 1.0)).collect();
    // One left; nothing left, in three ways; NaN before the likeliest; two of infinity.
    rows[0].fill(f32::NEG_INFINITY);
    rows[0][61] = -1e30;
    rows[1].fill(f32::NEG_INFINITY);
    rows[2].fill(f32::NAN);
    rows[3].fill(f32::NAN);
    rows[3][7] = f32::NEG_INFINITY;
    rows[4][0] = f32::NAN;
    rows[5][70] = f32::INFINITY;
    rows[5][20] = f32::INFINITY;
    for rule in [
        PLAIN,
        SampleRow { temperature: 0.0, ..PLAIN },
        SampleRow { top_k: 4, top_p: 0.9, ..PLAIN },
        SampleRow { temperature: 0.5, top_p: 0.5, min_p: 0.1, uniform: 0.99, ..PLAIN },
    ] {
        let tokens = draw(&gpu, &rows, &[rule; 6]);
        assert_eq!(tokens[..4], [61, NO_TOKEN, NO_TOKEN, NO_TOKEN]);
        assert_eq!(tokens[4], drawn(&rows[4], &rule));
        assert_eq!(tokens[5], drawn(&rows[5], &rule));
    }
}

#[test]
fn rows_of_one_and_of_two_tokens_are_drawn_from() {
    assert_drawn(&[vec![3.0], vec![-7.0]], &[PLAIN, SampleRow { temperature: 0.0, ..PLAIN }]);
    let late = SampleRow { uniform: 0.9, ..PLAIN };
    assert_drawn(&[vec![0.0, 1.0], vec![0.0, 1.0], vec![1.0, 1.0]], &[PLAIN, late, late]);
}

#[test]
fn frequencies_are_the_probabilities() {
    let gpu = common::gpu().unwrap();
    let row: Vec<f32> = [0.1f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
    let n = 200;
    let rules: Vec<SampleRow> =
        (0..n).map(|i| SampleRow { uniform: (i as f32 + 0.5) / n as f32, ..PLAIN }).collect();
    let tokens = draw(&gpu, &vec![row; n], &rules);
    let count = |token| tokens.iter().filter(|t| **t == token).count();
    assert_eq!([0, 1, 2, 3].map(count), [20, 40, 60, 80]);
}

#[test]
fn a_row_draws_the_same_alone_and_under_every_order_of_threads() {
    let gpu = common::gpu().unwrap();
    let mut random = Random::new(6);
    let rules = [
        SampleRow { temperature: 0.9, top_k: 40, top_p: 0.9, min_p: 0.02, uniform: 0.4 },
        SampleRow { temperature: 1.0, uniform: 0.8, ..PLAIN },
    ];
    let rows = vec![random.steps(600, 25), random.logits(600, 2.0)];
    let together = common::under_every_order(|| common::bytes(&draw(&gpu, &rows, &rules)));
    for i in 0..2 {
        let alone = common::bytes(&draw(&gpu, &rows[i..=i], &rules[i..=i]));
        assert_eq!(alone, together[4 * i..][..4]);
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let gpu = common::gpu().unwrap();
    let logits = Logits::new(&gpu, &[vec![0.0; 9], vec![0.0; 9]], 0);
    let rules = Buffer::from_slice(&gpu, &[PLAIN; 2]).unwrap();
    let mut out = Buffer::zeroed(&gpu, 8).unwrap();
    let (rules, mut out) = (rules.view().cast(), out.view_mut().cast());
    for (rules, tokens) in [(rules.part(0, 1), 2), (rules, 1)] {
        let refused = sample(&gpu, logits.mat(), rules, out.reborrow().part(0, tokens));
        assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    }
}

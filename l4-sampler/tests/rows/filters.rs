//! Temperature and four ways to cut.

use l4_sampler::processors::{
    by_rank, min_p, process_reference, softmax, temperature, top_k, top_p, typical_p,
};
use l4_sampler::{History, Row, SamplingParams};
use proptest::prelude::*;

use crate::given::{OUT, left, logits_with_some_left, mask_of, odd_row, plain_row, row};
use crate::goldens::{Case, cases};
use crate::judge::{judge, same_bits, within};

type Filter = fn(&mut [f32], f32);

/// The four that cut, with a value that turns each off.
const FILTERS: [(&str, Filter, f32); 4] = [
    ("top_k", |r, k| top_k(r, k as usize), 0.0),
    ("top_p", top_p, 1.0),
    ("min_p", min_p, 0.0),
    ("typical_p", typical_p, 1.0),
];

fn filtered(before: &[f32], filter: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut row = before.to_vec();
    filter(&mut row);
    row
}

/// Logits of these probabilities.
fn of_probs(probs: &[f64]) -> Vec<f32> {
    probs.iter().map(|p| p.ln() as f32).collect()
}

/// The tokens that a filter leaves of a row with these probabilities.
fn kept(probs: &[f64], filter: impl FnOnce(&mut [f32])) -> Vec<usize> {
    left(&filtered(&of_probs(probs), filter))
}

/// What the reference makes of a row for a request without history.
fn probabilities(logits: &[f32], params: &SamplingParams) -> Vec<f32> {
    process_reference(logits, &row(params, &History::default())).expect("some are left")
}

/// Goldens of transformers (see `goldens.rs`): the same tokens are removed, and the others keep every bit.
#[test]
fn filters_cut_where_transformers_cuts() {
    for (name, filter, _) in FILTERS {
        for case in cases(name) {
            let value = case.number(if name == "top_k" { "k" } else { "p" }, 0.0);
            for (what, before, want) in case.rows() {
                let got = filtered(before, |r| filter(r, value));
                assert_eq!(left(&got), left(want), "tokens left by {what}");
                same_bits(what, &got, want);
            }
        }
    }
}

/// transformers divides logits as they are, we those counted from the largest: the same but for that shift. How exact
/// theirs are depends on how far from zero the row is.
#[test]
fn temperature_is_that_of_transformers() {
    for case in cases("temperature") {
        let t = case.number("t", 1.0);
        for (what, before, want) in case.rows() {
            let got = filtered(before, |r| temperature(r, t));
            let top = |row: &[f32]| f64::from(row.iter().copied().fold(OUT, f32::max));
            let from_top = |row: &[f32]| -> Vec<f64> {
                row.iter().map(|x| f64::from(*x) - top(row)).collect()
            };
            let far = want.iter().filter(|x| x.is_finite()).fold(0.0f32, |m, x| m.max(x.abs()));
            let allowed = within(2e-7, 2e-7 * f64::from(far));
            judge(what, "logits below the largest", &from_top(&got), &from_top(want), allowed);
        }
    }
}

/// Several together, in transformers' order. It divides before it cuts, and each filter sees what the one before left.
#[test]
fn all_of_them_in_order_are_those_of_transformers() {
    for case in cases("all") {
        let params = params_of(&case);
        for (i, (what, before, want)) in case.rows().enumerate() {
            let history = case.history(i);
            let got = process_reference(before, &row(&params, &history)).expect("some are left");
            assert_eq!(
                left(&got.iter().map(|p| p.ln()).collect::<Vec<_>>()),
                left(&want.iter().map(|p| p.ln()).collect::<Vec<_>>()),
                "tokens with a probability, {what}"
            );
            // Their logits after temperature are f32 at a distance of up to 60 from zero; row 8's reach 1e4.
            judge(what, "probabilities", &got, want, within(2e-5, 1e-9));
        }
    }
}

fn params_of(case: &Case) -> SamplingParams {
    SamplingParams {
        repetition_penalty: case.number("repetition_penalty", 1.0),
        temperature: case.number("temperature", 1.0),
        top_k: case.count("top_k"),
        top_p: case.number("top_p", 1.0),
        min_p: case.number("min_p", 0.0),
        typical_p: case.number("typical_p", 1.0),
        ..Default::default()
    }
}

#[test]
fn a_filter_that_is_off_leaves_every_bit() {
    let odd = odd_row();
    for (name, filter, off) in FILTERS {
        same_bits(format!("{name} {off}"), &filtered(&odd, |r| filter(r, off)), &odd);
    }
    same_bits("temperature 1", &filtered(&odd, |r| temperature(r, 1.0)), &odd);
    for k in [odd.len(), odd.len() + 1, usize::MAX] {
        same_bits(format!("top_k {k}"), &filtered(&odd, |r| top_k(r, k)), &odd);
    }
}

#[test]
fn a_request_that_asks_for_nothing_gets_the_softmax() {
    let plain = plain_row();
    let total: f64 = plain.iter().map(|x| f64::from(*x).exp()).sum();
    let want: Vec<f64> = plain.iter().map(|x| f64::from(*x).exp() / total).collect();
    let got: Vec<f64> =
        probabilities(&plain, &SamplingParams::default()).into_iter().map(f64::from).collect();
    judge("the default parameters", "probabilities", &got, &want, within(1e-6, 0.0));
}

#[test]
fn the_token_that_crosses_p_stays() {
    let probs = [0.1, 0.5, 0.15, 0.25];
    for (p, want) in [
        (0.0, &[1][..]),
        (0.3, &[1]),
        (0.49, &[1]),
        (0.51, &[1, 3]),
        (0.74, &[1, 3]),
        (0.76, &[1, 2, 3]),
        (0.89, &[1, 2, 3]),
        (0.91, &[0, 1, 2, 3]),
    ] {
        assert_eq!(kept(&probs, |r| top_p(r, p)), want, "left by top_p {p} of {probs:?}");
    }
}

/// Equal logits have exactly equal probabilities, so here the sums are exact.
#[test]
fn a_nucleus_that_is_full_takes_no_more() {
    for (p, want) in [(0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4)] {
        let got = left(&filtered(&[2.0; 4], |r| top_p(r, p)));
        assert_eq!(got, (0..want).collect::<Vec<_>>(), "left by top_p {p} of four equals");
    }
}

#[test]
fn of_equals_the_lower_ids_stay() {
    let ties = [1.0, 3.0, 0.0, 3.0, -0.0, 3.0];
    assert_eq!(left(&filtered(&ties, |r| top_k(r, 2))), [1, 3], "top_k 2");
    assert_eq!(
        left(&filtered(&ties, |r| top_k(r, 5))),
        [0, 1, 2, 3, 5],
        "top_k 5: 0 and -0 are equal"
    );
    assert_eq!(left(&filtered(&ties, |r| temperature(r, 0.0))), [1], "temperature 0");
    assert_eq!(left(&filtered(&ties, |r| top_p(r, 0.4))), [1, 3], "top_p 0.4");
    assert_eq!(
        left(&filtered(&ties, |r| min_p(r, 1.0))),
        [1, 3, 5],
        "min_p 1: all are the largest"
    );
    assert_eq!(left(&filtered(&[1.0; 4], |r| typical_p(r, 0.5))), [0, 1], "typical_p 0.5");
}

#[test]
fn min_p_is_a_part_of_the_largest() {
    let probs = [0.4, 0.2, 0.1, 0.3];
    for (p, want) in [
        (0.2, &[0, 1, 2, 3][..]),
        (0.26, &[0, 1, 3]),
        (0.51, &[0, 3]),
        (0.74, &[0, 3]),
        (0.76, &[0]),
        (1.0, &[0]),
    ] {
        assert_eq!(kept(&probs, |r| min_p(r, p)), want, "left by min_p {p} of {probs:?}");
    }
}

/// Entropy 1.69; the likeliest token surprises by 1.05, each of the others by 2.04, which is nearer.
#[test]
fn a_typical_token_is_not_the_likeliest() {
    let probs = [0.13, 0.13, 0.35, 0.13, 0.13, 0.13];
    for (p, want) in
        [(0.1, &[0][..]), (0.2, &[0, 1]), (0.6, &[0, 1, 3, 4, 5]), (0.66, &[0, 1, 2, 3, 4, 5])]
    {
        assert_eq!(kept(&probs, |r| typical_p(r, p)), want, "left by typical_p {p} of {probs:?}");
    }
}

#[test]
fn temperature_zero_is_the_likeliest_whatever_the_filters_say() {
    let plain = plain_row();
    let best = by_rank(&plain)[0];
    let params = SamplingParams {
        temperature: 0.0,
        top_k: 5,
        top_p: 0.3,
        min_p: 0.9,
        typical_p: 0.1,
        ..Default::default()
    };
    let mut want = vec![0.0; plain.len()];
    want[best] = 1.0;
    judge(
        "temperature 0",
        "probabilities",
        &probabilities(&plain, &params),
        &want,
        within(0.0, 0.0),
    );
    // After bias, bans, guide and penalties.
    let mut history = History::new(&[], 1);
    history.push(2);
    let params = SamplingParams {
        logit_bias: vec![(0, 7.0)],
        banned_tokens: vec![0],
        presence_penalty: 1.5,
        ..SamplingParams::greedy()
    };
    let mask = mask_of(5, [0, 2, 3, 4]);
    let of = Row { mask: Some(&mask), ..row(&params, &history) };
    let got = process_reference(&[1.0, 9.0, 4.0, 2.0, 3.0], &of).expect("three are left");
    judge(
        "0 banned, 1 masked, 2 penalized",
        "probabilities",
        &got,
        &[0.0, 0.0, 0.0, 0.0, 1.0],
        within(0.0, 0.0),
    );
}

#[test]
fn a_tiny_temperature_overflows_nowhere() {
    for before in [&[3e38f32, -3e38, 2.9e38, f32::MAX][..], &[1e4, 9999.9, -1e4], &[-3e38, -3.1e38]]
    {
        for t in [1e-4, 1e-30, f32::MIN_POSITIVE] {
            let params = SamplingParams { temperature: t, ..Default::default() };
            let got = probabilities(before, &params);
            assert!(got.iter().all(|p| p.is_finite()), "{before:?} at temperature {t}: {got:?}");
            assert_eq!(
                got[by_rank(before)[0]],
                1.0,
                "the likeliest of {before:?} at temperature {t}"
            );
        }
    }
}

/// Half as likely at temperature 1; by a factor of 4 less at temperature 1/2.
#[test]
fn temperature_comes_before_the_filters() {
    let logits = of_probs(&[0.4, 0.3, 0.2, 0.1]);
    let cold = SamplingParams { temperature: 0.5, top_p: 0.8, ..Default::default() };
    // 16 : 9 : 4 : 1 of 30. The first two have 25/30.
    let want = [16.0 / 25.0, 9.0 / 25.0, 0.0, 0.0];
    judge(
        "temperature 0.5, top_p 0.8",
        "probabilities",
        &probabilities(&logits, &cold),
        &want,
        within(1e-6, 0.0),
    );
    let hot = SamplingParams { temperature: 1e6, min_p: 0.9, ..Default::default() };
    judge(
        "temperature 1e6, min_p 0.9",
        "probabilities",
        &probabilities(&logits, &hot),
        &[0.25; 4],
        within(1e-5, 0.0),
    );
}

/// Top-p 0.6 of what top-k left (4/7 and 3/7): both. Of the whole row (0.4, 0.3): both as well. But top-p 0.5 of the
/// whole row keeps two, and of what top-k left only one.
#[test]
fn each_filter_sees_what_the_one_before_left() {
    let logits = of_probs(&[0.4, 0.3, 0.2, 0.1]);
    let params = SamplingParams { top_k: 2, top_p: 0.5, ..Default::default() };
    judge(
        "top_k 2, top_p 0.5",
        "probabilities",
        &probabilities(&logits, &params),
        &[1.0, 0.0, 0.0, 0.0],
        within(0.0, 0.0),
    );
    // Without renormalizing, typical_p 0.55 would need a token more.
    let params = SamplingParams { top_k: 2, typical_p: 0.55, ..Default::default() };
    let got = probabilities(&logits, &params);
    judge(
        "top_k 2, typical_p 0.55",
        "probabilities",
        &got,
        &[1.0, 0.0, 0.0, 0.0],
        within(0.0, 0.0),
    );
}

#[test]
fn what_is_not_a_number_is_never_chosen_and_infinities_share() {
    let before = [f32::NAN, 1.0, f32::INFINITY, OUT, f32::INFINITY];
    let want = [0.0, 0.0, 0.5, 0.0, 0.5];
    for t in [1.0, 0.5, 1e-4, 30.0] {
        let params = SamplingParams { temperature: t, ..Default::default() };
        judge(
            format!("temperature {t}"),
            "probabilities",
            &probabilities(&before, &params),
            &want,
            within(0.0, 0.0),
        );
    }
    let first = [0.0, 0.0, 1.0, 0.0, 0.0];
    for params in [
        SamplingParams::greedy(),
        SamplingParams { top_k: 1, ..Default::default() },
        SamplingParams { top_p: 0.5, ..Default::default() },
        SamplingParams { typical_p: 0.5, ..Default::default() },
    ] {
        judge(
            format!("{params:?}"),
            "probabilities",
            &probabilities(&before, &params),
            &first,
            within(0.0, 0.0),
        );
    }
    let only = [f32::NAN, -5.0, f32::NAN, OUT];
    for (name, filter, _) in FILTERS {
        let value = if name == "top_k" { 1.0 } else { 0.5 };
        assert_eq!(
            left(&filtered(&only, |r| filter(r, value))),
            [1],
            "left by {name} {value} of {only:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exactly_k_are_left_and_none_beats_them(before in logits_with_some_left(), k in 1usize..90) {
        let got = filtered(&before, |r| top_k(r, k));
        let stay = left(&got);
        assert_eq!(stay.len(), k.min(left(&before).len()), "left by top_k {k}");
        for out in left(&before).into_iter().filter(|i| !stay.contains(i)) {
            for i in &stay {
                let better = before[*i] > before[out] || (before[*i] == before[out] && *i < out);
                assert!(better, "top_k {k} keeps token {i} and not {out} of {before:?}");
            }
        }
    }

    /// Enough, and with one fewer it would not be enough; and no token outside is likelier than one inside.
    #[test]
    fn a_nucleus_is_the_smallest_that_is_enough(before in logits_with_some_left(), p in 0.0f32..1.0) {
        let stay = left(&filtered(&before, |r| top_p(r, p)));
        let probs = softmax(&before);
        let mass: f64 = stay.iter().map(|i| probs[*i]).sum();
        let least = stay.iter().map(|i| probs[*i]).fold(1.0, f64::min);
        assert!(mass > f64::from(p) - 1e-9, "top_p {p} keeps a mass of {mass}");
        assert!(stay.len() == 1 || mass - least < f64::from(p) + 1e-9, "top_p {p} keeps {mass}, one of {least} too many");
        let outside = (0..before.len()).filter(|i| !stay.contains(i)).map(|i| probs[i]).fold(0.0, f64::max);
        assert!(outside <= least, "a token with {outside} is out, one with {least} in");
    }

    #[test]
    fn a_typical_set_is_enough_and_nothing_nearer_is_out(before in logits_with_some_left(), p in 0.01f32..1.0) {
        let stay = left(&filtered(&before, |r| typical_p(r, p)));
        let probs = softmax(&before);
        let there = || probs.iter().filter(|p| **p > 0.0);
        let entropy: f64 = there().map(|p| -p * p.ln()).sum();
        let distance = |i: usize| (-probs[i].ln() - entropy).abs();
        let mass: f64 = stay.iter().map(|i| probs[*i]).sum();
        assert!(mass > f64::from(p) - 1e-9, "typical_p {p} keeps a mass of {mass}");
        let farthest = stay.iter().copied().reduce(|a, b| if distance(b) >= distance(a) { b } else { a }).expect("one stays");
        assert!(
            stay.len() == 1 || mass - probs[farthest] < f64::from(p) + 1e-9,
            "typical_p {p} keeps {mass} and does not need token {farthest}"
        );
        let nearest = (0..before.len()).filter(|i| !stay.contains(i)).map(distance).fold(f64::INFINITY, f64::min);
        assert!(
            nearest >= distance(farthest) - 1e-9,
            "typical_p {p} keeps a token whose surprise is {} off and not one that is {nearest} off",
            distance(farthest)
        );
    }

    /// All of it: probabilities that sum to 1, none for what was banned, and one for the likeliest that was not.
    #[test]
    fn whatever_is_asked_a_distribution_comes_out(
        before in logits_with_some_left(),
        t in prop_oneof![Just(0.0f32), Just(1e-4), 0.1f32..5.0],
        k in 0usize..20,
        p in 0.0f32..=1.0,
        least in 0.0f32..=1.0,
        typical in 0.01f32..=1.0,
    ) {
        let params = SamplingParams { temperature: t, top_k: k, top_p: p, min_p: least, typical_p: typical, ..Default::default() };
        let got = probabilities(&before, &params);
        let total: f64 = got.iter().map(|p| f64::from(*p)).sum();
        assert!((total - 1.0).abs() < 1e-5, "{params:?}: the sum is {total}");
        assert!(got.iter().zip(&before).all(|(p, x)| *x > OUT || *p == 0.0), "{params:?}: nothing for removed tokens");
    }
}

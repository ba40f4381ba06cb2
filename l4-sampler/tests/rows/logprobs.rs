//! What the model thought of a token.

use l1_tensor::cpu::Isa;
use l1_tensor::{Device, DeviceRequest, Runtime, RuntimeOptions, Tensor};
use l4_sampler::logprobs::{LogprobsScratch, processed_into, prompt_logprobs, raw_into};
use l4_sampler::processors::{by_rank, logit, process_reference};
use l4_sampler::{
    Distribution, Error, History, Logits, LogprobsOf, LogprobsRequest, ParamError, Sampled,
    Sampler, SamplingParams, TokenLogprobs,
};
use proptest::prelude::*;

use crate::given::{OUT, logits_with_some_left, plain_row, row};
use crate::goldens::cases;
use crate::judge::{judge, within};

/// An f32 near -20 has steps of 2e-6; the sum of exponentials is good to 1e-6.
const NEAR: (f64, f64) = (2.4e-7, 2e-6);

fn raw(isa: Isa, logits: &[f32], chosen: u32, top: usize) -> TokenLogprobs {
    let mut out = TokenLogprobs::default();
    raw_into(isa, logits, chosen, top, &mut out, &mut LogprobsScratch::default());
    out
}

fn processed(distribution: &Distribution, chosen: u32, top: usize) -> TokenLogprobs {
    let mut out = TokenLogprobs::default();
    processed_into(distribution, chosen, top, &mut out, &mut LogprobsScratch::default());
    out
}

/// The definition, in f64.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let x: Vec<f64> = logits.iter().map(|x| f64::from(logit(*x))).collect();
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = x.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    x.iter().map(|x| x - max - total).collect()
}

/// Goldens of torch: see `goldens.rs`.
#[test]
fn raw_log_probabilities_are_the_log_softmax_of_the_row() {
    for case in cases("log_softmax") {
        for isa in Isa::available() {
            for (what, row, want) in case.rows() {
                let got: Vec<f32> =
                    (0..row.len() as u32).map(|id| raw(isa, row, id, 0).logprob).collect();
                judge(
                    format!("{what} on {isa}"),
                    "log probabilities",
                    &got,
                    want,
                    within(NEAR.0, NEAR.1),
                );
            }
        }
    }
    // 1 + e^-20 is 1 in f32, and ln(1 + e^-20) is e^-20.
    let want = -(-20f64).exp() as f32;
    for isa in Isa::available() {
        let got = raw(isa, &[0.0, -20.0], 0, 0).logprob;
        judge(
            format!("a token that is nearly certain, on {isa}"),
            "log probabilities",
            &[got],
            &[want],
            within(1e-6, 0.0),
        );
    }
}

#[test]
fn the_rank_counts_the_likelier_ones() {
    let row = [1.0, 4.0, 2.0, 4.0, OUT, f32::NAN, 2.0, 0.0];
    for isa in Isa::available() {
        let ranks: Vec<u32> = (0..8).map(|id| raw(isa, &row, id, 0).rank).collect();
        assert_eq!(
            ranks,
            [4, 0, 2, 0, 6, 6, 2, 5],
            "how many are likelier than each of {row:?}, {isa}"
        );
    }
}

#[test]
fn the_likeliest_come_first_and_equal_ones_by_id() {
    let row = [1.0, 4.0, 2.0, 4.0, OUT, f32::NAN, 2.0, 0.0, -0.0];
    let order = [1, 3, 2, 6, 0, 7, 8];
    for isa in Isa::available() {
        for top in 0..=12 {
            let got: Vec<u32> = raw(isa, &row, 4, top).top.iter().map(|(id, _)| *id).collect();
            let want = &order[..top.min(order.len())];
            // A token without any probability is not among the likeliest, however few there are.
            assert_eq!(got, want, "the top {top} of {row:?}, {isa}");
        }
    }
}

#[test]
fn two_infinities_share_the_probability() {
    let row = [f32::INFINITY, 0.0, f32::INFINITY];
    for isa in Isa::available() {
        let got = raw(isa, &row, 2, 2);
        let half = 0.5f32.ln();
        assert_eq!((got.logprob, got.rank), (half, 0), "token 2 of {row:?}, {isa}");
        assert_eq!(got.top, [(0, half), (2, half)]);
    }
}

/// What was there before must not show through: buffers are used again and again.
#[test]
fn a_used_buffer_is_as_good_as_a_new_one() {
    let (long, short) = (plain_row(), [0.5, 1.5]);
    let (mut out, mut scratch) = (TokenLogprobs::default(), LogprobsScratch::default());
    for (row, chosen, top) in
        [(&long[..], 70, 20), (&short[..], 0, 5), (&long[..], 1, 3), (&short[..], 1, 0)]
    {
        raw_into(Isa::best(), row, chosen, top, &mut out, &mut scratch);
        assert_eq!(out, raw(Isa::best(), row, chosen, top), "token {chosen}, the top {top}");
    }
    let two = Distribution::from_shares(&[(3, 1.0), (9, 3.0)]).expect("two tokens");
    processed_into(&two, 3, 5, &mut out, &mut scratch);
    assert_eq!(out, processed(&two, 3, 5));
}

/// After temperature and filters three tokens are left, with 1, 2 and 5 eighths; the row itself may say what it likes.
#[test]
fn processed_log_probabilities_are_those_of_what_was_drawn_from() {
    let distribution = Distribution::from_shares(&[(2, 0.2), (40, 1.0), (41, 0.4)]).expect("three");
    let third = processed(&distribution, 2, 10);
    let eighths = |n: f64| ((n / 8.0).ln()) as f32;
    let got: Vec<f32> = third.top.iter().map(|(_, lp)| *lp).collect();
    let want = [eighths(5.0), eighths(2.0), eighths(1.0)];
    judge("shares 1 : 5 : 2", "log probabilities", &got, &want, within(1e-6, 0.0));
    let ids: Vec<u32> = third.top.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [40, 41, 2], "likeliest first, and only what is left");
    assert_eq!((third.id, third.rank), (2, 2), "token 2 and its rank");
    assert!((third.logprob - eighths(1.0)).abs() < 1e-6, "of token 2: {}", third.logprob);
    let best = processed(&distribution, 40, 1);
    assert_eq!((best.rank, best.top.len()), (0, 1), "rank and top of the likeliest");
    let certain = processed(&Distribution::point(7), 7, 3);
    let want = TokenLogprobs { id: 7, logprob: 0.0, rank: 0, top: vec![(7, 0.0)] };
    assert_eq!(certain, want, "of a token that was certain");
}

#[test]
fn equal_shares_are_told_by_id() {
    let equal = Distribution::from_shares(&[(5, 1.0), (6, 2.0), (8, 1.0), (9, 2.0)]).expect("four");
    let ids: Vec<u32> = processed(&equal, 8, 3).top.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [6, 9, 5], "the top 3");
    assert_eq!(processed(&equal, 8, 3).rank, 2, "tokens likelier than 8");
}

/// The token that the row likes best is banned and the others are sharpened: what the model thought is something else
/// than what was drawn from, also when the row itself was given away to be written over.
#[test]
fn the_sampler_tells_of_the_untouched_row_unless_asked_for_the_other() {
    let logits = [3.0f32, 2.0, 1.5, -1.0, 0.5];
    let history = History::default();
    let of = |of| SamplingParams {
        banned_tokens: vec![0],
        temperature: 0.5,
        top_k: 3,
        logprobs: Some(LogprobsRequest { top: 4, of }),
        ..Default::default()
    };
    let (raw_asked, processed_asked) = (of(LogprobsOf::Raw), of(LogprobsOf::Processed));
    let rows = [row(&raw_asked, &history), row(&processed_asked, &history)];
    let probs = process_reference(&logits, &rows[1]).expect("four are left");
    let mut tensor = Tensor::from_slice(&[logits, logits].concat(), &[2, 5]).expect("a tensor");
    let rt = Runtime::new(RuntimeOptions {
        device: DeviceRequest::Exactly(Device::Cpu),
        threads: Some(1),
        ..Default::default()
    })
    .expect("a runtime");
    let mut sampler = Sampler::new(&rt, 5);
    for handed_over in [false, true] {
        let mut out = [Sampled::default(), Sampled::default()];
        let given = if handed_over {
            Logits::Owned(tensor.view_mut())
        } else {
            Logits::Shared(tensor.view())
        };
        sampler.sample(given, &rows, &mut out).expect("two rows");
        let how = if handed_over { "handed over" } else { "shared" };
        let of_row: Vec<f32> = log_softmax(&logits).into_iter().map(|p| p as f32).collect();
        let of_drawn: Vec<f32> = probs.iter().map(|p| p.ln()).collect();
        let cases = [("raw", &of_row, &[0, 1, 2, 4][..]), ("processed", &of_drawn, &[1, 2, 4])];
        for (out, (which, want, order)) in out.iter().zip(cases) {
            let what = format!("{which}, logits {how}");
            let token = out.token.expect("a token");
            let about = out.logprobs.as_ref().expect("log probabilities");
            assert_eq!(about.id, token, "the token that {what} are about");
            let ids: Vec<u32> = about.top.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, order, "the likeliest, {what}");
            let got: Vec<f32> =
                about.top.iter().map(|(_, lp)| *lp).chain([about.logprob]).collect();
            let ids = order.iter().chain([&token]);
            let want: Vec<f32> = ids.map(|id| want[*id as usize]).collect();
            judge(what, "log probabilities", &got, &want, within(1e-6, 1e-6));
        }
    }
}

/// Row 0 is about the second token: the first has nothing before it.
#[test]
fn a_prompt_is_judged_by_the_rows_before_its_tokens() {
    let rows = [[0.0, 1.0, 2.0], [5.0, 0.0, 1.0], [9.0, 9.0, 9.0]];
    let logits = Tensor::from_slice(rows.as_flattened(), &[3, 3]).expect("a tensor");
    let got = prompt_logprobs(logits.view(), &[1, 2, 0], 2).expect("log probabilities");
    let isa = Isa::best();
    let want = [None, Some(raw(isa, &rows[0], 2, 2)), Some(raw(isa, &rows[1], 0, 2))];
    assert_eq!(got, want, "of tokens 1, 2, 0");
    let second = got[1].as_ref().expect("of the second token");
    assert_eq!((second.id, second.rank), (2, 0), "the second token is the likeliest of row 0");
    assert_eq!(second.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 1]);
    let none = Tensor::from_slice::<f32>(&[], &[0, 3]).expect("no rows");
    assert_eq!(prompt_logprobs(none.view(), &[], 2).expect("of an empty prompt"), []);
}

#[test]
fn a_prompt_that_does_not_fit_its_rows_is_refused() {
    let logits = Tensor::from_slice(&[0.0f32; 6], &[2, 3]).expect("a tensor");
    let short = prompt_logprobs(logits.view(), &[1], 0).expect_err("one token, two rows");
    assert!(matches!(short, Error::Shape { expected: 1, got: 2, .. }), "{short}");
    let unknown = prompt_logprobs(logits.view(), &[1, 3], 0).expect_err("token 3 of 3");
    assert!(
        matches!(unknown, Error::Params(ParamError::TokenOutOfRange { id: 3, vocab: 3, .. })),
        "{unknown}"
    );
    let ids = Tensor::from_slice(&[0i64; 6], &[2, 3]).expect("a tensor");
    assert!(
        matches!(prompt_logprobs(ids.view(), &[1, 2], 0), Err(Error::Tensor(_))),
        "rows of i64"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against a sort of everything, on every instruction set.
    #[test]
    fn the_top_is_the_front_of_all(
        row in logits_with_some_left(),
        top in 0usize..90,
        chosen in any::<prop::sample::Index>(),
    ) {
        let all = log_softmax(&row);
        let order: Vec<usize> = by_rank(&row).into_iter().filter(|i| row[*i] > OUT).take(top).collect();
        let chosen = chosen.index(row.len());
        for isa in Isa::available() {
            let got = raw(isa, &row, chosen as u32, top);
            let ids: Vec<usize> = got.top.iter().map(|(id, _)| *id as usize).collect();
            assert_eq!(ids, order, "the top {top} of {row:?}, {isa}");
            let values: Vec<f64> = got.top.iter().map(|(_, lp)| f64::from(*lp)).collect();
            let want: Vec<f64> = order.iter().map(|i| all[*i]).collect();
            judge(format!("the top {top}, {isa}"), "log probabilities", &values, &want, within(NEAR.0, NEAR.1));
            let rank = row.iter().filter(|x| **x > row[chosen]).count();
            assert_eq!(got.rank as usize, rank, "the rank of token {chosen} of {row:?}, {isa}");
            let allowed = within(NEAR.0, NEAR.1);
            judge("the chosen token", "log probabilities", &[f64::from(got.logprob)], &[all[chosen]], allowed);
        }
    }
}

/// A vocabulary of real size, ascending: every logit is a candidate, and the buffer is cut again and again.
#[test]
fn a_row_that_only_climbs_is_cut_often() {
    let row: Vec<f32> = (0..50_000).map(|i| i as f32 * 1e-3).collect();
    for isa in Isa::available() {
        let got = raw(isa, &row, 49_000, 5);
        assert_eq!(got.rank, 999, "the rank of token 49,000, {isa}");
        let ids: Vec<u32> = got.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [49_999, 49_998, 49_997, 49_996, 49_995], "the top 5, {isa}");
    }
}

//! What may be said at all.

use l4_sampler::processors::ban_reference;
use l4_sampler::processors::bans::{
    add_bias, allow_only, any_left, apply_mask, ban, ban_early_ends,
};
use l4_sampler::{History, RowError, SamplingParams, TokenMask};
use proptest::prelude::*;

use crate::given::{OUT, left, logits, mask_of, odd_row, plain_row, row};
use crate::goldens::cases;
use crate::judge::{judge, same_bits, within};

/// A row after a change.
fn after(before: &[f32], change: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut row = before.to_vec();
    change(&mut row);
    row
}

/// Goldens of transformers: see `goldens.rs`. A ban is a ban: to the last bit.
#[test]
fn bans_are_those_of_transformers() {
    for case in cases("ban") {
        for (what, before, want) in case.rows() {
            same_bits(what, &after(before, |r| ban(r, &case.tokens("ids"))), want);
        }
    }
}

#[test]
fn biases_are_those_of_transformers() {
    for case in cases("bias") {
        let pairs = case.parameters["bias"].as_array().expect("pairs");
        let bias: Vec<(u32, f32)> = pairs
            .iter()
            .map(|p| (p[0].as_u64().unwrap() as u32, p[1].as_f64().map_or(OUT, |b| b as f32)))
            .collect();
        for (what, before, want) in case.rows() {
            let got = after(before, |r| add_bias(r, &bias));
            judge(what, "logits", &got, want, within(1e-7, 0.0));
        }
    }
}

/// Every end is held back, not the first of them only, and none any more once the answer is long enough.
#[test]
fn ends_are_held_back_as_by_transformers() {
    for case in cases("min_tokens") {
        let (generated, least) = (case.count("generated"), case.count("min_tokens"));
        for (what, before, want) in case.rows() {
            let got = after(before, |r| ban_early_ends(r, &case.tokens("ends"), generated, least));
            same_bits(what, &got, want);
        }
    }
}

#[test]
fn what_is_off_leaves_every_bit() {
    let odd = odd_row();
    let everything = mask_of(odd.len(), 0..odd.len() as u32);
    let all: Vec<u32> = (0..odd.len() as u32).rev().collect();
    same_bits("no bias", &after(&odd, |r| add_bias(r, &[])), &odd);
    same_bits("no ban", &after(&odd, |r| ban(r, &[])), &odd);
    same_bits("long enough", &after(&odd, |r| ban_early_ends(r, &[0, 2], 3, 3)), &odd);
    same_bits("min_tokens 0", &after(&odd, |r| ban_early_ends(r, &[0, 2], 0, 0)), &odd);
    same_bits("no ends", &after(&odd, |r| ban_early_ends(r, &[], 0, 9)), &odd);
    same_bits("a mask of ones", &after(&odd, |r| apply_mask(r, &everything)), &odd);
    let got = after(&odd, |r| allow_only(r, &all, &mut vec![1.0; 200]));
    same_bits("all are allowed", &got, &odd);
}

#[test]
fn tokens_beside_the_named_ones_keep_every_bit() {
    let odd = odd_row();
    let named = [1, 5, 8, 33, 64];
    let kept = |row: &[f32]| -> Vec<f32> {
        (0..row.len()).filter(|i| !named.contains(&(*i as u32))).map(|i| row[i]).collect()
    };
    let others: Vec<u32> = (0..odd.len() as u32).filter(|i| !named.contains(i)).collect();
    let mask = mask_of(odd.len(), others.iter().copied());
    let biases = named.map(|id| (id, 0.5));
    let changed = [
        ("a bias", after(&odd, |r| add_bias(r, &biases))),
        ("a ban", after(&odd, |r| ban(r, &named))),
        ("ends", after(&odd, |r| ban_early_ends(r, &named, 0, 1))),
        ("allowed tokens", after(&odd, |r| allow_only(r, &others, &mut Vec::new()))),
        ("a mask", after(&odd, |r| apply_mask(r, &mask))),
    ];
    for (what, changed) in &changed {
        same_bits(what, &kept(changed), &kept(&odd));
        if *what != "a bias" {
            assert!(named.iter().all(|id| changed[*id as usize] == OUT), "{what}: named are out");
        }
    }
}

#[test]
fn a_token_named_twice_gets_both_biases() {
    let got = after(&[1.0, 2.0, 3.0], |r| add_bias(r, &[(1, 0.5), (0, -1.0), (1, 0.25)]));
    assert_eq!(got, [0.0, 2.75, 3.0], "token 1 with 0.5 and 0.25");
}

#[test]
fn a_ban_wins_over_any_bias() {
    let more = f32::INFINITY;
    let before = [1.0, more, OUT, f32::NAN, 0.0];
    for bias in [[(0, OUT), (0, more)], [(0, more), (0, OUT)], [(0, OUT), (0, 100.0)]] {
        let got = after(&before, |r| add_bias(r, &bias));
        assert_eq!(got[0], OUT, "token 0 with biases {bias:?}");
    }
    let got = after(&before, |r| add_bias(r, &[(1, OUT), (2, more), (3, 5.0)]));
    assert_eq!(&got[1..4], [OUT; 3], "+inf that is banned, -inf and NaN that are wanted");
    // Bans come after biases.
    let params = SamplingParams {
        logit_bias: vec![(1, more), (4, more)],
        banned_tokens: vec![1, 4, 0],
        allowed_tokens: Some(vec![0, 1, 4]),
        ..Default::default()
    };
    let outcome = ban_reference(&mut before.clone(), &row(&params, &History::default()));
    assert_eq!(outcome, Err(RowError::NothingLeft), "all that is allowed is banned");
}

#[test]
fn tokens_that_the_row_does_not_have_are_passed_over() {
    let before = [1.0, 2.0];
    same_bits("a bias", &after(&before, |r| add_bias(r, &[(2, 1.0), (u32::MAX, 1.0)])), &before);
    same_bits("a ban", &after(&before, |r| ban(r, &[2, u32::MAX])), &before);
    let got = after(&before, |r| allow_only(r, &[7, 1, u32::MAX], &mut Vec::new()));
    same_bits("allowed tokens", &got, &[OUT, 2.0]);
    let longer = mask_of(640, 0..640);
    same_bits("a longer mask", &after(&before, |r| apply_mask(r, &longer)), &before);
}

/// 40 tokens and a mask of one word: tokens from 32 on have no bit, and are not allowed.
#[test]
fn tokens_beyond_the_mask_are_not_allowed() {
    let before = vec![1.0; 40];
    let mask = mask_of(32, 0..32);
    assert_eq!(left(&after(&before, |r| apply_mask(r, &mask))), (0..32).collect::<Vec<_>>());
    let none = after(&before, |r| apply_mask(r, &TokenMask::default()));
    assert_eq!(left(&none), [0; 0], "left by a mask without words");
}

#[test]
fn a_mask_allows_what_it_was_told_to() {
    let mut mask = mask_of(40, [0, 31, 32, 39, 39]);
    let allowed = |mask: &TokenMask| (0..100).filter(|id| mask.allows(*id)).collect::<Vec<_>>();
    assert_eq!(allowed(&mask), [0, 31, 32, 39]);
    assert_eq!((mask.count(), mask.words().len()), (4, 2), "tokens and words");
    // Two words have 64 bits; what lies beyond has none and cannot be allowed.
    mask.allow(63);
    mask.allow(64);
    mask.allow(u32::MAX);
    assert_eq!(allowed(&mask), [0, 31, 32, 39, 63]);
    mask.copy_from(&[2]);
    assert_eq!((allowed(&mask), mask.count()), (vec![1], 1), "after it became another one");
}

/// The lowest bit of a word is its first token.
#[test]
fn bits_count_from_the_lowest() {
    let mut mask = TokenMask::default();
    mask.copy_from(&[0b1011, 0, u32::MAX, 1 << 31]);
    let got = after(&[0.5; 128], |r| apply_mask(r, &mask));
    let want: Vec<usize> = [0, 1, 3].into_iter().chain(64..96).chain([127]).collect();
    assert_eq!(left(&got), want);
    assert_eq!(mask.count(), want.len());
}

#[test]
fn a_row_of_which_nothing_is_left_says_so() {
    let plain = plain_row();
    let history = History::default();
    let all: Vec<u32> = (0..plain.len() as u32).collect();
    let outcome = |params: &SamplingParams, ends: &[u32], mask: Option<&TokenMask>| {
        let of = l4_sampler::Row { ends, mask, ..row(params, &history) };
        ban_reference(&mut plain.clone(), &of)
    };
    let off = SamplingParams::default();
    let banned = SamplingParams { banned_tokens: all.clone(), ..off.clone() };
    let short = SamplingParams { min_tokens: 1, ..off.clone() };
    let none = TokenMask::none(plain.len());
    let left_nothing = Err(RowError::NothingLeft);
    assert_eq!(outcome(&banned, &[], None), left_nothing, "all are banned");
    assert_eq!(outcome(&short, &all, None), left_nothing, "all are ends, of an answer too short");
    assert_eq!(outcome(&off, &[], Some(&none)), left_nothing, "the guide allows nothing");
    let of = row(&off, &history);
    assert_eq!(ban_reference(&mut [OUT, f32::NAN], &of), left_nothing, "-inf and NaN");
    assert_eq!(ban_reference(&mut [f32::NAN; 3], &of), Err(RowError::AllNan));
    assert!(!any_left(&[OUT, f32::NAN]) && any_left(&[OUT, f32::INFINITY]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_mask_removes_what_it_does_not_allow(
        before in logits(),
        words in prop::collection::vec(prop_oneof![Just(0), Just(u32::MAX), any::<u32>()], 0..4),
    ) {
        let mut mask = TokenMask::default();
        mask.copy_from(&words);
        let want: Vec<f32> =
            (0u32..).zip(&before).map(|(i, x)| if mask.allows(i) { *x } else { OUT }).collect();
        same_bits(format!("a mask of {words:08x?}"), &after(&before, |r| apply_mask(r, &mask)), &want);
    }

    #[test]
    fn to_allow_some_is_to_ban_the_others(
        before in logits(),
        allowed in prop::collection::vec(0u32..90, 0..40),
    ) {
        let others: Vec<u32> = (0..90).filter(|id| !allowed.contains(id)).collect();
        let got = after(&before, |r| allow_only(r, &allowed, &mut Vec::new()));
        same_bits(format!("allowed {allowed:?}"), &got, &after(&before, |r| ban(r, &others)));
    }
}

//! What is refused before a request is admitted.

use l4_sampler::{LogprobsOf, LogprobsRequest, ParamError, SamplingParams};

const VOCAB: usize = 10;

/// What is wrong with these parameters, in the words that a user reads.
fn refusal(params: SamplingParams) -> String {
    params.validate(VOCAB).expect_err("these parameters have no meaning").to_string()
}

#[test]
fn the_defaults_and_greedy_are_fine_for_any_vocabulary() {
    for vocab in [1, 2, 151_936] {
        assert_eq!(SamplingParams::default().validate(vocab), Ok(()), "plain sampling");
        assert_eq!(SamplingParams::greedy().validate(vocab), Ok(()), "greedy");
    }
    assert!(SamplingParams::greedy().is_greedy());
    assert!(!SamplingParams::default().is_greedy());
}

#[test]
fn the_ends_of_every_range_are_inside_of_it() {
    for p in [0.0, 1.0] {
        let params = SamplingParams { top_p: p, min_p: p, ..Default::default() };
        assert_eq!(params.validate(VOCAB), Ok(()), "top_p and min_p {p}");
    }
    for penalty in [-2.0, 2.0] {
        let params = SamplingParams {
            presence_penalty: penalty,
            frequency_penalty: penalty,
            ..Default::default()
        };
        assert_eq!(params.validate(VOCAB), Ok(()), "presence and frequency {penalty}");
    }
    let params = SamplingParams {
        logit_bias: vec![(0, f32::NEG_INFINITY), (9, f32::INFINITY), (0, 100.0)],
        allowed_tokens: Some(vec![9]),
        banned_tokens: vec![0, 9, 9],
        min_tokens: usize::MAX,
        repetition_penalty: f32::MIN_POSITIVE,
        temperature: 1e-4,
        top_k: usize::MAX,
        typical_p: f32::MIN_POSITIVE,
        logprobs: Some(LogprobsRequest { top: VOCAB, of: LogprobsOf::Processed }),
        ..Default::default()
    };
    assert_eq!(params.validate(VOCAB), Ok(()), "all at their ends");
}

#[test]
fn a_number_without_a_meaning_is_refused_by_name() {
    type Set = fn(&mut SamplingParams, f32);
    let fields: [(&str, Set, &[f32]); 7] = [
        ("temperature", |p, v| p.temperature = v, &[-0.1, f32::INFINITY]),
        ("top_p", |p, v| p.top_p = v, &[-0.1, 1.1]),
        ("min_p", |p, v| p.min_p = v, &[-0.1, 1.1]),
        ("typical_p", |p, v| p.typical_p = v, &[0.0, 1.1]),
        ("repetition_penalty", |p, v| p.repetition_penalty = v, &[0.0, -1.0, f32::INFINITY]),
        ("presence_penalty", |p, v| p.presence_penalty = v, &[-2.1, 2.1]),
        ("frequency_penalty", |p, v| p.frequency_penalty = v, &[-2.1, 2.1]),
    ];
    for (name, set, values) in fields {
        for value in values.iter().chain(&[f32::NAN, f32::NEG_INFINITY]) {
            let mut params = SamplingParams::default();
            set(&mut params, *value);
            let refusal = refusal(params);
            assert!(refusal.starts_with(&format!("{name} must be ")), "{name} {value}: {refusal}");
        }
    }
    let params = SamplingParams { logit_bias: vec![(1, f32::NAN)], ..Default::default() };
    assert_eq!(refusal(params), "logit_bias must be a number (-inf bans), got NaN");
    let wanted = LogprobsRequest { top: VOCAB + 1, of: LogprobsOf::Raw };
    let params = SamplingParams { logprobs: Some(wanted), ..Default::default() };
    assert_eq!(
        refusal(params),
        "logprobs must be at most the number of tokens in the vocabulary, got 11"
    );
}

#[test]
fn a_token_that_the_model_does_not_have_is_refused() {
    let id = VOCAB as u32;
    let lists = [
        (
            "logit_bias",
            SamplingParams { logit_bias: vec![(0, 1.0), (id, 1.0)], ..Default::default() },
        ),
        ("banned_tokens", SamplingParams { banned_tokens: vec![0, id], ..Default::default() }),
        (
            "allowed_tokens",
            SamplingParams { allowed_tokens: Some(vec![0, id]), ..Default::default() },
        ),
    ];
    for (name, params) in lists {
        assert_eq!(
            params.validate(VOCAB),
            Err(ParamError::TokenOutOfRange { name, id, vocab: VOCAB })
        );
        assert_eq!(params.validate(VOCAB + 1), Ok(()), "{name}: a vocabulary that has the token");
    }
    let none = SamplingParams { banned_tokens: vec![id], ..Default::default() };
    assert_eq!(refusal(none), "banned_tokens names token 10, but the model has 10 tokens (0 to 9)");
}

#[test]
fn to_allow_nothing_is_refused() {
    let params = SamplingParams { allowed_tokens: Some(vec![]), ..Default::default() };
    assert_eq!(params.validate(VOCAB), Err(ParamError::NothingAllowed));
}

//! What a request may ask for, and what its stops mean to the sampler.

use l4_sampler::ParamError;
use l4_sampler::stop::{StopReason, StopRules};

#[test]
fn a_rule_without_meaning_is_refused_with_its_name() {
    let none = StopRules::default;
    let token = |name, id| ParamError::TokenOutOfRange { name, id, vocab: 10 };
    for (rules, error) in [
        (StopRules { eos: vec![1, 10], ..none() }, token("eos", 10)),
        (StopRules { token_ids: vec![9, 77], ..none() }, token("stop token_ids", 77)),
        (StopRules { strings: vec!["a".into(), String::new()], ..none() }, ParamError::EmptyStop),
        (
            StopRules { min_tokens: 5, max_tokens: 4, ..none() },
            ParamError::OutOfRange { name: "min_tokens", expected: "at most max_tokens", got: 5.0 },
        ),
    ] {
        assert_eq!(rules.validate(10), Err(error), "what is wrong with {rules:?}");
    }
    let fine = StopRules {
        eos: vec![0],
        token_ids: vec![9],
        strings: vec!["é".into()],
        min_tokens: 4,
        max_tokens: 4,
        ..none()
    };
    assert_eq!(fine.validate(10), Ok(()), "what is wrong with {fine:?}");
    assert_eq!(none().validate(10), Ok(()), "what is wrong with no rules");
}

#[test]
fn the_tokens_that_end_an_answer_are_told_once_each() {
    let mut rules = StopRules { eos: vec![7, 2], token_ids: vec![5, 2, 5], ..StopRules::default() };
    assert_eq!(rules.ends(), [2, 5, 7], "the tokens that end an answer");
    rules.ignore_eos = true;
    assert_eq!(rules.ends(), [2, 5], "the tokens that end an answer, ignore_eos");
}

#[test]
fn every_reason_has_one_of_the_two_words_of_the_api() {
    for reason in [
        StopReason::Eos(1),
        StopReason::Token(1),
        StopReason::Text("a".into()),
        StopReason::Guide,
        StopReason::Receiver,
    ] {
        assert_eq!(reason.as_str(), "stop", "the word for {reason:?}");
    }
    assert_eq!(StopReason::Length.as_str(), "length", "the word for Length");
}

//! `best_of`: the answers that the model itself thinks most of.

use l4_sampler::generate::{Choice, Request};
use l4_sampler::guide::GuideSpec;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};

use crate::support::{Kind, PROMPT, answers, generate, tiny};

/// Mean of what raw log probabilities say.
fn mean(choice: &Choice) -> f64 {
    let sum: f64 = choice.logprobs.iter().map(|l| f64::from(l.logprob)).sum();
    sum / choice.tokens.len() as f64
}

#[test]
fn the_best_are_those_of_the_highest_mean_log_probability() {
    let tiny = tiny("tiny-llama");
    let raw = SamplingParams {
        temperature: 1.3,
        top_k: 40,
        logprobs: Some(LogprobsRequest { top: 2, of: LogprobsOf::Raw }),
        ..SamplingParams::default()
    };
    // Answers of different lengths: most tokens of a small vocabulary end one.
    let stop = l4_sampler::stop::StopRules {
        token_ids: (0..40).collect(),
        max_tokens: 25,
        ..Default::default()
    };
    let mut generator = tiny.generator(Kind::Paged(4), 6);
    let request = Request { n: 6, seed: 11, ..Request::new(&PROMPT, &raw, &stop) };
    let mut all = answers(&mut generator, &request);
    let lens: Vec<usize> = all.iter().map(|c| c.tokens.len()).collect();
    assert!(lens.iter().any(|len| *len != lens[0]), "lengths {lens:?}");
    all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    assert!(mean(&all[0]) > mean(&all[2]) + 1e-6, "no ties to speak of");

    let best = Request { n: 2, best_of: 6, ..request };
    let got = answers(&mut generator, &best);
    assert_eq!(got, all[..2], "the two best of six");
    // What is told does not change which are best.
    let processed = LogprobsRequest { top: 0, of: LogprobsOf::Processed };
    for logprobs in [None, Some(processed)] {
        let params = SamplingParams { logprobs, ..raw.clone() };
        let got = answers(&mut generator, &Request { params: &params, ..best });
        for (got, expected) in got.iter().zip(&all) {
            assert_eq!((got.sample, &got.tokens), (expected.sample, &expected.tokens));
            let told = if logprobs.is_some() { got.tokens.len() } else { 0 };
            assert_eq!(got.logprobs.len(), told, "log probabilities with {logprobs:?}");
        }
    }
}

#[test]
fn tokens_that_a_guide_forced_count_too() {
    let tiny = tiny("tiny-llama");
    let spec = GuideSpec::Regex("(cat|category|caterpillar) [0-9]{2}".into());
    let guide = tiny.guides().guide(&spec).unwrap();
    let raw = LogprobsRequest { top: 0, of: LogprobsOf::Raw };
    let told = SamplingParams { logprobs: Some(raw), ..SamplingParams::default() };
    let stop = tiny.long(60);
    let mut generator = tiny.generator(Kind::Paged(4), 5);
    for seed in 0..5 {
        let plain = Request::new(&PROMPT, &told, &stop);
        let request = Request { n: 5, seed, guide: Some(&guide), ..plain };
        let generation = generate(&mut generator, &request);
        assert!(generation.work.forced_tokens > 0, "some tokens were forced");
        let mut all = generation.choices;
        all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        let silent = SamplingParams { logprobs: None, ..told.clone() };
        let best = Request { n: 2, best_of: 5, params: &silent, ..request };
        let got = answers(&mut generator, &best);
        let samples = |choices: &[Choice]| choices.iter().map(|c| c.sample).collect::<Vec<_>>();
        assert_eq!(samples(&got), samples(&all[..2]), "the two best of five, seed {seed}");
    }
}

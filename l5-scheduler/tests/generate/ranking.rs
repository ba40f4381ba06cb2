//! `best_of`: the answers that the model itself thinks most of.

use l4_sampler::guide::GuideSpec;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};

use l5_scheduler::generate::{Choice, GenerateError, mean_logprob};

use crate::support::{PROMPT, Request, answers, generate};
use crate::tiny::tiny;

/// Mean of what raw log probabilities say.
fn mean(choice: &Choice) -> f64 {
    mean_logprob(&choice.logprobs)
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
    let mut generator = tiny.generator(4, 6);
    let request = Request { n: 6, seed: 11, ..Request::new(&PROMPT, &raw, &stop) };
    let mut all = answers(&mut generator, &request);
    let lens: Vec<usize> = all.iter().map(|c| c.tokens.len()).collect();
    assert!(lens.iter().any(|len| *len != lens[0]), "lengths {lens:?}");
    all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    assert!(mean(&all[0]) > mean(&all[2]) + 1e-6, "no ties to speak of");

    let best = Request { n: 2, best_of: 6, ..request.clone() };
    let got = answers(&mut generator, &best);
    assert_eq!(got, all[..2], "the two best of six");
    // Without log probabilities the same ones are best.
    let silent = SamplingParams { logprobs: None, ..raw.clone() };
    let got = answers(&mut generator, &Request { params: silent, ..best.clone() });
    for (got, expected) in got.iter().zip(&all) {
        assert_eq!((got.sample, &got.tokens), (expected.sample, &expected.tokens));
        assert!(got.logprobs.is_empty(), "log probabilities that nobody asked for");
    }
    // One kind of log probabilities is computed: the kind that ranks.
    let processed = Some(LogprobsRequest { top: 0, of: LogprobsOf::Processed });
    let params = SamplingParams { logprobs: processed, ..raw.clone() };
    let refused = generator.run(&Request { params, ..best }.build(), |_, _| true).unwrap_err();
    assert!(matches!(refused, GenerateError::Ranking), "{refused}");
}

#[test]
fn tokens_that_a_guide_forced_count_too() {
    let tiny = tiny("tiny-llama");
    let spec = GuideSpec::Regex("(cat|category|caterpillar) [0-9]{2}".into());
    let raw = LogprobsRequest { top: 0, of: LogprobsOf::Raw };
    let told = SamplingParams { logprobs: Some(raw), ..SamplingParams::default() };
    let stop = tiny.long(60);
    let mut generator = tiny.generator(4, 5);
    for seed in 0..5 {
        let plain = Request::new(&PROMPT, &told, &stop);
        let request = Request { n: 5, seed, guide: Some(spec.clone()), ..plain.clone() };
        let generation = generate(&mut generator, &request);
        let mut all = generation.choices;
        all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        let silent = SamplingParams { logprobs: None, ..told.clone() };
        let best = Request { n: 2, best_of: 5, params: silent, ..request.clone() };
        let got = answers(&mut generator, &best);
        let samples = |choices: &[Choice]| choices.iter().map(|c| c.sample).collect::<Vec<_>>();
        assert_eq!(samples(&got), samples(&all[..2]), "the two best of five, seed {seed}");
    }
}

//! Each row of logits, to its own request's token. The loop is taken apart here: nothing else is judged.

use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::StopReason;
use l4_sampler::{LogprobsOf, SamplingParams};
use l5_scheduler::FinishReason;

use crate::naive::NaiveChoice;
use crate::support::{Apart, Ask, MAX_LEN, Told, drawn, penalised, prompt, rated};
use crate::tiny::tiny;

/// What everybody of `asks` is told when all come at once, and what each is told by the layer below.
fn together(asks: &[Ask], blocks: usize) -> Vec<(Told, NaiveChoice)> {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(blocks);
    let mut apart = Apart::new(&config, tiny.runner(&config));
    let ears: Vec<_> = asks.iter().zip(0..).map(|(ask, id)| apart.ask(id, ask)).collect();
    apart.run();
    let solo = asks.iter().map(|ask| tiny.solo(ask, MAX_LEN));
    ears.iter().map(|ear| ear.told()).zip(solo).collect()
}

fn same(what: &str, asks: &[Ask]) {
    for (i, (told, alone)) in together(asks, 200).into_iter().enumerate() {
        assert_eq!(
            told.tokens, alone.tokens,
            "{what}: tokens of request {i}, beside the others and alone"
        );
        assert_eq!(told.logprobs, alone.logprobs, "{what}: log probabilities of request {i}");
        assert_eq!(told.text, alone.text, "{what}: text of request {i}");
    }
}

#[test]
fn every_row_gets_the_token_of_its_own_logits() {
    same("greedy", &[0, 1, 2].map(|i| Ask::greedy(&prompt(i, 4 + 3 * i as usize), 6)));
}

#[test]
fn rows_that_only_prefill_have_no_logits_and_get_no_token() {
    let asks = [(0, 14), (1, 3), (2, 9)].map(|(i, len)| Ask::greedy(&prompt(i, len), 6));
    let tiny = tiny("tiny-llama");
    let mut config = tiny.config(200);
    config.long_prefill_token_threshold = 4;
    let mut apart = Apart::new(&config, tiny.runner(&config));
    let ears: Vec<_> = asks.iter().zip(0..).map(|(ask, id)| apart.ask(id, ask)).collect();
    let samples: Vec<bool> = apart.step().iter().map(|row| row.samples).collect();
    assert_eq!(samples, [false, true, false], "rows that sample in the first step");
    apart.run();
    for (i, (ear, ask)) in ears.iter().zip(&asks).enumerate() {
        let alone = tiny.solo(ask, MAX_LEN);
        assert_eq!(ear.told().tokens, alone.tokens, "tokens of request {i}, in chunks and alone");
    }
}

#[test]
fn every_row_is_chosen_from_by_its_own_parameters() {
    let hot = Ask::greedy(&prompt(0, 6), 8).with(drawn(1.5)).seeded(3, 0);
    let cold = Ask::greedy(&prompt(0, 6), 8);
    let few = SamplingParams { top_k: 3, min_p: 0.05, ..drawn(0.8) };
    let few = Ask::greedy(&prompt(0, 6), 8).with(few).seeded(3, 0);
    same("one prompt, three temperatures", &[hot, cold, few]);
}

#[test]
fn a_random_number_is_that_of_seed_sample_and_place() {
    let ask = |seed, sample| Ask::greedy(&prompt(1, 5), 10).with(drawn(1.2)).seeded(seed, sample);
    let asks = [ask(1, 0), ask(1, 1), ask(2, 0), ask(1, 0)];
    same("seeds", &asks);
    let told = together(&asks, 200);
    assert_eq!(told[0].0.tokens, told[3].0.tokens, "the same seed, the same sample");
    assert_ne!(told[0].0.tokens, told[1].0.tokens, "two samples of one seed");
    assert_ne!(told[0].0.tokens, told[2].0.tokens, "two seeds");
}

#[test]
fn histories_are_as_long_as_they_are() {
    // Prompts and answers of many lengths: nobody is penalised for another's tokens, or for what fills a shorter row up.
    let whole = SamplingParams { top_p: 1.0, ..penalised() };
    let ask = |i: u32| {
        let ask = Ask::greedy(&prompt(i, 3 + 5 * i as usize), 4 + 2 * i as usize);
        ask.with(rated(whole.clone(), LogprobsOf::Processed)).seeded(9, i)
    };
    same("penalties", &[0, 1, 2, 3].map(ask));
}

#[test]
fn a_history_outlives_a_preemption() {
    let ask = |i: u32| {
        let ask = Ask::greedy(&prompt(i, 10), 24);
        ask.with(rated(penalised(), LogprobsOf::Processed)).seeded(5, i)
    };
    let asks = [0, 1, 2].map(ask);
    let tiny = tiny("tiny-llama");
    // Three of 34 tokens do not fit 15 blocks of 4.
    let config = tiny.config(16);
    let mut apart = Apart::new(&config, tiny.runner(&config));
    let ears: Vec<_> = asks.iter().zip(0..).map(|(ask, id)| apart.ask(id, ask)).collect();
    apart.run();
    assert!(apart.scheduler.stats().preemptions > 0, "somebody gave way");
    for (ear, ask) in ears.iter().zip(&asks) {
        let (told, alone) = (ear.told(), tiny.solo(ask, MAX_LEN));
        assert_eq!(told.tokens, alone.tokens, "tokens of a request that was preempted, and alone");
        assert_eq!(told.logprobs, alone.logprobs, "log probabilities under penalties");
    }
}

#[test]
fn log_probabilities_are_told_with_their_tokens() {
    let ask = |of, i| Ask::greedy(&prompt(i, 7), 6).with(rated(drawn(0.7), of)).seeded(2, 0);
    let asks =
        [ask(LogprobsOf::Raw, 0), ask(LogprobsOf::Processed, 1), Ask::greedy(&prompt(2, 7), 6)];
    same("log probabilities", &asks);
    let told = together(&asks, 200);
    let count = told.iter().map(|(told, _)| told.logprobs.len()).collect::<Vec<_>>();
    assert_eq!(
        count,
        [6, 6, 0],
        "entries for answers of six tokens, the last without any asked for"
    );
}

#[test]
fn a_guide_allows_and_forces_what_it_would_alone() {
    let tiny = tiny("tiny-llama");
    let spec = GuideSpec::Regex("(yes|no), (I am|we are) (sure|not sure)".into());
    let free = Ask::greedy(&prompt(3, 9), 12).with(drawn(0.8)).seeded(1, 0);
    let plain = Ask::greedy(&prompt(0, 6), 40).with(drawn(1.0)).seeded(4, 0).guided(&tiny, &spec);
    let told = rated(drawn(1.0), LogprobsOf::Raw);
    let told = Ask::greedy(&prompt(1, 5), 40).with(told).seeded(4, 1).guided(&tiny, &spec);
    same("guides", &[plain, free, told]);
}

#[test]
fn a_guide_that_forces_the_beginning_is_followed_from_the_first_token() {
    let tiny = tiny("tiny-llama");
    let spec = GuideSpec::Regex("the answer is (one|two)".into());
    let ask = Ask::greedy(&prompt(2, 6), 40).guided(&tiny, &spec);
    same("a forced beginning", &[ask.clone(), Ask::greedy(&prompt(0, 6), 9)]);
    let told = together(&[ask], 200).remove(0).0;
    assert!(told.text.starts_with("the answer is "), "{:?}", told.text);
    assert_eq!(told.ends[0].stop, Some(StopReason::Guide), "why it ended");
}

#[test]
fn a_row_without_a_token_ends_its_own_request_only() {
    let banned =
        SamplingParams { allowed_tokens: Some(vec![5]), banned_tokens: vec![5], ..drawn(1.0) };
    let asks = [
        Ask::greedy(&prompt(0, 6), 8),
        Ask::greedy(&prompt(1, 6), 8).with(banned),
        Ask::greedy(&prompt(2, 6), 8),
    ];
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let mut apart = Apart::new(&config, tiny.runner(&config));
    let ears: Vec<_> = asks.iter().zip(0..).map(|(ask, id)| apart.ask(id, ask)).collect();
    apart.run();
    let failed = ears[1].told();
    assert_eq!(failed.finish(), Some(FinishReason::Failed), "how the one without a token ended");
    let error = failed.ends[0].error.clone().unwrap_or_default();
    assert!(error.contains("no token can be sampled"), "what it was told: {error:?}");
    for i in [0, 2] {
        let alone = tiny.solo(&asks[i], MAX_LEN);
        assert_eq!(ears[i].told().tokens, alone.tokens, "tokens of request {i}");
    }
}

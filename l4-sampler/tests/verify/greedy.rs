//! Greedy requests: drafts change how many steps an answer takes, and nothing else.

use l4_sampler::{History, Logits, Row, Sampled, Sampler, SamplingParams};

use super::toy::{Drafting, Speculation, Toy, key, row, sampler, tensor};

/// The same answer, one token at a time.
fn one_by_one(sampler: &mut Sampler, spec: &Speculation<'_>, len: usize) -> Vec<u32> {
    let mut history = History::new(&[spec.prompt], len);
    let mut answer = Vec::new();
    let mut last = spec.prompt;
    while answer.len() < len {
        let logits = tensor(&[spec.toy.target(last)]);
        let mut out = [Sampled::default()];
        let row: Row<'_> = row(spec.params, &history, key(0).ahead(answer.len() as u32));
        sampler.sample(Logits::Shared(logits.view()), &[row], &mut out).unwrap();
        last = out[0].token.unwrap();
        history.push(last);
        answer.push(last);
    }
    answer
}

#[test]
fn a_greedy_answer_is_the_same_with_drafts_and_without() {
    const LEN: usize = 30;
    const VOCAB: usize = 24;
    let greedy = SamplingParams::greedy;
    let mut sampler = sampler(VOCAB, 2);
    // Without penalties a toy model soon goes in circles; with them it has to look at its whole answer.
    for params in [
        greedy(),
        SamplingParams { repetition_penalty: 1.4, ..greedy() },
        SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.4, ..greedy() },
        SamplingParams { banned_tokens: vec![3, 5], logit_bias: vec![(7, 0.9)], ..greedy() },
    ] {
        for seed in 0..12 {
            let (k, off) = (1 + seed as usize % 5, [0.0, 0.1, 0.4, 1.0][seed as usize % 4]);
            let toy = Toy { vocab: VOCAB, seed, spread: 3.0, off };
            for drafting in [Drafting::Certain, Drafting::Sampled] {
                let spec = Speculation { toy, params: &params, drafting, k, prompt: 1 };
                let want = one_by_one(&mut sampler, &spec, LEN);
                let got = &spec.answers(&mut sampler, [key(0)].into_iter(), LEN)[0];
                assert_eq!(
                    got.tokens[..LEN],
                    want,
                    "the answer with {drafting:?} drafts of {k}, {params:?}, {toy:?}"
                );
            }
        }
    }
}

#[test]
fn a_better_draft_takes_fewer_rounds_and_the_best_takes_the_fewest() {
    const LEN: usize = 60;
    let params = SamplingParams::greedy();
    let mut sampler = sampler(24, 1);
    let mut rounds = |off| {
        let toy = Toy { vocab: 24, seed: 5, spread: 3.0, off };
        let drafting = Drafting::Certain;
        let spec = Speculation { toy, params: &params, drafting, k: 4, prompt: 1 };
        spec.answers(&mut sampler, [key(0)].into_iter(), LEN)[0].rounds
    };
    // A round of a perfect draft gives its four tokens and the bonus.
    assert_eq!(rounds(0.0), LEN / 5, "rounds of a draft that is the model, {LEN} tokens, k 4");
    assert!(rounds(1.0) > LEN / 5, "rounds of a draft that is something else, {LEN} tokens, k 4");
}

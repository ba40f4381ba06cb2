//! An answer's next token and a draft's verdict allocate nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;
#[path = "verify/toy.rs"]
#[allow(dead_code)]
mod toy;

use std::path::PathBuf;

use counting::fewest_allocations;
use l2_model::tokenizer::Tokenizer;
use l4_sampler::stop::{AnswerStream, StopRules};
use l4_sampler::{Draft, History, Proposal, SamplingParams};
use toy::{Toy, key, row, sampler, tensor};

/// One test, since the counter sees all of the process.
#[test]
fn a_steady_answer_and_a_steady_verdict_allocate_nothing() {
    answer();
    for threads in [1, 2] {
        verdicts(threads);
    }
}

fn answer() {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tokenizers");
    let tokenizer = Tokenizer::from_file(fixtures.join("gpt-2.tokenizer.json")).unwrap();
    let strings = ["\n\nUser:", "the end.", "🦀🦀"].map(String::from).to_vec();
    let rules = StopRules { strings, ..StopRules::default() };
    let mut stream = AnswerStream::answering(&rules, Some(&tokenizer)).unwrap();
    let text = "It is not the end yet\n\nUse: 🦀 and the end, the e\n\n\nUser";
    let tokens = tokenizer.encode(text, false).unwrap();
    let mut characters = 0;
    let mut round = || {
        for token in &tokens {
            let (text, end) = stream.push(*token);
            characters += text.len();
            assert_eq!(end, None, "why the answer ended");
        }
    };
    round();
    let made = fewest_allocations(5, round);
    assert_eq!(made, 0, "allocations of {} tokens of an answer with stop strings", tokens.len());
    assert!(characters > 5 * text.len(), "characters shown of {text:?}, six times: {characters}");
}

fn verdicts(threads: usize) {
    const VOCAB: usize = 3000;
    const K: usize = 4;
    let toy = Toy { vocab: VOCAB, seed: 1, spread: 4.0, off: 0.2 };
    let mut sampler = sampler(VOCAB, threads);
    let history = History::new(&[1, 2, 3], 8);
    let plain = SamplingParams::default;
    let params = [
        plain(),
        SamplingParams { top_k: 50, top_p: 0.9, temperature: 0.8, ..plain() },
        SamplingParams { banned_tokens: vec![5], ..SamplingParams::greedy() },
    ];
    let drafted = tensor(&(0..K as u32).map(|i| toy.draft(i)).collect::<Vec<_>>());
    let tokens: Vec<u32> = (0..K as u32)
        .map(|i| sampler.distribution(&toy.draft(i), &row(&params[1], &history, key(0))).unwrap())
        .map(|q| q.draw(0.3))
        .collect();
    let proposals: Vec<Proposal<'_>> = (0..24)
        .map(|i| Proposal {
            tokens: &tokens,
            draft: if i % 2 == 0 { Draft::Certain } else { Draft::Logits(drafted.view()) },
            row: row(&params[i / 2 % 3], &history, key(i)),
            masks: &[],
        })
        .collect();
    let logits =
        tensor(&vec![(0..=K as u32).map(|i| toy.target(i)).collect::<Vec<_>>(); 24].concat());
    let mut out = Vec::new();
    let mut step = || sampler.verify(logits.view(), &proposals, &mut out).unwrap();
    // Which thread has which proposal is chance: in a few steps each has had one of every kind.
    (0..10).for_each(|_| step());
    let made = fewest_allocations(5, step);
    assert_eq!(made, 0, "allocations of a step of 24 drafts on {threads} threads");
    assert!(out.iter().all(Result::is_ok), "verdicts: {out:?}");
}

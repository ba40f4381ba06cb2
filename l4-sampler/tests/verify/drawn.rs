//! Drafts that are verified row by row, among rows of any kind, as the engine does.

use l1_tensor::Tensor;
use l4_sampler::draft::{DraftSampling, Drafted, Drawn, MAX_DRAWN_FROM};
use l4_sampler::{
    Distribution, Draft, DrawKey, History, Logits, LogprobsOf, LogprobsRequest, Proposal, Purpose,
    Sampled, SamplingParams,
};

use super::toy::{Toy, key, law, row, sampler, tensor, verify};

const VOCAB: usize = 7;

fn settings(i: usize) -> SamplingParams {
    let plain = SamplingParams::default();
    match i % 4 {
        0 => plain,
        1 => SamplingParams { temperature: 0.6, top_k: 4, ..plain },
        2 => SamplingParams { frequency_penalty: 0.7, top_p: 0.9, ..plain },
        _ => SamplingParams {
            min_p: 0.1,
            logprobs: Some(LogprobsRequest { top: 2, of: LogprobsOf::Raw }),
            ..plain
        },
    }
}

/// A draft of `K` tokens, and the rows that both models have along it.
struct Case {
    params: SamplingParams,
    key: DrawKey,
    tokens: Vec<u32>,
    from: Vec<Distribution>,
    target: Vec<Vec<f32>>,
    draft: Tensor,
    histories: Vec<History>,
}

const K: usize = 3;

fn case(i: usize) -> Case {
    let toy = Toy { vocab: VOCAB, seed: 20 + i as u32 % 5, spread: 2.0, off: 0.4 };
    let (params, key) = (settings(i), key(i));
    let mut sampler = sampler(VOCAB, 1);
    let (mut last, mut history) = (i as u32 % VOCAB as u32, History::new(&[0], 10));
    let (mut tokens, mut from, mut draft) = (Vec::new(), Vec::new(), Vec::new());
    let (mut target, mut histories) = (vec![toy.target(last)], vec![history.clone()]);
    for at in 0..K {
        let logits = toy.draft(last);
        let row = row(&params, &history, key.ahead(at as u32));
        let mut drawn = [Drawn::default()];
        sampler.draw(tensor(std::slice::from_ref(&logits)).view(), &[row], &mut drawn).unwrap();
        let [Drawn { token, from: q }] = drawn;
        assert_eq!(token, Some(q.draw(row.key.uniform(Purpose::Draw))), "drawn from what is kept");
        last = token.unwrap();
        history.push(last);
        tokens.push(last);
        from.push(q);
        draft.push(logits);
        target.push(toy.target(last));
        histories.push(history.clone());
    }
    Case { params, key, tokens, from, target, draft: tensor(&draft), histories }
}

/// Tokens of the rows of each case, all cases in one batch.
fn by_rows(cases: &[Case], threads: usize) -> Vec<Vec<Sampled>> {
    let mut sampler = sampler(VOCAB, threads);
    let logits = tensor(&cases.iter().flat_map(|case| case.target.clone()).collect::<Vec<_>>());
    let (mut rows, mut drafted) = (Vec::new(), Vec::new());
    for case in cases {
        for i in 0..=K {
            rows.push(row(&case.params, &case.histories[i], case.key.ahead(i as u32)));
            let token = case.tokens.get(i);
            drafted.push(token.map(|token| Drafted { token: *token, from: &case.from[i] }));
        }
    }
    // What is behind the last draft may be left out.
    drafted.pop();
    let mut out = vec![Sampled::default(); rows.len()];
    sampler.sample_drafted(Logits::Shared(logits.view()), &rows, &drafted, &mut out).unwrap();
    out.chunks(K + 1).map(<[Sampled]>::to_vec).collect()
}

#[test]
fn a_row_with_a_drawn_draft_has_the_outcome_that_its_verification_has() {
    let cases: Vec<_> = (0..400).map(case).collect();
    let (mut accepted, mut rejected) = (0, 0);
    for (case, rows) in cases.iter().zip(by_rows(&cases, 2)) {
        let tokens: Vec<_> = rows.iter().map(|row| row.token.unwrap()).collect();
        let proposal = Proposal {
            tokens: &case.tokens,
            draft: Draft::Logits(case.draft.view()),
            row: row(&case.params, &case.histories[0], case.key),
            masks: &[],
        };
        let verdict = verify(&mut sampler(VOCAB, 1), &case.target, &[proposal]).remove(0).unwrap();
        let right = case.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        assert_eq!(right, verdict.accepted);
        accepted += right;
        if right < K {
            assert_eq!(tokens[right], verdict.token, "the replacement");
            rejected += 1;
        } else {
            // The row behind the last draft is an ordinary one.
            let row = row(&case.params, &case.histories[K], case.key.ahead(K as u32));
            let p = sampler(VOCAB, 1).distribution(&case.target[K], &row).unwrap();
            assert_eq!(tokens[K], p.draw(row.key.uniform(Purpose::Draw)));
        }
        for (row, token) in rows.iter().zip(&tokens) {
            let rated = row.logprobs.as_ref().map(|rated| rated.id);
            assert_eq!(
                rated,
                case.params.logprobs.map(|_| *token),
                "the token that came out is rated"
            );
        }
    }
    assert!(accepted > 300 && rejected > 100, "{accepted} accepted, {rejected} times rejected");
}

#[test]
fn a_draft_is_drawn_by_temperature_and_filters_from_a_bounded_number_of_tokens() {
    let params = SamplingParams {
        temperature: 0.7,
        top_p: 0.9,
        frequency_penalty: 1.0,
        banned_tokens: vec![0],
        ..SamplingParams::default()
    };
    assert!(DraftSampling::new(&SamplingParams::greedy(), 1, 2).is_none());
    let how = DraftSampling::new(&params, 11, 3).unwrap();
    let asked = how.row(9);
    assert_eq!(asked.key, DrawKey { seed: 11, sample: 3, position: 9 });
    let want = SamplingParams {
        temperature: 0.7,
        top_p: 0.9,
        top_k: MAX_DRAWN_FROM,
        ..SamplingParams::default()
    };
    assert_eq!(*asked.params, want);

    let vocab = 1000;
    let logits: Vec<f32> = (0..vocab).map(|i| (i * 37 % vocab) as f32 * 1e-3).collect();
    let flat = DraftSampling::new(&SamplingParams::default(), 1, 0).unwrap();
    let mut out = [Drawn::default()];
    sampler(vocab, 1)
        .draw(tensor(std::slice::from_ref(&logits)).view(), &[flat.row(0)], &mut out)
        .unwrap();
    let wanted =
        law(&logits, &SamplingParams { top_k: MAX_DRAWN_FROM, ..SamplingParams::default() });
    assert_eq!(out[0].from.len(), MAX_DRAWN_FROM);
    assert!(out[0].from.iter().all(|(id, q)| (wanted[id as usize] - q).abs() < 1e-6));
}

#[test]
fn tokens_that_are_renamed_alike_are_one() {
    let mut q = Distribution::from_shares(&[(0, 1.0), (1, 2.0), (2, 3.0), (5, 4.0)]).unwrap();
    q.rename(|id| [9, 4, 9, 0, 0, 2][id as usize]);
    let got: Vec<_> = q.iter().collect();
    assert_eq!(got, [(2, 0.4), (4, 0.2), (9, 0.4)]);
    assert_eq!((q.prob(9), q.prob(0)), (0.4, 0.0));
}

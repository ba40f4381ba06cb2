//! What rows of a batch must not know of each other.

use l1_tensor::cpu::Isa;
use l1_tensor::{DType, Device, Tensor};
use l4_sampler::{
    DrawKey, Error, Logits, LogprobsOf, LogprobsRequest, Row, RowError, Sampled, Sampler,
    SamplingParams, TokenLogprobs,
};

use crate::given::{Asked, SHAPES, Stages, asked, runtime, tensor};
use crate::judge::same_bits;

const VOCAB: usize = 700;

/// Requests of all kinds, with a row for each: every one has its own parameters, history, guide and key.
fn crowd(n: usize) -> (Vec<Vec<f32>>, Vec<Asked>) {
    let on = |bit: usize, i: usize| i >> bit & 1 == 0;
    let of = |i: usize| {
        let stages = Stages {
            before: on(0, i),
            temperature: true,
            top_k: on(1, i),
            top_p: on(2, i),
            min_p: on(3, i),
            typical_p: on(4, i),
        };
        let mut asked = asked(stages, VOCAB, i as u64);
        if i.is_multiple_of(9) {
            asked.params.temperature = 0.0;
        }
        (SHAPES[i % SHAPES.len()].row(VOCAB, i as u64), asked)
    };
    (0..n).map(of).unzip()
}

/// Outcomes of these rows as one batch.
fn together(sampler: &mut Sampler, logits: &[Vec<f32>], asked: &[Asked]) -> Vec<Sampled> {
    let rows: Vec<Row<'_>> = asked.iter().map(Asked::row).collect();
    let mut out = vec![Sampled::default(); rows.len()];
    sampler.sample(Logits::Shared(tensor(logits).view()), &rows, &mut out).unwrap();
    out
}

fn tokens(outcomes: &[Sampled]) -> Vec<Result<u32, RowError>> {
    outcomes.iter().map(|sampled| sampled.token).collect()
}

fn one_by_one(logits: &[Vec<f32>], asked: &[Asked]) -> Vec<Sampled> {
    let mut sampler = Sampler::new(&runtime(Isa::best(), 1), VOCAB);
    let alone = |(logits, asked): (&Vec<f32>, &Asked)| {
        together(&mut sampler, std::slice::from_ref(logits), std::slice::from_ref(asked))
    };
    logits.iter().zip(asked).flat_map(alone).collect()
}

#[test]
fn a_row_has_its_token_alone_and_in_any_batch() {
    let (logits, asked) = crowd(64);
    let alone = tokens(&one_by_one(&logits, &asked));
    for threads in 1..=3 {
        let mut sampler = Sampler::new(&runtime(Isa::best(), threads), VOCAB);
        let batched = together(&mut sampler, &logits, &asked);
        assert_eq!(tokens(&batched), alone, "64 rows together, on {threads} threads");
        // 27 and 64 have no common factor.
        let order: Vec<usize> = (0..64).map(|i| i * 27 % 64).collect();
        let shuffled_logits: Vec<_> = order.iter().map(|i| logits[*i].clone()).collect();
        let shuffled_asked: Vec<_> = order.iter().map(|i| asked[*i].clone()).collect();
        let shuffled = tokens(&together(&mut sampler, &shuffled_logits, &shuffled_asked));
        let want: Vec<_> = order.iter().map(|i| alone[*i]).collect();
        assert_eq!(shuffled, want, "the same rows in another order, on {threads} threads");
    }
}

#[test]
fn and_its_probabilities_to_the_bit() {
    let (logits, mut asked) = crowd(48);
    for (i, asked) in asked.iter_mut().enumerate() {
        let of = if i.is_multiple_of(2) { LogprobsOf::Raw } else { LogprobsOf::Processed };
        asked.params.logprobs = Some(LogprobsRequest { top: 5, of });
    }
    let bits = |about: &Option<TokenLogprobs>| {
        about.as_ref().map(|about| {
            let top: Vec<_> = about.top.iter().map(|(id, p)| (*id, p.to_bits())).collect();
            (about.id, about.logprob.to_bits(), about.rank, top)
        })
    };
    let alone = one_by_one(&logits, &asked);
    for threads in 1..=3 {
        let mut sampler = Sampler::new(&runtime(Isa::best(), threads), VOCAB);
        let batched = together(&mut sampler, &logits, &asked);
        for (i, (got, want)) in batched.iter().zip(&alone).enumerate() {
            let (got, want) = (bits(&got.logprobs), bits(&want.logprobs));
            assert_eq!(got, want, "log probabilities of row {i} on {threads} threads, as bits");
        }
    }
}

#[test]
fn every_row_has_its_own_parameters() {
    // One row of logits, and requests that each leave another single token of it.
    let row: Vec<f32> = (0..10).map(|i| -0.1 * i as f32).collect();
    let greedy = SamplingParams::greedy();
    let banned = |ids: &[u32]| SamplingParams { banned_tokens: ids.to_vec(), ..greedy.clone() };
    let asked: Vec<Asked> = [
        greedy.clone(),
        banned(&[0]),
        SamplingParams { logit_bias: vec![(7, 5.0)], ..greedy.clone() },
        SamplingParams { allowed_tokens: Some(vec![9, 4]), ..SamplingParams::greedy() },
        SamplingParams { top_k: 1, banned_tokens: vec![0, 1], ..SamplingParams::default() },
        SamplingParams { top_p: 0.0, banned_tokens: vec![0, 1, 2], ..SamplingParams::default() },
    ]
    .map(Asked::new)
    .to_vec();
    for threads in 1..=2 {
        let mut sampler = Sampler::new(&runtime(Isa::best(), threads), 10);
        let got = tokens(&together(&mut sampler, &vec![row.clone(); asked.len()], &asked));
        assert_eq!(
            got,
            [Ok(0), Ok(1), Ok(7), Ok(4), Ok(2), Ok(3)],
            "greedy; without 0; 7 pushed; 9 or 4; without 0, 1; without 0 to 2"
        );
    }
}

#[test]
fn every_row_has_its_own_history_and_its_own_guide() {
    let row = vec![3.0, 2.9, 2.8, 2.7];
    let params = SamplingParams { frequency_penalty: 1.0, ..SamplingParams::greedy() };
    let mut asked = vec![Asked::new(params); 4];
    asked[1].history.push(0);
    asked[2].history.push(1);
    let mut allowed = l4_sampler::TokenMask::none(4);
    allowed.allow(3);
    asked[3].mask = Some(allowed);
    let mut sampler = Sampler::new(&runtime(Isa::best(), 1), 4);
    let got = tokens(&together(&mut sampler, &vec![row; 4], &asked));
    assert_eq!(got, [Ok(0), Ok(1), Ok(0), Ok(3)], "nothing said; 0 said; 1 said; only 3 allowed");
}

#[test]
fn a_greedy_row_obeys_bans_and_the_end_of_the_minimum() {
    let row = vec![5.0, 4.0, 3.0];
    let params = SamplingParams { min_tokens: 1, ..SamplingParams::greedy() };
    let mut asked = vec![Asked { ends: vec![0], ..Asked::new(params) }; 2];
    asked[1].history.push(2);
    let mut sampler = Sampler::new(&runtime(Isa::best(), 1), 3);
    let got = tokens(&together(&mut sampler, &vec![row; 2], &asked));
    assert_eq!(got, [Ok(1), Ok(0)], "token 0 is the end: at the first token, and at the second");
}

#[test]
fn the_same_key_draws_the_same_token_and_another_one_others() {
    let row = vec![0.0; VOCAB];
    let base = Asked::new(SamplingParams::default());
    let draw = |key_of: &dyn Fn(u32) -> DrawKey| {
        let asked: Vec<Asked> =
            (0..100).map(|i| Asked { key: key_of(i), ..base.clone() }).collect();
        let mut sampler = Sampler::new(&runtime(Isa::best(), 2), VOCAB);
        tokens(&together(&mut sampler, &vec![row.clone(); 100], &asked))
    };
    let key = DrawKey { seed: 5, sample: 0, position: 0 };
    let first = draw(&|position| DrawKey { position, ..key });
    assert_eq!(draw(&|position| DrawKey { position, ..key }), first, "the same keys again");
    let others: [(&str, DrawKey); 2] = [
        ("another seed", DrawKey { seed: 6, ..key }),
        ("another sample", DrawKey { sample: 1, ..key }),
    ];
    for (what, other) in others {
        let second = draw(&|position| DrawKey { position, ..other });
        let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{what}: {same} of 100 tokens of 700 equally likely ones are the same");
    }
    let same = draw(&|_| key);
    assert!(same.iter().all(|token| *token == same[0]), "one key, one number: {same:?}");
    let different = first.iter().filter(|token| **token != first[0]).count();
    assert!(different > 90, "only {different} of 100 positions drew another token than the first");
}

#[test]
fn shared_logits_stay_as_they_are() {
    let (logits, asked) = crowd(40);
    let given = tensor(&logits);
    let rows: Vec<Row<'_>> = asked.iter().map(Asked::row).collect();
    let mut out = vec![Sampled::default(); rows.len()];
    let mut sampler = Sampler::new(&runtime(Isa::best(), 2), VOCAB);
    sampler.sample(Logits::Shared(given.view()), &rows, &mut out).unwrap();
    let after = given.view().as_slice::<f32>("test").unwrap();
    same_bits("the logits after 40 rows were sampled from them", after, &logits.concat());
}

#[test]
fn logits_that_are_handed_over_give_the_same_tokens() {
    let (logits, mut asked) = crowd(40);
    for (i, asked) in asked.iter_mut().enumerate() {
        let of = [LogprobsOf::Raw, LogprobsOf::Processed][i % 2];
        asked.params.logprobs = (i % 3 > 0).then_some(LogprobsRequest { top: 3, of });
    }
    let rows: Vec<Row<'_>> = asked.iter().map(Asked::row).collect();
    let mut sampler = Sampler::new(&runtime(Isa::best(), 2), VOCAB);
    let shared = together(&mut sampler, &logits, &asked);
    let mut owned = vec![Sampled::default(); rows.len()];
    sampler.sample(Logits::Owned(tensor(&logits).view_mut()), &rows, &mut owned).unwrap();
    for (i, (got, want)) in owned.iter().zip(&shared).enumerate() {
        let (got, want) = ((got.token, &got.logprobs), (want.token, &want.logprobs));
        assert_eq!(got, want, "row {i}, its logits handed over");
    }
}

#[test]
fn rows_of_a_wider_tensor_are_read_where_they_are() {
    let (logits, asked) = crowd(12);
    let wide: Vec<Vec<f32>> =
        logits.iter().map(|row| [&[9e9, f32::NAN][..], row, &[9e9]].concat()).collect();
    let mut wide = tensor(&wide);
    let rows: Vec<Row<'_>> = asked.iter().map(Asked::row).collect();
    let mut sampler = Sampler::new(&runtime(Isa::best(), 2), VOCAB);
    let want = tokens(&together(&mut sampler, &logits, &asked));
    let mut out = vec![Sampled::default(); rows.len()];
    let inner = wide.view().narrow(1, 2, VOCAB).unwrap();
    sampler.sample(Logits::Shared(inner), &rows, &mut out).unwrap();
    assert_eq!(tokens(&out), want, "a slice of a wider tensor");
    let inner = wide.view_mut().narrow(1, 2, VOCAB).unwrap();
    sampler.sample(Logits::Owned(inner), &rows, &mut out).unwrap();
    assert_eq!(tokens(&out), want, "the same, handed over");
}

#[test]
fn what_is_wrong_with_a_row_is_its_own() {
    let (mut logits, mut asked) = crowd(9);
    let want = tokens(&one_by_one(&logits, &asked));
    logits[2].fill(f32::NAN);
    logits[5].fill(f32::NEG_INFINITY);
    asked[7] = Asked::new(SamplingParams { allowed_tokens: Some(vec![]), ..Default::default() });
    asked[8] = Asked::new(SamplingParams {
        banned_tokens: (0..VOCAB as u32).collect(),
        logit_bias: vec![(3, f32::INFINITY)],
        ..SamplingParams::greedy()
    });
    let mut sampler = Sampler::new(&runtime(Isa::best(), 2), VOCAB);
    let got = tokens(&together(&mut sampler, &logits, &asked));
    assert_eq!(got[2], Err(RowError::AllNan), "a row of NaN");
    assert_eq!(got[5], Err(RowError::NothingLeft), "a row of -inf");
    assert_eq!(got[7], Err(RowError::NothingLeft), "a row with no token allowed");
    assert_eq!(got[8], Err(RowError::NothingLeft), "a row with every token banned");
    for i in [0, 1, 3, 4, 6] {
        assert_eq!(got[i], want[i], "row {i}, beside rows that cannot be sampled");
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_anything_is_sampled() {
    let mut sampler = Sampler::new(&runtime(Isa::best(), 1), 4);
    let asked = Asked::new(SamplingParams::greedy());
    let mut try_it = |rows: usize, vocab: usize, asked_for: usize, room: usize| {
        let logits = Tensor::zeros(&[rows, vocab], DType::F32, Device::Cpu).unwrap();
        let mut out = vec![Sampled::default(); room];
        let given = vec![asked.row(); asked_for];
        let outcome = sampler.sample(Logits::Shared(logits.view()), &given, &mut out);
        match outcome {
            Err(Error::Shape { expected, got, .. }) => (expected, got),
            other => panic!("a length that does not fit went through: {other:?}"),
        }
    };
    assert_eq!(try_it(2, 5, 2, 2), (4, 5), "logits in a row: should be, are");
    assert_eq!(try_it(3, 4, 2, 2), (2, 3), "rows of logits: should be, are");
    assert_eq!(try_it(2, 4, 2, 1), (2, 1), "outcomes: should be, are");
    let narrow = Tensor::zeros(&[1, 4], DType::BF16, Device::Cpu).unwrap();
    let outcome =
        sampler.sample(Logits::Shared(narrow.view()), &[asked.row()], &mut [Sampled::default()]);
    assert!(matches!(outcome, Err(Error::Tensor(_))), "bf16 logits");
    let outcome = sampler.distribution(&[0.0; 5], &asked.row()).map(|_| ());
    assert!(matches!(outcome, Err(Error::Shape { .. })), "one row of another vocabulary");
}

#[test]
fn no_rows_are_no_work() {
    let mut sampler = Sampler::new(&runtime(Isa::best(), 2), 4);
    let logits = Tensor::zeros(&[0, 4], DType::F32, Device::Cpu).unwrap();
    sampler.sample(Logits::Shared(logits.view()), &[], &mut []).unwrap();
}

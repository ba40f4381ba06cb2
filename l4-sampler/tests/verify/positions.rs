//! Position `i` of a draft is judged as if the request had said tokens `0..i` of it.

use l4_sampler::{
    Draft, DrawKey, History, Proposal, Purpose, Row, RowError, Sampler, SamplingParams, TokenMask,
    Verified,
};

use super::toy::{Toy, key, noise, row, sampler, tensor, verify};

/// A mask for 8 tokens that allows these.
fn only(allowed: &[u32]) -> TokenMask {
    let mut mask = TokenMask::none(8);
    allowed.iter().for_each(|token| mask.allow(*token));
    mask
}

/// Rows that all say token 5, then 6, then 7, then the others from the highest on; by 1 each.
fn rising(rows: usize) -> Vec<Vec<f32>> {
    vec![vec![1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 7.0, 6.0]; rows]
}

fn judged(params: &SamplingParams, history: &History, tokens: &[u32]) -> Verified {
    let row = row(params, history, key(1));
    let proposal = Proposal { tokens, draft: Draft::Certain, row, masks: &[] };
    verify(&mut sampler(8, 1), &rising(tokens.len() + 1), &[proposal])[0].clone().unwrap()
}

#[test]
fn penalties_have_seen_the_draft() {
    let history = History::new(&[1], 8);
    let greedy = SamplingParams::greedy;
    let plain = judged(&greedy(), &history, &[5, 5, 5]);
    assert_eq!(plain, Verified { accepted: 3, token: 5 }, "draft 5 5 5 without penalties");
    for params in [
        SamplingParams { presence_penalty: 1.5, ..greedy() },
        SamplingParams { frequency_penalty: 1.5, ..greedy() },
        SamplingParams { repetition_penalty: 1.3, ..greedy() },
    ] {
        // Once 5 is said, 6 is ahead of it.
        let got = judged(&params, &history, &[5, 5, 5]);
        assert_eq!(got, Verified { accepted: 1, token: 6 }, "draft 5 5 5, {params:?}");
        let got = judged(&params, &history, &[5, 6, 1]);
        assert_eq!(got.accepted, 2, "tokens accepted of the draft 5 6 1, {params:?}: {got:?}");
    }
    let frequency = SamplingParams { frequency_penalty: 0.6, ..greedy() };
    let got = judged(&frequency, &history, &[5, 5, 5]);
    assert_eq!(got, Verified { accepted: 2, token: 6 }, "draft 5 5 5, {frequency:?}");
    assert_eq!(history.generated(), 0, "tokens in the request's own history afterwards");
    assert_eq!(history.seen().len(), 1, "tokens that the request's own history knows afterwards");
}

#[test]
fn the_draft_counts_towards_min_tokens() {
    // 5 would end the answer, and may from its fourth token on. One is there before the draft.
    let params = SamplingParams { min_tokens: 3, ..SamplingParams::greedy() };
    let mut history = History::new(&[], 8);
    history.push(0);
    let row = Row { ends: &[5], ..row(&params, &history, key(1)) };
    let judged = |tokens: &[u32]| {
        let proposal = Proposal { tokens, draft: Draft::Certain, row, masks: &[] };
        verify(&mut sampler(8, 1), &rising(tokens.len() + 1), &[proposal])[0].clone()
    };
    let want = Ok(Verified { accepted: 2, token: 5 });
    assert_eq!(judged(&[6, 6]), want, "draft 6 6: the end token is the fourth");
    let want = Ok(Verified { accepted: 1, token: 6 });
    assert_eq!(judged(&[6, 5]), want, "draft 6 5: the end token would be the third");
}

#[test]
fn each_position_has_its_own_mask() {
    let (params, history) = (SamplingParams::greedy(), History::default());
    let row = row(&params, &history, key(1));
    let judged = |tokens: &[u32], masks: &[TokenMask]| {
        let proposal = Proposal { tokens, draft: Draft::Certain, row, masks };
        verify(&mut sampler(8, 1), &rising(tokens.len() + 1), &[proposal])[0].clone()
    };
    let masks = [only(&[1, 2]), only(&[3, 5]), only(&[0, 4])];
    let want = Ok(Verified { accepted: 2, token: 4 });
    assert_eq!(judged(&[2, 5], &masks), want, "draft 2 5 of masks 1 2, 3 5, 0 4");
    let want = Ok(Verified { accepted: 1, token: 5 });
    assert_eq!(judged(&[2, 3], &masks), want, "draft 2 3 of the same masks");
    // A guide that refuses a token says no more behind it.
    assert_eq!(judged(&[2, 7], &masks[..2]), want, "draft 2 7, no mask behind the refused token");
}

/// The rule applied one row at a time to requests that are remade for each position.
fn naive(
    sampler: &mut Sampler,
    rows: &[Vec<f32>],
    draft: Option<&[Vec<f32>]>,
    tokens: &[u32],
    masks: &[TokenMask],
    request: (&SamplingParams, &[u32], &[u32], DrawKey),
) -> Result<Verified, RowError> {
    let (params, said, ends, key) = request;
    let mut at = |logits: &[f32], i: usize| {
        let mut history = History::new(&[1, 2], 20);
        said.iter().chain(&tokens[..i]).for_each(|token| history.push(*token));
        let row = Row { params, history: &history, ends, mask: masks.get(i), key };
        match sampler.distribution(logits, &row) {
            Ok(distribution) => Ok(distribution),
            Err(l4_sampler::Error::Row(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    };
    for (i, &token) in tokens.iter().enumerate() {
        let number =
            |purpose| DrawKey { position: key.position + i as u32, ..key }.uniform(purpose);
        let p = at(&rows[i], i)?;
        let q = match draft {
            Some(rows) => at(&rows[i], i)?,
            None => l4_sampler::Distribution::point(token),
        };
        if number(Purpose::Accept) >= (p.prob(token) / q.prob(token)).min(1.0) {
            let token = p.draw_residual(&q, number(Purpose::Residual));
            return Ok(Verified { accepted: i, token });
        }
    }
    let k = tokens.len();
    let bonus = DrawKey { position: key.position + k as u32, ..key }.uniform(Purpose::Bonus);
    Ok(Verified { accepted: k, token: at(&rows[k], k)?.draw(bonus) })
}

/// A request with everything on, its draft, and what comes of it.
struct Case {
    params: SamplingParams,
    said: Vec<u32>,
    history: History,
    ends: Vec<u32>,
    key: DrawKey,
    rows: Vec<Vec<f32>>,
    draft: Option<Vec<Vec<f32>>>,
    tokens: Vec<u32>,
    masks: Vec<TokenMask>,
}

const VOCAB: usize = 12;

/// Case `n`. Drafts are drawn from their rows as they stand there, one position after the other.
fn case(sampler: &mut Sampler, n: u32) -> Case {
    let chance = |i: u32| noise(900 + n, i) * 0.5 + 0.5;
    let params = SamplingParams {
        logit_bias: vec![(3, chance(1)), (11, f32::NEG_INFINITY)],
        min_tokens: (chance(2) * 6.0) as usize,
        repetition_penalty: 1.0 + chance(3),
        presence_penalty: chance(4),
        frequency_penalty: chance(5),
        temperature: [0.0, 0.7, 1.0, 1.5][(chance(6) * 4.0) as usize],
        top_k: (chance(7) * 12.0) as usize,
        top_p: 1.0 - 0.4 * chance(8),
        min_p: 0.1 * chance(9),
        typical_p: if chance(10) < 0.5 { 1.0 } else { 0.9 },
        ..SamplingParams::default()
    };
    let said = vec![4, (chance(11) * 11.0) as u32];
    let mut history = History::new(&[1, 2], 20);
    said.iter().for_each(|token| history.push(*token));
    let key = DrawKey { seed: u64::from(n), sample: n % 3, position: 4 };
    let ends = vec![0];
    let k = (chance(12) * 5.0) as usize;
    let toy = Toy { vocab: VOCAB, seed: n, spread: 2.0, off: 0.3 };
    let masks: Vec<TokenMask> = if chance(13) < 0.5 {
        Vec::new()
    } else {
        let allowed = |i: u32, token: &u32| *token == 5 || noise(800 + n, i * 50 + token) < 0.3;
        let mask = |i: u32| {
            let mut mask = TokenMask::none(VOCAB);
            (0..VOCAB as u32).filter(|token| allowed(i, token)).for_each(|token| mask.allow(token));
            mask
        };
        (0..=k as u32).map(mask).collect()
    };
    let rows = (0..=k as u32).map(|i| toy.target(i)).collect();
    let draft: Vec<Vec<f32>> = (0..k as u32).map(|i| toy.draft(i)).collect();
    let (mut tokens, mut seen) = (Vec::new(), history.clone());
    for (i, logits) in draft.iter().enumerate() {
        let (mask, key) = (masks.get(i), key.ahead(i as u32));
        let row = Row { params: &params, history: &seen, ends: &ends, mask, key };
        let token = sampler.distribution(logits, &row).unwrap().draw(key.uniform(Purpose::Draw));
        seen.push(token);
        tokens.push(token);
    }
    let draft = (chance(14) < 0.6).then_some(draft);
    Case { params, said, history, ends, key, rows, draft, tokens, masks }
}

#[test]
fn a_batch_of_anything_is_each_judged_alone_and_one_by_one() {
    const CASES: u32 = 400;
    let mut alone = sampler(VOCAB, 1);
    let cases: Vec<Case> = (0..CASES).map(|n| case(&mut alone, n)).collect();
    let drafts: Vec<_> = cases
        .iter()
        .map(|c| c.draft.as_ref().filter(|rows| !rows.is_empty()).map(|rows| tensor(rows)))
        .collect();
    let proposals: Vec<Proposal<'_>> = cases
        .iter()
        .zip(&drafts)
        .map(|(c, draft)| {
            let draft = draft.as_ref().map_or(Draft::Certain, |d| Draft::Logits(d.view()));
            let (params, history, ends) = (&c.params, &c.history, &c.ends[..]);
            let row = Row { params, history, ends, mask: None, key: c.key };
            Proposal { tokens: &c.tokens, draft, row, masks: &c.masks }
        })
        .collect();
    let rows: Vec<Vec<f32>> = cases.iter().flat_map(|c| c.rows.clone()).collect();
    let together = verify(&mut sampler(VOCAB, 2), &rows, &proposals);
    assert_eq!(together.len(), cases.len(), "outcomes");
    let mut accepted = [0; 6];
    for ((n, case), got) in cases.iter().enumerate().zip(&together) {
        let request = (&case.params, &case.said[..], &case.ends[..], case.key);
        let draft = case.draft.as_deref();
        let want = naive(&mut alone, &case.rows, draft, &case.tokens, &case.masks, request);
        let what = format!("case {n}: draft {:?}, {:?}", case.tokens, case.params);
        assert_eq!(got, &want, "{what}, in a batch on two threads");
        let solo = verify(&mut alone, &case.rows, std::slice::from_ref(&proposals[n]));
        assert_eq!(solo[0], want, "{what}, alone");
        accepted[got.as_ref().unwrap().accepted] += 1;
    }
    assert!(accepted[..4].iter().all(|n| *n > 10), "cases by tokens accepted: {accepted:?}");
}

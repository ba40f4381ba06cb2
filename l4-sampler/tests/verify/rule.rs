//! The rule for one token.

use l4_sampler::verify::accepts;
use l4_sampler::{Draft, DrawKey, History, Proposal, Purpose, SamplingParams, Verified};

use super::judge::{judge, within};
use super::toy::{key, row, sampler, tensor, verify};

/// The worked example of the chapter: `p`, `q`, and the probability with which the token stands.
const TABLE: [(f64, f64, f64); 3] = [(0.72, 0.65, 1.0), (0.45, 0.60, 0.75), (0.05, 0.50, 0.1)];

#[test]
fn the_worked_table() {
    const STEPS: u32 = 100_000;
    let share = |(p, q, _): &(f64, f64, f64)| {
        let accepted = |i: &u32| accepts(*p, *q, (f64::from(*i) + 0.5) / f64::from(STEPS));
        (0..STEPS).filter(accepted).count() as f64 / f64::from(STEPS)
    };
    let got: Vec<f64> = TABLE.iter().map(share).collect();
    let want = TABLE.map(|(.., want)| want);
    let what = "p 0.72 q 0.65, p 0.45 q 0.60, p 0.05 q 0.50 (tokens 0, 1, 2)";
    judge(what, "shares of all u that accept", &got, &want, within(0.0, 1e-12));
}

#[test]
fn the_worked_table_by_a_sampler() {
    // Two tokens, of which the first is drafted. Its own random number decides, and is known.
    let (params, history) = (SamplingParams::default(), History::default());
    let logits = |p: f64| vec![p.ln() as f32, (1.0 - p).ln() as f32];
    let mut sampler = sampler(2, 1);
    for (p, q, share) in TABLE {
        let draft = tensor(&[logits(q)]);
        let proposal = |i: usize| {
            let row = row(&params, &history, key(i));
            Proposal { tokens: &[0], draft: Draft::Logits(draft.view()), row, masks: &[] }
        };
        let proposals: Vec<Proposal<'_>> = (0..1000).map(proposal).collect();
        let rows = vec![logits(p); 2000];
        for (i, verdict) in verify(&mut sampler, &rows, &proposals).into_iter().enumerate() {
            let u = key(i).uniform(Purpose::Accept);
            let got = verdict.unwrap();
            let want = usize::from(u < share);
            assert_eq!(got.accepted, want, "tokens accepted of one, p {p} q {q} u {u}: {got:?}");
            if want == 0 {
                assert_eq!(got.token, 1, "all that p {p} has more than q {q} is on token 1");
            }
        }
    }
}

#[test]
fn what_the_model_would_never_say_is_never_accepted() {
    assert!(!accepts(0.0, 0.3, 0.0), "p 0, q 0.3, u 0 was accepted");
    assert!(!accepts(0.0, 1.0, 0.0), "p 0, a certain draft, u 0 was accepted");
    assert!(accepts(0.3, 0.3, 0.999_999), "p 0.3, q 0.3, u 0.999999 was rejected");
}

#[test]
fn a_draft_is_accepted_up_to_its_first_rejected_token() {
    // Greedy, and the model counts: row i says token i.
    let (params, history) = (SamplingParams::greedy(), History::default());
    let rows: Vec<Vec<f32>> =
        (0..4).map(|i| (0..8).map(|token| f32::from(u8::from(token == i))).collect()).collect();
    for (tokens, accepted, token) in [
        ([0, 1, 2], 3, 3),
        ([0, 1, 7], 2, 2),
        ([0, 7, 2], 1, 1),
        ([7, 1, 2], 0, 0),
        ([7, 7, 7], 0, 0),
    ] {
        let row = row(&params, &history, key(1));
        let proposal = Proposal { tokens: &tokens, draft: Draft::Certain, row, masks: &[] };
        let got = verify(&mut sampler(8, 1), &rows, &[proposal]);
        assert_eq!(
            got,
            [Ok(Verified { accepted, token })],
            "draft {tokens:?}, the model says 0 1 2 3"
        );
    }
}

#[test]
fn without_a_draft_the_models_row_gives_one_token() {
    let (params, history) = (SamplingParams::default(), History::default());
    let rows = vec![vec![0.0, 1.0, 0.5, f32::NEG_INFINITY]];
    let mut sampler = sampler(4, 1);
    for i in 0..100 {
        let row = row(&params, &history, DrawKey { position: 7, ..key(i) });
        let proposal = Proposal { tokens: &[], draft: Draft::Certain, row, masks: &[] };
        let got = verify(&mut sampler, &rows, &[proposal]);
        let p = sampler.distribution(&rows[0], &row).unwrap();
        let token = p.draw(row.key.uniform(Purpose::Bonus));
        assert_eq!(got, [Ok(Verified { accepted: 0, token })], "no draft, seed {i}");
    }
}

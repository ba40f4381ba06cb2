//! What cannot be judged, and rows that give nothing.

use l4_sampler::{
    Draft, Error, History, ParamError, Proposal, RowError, SamplingParams, TokenMask, Verified,
};

use super::toy::{key, row, sampler, tensor, verify};

/// What `verify` says of a draft over these rows, for a vocabulary of 6.
fn refused(tokens: &[u32], draft: Draft<'_>, masks: &[TokenMask], rows: &[Vec<f32>]) -> String {
    let (params, history) = (SamplingParams::default(), History::default());
    let proposal = Proposal { tokens, draft, row: row(&params, &history, key(0)), masks };
    let mut out = Vec::new();
    match sampler(6, 1).verify(tensor(rows).view(), &[proposal], &mut out) {
        Err(error @ (Error::Shape { .. } | Error::Params(ParamError::TokenOutOfRange { .. }))) => {
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let rows = |n: usize, vocab: usize| vec![vec![0.0; vocab]; n];
    let got = refused(&[1, 2], Draft::Certain, &[], &rows(2, 6));
    assert_eq!(got, "rows of logits: expected 3, got 2", "two rows for two tokens");
    let got = refused(&[1, 2], Draft::Certain, &[], &rows(3, 7));
    assert_eq!(got, "logits in a row: expected 6, got 7", "rows of another vocabulary");
    let got = refused(&[1, 6], Draft::Certain, &[], &rows(3, 6));
    let want = "a draft names token 6, but the model has 6 tokens (0 to 5)";
    assert_eq!(got, want, "a token out of range");
    let short = tensor(&rows(1, 6));
    let got = refused(&[1, 2], Draft::Logits(short.view()), &[], &rows(3, 6));
    assert_eq!(got, "rows of a draft's logits: expected 2, got 1", "a row of two missing");
    let narrow = tensor(&rows(2, 5));
    let got = refused(&[1, 2], Draft::Logits(narrow.view()), &[], &rows(3, 6));
    assert_eq!(got, "logits in a draft's row: expected 6, got 5", "a draft of another vocabulary");
}

#[test]
fn masks_may_only_be_missing_behind_a_refused_token() {
    let mut all = TokenMask::none(6);
    (0..6).for_each(|token| all.allow(token));
    let rows = vec![vec![0.0; 6]; 3];
    let got = refused(&[1, 2], Draft::Certain, &vec![all.clone(); 1], &rows);
    assert_eq!(got, "masks of a draft: expected 3, got 1", "one mask, and it allows the token");
    let got = refused(&[1, 2], Draft::Certain, &vec![all.clone(); 4], &rows);
    assert_eq!(got, "masks of a draft: expected 3, got 4", "more masks than positions");
}

#[test]
fn a_row_that_gives_nothing_is_its_own_proposals_outcome() {
    let (params, history) = (SamplingParams::greedy(), History::default());
    let row = row(&params, &history, key(0));
    let says = |token: usize| {
        let mut row = vec![0.0; 6];
        row[token] = 1.0;
        row
    };
    let (nan, out) = (vec![f32::NAN; 6], vec![f32::NEG_INFINITY; 6]);
    let damaged = tensor(std::slice::from_ref(&nan));
    let proposal = |tokens, draft| Proposal { tokens, draft, row, masks: &[] };
    let proposals = [
        proposal(&[1], Draft::Certain),
        proposal(&[2], Draft::Certain),
        proposal(&[3, 0], Draft::Certain),
        proposal(&[4], Draft::Certain),
        proposal(&[5], Draft::Logits(damaged.view())),
    ];
    let rows = [
        [says(1), says(2)].to_vec(),
        vec![nan, says(2)],
        vec![says(3), out, says(1)],
        // Its last row is not needed.
        vec![says(0), vec![f32::NAN; 6]],
        vec![says(5), says(0)],
    ]
    .concat();
    let got = verify(&mut sampler(6, 2), &rows, &proposals);
    let want = [
        Ok(Verified { accepted: 1, token: 2 }),
        Err(RowError::AllNan),
        Err(RowError::NothingLeft),
        Ok(Verified { accepted: 0, token: 0 }),
        Err(RowError::AllNan),
    ];
    assert_eq!(
        got, want,
        "outcomes of a good draft, two bad rows, one not needed, and a bad draft"
    );
}

#[test]
fn no_proposals_have_no_outcomes() {
    let mut out = vec![Err(RowError::AllNan)];
    let none = l1_tensor::Tensor::from_slice::<f32>(&[], &[0, 6]).unwrap();
    sampler(6, 1).verify(none.view(), &[], &mut out).unwrap();
    assert_eq!(out, [], "outcomes of no proposals");
}

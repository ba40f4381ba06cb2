//! Attention of one token.

use nano::Heads;
use nano::attention::attend;

#[track_caller]
fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "number of elements of {got:?}");
    let right = got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-5);
    assert!(right, "expected {want:?}, got {got:?}");
}

const ONE: Heads = Heads { query: 1, kv: 1, dim: 2 };

#[test]
fn a_token_alone_reads_its_own_value() {
    close(&attend(&[3.0, -1.0], &[&[0.5, 2.0]], &[&[7.0, 8.0]], ONE), &[7.0, 8.0]);
}

#[test]
fn values_are_weighted_by_the_softmax_of_the_scores() {
    // Scores: 0, ln 3 and 0, by way of the root of 2.
    let root = 2f32.sqrt();
    let key = [root * 3f32.ln(), 9.0];
    let keys: [&[f32]; 3] = [&[0.0, 1.0], &key, &[0.0, -4.0]];
    let values: [&[f32]; 3] = [&[5.0, 0.0], &[10.0, 0.0], &[0.0, 20.0]];
    close(&attend(&[1.0, 0.0], &keys, &values, ONE), &[7.0, 4.0]);
}

#[test]
fn scores_are_divided_by_the_root_of_the_size_of_a_head() {
    let heads = Heads { query: 1, kv: 1, dim: 4 };
    // q . k = 2 ln 3, and the root of 4 is 2.
    let key = [2.0 * 3f32.ln(), 0.0, 0.0, 0.0];
    let keys: [&[f32]; 2] = [&[0.0; 4], &key];
    let values: [&[f32]; 2] = [&[0.0; 4], &[4.0, 8.0, 0.0, 0.0]];
    close(&attend(&[1.0, 0.0, 0.0, 0.0], &keys, &values, heads), &[3.0, 6.0, 0.0, 0.0]);
}

#[test]
fn the_scale_is_that_of_one_head_however_many_there_are() {
    let heads = Heads { query: 4, kv: 1, dim: 1 };
    // Each score is ln 3: the weights are 1/4 and 3/4.
    let keys: [&[f32]; 2] = [&[0.0], &[3f32.ln()]];
    let values: [&[f32]; 2] = [&[0.0], &[4.0]];
    close(&attend(&[1.0; 4], &keys, &values, heads), &[3.0; 4]);
}

#[test]
fn neighbouring_query_heads_share_a_key_and_value_head() {
    let heads = Heads { query: 4, kv: 2, dim: 1 };
    let large = 100.0;
    // Head 0 of the keys looks at the first token, head 1 at the second one.
    let keys: [&[f32]; 2] = [&[large, 0.0], &[0.0, large]];
    let values: [&[f32]; 2] = [&[1.0, 2.0], &[3.0, 4.0]];
    close(&attend(&[1.0; 4], &keys, &values, heads), &[1.0, 1.0, 4.0, 4.0]);
    assert_eq!([0, 1, 2, 3].map(|head| heads.kv_head(head)), [0, 0, 1, 1]);
}

#[test]
fn the_weights_are_those_of_each_head_alone() {
    let heads = Heads { query: 2, kv: 2, dim: 1 };
    let keys: [&[f32]; 2] = [&[0.0, 100.0], &[100.0, 0.0]];
    let values: [&[f32]; 2] = [&[1.0, 10.0], &[2.0, 20.0]];
    close(&attend(&[1.0, 1.0], &keys, &values, heads), &[2.0, 10.0]);
}

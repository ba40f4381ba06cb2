//! The ops, by small numbers that can be worked out on paper.

use nano::Matrix;
use nano::ops::{argmax, rms_norm, rope, softmax, swiglu};

#[track_caller]
fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "number of elements of {got:?}");
    let right = got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-5);
    assert!(right, "expected {want:?}, got {got:?}");
}

#[test]
fn a_product_has_an_element_for_each_row() {
    let w = Matrix { rows: 3, cols: 2, data: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] };
    close(&w.times(&[10.0, 1.0]), &[12.0, 34.0, 56.0]);
    close(&Matrix::zeros(2, 2).times(&[1.0, 1.0]), &[0.0, 0.0]);
}

#[test]
fn a_norm_divides_by_the_root_of_the_mean_square() {
    // The mean square of 1, 1, 1 and 5 is 7.
    let root = 7f32.sqrt();
    let want = [1.0 / root, -1.0 / root, 1.0 / root, 5.0 / root];
    close(&rms_norm(&[1.0, -1.0, 1.0, 5.0], &[1.0; 4], 0.0), &want);
    close(&rms_norm(&[3.0, 3.0], &[1.0, 0.5], 0.0), &[1.0, 0.5]);
}

#[test]
fn epsilon_is_added_to_the_mean_square_inside_of_the_root() {
    close(&rms_norm(&[1.0, 1.0], &[1.0, 1.0], 3.0), &[0.5, 0.5]);
    close(&rms_norm(&[0.0, 0.0], &[1.0, 1.0], 1e-5), &[0.0, 0.0]);
}

#[test]
fn position_0_is_not_rotated() {
    let mut head = [1.0, 2.0, 3.0, 4.0];
    rope(&mut head, 0, 10_000.0);
    close(&head, &[1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn halves_of_a_head_are_rotated_against_each_other() {
    // theta = 100 and D = 4: pair 0 turns by 1 radian a position, pair 1 by 0.1.
    let mut head = [1.0, 1.0, 0.0, 0.0];
    rope(&mut head, 3, 100.0);
    close(&head, &[3f32.cos(), 0.3f32.cos(), 3f32.sin(), 0.3f32.sin()]);
    let mut head = [0.0, 0.0, 1.0, 0.0];
    rope(&mut head, 1, 100.0);
    close(&head, &[-(1f32.sin()), 0.0, 1f32.cos(), 0.0]);
}

#[test]
fn a_score_depends_on_the_distance_of_two_tokens_only() {
    let dot = |a: [f32; 4], b: [f32; 4]| a.iter().zip(&b).map(|(a, b)| a * b).sum::<f32>();
    let at = |mut head: [f32; 4], position| {
        rope(&mut head, position, 100.0);
        head
    };
    let (q, k) = ([0.3, -1.2, 0.7, 0.1], [1.5, 0.4, -0.2, 0.9]);
    let near = dot(at(q, 7), at(k, 5));
    close(&[dot(at(q, 42), at(k, 40))], &[near]);
    assert!((dot(at(q, 7), at(k, 4)) - near).abs() > 1e-3, "another distance, another score");
}

#[test]
fn a_softmax_is_positive_and_its_sum_is_1() {
    let mut x = [0.0, 2f32.ln(), 5f32.ln()];
    softmax(&mut x);
    close(&x, &[0.125, 0.25, 0.625]);
    let mut one = [-3.0];
    softmax(&mut one);
    close(&one, &[1.0]);
}

#[test]
fn very_negative_scores_do_not_all_become_0() {
    let mut low = [-200.0, -200.0];
    softmax(&mut low);
    close(&low, &[0.5, 0.5]);
}

#[test]
fn large_scores_do_not_overflow() {
    let mut x = [500.0, 500.0 + 3f32.ln(), -500.0];
    softmax(&mut x);
    assert!((x[0] - 0.25).abs() < 1e-3 && (x[1] - 0.75).abs() < 1e-3 && x[2] == 0.0, "{x:?}");
}

#[test]
fn a_gate_lets_through_what_it_is_open_for() {
    // silu(1) = 1 / (1 + 1/e).
    let one = 1.0 / (1.0 + (-1f32).exp());
    close(&swiglu(&[1.0, -50.0, 0.0], &[2.0, 7.0, 7.0]), &[2.0 * one, 0.0, 0.0]);
    close(&swiglu(&[-1.0], &[1.0]), &[-1.0 / (1.0 + 1f32.exp())]);
    close(&swiglu(&[100.0, -100.0], &[0.5, 1.0]), &[50.0, 0.0]);
}

#[test]
fn the_first_of_equal_maxima_is_chosen() {
    assert_eq!([argmax(&[1.0, 3.0, 3.0]), argmax(&[-2.0, -1.0]), argmax(&[5.0])], [1, 1, 0]);
}

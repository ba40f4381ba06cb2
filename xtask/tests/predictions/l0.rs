//! The basement's questions, asked of what it must agree with: the softmax that sees all scores.

use l1_tensor::ops::softmax_reference;

use super::{agree_closely, number, numbers};

/// The sum of e^(score - largest), as a softmax over all scores has it: its largest weight is 1 / s.
fn sum_of(scores: &[f32]) -> f32 {
    let mut weights = vec![0.0; scores.len()];
    softmax_reference(scores, &mut weights);
    1.0 / weights.iter().copied().fold(0.0, f32::max)
}

#[test]
fn a_running_sum_is_that_of_a_softmax_over_what_was_seen() {
    agree_closely(("l0", "running-softmax"), |facts| {
        let scores: Vec<f32> = numbers(&facts["parts"]).iter().map(|p| (*p as f32).ln()).collect();
        sum_of(&scores[..number(&facts["seen"])])
    });
}

#[test]
fn merged_parts_have_the_sum_of_the_whole() {
    agree_closely(("l0", "merged-parts"), |facts| {
        let (powers, keys) = (numbers(&facts["powers"]), numbers(&facts["keys"]));
        let part = |(power, keys): (&usize, &usize)| vec![(*power as f32).ln(); *keys];
        sum_of(&powers.iter().zip(&keys).flat_map(part).collect::<Vec<_>>())
    });
}

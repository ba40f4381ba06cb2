//! What a rejected draft is replaced by: a draw from what the model has more of than the draft.

use l4_sampler::{Distribution, DrawKey, Purpose};

use crate::chi_square::check_draws;
use crate::given::Noise;

fn of(shares: &[f32]) -> Distribution {
    let numbered: Vec<(u32, f32)> = (0..).zip(shares.iter().copied()).collect();
    Distribution::from_shares(&numbered).unwrap()
}

/// How often each of `n` tokens comes up when `u` takes `steps` values at equal distances.
fn sweep(n: usize, steps: u32, draw: impl Fn(f64) -> u32) -> Vec<u32> {
    let mut counts = vec![0; n];
    for step in 0..steps {
        counts[draw((f64::from(step) + 0.5) / f64::from(steps)) as usize] += 1;
    }
    counts
}

#[test]
fn it_is_what_the_model_has_more_of() {
    // p - q is 1/4, -1/4, 0, 1/8, -1/8: two thirds of token 0 and one third of token 3.
    let p = of(&[4.0, 1.0, 1.0, 2.0, 0.0]);
    let q = of(&[2.0, 3.0, 1.0, 1.0, 1.0]);
    let got = sweep(5, 3000, |u| p.draw_residual(&q, u));
    assert_eq!(got, [2000, 0, 0, 1000, 0], "3000 draws from max(0, p - q)");
}

#[test]
fn scale_does_not_matter() {
    // The same two, the second in shares of another size.
    let p = of(&[4.0, 1.0, 1.0, 2.0, 0.0]);
    let q = of(&[0.5, 0.75, 0.25, 0.25, 0.25]);
    let got = sweep(5, 3000, |u| p.draw_residual(&q, u));
    assert_eq!(got, [2000, 0, 0, 1000, 0], "3000 draws from max(0, p - q)");
}

#[test]
fn of_a_draft_made_without_chance_it_is_all_but_the_drafted_token() {
    let p = of(&[1.0, 2.0, 1.0]);
    let got = sweep(3, 400, |u| p.draw_residual(&Distribution::point(1), u));
    assert_eq!(got, [200, 0, 200], "400 draws");
}

#[test]
fn a_draft_of_other_tokens_takes_nothing_away() {
    let p = Distribution::from_shares(&[(10, 1.0), (20, 3.0)]).unwrap();
    let q = Distribution::from_shares(&[(0, 1.0), (15, 1.0), (30, 2.0)]).unwrap();
    let got = sweep(31, 400, |u| p.draw_residual(&q, u));
    assert_eq!((got[10], got[20]), (100, 300), "draws of the two tokens that p has");
}

#[test]
fn of_two_equal_distributions_it_is_either() {
    let p = of(&[1.0, 2.0, 1.0]);
    let got = sweep(3, 400, |u| p.draw_residual(&p.clone(), u));
    assert_eq!(got, [100, 200, 100], "400 draws where nothing is left of p - q");
}

#[test]
fn it_begins_where_the_first_token_with_a_remainder_does() {
    let p = of(&[1.0, 1.0, 2.0]);
    let q = of(&[2.0, 0.0, 2.0]);
    // Only token 1 has anything left.
    for u in [0.0, 0.5, 1.0 - f64::EPSILON / 2.0] {
        assert_eq!(p.draw_residual(&q, u), 1, "the only token left, at u = {u}");
    }
}

#[test]
fn draws_follow_the_residual_of_random_distributions() {
    let mut noise = Noise(3);
    for case in 0..5 {
        let n = [3, 20, 64, 65, 300][case];
        let mut random = || (0..n).map(|_| noise.uniform().powi(2) as f32).collect::<Vec<f32>>();
        let (p_shares, mut q_shares) = (random(), random());
        q_shares[0] = 0.0;
        let (p, q) = (of(&p_shares), of(&q_shares));
        let sum = |shares: &[f32]| shares.iter().map(|s| f64::from(*s)).sum::<f64>();
        let (p_sum, q_sum) = (sum(&p_shares), sum(&q_shares));
        let left = |(p, q): (&f32, &f32)| (f64::from(*p) / p_sum - f64::from(*q) / q_sum).max(0.0);
        let want: Vec<f64> = p_shares.iter().zip(&q_shares).map(left).collect();
        let mut counts = vec![0; n];
        for position in 0..20_000 {
            let key = DrawKey { seed: case as u64, sample: 0, position };
            counts[p.draw_residual(&q, key.uniform(Purpose::Residual)) as usize] += 1;
        }
        check_draws(format!("draw_residual over {n} tokens"), &counts, &want);
    }
}

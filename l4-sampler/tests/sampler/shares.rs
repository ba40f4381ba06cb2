//! A draw, on distributions that are given.

use l4_sampler::{Distribution, DrawKey, Purpose, RowError};

use crate::chi_square::check_draws;
use crate::given::Noise;
use crate::judge::{judge, within};

/// Shares of tokens 0, 1, 2 ..
fn of(shares: &[f32]) -> Distribution {
    let numbered: Vec<(u32, f32)> = (0..).zip(shares.iter().copied()).collect();
    Distribution::from_shares(&numbered).unwrap()
}

/// Shares whose sums are exact in whatever order: multiples of 1/64, some of them 0.
fn exact_shares(n: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise(seed);
    let mut shares: Vec<f32> = (0..n).map(|_| noise.below(5) as f32 / 64.0).collect();
    shares[noise.below(n)] = 1.0;
    shares
}

/// The definition: the first token whose summed share exceeds `u` times the sum of all.
fn walk(shares: &[f32], u: f64) -> u32 {
    let total: f64 = shares.iter().map(|s| f64::from(*s)).sum();
    let mut summed = 0.0;
    for (id, share) in (0..).zip(shares) {
        summed += f64::from(*share);
        if summed > u * total {
            return id;
        }
    }
    panic!("u = {u} lies behind all shares")
}

const LAST_U: f64 = 1.0 - f64::EPSILON / 2.0;

#[test]
fn a_draw_takes_the_first_token_whose_summed_share_exceeds_u() {
    // A quarter, a quarter, a half: where one ends the next one begins.
    let given = of(&[0.5, 0.5, 1.0]);
    let at = [0.0, 0.125, 0.25, 0.375, 0.5, 0.75, LAST_U];
    let got = at.map(|u| given.draw(u));
    assert_eq!(got, [0, 0, 1, 1, 2, 2, 2], "tokens of shares 1/4, 1/4, 1/2 at u = {at:?}");
}

#[test]
fn a_token_keeps_its_own_id() {
    let given = Distribution::from_shares(&[(3, 1.0), (70_000, 2.0), (151_935, 1.0)]).unwrap();
    let at = [0.0, 0.3, 0.74, 0.75, LAST_U];
    let got = at.map(|u| given.draw(u));
    assert_eq!(got, [3, 70_000, 70_000, 151_935, 151_935], "tokens at u = {at:?}");
    assert_eq!(given.draw(0.25), 70_000, "where the share of token 3 ends");
}

#[test]
fn a_token_without_a_share_is_never_drawn() {
    let given = of(&[0.0, 1.0, 0.0, -1.0, f32::NAN, f32::INFINITY, 3.0, 0.0]);
    assert_eq!(
        given.iter().collect::<Vec<_>>(),
        [(1, 0.25), (6, 0.75)],
        "tokens with a probability"
    );
    let got = [0.0, 0.2499, 0.25, LAST_U].map(|u| given.draw(u));
    assert_eq!(got, [1, 1, 6, 6], "tokens at both ends and where the shares meet");
}

#[test]
fn nothing_to_draw_from_is_an_error() {
    for shares in [&[][..], &[(0, 0.0)], &[(2, f32::NAN), (5, -1.0), (6, f32::INFINITY)]] {
        let got = Distribution::from_shares(shares).map(|_| ());
        assert_eq!(got, Err(RowError::NothingLeft), "a distribution of {shares:?}");
    }
}

#[test]
fn a_point_is_drawn_whatever_the_number() {
    let point = Distribution::point(17);
    for u in [0.0, 0.5, LAST_U] {
        assert_eq!(point.draw(u), 17, "the only token, at u = {u}");
    }
    assert_eq!((point.prob(17), point.prob(16), point.len()), (1.0, 0.0, 1), "of a point");
}

#[test]
fn long_rows_are_walked_as_short_ones() {
    for n in [1, 63, 64, 65, 128, 1000, 5000] {
        let shares = exact_shares(n, n as u64);
        let given = of(&shares);
        let total: f32 = shares.iter().sum();
        let mut noise = Noise(1);
        for i in 0..4000 {
            // Every other number lies exactly where one share ends and the next one begins.
            let u = match i % 2 {
                0 => noise.uniform(),
                _ => noise.below((total * 64.0) as usize) as f64 / f64::from(total * 64.0),
            };
            assert_eq!(given.draw(u), walk(&shares, u), "the token of {n} shares at u = {u}");
        }
        assert_eq!(given.draw(LAST_U), walk(&shares, LAST_U), "the last token of {n} shares");
    }
}

#[test]
fn probabilities_are_shares_of_the_whole() {
    let shares = exact_shares(300, 5);
    let total: f64 = shares.iter().map(|s| f64::from(*s)).sum();
    let want: Vec<f64> = shares.iter().map(|s| f64::from(*s) / total).collect();
    let given = of(&shares);
    let got: Vec<f64> = (0..300).map(|id| given.prob(id)).collect();
    judge("Distribution::prob, 300 shares", "probabilities", &got, &want, within(1e-15, 0.0));
    let listed: Vec<(u32, f64)> = (0..).zip(want).filter(|(_, p)| *p > 0.0).collect();
    assert_eq!(given.len(), listed.len(), "tokens with a probability");
    assert_eq!(
        given.iter().map(|(id, _)| id).collect::<Vec<_>>(),
        listed.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        "their ids, ascending"
    );
    assert_eq!(given.prob(300), 0.0, "the probability of a token beyond the last one");
}

#[test]
fn draws_by_philox_follow_the_shares() {
    let shares = exact_shares(200, 8);
    let given = of(&shares);
    let mut counts = vec![0; shares.len()];
    for position in 0..100_000 {
        let key = DrawKey { seed: 4, sample: 0, position };
        counts[given.draw(key.uniform(Purpose::Draw)) as usize] += 1;
    }
    let probs: Vec<f64> = shares.iter().map(|s| f64::from(*s)).collect();
    check_draws("Distribution::draw of 200 shares", &counts, &probs);
}

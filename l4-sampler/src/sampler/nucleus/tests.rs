use super::super::blocks::{block_maxima, largest, mean_logit, weigh};
use super::*;
use crate::distribution::BLOCK;

/// Candidates with shares in line as they stand, the first the likeliest.
fn line(shares: &[f32]) -> Vec<Candidate> {
    let of = |(id, share): (u32, &f32)| Candidate::new(Order::Likely, id, -(id as f32), *share);
    (0..).zip(shares).map(of).collect()
}

fn ids(candidates: &[Candidate]) -> Vec<u32> {
    let mut ids: Vec<u32> = candidates.iter().map(Candidate::id).collect();
    ids.sort_unstable();
    ids
}

/// The definition: a token stays if those in front of it have less than enough.
fn walk(shares: &[f32], enough: f64) -> usize {
    let mut before = 0.0;
    let mut kept = 0;
    for share in shares {
        if kept > 0 && before >= enough {
            break;
        }
        kept += 1;
        before += f64::from(*share);
    }
    kept
}

/// Sixteenths, so that sums are exact in any order.
fn shares(n: usize) -> Vec<f32> {
    let mut state = n as u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 40
    };
    (0..n).map(|_| (next() % 16) as f32 / 16.0).collect()
}

#[test]
fn the_candidate_that_crosses_stays() {
    let shares = [8.0, 4.0, 2.0, 1.0, 1.0];
    for (enough, want) in [
        (0.0, 1),
        (7.9, 1),
        (8.0, 1),
        (8.1, 2),
        (12.0, 2),
        (12.1, 3),
        (15.0, 4),
        (15.1, 5),
        (99.0, 5),
    ] {
        let mut kept = line(&shares);
        keep_mass(&mut kept, enough);
        assert_eq!(ids(&kept), (0..want).collect::<Vec<_>>(), "kept of {shares:?} for {enough}");
    }
}

#[test]
fn as_few_are_kept_as_by_walking_the_line() {
    for n in [1, 2, 3, 17, 64, 500, 2000] {
        let shares = shares(n);
        let total: f32 = shares.iter().sum();
        for step in 0..=40 {
            // A quarter of these are met exactly.
            let enough = f64::from((total * 4.0 * step as f32 / 40.0).round() / 4.0);
            let mut kept = line(&shares);
            kept.reverse();
            keep_mass(&mut kept, enough);
            let want: Vec<u32> = (0..walk(&shares, enough) as u32).collect();
            assert_eq!(ids(&kept), want, "kept of {n} candidates for {enough} of {total}");
        }
    }
}

#[test]
fn nothing_is_kept_of_nothing() {
    let mut none = Vec::new();
    keep_mass(&mut none, 0.5);
    assert!(none.is_empty(), "kept of no candidates: {none:?}");
}

#[test]
fn the_line_of_typical_p_begins_where_the_surprise_is_as_expected() {
    // Surprises of 1, 2, 3, 3 bits, of which 1.75 are expected: the second is nearest, then the first, then the others.
    let probs = [0.5f32, 0.25, 0.125, 0.125];
    let of = |(id, p): (u32, f32)| Candidate::new(Order::Likely, id, p.ln(), p * 2.0);
    let mut candidates: Vec<Candidate> = (0..).zip(probs).map(of).collect();
    line_up_by_surprise(&mut candidates);
    candidates.sort_unstable_by_key(|candidate| candidate.rank);
    let got: Vec<u32> = candidates.iter().map(Candidate::id).collect();
    assert_eq!(got, [1, 0, 2, 3], "ids, the most typical first");
}

/// The definition, over a row and any order.
fn sorted_walk(row: &[f32], shares: &[f32], order: Order, enough: f64) -> Vec<u32> {
    let mut there: Vec<u32> = (0..row.len() as u32).filter(|i| shares[*i as usize] > 0.0).collect();
    let value = |id: u32| order.value(row[id as usize]);
    there.sort_by(|a, b| value(*b).total_cmp(&value(*a)));
    let in_line: Vec<f32> = there.iter().map(|id| shares[*id as usize]).collect();
    there.truncate(walk(&in_line, enough));
    there.sort_unstable();
    there
}

#[test]
fn of_a_whole_row_the_same_are_kept() {
    for isa in Isa::available() {
        for (n, levels) in [(1, 1), (70, 3), (1000, 1), (3000, 5), (3000, 1000), (9000, 200)] {
            // Logits of -levels/64 to 0, some of which are NaN.
            let mut row: Vec<f32> =
                (0..n).map(|i| -((i * 7919 % n % levels) as f32) / 64.0).collect();
            (5..n).step_by(31).for_each(|i| row[i] = f32::NAN);
            let mut maxima = vec![0.0; n.div_ceil(BLOCK)];
            block_maxima(isa, &row, &mut maxima);
            let from = Blocks::new(&row, &maxima, largest(isa, &maxima), 1.0);
            let (mut shares, mut sums) = (vec![0.0; n], vec![0.0; n.div_ceil(BLOCK)]);
            weigh(isa, from, &mut shares, &mut sums);
            let total: f64 = sums.iter().sum();
            for order in [Order::Likely, by_surprise(mean_logit(isa, from, &shares))] {
                for p in [0.0, 0.3, 0.77, 0.999, 1.1] {
                    let lowest = order.value(from.floor()).min(order.value(from.top()));
                    let mut kept = Vec::new();
                    gather_mass(isa, &from, &shares, order, lowest, p * total, &mut kept);
                    let want = sorted_walk(&row, &shares, order, p * total);
                    let what =
                        format!("{n} tokens with {levels} values in order {order:?}, p {p}, {isa}");
                    assert_eq!(ids(&kept), want, "kept of {what}");
                }
            }
        }
    }
}

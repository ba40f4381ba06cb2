use l1_tensor::cpu::Isa;

use super::super::blocks::{block_maxima, gather, largest};
use super::*;
use crate::distribution::BLOCK;

/// Rows with many equal logits and some that cannot be chosen.
fn row(n: usize, levels: u64) -> Vec<f32> {
    let mut state = n as u64 * levels;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 40
    };
    let mut row: Vec<f32> =
        (0..n).map(|_| (next() % levels) as f32 * 16.0 / levels as f32 - 20.0).collect();
    for _ in 0..n / 20 {
        row[next() as usize % n] = f32::NEG_INFINITY;
        row[next() as usize % n] = f32::NAN;
    }
    row[n / 2] = -3.5;
    row
}

/// The definition: ids in the order of their logits, equal ones by id.
fn sorted(row: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..row.len() as u32).filter(|i| row[*i as usize] > -99.0).collect();
    ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize])); // Stable.
    ids
}

/// The maxima of a row's blocks.
fn maxima(isa: Isa, row: &[f32]) -> Vec<f32> {
    let mut maxima = vec![0.0; row.len().div_ceil(BLOCK)];
    block_maxima(isa, row, &mut maxima);
    maxima
}

#[test]
fn ranks_sort_as_values_do_and_equal_ones_by_id() {
    let values = [f32::MAX, 2.0, 1.0, 1e-45, 0.0, -1e-45, -1.0, -2.0, f32::MIN, f32::NEG_INFINITY];
    let ranks: Vec<u64> = values.iter().map(|value| rank(*value, 7)).collect();
    let mut in_order = ranks.clone();
    in_order.sort_unstable();
    assert_eq!(ranks, in_order, "ranks of {values:?}, which must ascend");
    in_order.dedup();
    assert_eq!(in_order.len(), values.len(), "different values have different ranks");
    assert!(rank(1.5, 3) < rank(1.5, 4), "of two equal values the lower id is in front");
    assert!(rank(1.5, u32::MAX) < rank(1.25, 0), "whatever the ids, the larger value is in front");
    assert!(rank(-0.0, 1) < rank(0.0, 2) && rank(0.0, 1) < rank(-0.0, 2), "0 and -0 are equal");
    assert_eq!(
        Candidate::new(Order::Likely, 151_935, -3.0, 0.1).id(),
        151_935,
        "the id comes back"
    );
}

#[test]
fn the_first_k_are_kept_whatever_the_order_they_came_in() {
    for (n, levels) in [(1, 3), (2, 1), (50, 4), (1000, 9), (1000, 1), (777, 100_000)] {
        let row = row(n, levels);
        let ids = sorted(&row);
        for k in [1, 2, 10, ids.len() - 1, ids.len(), ids.len() + 1, usize::MAX] {
            let k = k.max(1);
            // Back to front, so that nothing is in place by chance.
            let all = ids.iter().rev();
            let mut kept: Vec<Candidate> =
                all.map(|id| Candidate::new(Order::Likely, *id, row[*id as usize], 0.0)).collect();
            keep_first(&mut kept, k);
            kept.sort_unstable_by_key(|candidate| candidate.rank);
            let got: Vec<u32> = kept.iter().map(Candidate::id).collect();
            let want = &ids[..k.min(ids.len())];
            assert_eq!(got, want, "ids kept of {} with {levels} values, k {k}", ids.len());
        }
    }
}

#[test]
fn the_bar_is_the_kth_largest_maximum() {
    // Ten blocks, whose largest logits are 0 to 9, but not in order.
    let mut row = vec![-5.0; 10 * BLOCK];
    for b in 0..10 {
        row[b * BLOCK + 13] = (b * 7 % 10) as f32;
    }
    let maxima = maxima(Isa::best(), &row);
    let from = Blocks::new(&row, &maxima, 9.0, 1.0);
    let mut shuffled = Vec::new();
    let bars: Vec<f32> = (1..=10).map(|k| bar_of_top_k(&from, k, &mut shuffled)).collect();
    let want: Vec<f32> = (0..10).rev().map(|v| v as f32).collect();
    assert_eq!(bars, want, "bars of k = 1 to 10, for maxima of 9, 8 .. 0");
    let hot = Blocks::new(&row, &maxima, 9.0, 2.0);
    assert_eq!(
        bar_of_top_k(&hot, 3, &mut shuffled),
        -1.0,
        "(7 - 9) / 2: a bar is after temperature"
    );
}

#[test]
fn the_bar_lets_the_k_likeliest_pass() {
    for isa in Isa::available() {
        for (n, levels) in [(64, 5), (65, 2), (640, 3), (5000, 7), (5000, 100_000), (20_000, 1)] {
            let row = row(n, levels);
            let maxima = maxima(isa, &row);
            let from = Blocks::new(&row, &maxima, largest(isa, &maxima), 1.0);
            let ids = sorted(&row);
            for k in [1, 2, 7, 50, 78, 79, 80, 313, 314, 3000] {
                let bar = bar_of_top_k(&from, k, &mut Vec::new());
                let mut kept = Vec::new();
                gather(isa, from, Order::Likely, bar, f32::INFINITY, &mut kept);
                keep_first(&mut kept, k);
                let mut got: Vec<u32> = kept.iter().map(Candidate::id).collect();
                got.sort_unstable();
                let mut want = ids[..k.min(ids.len())].to_vec();
                want.sort_unstable();
                assert_eq!(
                    got, want,
                    "the {k} likeliest of {n} tokens with {levels} values, {isa}"
                );
            }
        }
    }
}

#[test]
fn few_pass_the_bar_where_logits_differ() {
    let row = row(60_000, 10_000_000);
    let maxima = maxima(Isa::best(), &row);
    let from = Blocks::new(&row, &maxima, largest(Isa::best(), &maxima), 1.0);
    let bar = bar_of_top_k(&from, 50, &mut Vec::new());
    let passing = row.iter().filter(|x| **x >= bar).count();
    assert!((50..200).contains(&passing), "{passing} of 60,000 tokens pass a bar for 50");
}

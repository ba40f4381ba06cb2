//! Random numbers by name: known answers, and that different names have nothing to do with each other.

use std::collections::HashSet;

use l4_sampler::philox::{fresh_seed, philox4x32};
use l4_sampler::{DrawKey, Purpose};

use crate::chi_square::{check_draws, upper_gamma};
use crate::judge::{judge, within};

const PURPOSES: [Purpose; 4] = [Purpose::Draw, Purpose::Accept, Purpose::Residual, Purpose::Bonus];

fn key(seed: u64, sample: u32, position: u32) -> DrawKey {
    DrawKey { seed, sample, position }
}

/// From Random123's `kat_vectors` (the authors' implementation): counter, key, answer.
#[test]
fn the_known_answers() {
    const PI: [u32; 6] =
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344, 0xa409_3822, 0x299f_31d0];
    let answers = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [PI[0], PI[1], PI[2], PI[3]],
            [PI[4], PI[5]],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, want) in answers {
        let got = philox4x32(key, counter);
        let hex = |words: [u32; 4]| words.map(|w| format!("{w:08x}")).join(" ");
        assert_eq!(
            hex(got),
            hex(want),
            "the answer for counter {} and key {key:08x?}",
            hex(counter)
        );
    }
}

/// The words of the counter are those of the documentation: a change of it would change every answer that somebody
/// wrote down with its seed.
#[test]
fn a_uniform_is_53_bits_of_the_answer_for_its_name() {
    // Seed, sample, position and purpose 0: the first known answer. 0x6627e8d5_e169c58d >> 11, over 2^53.
    let got = key(0, 0, 0).uniform(Purpose::Draw);
    assert_eq!(got, 0x000c_c4fd_1abc_2d38_u64 as f64 / (1u64 << 53) as f64, "seed 0, position 0");
    let seed = 0xa409_3822_1319_8a2e;
    for (sample, position, purpose) in
        [(7, 0, Purpose::Draw), (0, 9, Purpose::Accept), (3, 4, Purpose::Bonus)]
    {
        let out = philox4x32([0x1319_8a2e, 0xa409_3822], [position, 0, sample, purpose as u32]);
        let bits = (u64::from(out[0]) << 32 | u64::from(out[1])) >> 11;
        let got = key(seed, sample, position).uniform(purpose);
        assert_eq!(
            got * (1u64 << 53) as f64,
            bits as f64,
            "sample {sample}, position {position}, {purpose:?}"
        );
    }
}

#[test]
fn a_number_is_in_0_to_1_and_1_is_not_in_it() {
    let numbers: Vec<f64> = (0..100_000).map(|i| key(1, 0, i).uniform(Purpose::Draw)).collect();
    assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
    // The largest answer that 64 bits can be still falls below 1.
    assert!((u64::MAX >> 11) as f64 / ((1u64 << 53) as f64) < 1.0);
    assert!(numbers.iter().any(|u| *u > 0.9999) && numbers.iter().any(|u| *u < 0.0001));
}

#[test]
fn every_part_of_the_name_counts() {
    let mut seen = HashSet::new();
    let seeds = [0, 1, 1 << 31, 1 << 32, 1 << 33, 1 << 52, u64::MAX];
    let mut names = 0;
    for seed in seeds {
        for sample in [0, 1, 2] {
            for position in [0, 1, 2, 100_000] {
                for purpose in PURPOSES {
                    names += 1;
                    seen.insert(key(seed, sample, position).uniform(purpose).to_bits());
                }
            }
        }
    }
    assert_eq!(seen.len(), names, "different numbers for so many different names");
}

#[test]
fn a_later_place_is_the_same_wherever_one_counts_from() {
    let from = key(5, 2, 10);
    for n in [0, 1, 7] {
        assert_eq!(from.ahead(n), key(5, 2, 10 + n), "{n} ahead of position 10");
    }
    assert_eq!(key(5, 2, u32::MAX).ahead(1), key(5, 2, 0), "behind the last position");
}

/// 100,000 numbers in 100 bins, along each part of the name.
#[test]
fn numbers_are_spread_evenly_along_every_part_of_the_name() {
    type Name = fn(u32) -> f64;
    let walks: [(&str, Name); 4] = [
        ("positions", |i| key(42, 0, i).uniform(Purpose::Draw)),
        ("seeds", |i| key(u64::from(i), 0, 17).uniform(Purpose::Draw)),
        ("samples", |i| key(42, i, 17).uniform(Purpose::Accept)),
        ("high halves of seeds", |i| key(u64::from(i) << 32, 0, 17).uniform(Purpose::Residual)),
    ];
    for (what, number) in walks {
        let mut counts = [0; 100];
        for i in 0..100_000 {
            counts[(number(i) * 100.0) as usize] += 1;
        }
        check_draws(format!("numbers of 100,000 {what}, in hundredths"), &counts, &[1.0; 100]);
    }
}

/// Pairs of numbers whose names differ in one part, in a grid of 10 by 10: if one told anything of the other, some
/// fields would be fuller.
#[test]
fn neighbours_tell_nothing_of_each_other() {
    type Pair = fn(u32) -> (f64, f64);
    let pairs: [(&str, Pair); 5] = [
        ("position and the next", |i| {
            (key(1, 0, 2 * i).uniform(Purpose::Draw), key(1, 0, 2 * i + 1).uniform(Purpose::Draw))
        }),
        ("draw and accept", |i| {
            (key(2, 0, i).uniform(Purpose::Draw), key(2, 0, i).uniform(Purpose::Accept))
        }),
        ("accept and residual", |i| {
            (key(2, 0, i).uniform(Purpose::Accept), key(2, 0, i).uniform(Purpose::Residual))
        }),
        ("sample 0 and sample 1", |i| {
            (key(3, 0, i).uniform(Purpose::Draw), key(3, 1, i).uniform(Purpose::Draw))
        }),
        ("seed and the next", |i| {
            (key(8, 0, i).uniform(Purpose::Draw), key(9, 0, i).uniform(Purpose::Draw))
        }),
    ];
    for (what, pair) in pairs {
        let mut counts = [0; 100];
        for i in 0..100_000 {
            let (a, b) = pair(i);
            counts[(a * 10.0) as usize * 10 + (b * 10.0) as usize] += 1;
        }
        check_draws(format!("pairs of {what}, 10 by 10"), &counts, &[1.0; 100]);
    }
}

#[test]
fn one_bit_of_the_name_changes_half_of_the_answer() {
    let distance = |a: [u32; 4], b: [u32; 4]| -> u32 {
        a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
    };
    let (key, counter) = ([3, 5], [7, 0, 1, 2]);
    let start = philox4x32(key, counter);
    for bit in 0..192 {
        let (mut k, mut c) = (key, counter);
        if bit < 128 {
            c[bit / 32] ^= 1 << (bit % 32)
        } else {
            k[bit / 32 - 4] ^= 1 << (bit % 32)
        }
        // 64 of 128 on average, with a deviation of 5.7: this is five of them.
        let changed = distance(start, philox4x32(k, c));
        assert!((35..=93).contains(&changed), "bit {bit} changed {changed} of 128 bits");
    }
}

#[test]
fn a_fresh_seed_survives_json_and_is_another_one_every_time() {
    let seeds: HashSet<u64> = (0..100).map(|_| fresh_seed()).collect();
    assert_eq!(seeds.len(), 100);
    assert!(seeds.iter().all(|s| *s < 1 << 53));
    // 53 bits that are set half of the time: all of them, in a hundred seeds.
    assert_eq!(seeds.iter().fold(0, |all, s| all | s), (1 << 53) - 1, "bits that ever are set");
}

/// The test of tests: what tables say of the chi-square law (upper 5 %, 1 % and 0.1 % points).
#[test]
fn the_chi_square_law_is_that_of_the_tables() {
    let table = [
        (1.0, 3.841_458_820_694_124, 0.05),
        (1.0, 6.634_896_601_021_213, 0.01),
        (2.0, 5.991_464_547_107_98, 0.05),
        (10.0, 18.307_038_053_275_14, 0.05),
        (10.0, 29.588_298_445_074_42, 0.001),
        (100.0, 124.342_113_404_004_1, 0.05),
        (100.0, 77.929_465_165_017_3, 0.95),
    ];
    let got: Vec<f64> = table.iter().map(|(k, x, _)| upper_gamma(k / 2.0, x / 2.0)).collect();
    let want: Vec<f64> = table.iter().map(|(_, _, p)| *p).collect();
    judge("the upper tail of chi-square", "p-values", &got, &want, within(1e-9, 0.0));
}

#[test]
fn the_chi_square_test_sees_a_loaded_die() {
    let loaded = [17_000, 17_000, 17_000, 17_000, 16_300, 15_700];
    let message = std::panic::catch_unwind(|| check_draws("a die", &loaded, &[1.0; 6]))
        .expect_err("this die is loaded");
    let message = message.downcast_ref::<String>().expect("a message");
    assert!(message.contains("do not come from this distribution"), "{message}");
    assert!(message.contains("worst at  token 5"), "{message}");
    check_draws("a fair die", &[16_700, 16_600, 16_800, 16_500, 16_666, 16_734], &[1.0; 6]);
}

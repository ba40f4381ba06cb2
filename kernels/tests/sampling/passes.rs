//! How a block reads a row: rows that are aligned and rows that are not, lists that are too short, sums of more
//! than 32 bits, and any number of threads.

use kernels::ops::SampleRow;
use kernels::{Args, Buffer, Launch};

use crate::draws::{PLAIN, assert_drawn, drawn};
use crate::largest::{assert_largest, line};
use crate::{Logits, Random, common};

/// Rules of each kind, and all of them together.
fn mixtures(random: &mut Random) -> Vec<SampleRow> {
    let mut rule = |top_k, top_p, min_p| {
        let uniform = random.uniform();
        SampleRow { temperature: 0.8, top_p, min_p, uniform, top_k }
    };
    vec![
        rule(0, 1.0, 0.0),
        rule(0, 0.9, 0.0),
        rule(30, 1.0, 0.0),
        rule(0, 1.0, 0.02),
        rule(30, 0.9, 0.02),
        SampleRow { temperature: 0.0, ..PLAIN },
    ]
}

/// Tokens of rows that are `apart` elements apart and begin `offset` elements into the memory; by two warps,
/// so that each has to go on several times.
fn tokens(rows: &[Vec<f32>], rules: &[SampleRow], offset: usize, apart: usize) -> Vec<u32> {
    let gpu = common::gpu().unwrap();
    let width = rows[0].len();
    let mut spread = vec![1e30; offset];
    for row in rows {
        spread.extend_from_slice(row);
        spread.resize(spread.len() + apart, 1e30);
    }
    let memory = Buffer::from_slice(&gpu, &spread).unwrap();
    let logits = memory.view().cast::<f32>().part(offset, spread.len() - offset);
    let rules = Buffer::from_slice(&gpu, rules).unwrap();
    let mut out = Buffer::zeroed(&gpu, 4 * rows.len()).unwrap();
    let args = Args::new().view(logits).long(width + apart).int(width);
    let args = args.view(rules.view().cast::<SampleRow>()).view_mut(&out.view_mut().cast::<u32>());
    // SAFETY: a block for each row, with its rules and room for its token.
    unsafe { Launch::new("sample", "sample", rows.len(), 64).enqueue(&gpu, args) }.unwrap();
    out.to_vec().unwrap()
}

#[test]
fn short_rows_of_every_width_draw_what_sorting_draws() {
    let mut random = Random::new(21);
    for width in 1..=70 {
        let rules = mixtures(&mut random);
        let rows: Vec<_> = rules.iter().map(|_| random.logits(width, 2.0)).collect();
        assert_drawn(&rows, &rules);
        assert_largest(&rows[..2], &[1, width.min(9)]);
    }
}

#[test]
fn alignment_changes_no_token() {
    let mut random = Random::new(22);
    for width in [4095, 4096, 4097] {
        let rules = mixtures(&mut random);
        let rows: Vec<_> = rules.iter().map(|_| random.logits(width, 2.0)).collect();
        let wanted: Vec<u32> =
            rows.iter().zip(&rules).map(|(row, rule)| drawn(row, rule)).collect();
        for (offset, apart) in [(0, 0), (0, 1), (0, 4), (1, 0), (2, 3), (4, 4)] {
            let got = tokens(&rows, &rules, offset, apart);
            assert_eq!(got, wanted, "width {width}, offset {offset}, {apart} apart");
        }
        assert_largest(&rows[..2], &[8]);
    }
}

#[test]
fn any_number_of_threads_draws_and_finds_the_same() {
    let gpu = common::gpu().unwrap();
    let mut random = Random::new(23);
    let rules = mixtures(&mut random);
    let (width, k) = (5000, 40);
    let rows: Vec<_> = (0..rules.len()).map(|i| random.logits(width, [0.05, 2.0][i % 2])).collect();
    let logits = Logits::new(&gpu, &rows, 0);
    let rules_there = Buffer::from_slice(&gpu, &rules).unwrap();
    let wanted: Vec<u32> = rows.iter().zip(&rules).map(|(row, rule)| drawn(row, rule)).collect();
    let largest: Vec<u32> = rows.iter().flat_map(|row| line(row)[..k].to_vec()).collect();
    for threads in [64, 128, 512, 1024] {
        common::under_every_order(|| {
            let mut out = Buffer::zeroed(&gpu, 4 * rows.len()).unwrap();
            let args = || Args::new().ptr(logits.mat().ptr).long(logits.stride).int(width);
            let here = args().view(rules_there.view().cast::<SampleRow>());
            let here = here.view_mut(&out.view_mut().cast::<u32>());
            // SAFETY: a block for each row, with its rules and room for its token.
            unsafe { Launch::new("sample", "sample", rows.len(), threads).enqueue(&gpu, here) }
                .unwrap();
            let drawn: Vec<u32> = out.to_vec().unwrap();
            assert_eq!(drawn, wanted, "{threads} threads");

            let mut values = Buffer::zeroed(&gpu, 4 * rows.len() * k).unwrap();
            let mut ids = Buffer::zeroed(&gpu, 4 * rows.len() * k).unwrap();
            let here = args().int(k).view_mut(&values.view_mut().cast::<f32>()).long(k);
            let here = here.view_mut(&ids.view_mut().cast::<u32>());
            // SAFETY: a block for each row, with room for its k largest.
            unsafe { Launch::new("top_k", "top_k", rows.len(), threads).enqueue(&gpu, here) }
                .unwrap();
            assert_eq!(ids.to_vec::<u32>().unwrap(), largest, "{threads} threads");
            common::bytes(&drawn)
        });
    }
}

#[test]
fn rows_of_equal_logits_keep_the_first() {
    let mut random = Random::new(24);
    let mut rules = mixtures(&mut random);
    rules.push(SampleRow { top_p: 0.6, uniform: 0.123, ..PLAIN });
    rules.push(SampleRow { top_k: 4000, uniform: 0.77, ..PLAIN });
    assert_drawn(&vec![vec![-1.75; 6000]; rules.len()], &rules);
    assert_largest(&[vec![0.5; 6000], vec![f32::NAN; 6000]], &[1, 64]);
}

#[test]
fn more_equal_logits_at_the_threshold_than_the_list_has_room_for() {
    let mut random = Random::new(25);
    // 4,200 tokens share the logit at which each filter ends; others are above and below.
    let mut row = random.logits(8000, 0.5);
    for (i, x) in row.iter_mut().enumerate() {
        *x = if i % 40 < 21 { 3.0 } else { 3.0 + *x };
    }
    let rule = |top_k, top_p, uniform| SampleRow { top_k, top_p, uniform, ..PLAIN };
    let rules = [
        rule(0, 0.6, 0.313),
        rule(0, 0.75, 0.913),
        rule(3500, 1.0, 0.513),
        rule(3500, 0.9, 0.713),
        rule(700, 0.5, 0.6131),
    ];
    let above = row.iter().filter(|x| **x > 3.0).count();
    assert!((1300..2700).contains(&above), "{above}");
    assert_drawn(&vec![row; rules.len()], &rules);
}

#[test]
fn a_top_k_above_the_number_of_threads_keeps_so_many() {
    let mut random = Random::new(26);
    let mut rules = Vec::new();
    for top_k in [90, 200, 1023, 1025, 2000, 2499] {
        for (top_p, min_p) in [(1.0, 0.0), (0.8, 0.0), (0.9, 0.01)] {
            let uniform = random.uniform();
            rules.push(SampleRow { temperature: 1.0, top_k, top_p, min_p, uniform });
        }
    }
    for width in [300, 2500] {
        let rows: Vec<_> = rules.iter().map(|_| random.logits(width, 1.0)).collect();
        assert_drawn(&rows, &rules);
    }
}

#[test]
fn sums_carry_from_their_lower_words() {
    // One likely token, and 6,000 whose shares of about 2^41 have lower words that overflow thousands of times.
    let mut row = vec![0.371; 6000];
    row[2345] = 2.5;
    let rules: Vec<SampleRow> = (0..12)
        .map(|i| SampleRow {
            uniform: (i as f32 * 493.0 + 200.5) / 6008.4,
            top_p: [1.0, 0.95, 0.5][i % 3],
            ..PLAIN
        })
        .collect();
    assert_drawn(&vec![row; rules.len()], &rules);
    // Whole numbers: half of the tokens are half of the mass.
    let half = SampleRow { top_p: 0.5, uniform: 0.999_99, ..PLAIN };
    assert_eq!(tokens(&[vec![1.0; 8192]], &[half], 0, 0), [4095]);
}

#[test]
fn numbers_that_are_none_lie_anywhere_in_a_long_row() {
    let mut random = Random::new(27);
    for apart in [0, 1] {
        let rules = mixtures(&mut random);
        let mut rows: Vec<_> = rules.iter().map(|_| random.logits(4096, 2.0)).collect();
        for row in &mut rows {
            for special in [f32::NAN, -f32::NAN, f32::NEG_INFINITY, f32::MIN] {
                for _ in 0..20 {
                    row[(random.uniform() * 4096.0) as usize] = special;
                }
            }
        }
        let wanted: Vec<u32> =
            rows.iter().zip(&rules).map(|(row, rule)| drawn(row, rule)).collect();
        assert_eq!(tokens(&rows, &rules, 0, apart), wanted);
        assert_largest(&rows, &[1, 30, 64]);
        // An infinity is the largest finite number, which may also be there.
        for row in &mut rows {
            row[4000] = f32::INFINITY;
            row[1000] = f32::MAX;
            row[3000] = f32::INFINITY;
        }
        let wanted: Vec<u32> =
            rows.iter().zip(&rules).map(|(row, rule)| drawn(row, rule)).collect();
        assert_eq!(tokens(&rows, &rules, 0, apart), wanted);
        assert!(wanted.iter().all(|token| [1000, 3000, 4000].contains(token)), "{wanted:?}");
        assert_largest(&rows, &[1, 30, 64]);
    }
}

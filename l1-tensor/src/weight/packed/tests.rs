use super::*;

/// A matrix in which every weight encodes its position, by an integer small enough for bf16.
fn packed(n: usize, k: usize, order: RowOrder) -> PackedBf16 {
    let fill = |i: usize, out: &mut [f32]| -> Result<()> {
        out.iter_mut().enumerate().for_each(|(j, w)| *w = (i * k + j + 1) as f32);
        Ok(())
    };
    PackedBf16::pack(&ThreadPool::new(2), n, k, order, &fill).unwrap()
}

/// The weight in half `odd` of a lane.
fn weight(w: &PackedBf16, line: usize, lane: usize, odd: bool) -> f32 {
    let both = w.lines()[line].0[lane];
    f32::from_bits(if odd { both & 0xffff_0000 } else { both << 16 })
}

#[test]
fn a_panel_lies_in_memory_as_it_is_drawn() {
    // All weights are integers up to 35 * 7 = 245, exact in bf16.
    let (n, k) = (35, 7);
    let w = packed(n, k, RowOrder::Plain);
    assert_eq!(w.lines().len(), 2 * 4 * 2, "lines of 2 panels, 4 pairs, 2 vectors");
    for i in 0..64 {
        for j in 0..8 {
            let line = (i / 32 * 4 + j / 2) * 2 + i % 32 / 16;
            let want = if i < n && j < k { (i * k + j + 1) as f32 } else { 0.0 };
            let got = weight(&w, line, i % 16, j % 2 == 1);
            assert_eq!(got, want, "weight ({i}, {j}) of a plain [{n}, {k}]");
        }
    }
}

#[test]
fn a_gate_and_its_up_share_a_panel_and_a_lane() {
    let (n, k) = (34, 5); // 17 gates, then 17 ups: two panels.
    let w = packed(n, k, RowOrder::GateUp);
    assert_eq!(w.lines().len(), 2 * 3 * 2, "lines of 2 panels, 3 pairs, 2 vectors");
    for (name, vector, first) in [("gate", 0, 0), ("up", 1, 17)] {
        for i in 0..32 {
            for j in 0..6 {
                let line = (i / 16 * 3 + j / 2) * 2 + vector;
                let there = i < 17 && j < k;
                let want = if there { ((first + i) * k + j + 1) as f32 } else { 0.0 };
                let got = weight(&w, line, i % 16, j % 2 == 1);
                assert_eq!(got, want, "{name} ({i}, {j}) of a gate-up [{n}, {k}]");
            }
        }
    }
}

use super::*;

/// A row of Q5_1 blocks whose codes are `code(j)`.
fn row(k: usize, d: f32, m: f32, code: impl Fn(usize) -> u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in 0..k / 32 {
        let codes: Vec<u8> = (0..32).map(|j| code(32 * block + j)).collect();
        bytes.extend(f16::from_f32(d).to_le_bytes());
        bytes.extend(f16::from_f32(m).to_le_bytes());
        let high: u32 = codes.iter().enumerate().map(|(j, c)| u32::from(c >> 4) << j).sum();
        bytes.extend(high.to_le_bytes());
        bytes.extend((0..16).map(|j| (codes[j] & 15) | codes[j + 16] << 4));
    }
    bytes
}

#[test]
fn a_unit_lies_in_memory_as_it_is_drawn() {
    let (n, k) = (35, 64);
    let code = |i: usize, j: usize| ((7 * i + 5 * j) % 32) as u8;
    let rows: Vec<_> = (0..n).map(|i| row(k, i as f32, -0.5, |j| code(i, j))).collect();
    let parts = [BlockPart { rows: n, format: BlockFormat::Q5_1 }];
    let pool = ThreadPool::new(2);
    let fetch = |i: usize| Ok::<_, Error>(rows[i].as_slice());
    let packed = PackedBlocks::pack(&pool, k, RowOrder::Plain, &parts, &fetch).unwrap();
    // Scales, minima, and twice five lines of codes.
    assert_eq!(packed.lines.len(), 2 * 2 * 12, "lines of 2 panels, 2 units");
    let bytes = bytes_of(&packed.lines);
    for i in 0..n {
        for j in 0..k {
            let unit = &bytes[(i / 32 * 2 + j / 32) * 12 * 64..][..12 * 64];
            let (output, j_in_unit) = (i % 32, j % 32);
            let d = u16::from_le_bytes([unit[2 * output], unit[2 * output + 1]]);
            assert_eq!(f16::from_bits(d).to_f32(), i as f32, "d of row {i}");
            let step = &unit[(2 + j_in_unit / 16 * 5) * 64..][..5 * 64];
            let (half, t) = (output / 8, j_in_unit % 16 / 2);
            let lane = 2 * (output % 8) + j_in_unit % 2;
            let word = &step[64 * half + 4 * lane..][..4];
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let got = word >> (4 * t) & 15 | u32::from(step[256 + 16 * half + lane] >> t & 1) << 4;
            assert_eq!(got, u32::from(code(i, j)), "code ({i}, {j})");
        }
    }
}

#[test]
fn a_weight_is_scale_times_code_and_minimum() {
    let (n, k) = (3, 32);
    let rows: Vec<_> = (0..n).map(|i| row(k, 0.25 * i as f32, -1.5, |j| j as u8)).collect();
    let parts = [BlockPart { rows: n, format: BlockFormat::Q5_1 }];
    let fetch = |i: usize| Ok::<_, Error>(rows[i].as_slice());
    let packed =
        PackedBlocks::pack(&ThreadPool::new(1), k, RowOrder::Plain, &parts, &fetch).unwrap();
    let mut out = vec![0.0; k];
    for i in 0..n {
        packed.row(i, &mut out).unwrap();
        for (j, got) in out.iter().enumerate() {
            assert_eq!(*got, 0.25 * i as f32 * j as f32 - 1.5, "weight ({i}, {j})");
        }
    }
}

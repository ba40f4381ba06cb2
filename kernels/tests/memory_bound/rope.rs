//! Rotary position embedding.

use kernels::{Buffer, Float, ops};

use crate::common::{bytes, gpu, under_every_order};
use crate::field::{Field, Layout, numbers};
use crate::{bits, refused};

/// Heads of tokens, turned one pair after the other. Rust fuses no products.
fn turn(x: &mut [f32], heads: usize, dim: usize, cos: &[f32], sin: &[f32], half: usize) {
    for (h, head) in x.chunks_mut(dim).enumerate() {
        let token = h / heads;
        for i in 0..half {
            let (c, s) = (cos[token * half + i], sin[token * half + i]);
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * c - b * s;
            head[i + half] = b * c + a * s;
        }
    }
}

#[test]
fn pairs_are_turned_to_the_bit_and_the_rest_of_a_head_stays() {
    let Some(gpu) = gpu() else { return };
    let shapes =
        [(128, 64, 5), (64, 32, 9), (18, 9, 3), (60, 30, 1), (64, 8, 2), (20, 8, 33), (2, 1, 7)];
    for (dim, half, heads) in shapes {
        let tokens = 3;
        let x = numbers(1, tokens * heads * dim);
        let (cos, sin) = (numbers(2, tokens * half), numbers(3, tokens * half));
        let mut want = x.clone();
        turn(&mut want, heads, dim, &cos, &sin, half);
        for (packed, angles) in [(0, 0), (1, 1), (2, 0), (0, 2)] {
            let rows = Layout::all(tokens, heads * dim)[packed];
            let table = Layout::all(tokens, half)[angles];
            let mut field = Field::new(&gpu, Float::F32, rows, &x);
            let cos = Field::new(&gpu, Float::F32, table, &cos);
            let sin = Field::new(&gpu, Float::F32, Layout::all(tokens, half)[packed], &sin);
            ops::rope(&gpu, field.heads_mut(heads), cos.mat(), sin.mat()).unwrap();
            assert_eq!(bits(&field.read()), bits(&want), "{heads} heads of {dim}, {rows:?}");
        }
    }
}

#[test]
fn a_head_wider_than_a_block_of_threads_is_turned_too() {
    let Some(gpu) = gpu() else { return };
    let (dim, half, heads) = (2200, 1100, 2);
    let x = numbers(4, heads * dim);
    let (cos, sin) = (numbers(5, half), numbers(6, half));
    let mut want = x.clone();
    turn(&mut want, heads, dim, &cos, &sin, half);
    let mut field = Field::new(&gpu, Float::F32, Layout::dense(1, heads * dim), &x);
    let cos = Field::new(&gpu, Float::F32, Layout::dense(1, half), &cos);
    let sin = Field::new(&gpu, Float::F32, Layout::dense(1, half), &sin);
    ops::rope(&gpu, field.heads_mut(heads), cos.mat(), sin.mat()).unwrap();
    assert_eq!(bits(&field.read()), bits(&want));
}

#[test]
fn angles_are_right_up_to_position_131072() {
    let Some(gpu) = gpu() else { return };
    let positions = [0i32, 1, 2, 63, 4095, 32_767, 99_991, 131_071, 131_072];
    for half in [1, 9, 32, 64] {
        let frequency = |i: usize| 1.0 / 500_000f32.powf(2.0 * i as f32 / (2 * half) as f32);
        let inv_freq: Vec<f32> = (0..half).map(frequency).collect();
        let p = Buffer::from_slice(&gpu, &positions).unwrap();
        let f = Buffer::from_slice(&gpu, &inv_freq).unwrap();
        for scaling in [1.0f32, 1.25] {
            for layout in Layout::all(positions.len(), half) {
                let mut cos = Field::unwritten(&gpu, Float::F32, layout);
                let mut sin = Field::unwritten(&gpu, Float::F32, layout);
                let (p, f) = (p.view().cast(), f.view().cast());
                ops::rope_angles(&gpu, p, f, scaling, cos.mat_mut(), sin.mat_mut()).unwrap();
                let (cos, sin) = (cos.read(), sin.read());
                for (at, (cos, sin)) in cos.iter().zip(&sin).enumerate() {
                    // What is rounded is the product: from there on f64 knows every digit.
                    let angle = positions[at / half] as f32 * inv_freq[at % half];
                    let (s, c) = f64::from(angle).sin_cos();
                    let (s, c) = (s * f64::from(scaling), c * f64::from(scaling));
                    let wrong = (f64::from(*cos) - c).abs().max((f64::from(*sin) - s).abs());
                    assert!(wrong < 3e-7, "cos and sin of {angle}: {cos}, {sin}, not {c}, {s}");
                }
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_in_a_batch() {
    let Some(gpu) = gpu() else { return };
    let (tokens, heads, dim, half) = (6, 4, 60, 30);
    let width = heads * dim;
    let x = numbers(7, tokens * width);
    let (cos, sin) = (numbers(8, tokens * half), numbers(9, tokens * half));
    let run = |from: usize, to: usize| {
        let n = to - from;
        let rows = Layout::dense(n, width);
        let mut field = Field::new(&gpu, Float::F32, rows, &x[from * width..to * width]);
        let table = Layout::dense(n, half);
        let cos = Field::new(&gpu, Float::F32, table, &cos[from * half..to * half]);
        let sin = Field::new(&gpu, Float::F32, table, &sin[from * half..to * half]);
        ops::rope(&gpu, field.heads_mut(heads), cos.mat(), sin.mat()).unwrap();
        bits(&field.read())
    };
    let batch = run(0, tokens);
    for t in 0..tokens {
        assert_eq!(run(t, t + 1), batch[t * width..(t + 1) * width]);
    }
}

#[test]
fn no_order_of_threads_changes_a_turn() {
    let Some(gpu) = gpu() else { return };
    let x = numbers(10, 3 * 5 * 18);
    let angles = numbers(11, 3 * 9);
    under_every_order(|| {
        let mut field = Field::new(&gpu, Float::F32, Layout::dense(3, 5 * 18), &x);
        let angles = Field::new(&gpu, Float::F32, Layout::dense(3, 9), &angles);
        ops::rope(&gpu, field.heads_mut(5), angles.mat(), angles.mat()).unwrap();
        bytes(&field.read())
    });
}

#[test]
fn nothing_to_turn_is_no_work() {
    let Some(gpu) = gpu() else { return };
    let none = Field::new(&gpu, Float::F32, Layout::dense(2, 0), &[]);
    let x = numbers(12, 2 * 16);
    let mut field = Field::new(&gpu, Float::F32, Layout::dense(2, 16), &x);
    ops::rope(&gpu, field.heads_mut(2), none.mat(), none.mat()).unwrap();
    assert_eq!(field.read(), x);
    let mut empty = Field::new(&gpu, Float::F32, Layout::dense(0, 16), &[]);
    let angles = Field::new(&gpu, Float::F32, Layout::dense(0, 4), &[]);
    ops::rope(&gpu, empty.heads_mut(2), angles.mat(), angles.mat()).unwrap();
}

#[test]
fn shapes_that_do_not_fit_are_named_with_their_numbers() {
    let Some(gpu) = gpu() else { return };
    let mut x = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 16));
    let cos = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 4));
    let wide = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 5));
    let few = Field::unwritten(&gpu, Float::F32, Layout::dense(2, 4));
    let narrow = Field::unwritten(&gpu, Float::Bf16, Layout::dense(3, 4));
    let mut rope = |cos: &Field, sin: &Field| ops::rope(&gpu, x.heads_mut(2), cos.mat(), sin.mat());
    refused(rope(&wide, &wide), &["[3, 5]", "heads of 8"]);
    refused(rope(&cos, &wide), &["sin", "[3, 5]"]);
    refused(rope(&few, &few), &["[2, 4]", "3 tokens"]);
    refused(rope(&narrow, &cos), &["Bf16", "F32"]);
    let positions = Buffer::zeroed(&gpu, 4 * 3).unwrap();
    let inv_freq = Buffer::zeroed(&gpu, 4 * 4).unwrap();
    let (p, f) = (positions.view().cast(), inv_freq.view().cast());
    let (mut cos, mut few) = (cos, few);
    let angles = ops::rope_angles(&gpu, p, f, 1.0, cos.mat_mut(), few.mat_mut());
    refused(angles, &["sin", "[2, 4]", "3 positions", "4 frequencies"]);
}

//! `l0.rope`.

use std::sync::Arc;

use kernels::{Float, Gpu, HeadsMut, ops};

use crate::{mat, numbers, upload};

/// Turn `[tokens, heads, dim]` by `cos` and `sin` `[tokens, half]`.
fn run(
    gpu: &Arc<Gpu>,
    x: &[f32],
    [tokens, heads, dim]: [usize; 3],
    cos: &[f32],
    sin: &[f32],
) -> Vec<f32> {
    let half = cos.len() / tokens;
    let (mut x, cos, sin) = (upload(gpu, x), upload(gpu, cos), upload(gpu, sin));
    let shape = [tokens, heads, dim];
    let to = HeadsMut::new(x.view_mut(), Float::F32, shape, heads * dim).unwrap();
    ops::rope(gpu, to, mat(&cos, tokens, half), mat(&sin, tokens, half)).unwrap();
    x.to_vec().unwrap()
}

#[test]
fn a_pair_is_half_of_what_rotates_apart() {
    let gpu = crate::gpu();
    // A quarter of a turn moves all of an element to its partner.
    for (dim, half) in [(8, 4), (20, 10), (64, 32)] {
        let (cos, sin) = (vec![0.0; half], vec![1.0; half]);
        for i in [0, 1, half - 1] {
            let mut x = vec![0.0; dim];
            x[i] = 3.0;
            let mut turned = vec![0.0; dim];
            turned[i + half] = 3.0;
            assert_eq!(run(&gpu, &x, [1, 1, dim], &cos, &sin), turned, "element {i} of {dim}");
            let mut back = vec![0.0; dim];
            back[i] = -3.0;
            assert_eq!(run(&gpu, &turned, [1, 1, dim], &cos, &sin), back, "and on from there");
        }
    }
}

#[test]
fn every_head_of_a_token_turns_by_its_tokens_angles_to_the_bit() {
    let gpu = crate::gpu();
    for [tokens, heads, dim, half] in [[3, 5, 18, 9], [2, 3, 64, 32], [4, 1, 6, 3], [2, 3, 24, 8]] {
        let x = numbers(7, tokens * heads * dim);
        let angles = numbers(8, tokens * half);
        let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
        let mut expected = x.clone();
        for t in 0..tokens {
            for h in 0..heads {
                let head = &mut expected[(t * heads + h) * dim..][..dim];
                for i in 0..half {
                    let (a, b) = (head[i], head[i + half]);
                    let (c, s) = (cos[t * half + i], sin[t * half + i]);
                    // Rust rounds every product: so must the kernel.
                    (head[i], head[i + half]) = (a * c - b * s, b * c + a * s);
                }
            }
        }
        let got = run(&gpu, &x, [tokens, heads, dim], &cos, &sin);
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.to_bits(), expected.to_bits(), "element {i}: {got}, not {expected}");
        }
    }
}

#[test]
fn what_does_not_rotate_stays_as_it_is() {
    let gpu = crate::gpu();
    let x = numbers(9, 2 * 2 * 12);
    let (cos, sin) = (vec![0.6; 2 * 4], vec![0.8; 2 * 4]);
    let got = run(&gpu, &x, [2, 2, 12], &cos, &sin);
    for (got, x) in got.chunks(12).zip(x.chunks(12)) {
        assert_eq!(got[8..], x[8..]);
        assert_ne!(got[..8], x[..8]);
    }
}

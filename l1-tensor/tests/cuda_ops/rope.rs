//! Rotary embedding.

use l1_tensor::ops::{RopeScaling, RopeTable, rope};
use l1_tensor::{DType, Runtime};

use crate::support::{SAME_BITS, noise, within};
use crate::{same, same_error, tensor, zeros};

#[test]
fn angles_are_the_cpus() {
    for (rotary, scaling) in [
        (2, RopeScaling::None),
        (18, RopeScaling::Linear { factor: 4.0 }),
        (
            64,
            RopeScaling::Yarn {
                factor: 4.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original_max_position: 2048,
                attention_factor: None,
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            },
        ),
    ] {
        let table = RopeTable::new(rotary, 1e4, &scaling).unwrap();
        let positions = [0, 1, 7, 4095, 131_071];
        same(&format!("angles of {rotary}"), within(0.0, 1e-6), |rt| {
            let shape = [positions.len(), rotary / 2];
            let (mut cos, mut sin) = (zeros(rt, &shape, DType::F32), zeros(rt, &shape, DType::F32));
            // Twice: the second time the frequencies are there.
            for _ in 0..2 {
                table.angles(rt, &positions, cos.view_mut(), sin.view_mut())?;
            }
            Ok([cos.to_vec_f32()?, sin.to_vec_f32()?].concat())
        });
        assert_eq!(table, table.clone(), "what lies on a device is no part of a table");
    }
}

#[test]
fn heads_inside_of_a_packed_buffer_turn_as_on_the_cpu() {
    for (tokens, heads, dim, rotary) in [(1, 1, 2, 2), (3, 4, 18, 18), (2, 3, 64, 32), (5, 2, 9, 4)]
    {
        let width = heads * dim + 7;
        same("rope", SAME_BITS, |rt| {
            let mut packed = tensor(rt, &noise(tokens * width, 1), &[tokens, width]);
            let angles = noise(tokens * rotary / 2, 2);
            let shape = [tokens, rotary / 2];
            let (sin, cos): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| a.sin_cos()).unzip();
            let (cos, sin) = (tensor(rt, &cos, &shape), tensor(rt, &sin, &shape));
            let view = packed.view_mut().narrow(1, 3, heads * dim)?;
            rope(rt, view.reshape(&[tokens, heads, dim])?, cos.view(), sin.view())?;
            packed.to_vec_f32()
        });
    }
}

#[test]
fn what_does_not_fit_is_said_in_the_cpus_words() {
    let t = |rt: &Runtime, shape: &[usize]| zeros(rt, shape, DType::F32);
    same_error(|rt| {
        let (mut x, cos, sin) = (t(rt, &[2, 1, 4]), t(rt, &[2, 3]), t(rt, &[2, 3]));
        rope(rt, x.view_mut(), cos.view(), sin.view()).map(|()| vec![])
    });
    same_error(|rt| {
        let (mut x, cos, sin) = (t(rt, &[2, 4]), t(rt, &[2, 2]), t(rt, &[2, 2]));
        rope(rt, x.view_mut(), cos.view(), sin.view()).map(|()| vec![])
    });
    same_error(|rt| {
        let table = RopeTable::new(4, 1e4, &RopeScaling::None)?;
        let (mut cos, mut sin) = (t(rt, &[2, 2]), t(rt, &[1, 2]));
        table.angles(rt, &[0, 1], cos.view_mut(), sin.view_mut()).map(|()| vec![])
    });
}

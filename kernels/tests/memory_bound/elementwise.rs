//! Sums, multiples, biases, changes of type.

use half::bf16;
use kernels::{Buffer, Float, Mat, MatMut, ops};

use crate::common::{bytes, gpu, under_every_order};
use crate::field::{Field, Layout, numbers};
use crate::{bits, refused};

/// The last is more than one block's.
const WIDTHS: [usize; 7] = [1, 3, 60, 64, 171, 2051, 4900];

#[test]
fn every_element_gets_its_own_addend_at_any_address() {
    let Some(gpu) = gpu() else { return };
    for width in WIDTHS {
        for rows in [1, 3] {
            let (x, y) = (numbers(1, rows * width), numbers(2, rows * width));
            let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            for (a, b) in [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2)] {
                let layouts = Layout::all(rows, width);
                let mut sums = Field::new(&gpu, Float::F32, layouts[a], &x);
                let addends = Field::new(&gpu, Float::F32, layouts[b], &y);
                ops::add_in_place(&gpu, sums.mat_mut(), addends.mat()).unwrap();
                assert_eq!(bits(&sums.read()), bits(&want), "{rows} x {width}, {a} + {b}");
                assert_eq!(addends.read(), y);
            }
        }
    }
}

#[test]
fn every_element_is_scaled_at_any_address() {
    let Some(gpu) = gpu() else { return };
    for width in WIDTHS {
        let mut x = numbers(3, 3 * width);
        (x[0], x[width]) = (f32::NAN, f32::INFINITY);
        let want: Vec<f32> = x.iter().map(|x| x * -0.37).collect();
        for layout in Layout::all(3, width) {
            let mut field = Field::new(&gpu, Float::F32, layout, &x);
            ops::scale_in_place(&gpu, field.mat_mut(), -0.37).unwrap();
            let got = field.read();
            assert!(got[0].is_nan());
            assert_eq!(bits(&got[1..]), bits(&want[1..]), "{layout:?}");
        }
    }
}

#[test]
fn every_row_gets_the_same_bias_at_any_address() {
    let Some(gpu) = gpu() else { return };
    for width in WIDTHS {
        let (x, bias) = (numbers(4, 5 * width), numbers(5, width + 1));
        let buffer = Buffer::from_slice(&gpu, &bias).unwrap();
        for layout in Layout::all(5, width) {
            for start in [0, 1] {
                let mut field = Field::new(&gpu, Float::F32, layout, &x);
                let view = buffer.view().cast::<f32>().part(start, width);
                ops::add_bias(&gpu, field.mat_mut(), view).unwrap();
                let want: Vec<f32> =
                    x.iter().enumerate().map(|(i, x)| x + bias[start + i % width]).collect();
                assert_eq!(bits(&field.read()), bits(&want), "{layout:?} from {start}");
            }
        }
    }
}

#[test]
fn a_type_becomes_another_by_rounding_to_nearest_even() {
    let Some(gpu) = gpu() else { return };
    let ties = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1.0 - 1.0 / 256.0, f32::MAX, 1e-40];
    let odd = [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::from_bits(0x7f80_0001), f32::NAN];
    for width in WIDTHS {
        let mut x = numbers(6, 3 * width);
        for (x, special) in x.iter_mut().zip(ties.iter().chain(&odd)) {
            *x = *special;
        }
        for (from, to) in [(0, 0), (1, 2), (2, 1), (0, 1)] {
            let layouts = Layout::all(3, width);
            let source = Field::new(&gpu, Float::F32, layouts[from], &x);
            let mut out = Field::unwritten(&gpu, Float::Bf16, layouts[to]);
            ops::convert(&gpu, source.mat(), out.mat_mut()).unwrap();
            let narrow = out.read();
            for (got, x) in narrow.iter().zip(&x) {
                let want = bf16::from_f32(*x).to_f32();
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && x.is_nan(), "{x}");
            }
            let mut back = Field::unwritten(&gpu, Float::F32, layouts[from]);
            ops::convert(&gpu, out.mat(), back.mat_mut()).unwrap();
            assert_eq!(bits(&back.read()), bits(&narrow));
        }
    }
}

#[test]
fn a_type_to_itself_is_a_copy_of_bits() {
    let Some(gpu) = gpu() else { return };
    // Signalling NaNs among them: arithmetic would make them quiet.
    let words: Vec<u32> =
        (0..4 * 1030u32).map(|i| i.wrapping_mul(0x9e37_79b9) | 0x7f80_0001).collect();
    let from = Buffer::from_slice(&gpu, &words).unwrap();
    for (dtype, width) in [(Float::F32, 1030), (Float::Bf16, 2060), (Float::F32, 1028)] {
        let mut to = Buffer::zeroed(&gpu, from.len()).unwrap();
        let x = Mat::dense(from.view(), dtype, 4, width).unwrap();
        let out = MatMut::dense(to.view_mut(), dtype, 4, width).unwrap();
        ops::convert(&gpu, x, out).unwrap();
        let n = 4 * width * dtype.size() / 4;
        assert_eq!(to.to_vec::<u32>().unwrap()[..n], words[..n]);
    }
}

#[test]
fn no_elements_are_no_work() {
    let Some(gpu) = gpu() else { return };
    for (rows, width) in [(0, 8), (3, 0), (0, 0)] {
        let layout = Layout { stride: 12, ..Layout::dense(rows, width) };
        let mut x = Field::new(&gpu, Float::F32, layout, &[]);
        let y = Field::new(&gpu, Float::F32, layout, &[]);
        ops::add_in_place(&gpu, x.mat_mut(), y.mat()).unwrap();
        ops::scale_in_place(&gpu, x.mat_mut(), 2.0).unwrap();
        ops::convert(&gpu, y.mat(), x.mat_mut()).unwrap();
        assert_eq!(x.read(), []);
    }
}

#[test]
fn no_order_of_threads_changes_a_sum_of_elements() {
    let Some(gpu) = gpu() else { return };
    let (x, y) = (numbers(7, 3 * 171), numbers(8, 3 * 171));
    under_every_order(|| {
        let layout = Layout::dense(3, 171);
        let mut sums = Field::new(&gpu, Float::F32, layout, &x);
        let addends = Field::new(&gpu, Float::F32, layout, &y);
        ops::add_in_place(&gpu, sums.mat_mut(), addends.mat()).unwrap();
        bytes(&sums.read())
    });
}

#[test]
fn shapes_that_do_not_fit_are_named_with_their_numbers() {
    let Some(gpu) = gpu() else { return };
    let mut x = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 8));
    let y = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 7));
    let narrow = Field::unwritten(&gpu, Float::Bf16, Layout::dense(3, 8));
    let bias = Buffer::zeroed(&gpu, 4 * 9).unwrap();
    let shapes = ["[3, 8]", "[3, 7]"];
    refused(ops::add_in_place(&gpu, x.mat_mut(), y.mat()), &shapes);
    refused(ops::convert(&gpu, y.mat(), x.mat_mut()), &shapes);
    refused(ops::add_in_place(&gpu, x.mat_mut(), narrow.mat()), &["Bf16", "F32"]);
    refused(ops::add_bias(&gpu, x.mat_mut(), bias.view().cast()), &["9 elements", "rows of 8"]);
    let mut narrow = narrow;
    refused(ops::scale_in_place(&gpu, narrow.mat_mut(), 2.0), &["Bf16", "F32"]);
}

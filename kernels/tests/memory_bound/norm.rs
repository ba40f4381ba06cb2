//! RMS norm and layer norm.

use half::bf16;
use kernels::{Buffer, Float, ops};

use crate::common::{bytes, gpu, under_every_order};
use crate::field::{Field, Layout, numbers};
use crate::{bits, close, refused};

/// One thread a row, several rows a warp, one warp, several warps; whole quads and not.
const WIDTHS: [usize; 10] = [1, 7, 18, 60, 64, 171, 576, 1000, 2048, 2051];
const EPS: f32 = 1e-5;

fn rms(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let squares: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
}

fn layer(x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
    let one = |i: usize| {
        let bias = bias.map_or(0.0, |b| f64::from(b[i]));
        (f64::from(x[i]) - mean) * scale * f64::from(weight[i]) + bias
    };
    (0..x.len()).map(one).collect()
}

fn assert_rows(got: &[f32], dtype: Float, width: usize, want: impl Fn(usize) -> Vec<f64>) {
    let relative = if dtype == Float::F32 { 3e-6 } else { 1.0 / 256.0 };
    for (r, row) in got.chunks(width).enumerate() {
        for (c, (got, want)) in row.iter().zip(want(r)).enumerate() {
            assert!(
                close(*got, want, relative, 2e-6),
                "row {r} of {width}, {c}: {got}, not {want}"
            );
        }
    }
}

#[test]
fn a_row_is_divided_by_its_size_and_weighted() {
    let Some(gpu) = gpu() else { return };
    for width in WIDTHS {
        // More rows than a block has of narrow ones.
        let rows = if width <= 18 { 70 } else { 5 };
        let (x, weight) = (numbers(1, rows * width), numbers(2, width));
        let w = Buffer::from_slice(&gpu, &weight).unwrap();
        for dtype in [Float::F32, Float::Bf16] {
            for (from, to) in [(0, 0), (1, 2), (2, 1)] {
                let layouts = Layout::all(rows, width);
                let source = Field::new(&gpu, Float::F32, layouts[from], &x);
                let mut out = Field::unwritten(&gpu, dtype, layouts[to]);
                ops::rms_norm(&gpu, source.mat(), w.view().cast(), EPS, out.mat_mut()).unwrap();
                let row = |r: usize| rms(&x[r * width..(r + 1) * width], &weight, EPS);
                assert_rows(&out.read(), dtype, width, row);
            }
        }
    }
}

#[test]
fn a_row_too_wide_for_registers_is_read_again() {
    let Some(gpu) = gpu() else { return };
    for width in [16_384, 16_388, 20_001] {
        let (x, y, weight) = (numbers(3, width), numbers(4, width), numbers(5, width));
        let w = Buffer::from_slice(&gpu, &weight).unwrap();
        let layout = Layout::dense(1, width);
        let source = Field::new(&gpu, Float::F32, layout, &x);
        let addend = Field::new(&gpu, Float::F32, layout, &y);
        let mut out = Field::unwritten(&gpu, Float::F32, layout);
        ops::rms_norm(&gpu, source.mat(), w.view().cast(), EPS, out.mat_mut()).unwrap();
        assert_rows(&out.read(), Float::F32, width, |_| rms(&x, &weight, EPS));
        let bias = Some(w.view().cast());
        ops::layer_norm(&gpu, source.mat(), w.view().cast(), bias, EPS, out.mat_mut()).unwrap();
        assert_rows(&out.read(), Float::F32, width, |_| layer(&x, &weight, Some(&weight)));
        let mut residual = source;
        let w = w.view().cast();
        ops::add_rms_norm(&gpu, residual.mat_mut(), addend.mat(), w, EPS, out.mat_mut()).unwrap();
        let sums: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        assert_eq!(bits(&residual.read()), bits(&sums));
        assert_rows(&out.read(), Float::F32, width, |_| rms(&sums, &weight, EPS));
    }
}

#[test]
fn the_fused_sum_and_norm_has_the_bits_of_one_after_the_other() {
    let Some(gpu) = gpu() else { return };
    for width in WIDTHS.into_iter().chain([4096]) {
        let rows = 3;
        let (x, y, weight) =
            (numbers(6, rows * width), numbers(7, rows * width), numbers(8, width));
        let w = Buffer::from_slice(&gpu, &weight).unwrap();
        for dtype in [Float::F32, Float::Bf16] {
            for layout in Layout::all(rows, width) {
                let addend = Field::new(&gpu, Float::F32, layout, &y);
                let mut apart = Field::new(&gpu, Float::F32, Layout::dense(rows, width), &x);
                let mut want = Field::unwritten(&gpu, dtype, Layout::dense(rows, width));
                ops::add_in_place(&gpu, apart.mat_mut(), addend.mat()).unwrap();
                let w = w.view().cast();
                ops::rms_norm(&gpu, apart.mat(), w, EPS, want.mat_mut()).unwrap();
                let mut fused = Field::new(&gpu, Float::F32, layout, &x);
                let mut out = Field::unwritten(&gpu, dtype, layout);
                let stream = fused.mat_mut();
                ops::add_rms_norm(&gpu, stream, addend.mat(), w, EPS, out.mat_mut()).unwrap();
                assert_eq!(bits(&fused.read()), bits(&apart.read()), "{layout:?}");
                assert_eq!(bits(&out.read()), bits(&want.read()), "{layout:?}");
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_in_a_batch_and_at_any_address() {
    let Some(gpu) = gpu() else { return };
    for width in WIDTHS {
        let rows = 37;
        let (x, weight) = (numbers(9, rows * width), numbers(10, width + 1));
        let w = Buffer::from_slice(&gpu, &weight[..width]).unwrap();
        let w = w.view().cast();
        let run = |layout: Layout, x: &[f32]| {
            let source = Field::new(&gpu, Float::F32, layout, x);
            let mut out = Field::unwritten(&gpu, Float::F32, layout);
            ops::rms_norm(&gpu, source.mat(), w, EPS, out.mat_mut()).unwrap();
            let mut both = bits(&out.read());
            ops::layer_norm(&gpu, source.mat(), w, Some(w), EPS, out.mat_mut()).unwrap();
            let split = both.len();
            both.extend(bits(&out.read()));
            (both[..split].to_vec(), both[split..].to_vec())
        };
        let batch = run(Layout::dense(rows, width), &x);
        assert_eq!(run(Layout::all(rows, width)[2], &x), batch, "{width}");
        for r in [0, 1, 18, 36] {
            let row = r * width..(r + 1) * width;
            let alone = run(Layout::dense(1, width), &x[row.clone()]);
            assert_eq!(alone, (batch.0[row.clone()].to_vec(), batch.1[row].to_vec()), "{width}");
        }
    }
}

#[test]
fn heads_are_normalised_in_place_inside_of_a_packed_row() {
    let Some(gpu) = gpu() else { return };
    for (dim, heads) in [(18, 3), (32, 9), (64, 5), (128, 4), (256, 2), (300, 1), (1, 2)] {
        let (tokens, width) = (11, dim * heads);
        let (x, weight) = (numbers(11, tokens * width), numbers(12, dim));
        let w = Buffer::from_slice(&gpu, &weight).unwrap();
        let mut first = None;
        for layout in Layout::all(tokens, width) {
            let mut field = Field::new(&gpu, Float::F32, layout, &x);
            ops::rms_norm_heads(&gpu, field.heads_mut(heads), w.view().cast(), 1e-6).unwrap();
            let got = field.read();
            let head = |h: usize| rms(&x[h * dim..(h + 1) * dim], &weight, 1e-6);
            assert_rows(&got, Float::F32, dim, head);
            let first = first.get_or_insert_with(|| bits(&got));
            assert_eq!(*first, bits(&got), "{layout:?}");
        }
    }
}

#[test]
fn a_layer_norm_keeps_its_digits_far_from_zero() {
    let Some(gpu) = gpu() else { return };
    for width in WIDTHS {
        let x: Vec<f32> = numbers(13, 3 * width).iter().map(|v| v + 1000.0).collect();
        let (weight, bias) = (numbers(14, width), numbers(15, width));
        let w = Buffer::from_slice(&gpu, &weight).unwrap();
        let b = Buffer::from_slice(&gpu, &bias).unwrap();
        for dtype in [Float::F32, Float::Bf16] {
            for (layout, with_bias) in Layout::all(3, width).into_iter().zip([true, false, true]) {
                let source = Field::new(&gpu, Float::F32, layout, &x);
                let mut out = Field::unwritten(&gpu, dtype, layout);
                let (b, want_bias) =
                    (with_bias.then(|| b.view().cast()), with_bias.then_some(&bias));
                let w = w.view().cast();
                ops::layer_norm(&gpu, source.mat(), w, b, EPS, out.mat_mut()).unwrap();
                for (r, got) in out.read().chunks(width).enumerate() {
                    let row = &x[r * width..(r + 1) * width];
                    let want = layer(row, &weight, want_bias.map(|b| &b[..]));
                    for (got, want) in got.iter().zip(want) {
                        // Of a mean of 1000, f32 leaves about 6e-5 of an element's deviation.
                        assert!(close(*got, want, 1.0 / 256.0, 5e-4), "{width}: {got}, {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_a_nan_stays_in_its_row() {
    let Some(gpu) = gpu() else { return };
    for width in [7, 64, 600] {
        let mut x = numbers(16, 4 * width);
        x[..width].fill(0.0);
        x[width + 3] = f32::NAN;
        x[2 * width + 1] = f32::INFINITY;
        let w = Buffer::from_slice(&gpu, &vec![1.0f32; width]).unwrap();
        let source = Field::new(&gpu, Float::F32, Layout::dense(4, width), &x);
        let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(4, width));
        ops::rms_norm(&gpu, source.mat(), w.view().cast(), EPS, out.mat_mut()).unwrap();
        let got = out.read();
        assert!(got[..width].iter().all(|v| *v == 0.0));
        assert!(got[width..2 * width].iter().all(|v| v.is_nan()));
        // inf / inf, and a number by infinity.
        for (c, v) in got[2 * width..3 * width].iter().enumerate() {
            assert!(if c == 1 { v.is_nan() } else { *v == 0.0 });
        }
        assert!(got[3 * width..].iter().all(|v| v.is_finite() && *v != 0.0));
    }
}

#[test]
fn no_order_of_threads_changes_a_norm() {
    let Some(gpu) = gpu() else { return };
    for width in [18, 171, 1000] {
        let (x, y, weight) = (numbers(17, 9 * width), numbers(18, 9 * width), numbers(19, width));
        let w = Buffer::from_slice(&gpu, &weight).unwrap();
        let w = w.view().cast();
        under_every_order(|| {
            let layout = Layout::dense(9, width);
            let mut residual = Field::new(&gpu, Float::F32, layout, &x);
            let addend = Field::new(&gpu, Float::F32, layout, &y);
            let mut out = Field::unwritten(&gpu, Float::F32, layout);
            let stream = residual.mat_mut();
            ops::add_rms_norm(&gpu, stream, addend.mat(), w, EPS, out.mat_mut()).unwrap();
            let mut all = bytes(&out.read());
            ops::layer_norm(&gpu, residual.mat(), w, None, EPS, out.mat_mut()).unwrap();
            all.extend(bytes(&out.read()));
            ops::rms_norm_heads(&gpu, residual.heads_mut(1), w, EPS).unwrap();
            all.extend(bytes(&residual.read()));
            all
        });
    }
}

#[test]
fn bf16_is_the_rounding_of_f32() {
    let Some(gpu) = gpu() else { return };
    let (x, weight) = (numbers(20, 4 * 320), numbers(21, 320));
    let w = Buffer::from_slice(&gpu, &weight).unwrap();
    let layout = Layout::dense(4, 320);
    let source = Field::new(&gpu, Float::F32, layout, &x);
    let [wide, narrow] = [Float::F32, Float::Bf16].map(|dtype| {
        let mut out = Field::unwritten(&gpu, dtype, layout);
        ops::rms_norm(&gpu, source.mat(), w.view().cast(), EPS, out.mat_mut()).unwrap();
        out.read()
    });
    let rounded: Vec<f32> = wide.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    assert_eq!(bits(&narrow), bits(&rounded));
}

#[test]
fn shapes_that_do_not_fit_are_named_with_their_numbers() {
    let Some(gpu) = gpu() else { return };
    let x = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 8));
    let narrow = Field::unwritten(&gpu, Float::Bf16, Layout::dense(3, 8));
    let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 8));
    let mut other = Field::unwritten(&gpu, Float::F32, Layout::dense(2, 8));
    let w = Buffer::zeroed(&gpu, 4 * 9).unwrap();
    let (nine, eight) = (w.view().cast(), w.view().cast().part(0, 8));
    let wrong = ["9 elements", "rows of 8"];
    refused(ops::rms_norm(&gpu, x.mat(), nine, EPS, out.mat_mut()), &wrong);
    refused(ops::layer_norm(&gpu, x.mat(), eight, Some(nine), EPS, out.mat_mut()), &wrong);
    refused(ops::rms_norm_heads(&gpu, out.heads_mut(2), nine, EPS), &["9 elements", "rows of 4"]);
    let shapes = ["[3, 8]", "[2, 8]"];
    refused(ops::rms_norm(&gpu, x.mat(), eight, EPS, other.mat_mut()), &shapes);
    refused(ops::rms_norm(&gpu, narrow.mat(), eight, EPS, out.mat_mut()), &["Bf16", "F32"]);
    let add = ops::add_rms_norm(&gpu, other.mat_mut(), x.mat(), eight, EPS, out.mat_mut());
    refused(add, &shapes);
    // Nothing to do.
    let mut none = Field::new(&gpu, Float::F32, Layout::dense(0, 8), &[]);
    ops::rms_norm_heads(&gpu, none.heads_mut(2), eight.part(0, 4), EPS).unwrap();
}

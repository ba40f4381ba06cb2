//! Weights with a factor for each row, against the reference.

mod linear_common;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::linear::reference;
use l1_tensor::ops::{Epilogue, linear, silu_mul};
use l1_tensor::{DType, Device, Error, RowOrder, Runtime, Tensor, Weight, bf16};
use linear_common::{activations, numbers, rounded, runtime, weight};

const PARTS: [(usize, f32); 3] = [(21, 0.37), (12, 3.0e-4), (13, 1.9)];
const N: usize = 46;

fn factors() -> Vec<f32> {
    PARTS.iter().flat_map(|(rows, factor)| std::iter::repeat_n(*factor, *rows)).collect()
}

fn product(rt: &Runtime, x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Vec<f32> {
    let t = x.dims()[0];
    let mut out = Tensor::zeros(&[t, w.n()], DType::F32, Device::Cpu).unwrap();
    let bias = bias.map(Tensor::view);
    linear(rt, x.view(), w, bias, Epilogue::Store, out.view_mut()).unwrap();
    out.to_vec_f32().unwrap()
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn factors_multiply_the_sum_before_the_bias() {
    let k = 38;
    let values = rounded(&numbers(1, N * k));
    let bias = numbers(2, N);
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        let plain = weight(&rt, &values, N, k, RowOrder::Plain);
        let scaled = weight(&rt, &values, N, k, RowOrder::Plain).scaled(&PARTS).unwrap();
        let bias_tensor = Tensor::from_slice(&bias, &[N]).unwrap();
        for (t, dtype) in [(1, DType::BF16), (14, DType::BF16), (3, DType::F32)] {
            let x = activations(&numbers(3, t * k), t, k, dtype);
            for bias in [None, Some(&bias)] {
                let mut expected = product(&rt, &x, &plain, None);
                reference::factors_and_bias(&factors(), bias.map(|b| &**b), &mut expected);
                let got = product(&rt, &x, &scaled, bias.map(|_| &bias_tensor));
                assert_eq!(bits(&got), bits(&expected), "{t} rows of {dtype} on {isa}");
            }
        }
    }
}

/// The reference from the sums on, for f32 activations, whose order is plain.
#[test]
fn a_scaled_weight_multiplies_as_the_reference_spells_it() {
    let (t, k) = (4, 21);
    let (values, x) = (rounded(&numbers(4, N * k)), numbers(5, t * k));
    let mut expected = vec![0.0; t * N];
    reference::linear(&x, &values, None, t, k, N, &mut expected);
    reference::factors_and_bias(&factors(), None, &mut expected);
    let rt = runtime(Isa::best(), 1);
    let scaled = weight(&rt, &values, N, k, RowOrder::Plain).scaled(&PARTS).unwrap();
    let got = product(&rt, &activations(&x, t, k, DType::F32), &scaled, None);
    assert_eq!(bits(&got), bits(&expected));
}

#[test]
fn gates_and_ups_have_factors_of_their_own_before_the_activation() {
    let (half, k, t) = (19, 32, 6);
    let values = rounded(&numbers(6, 2 * half * k));
    let parts = [(half, 2.5), (half, 0.125)];
    for isa in Isa::available() {
        let rt = runtime(isa, 1);
        let x = activations(&numbers(7, t * k), t, k, DType::BF16);
        let plain = weight(&rt, &values, 2 * half, k, RowOrder::Plain).scaled(&parts).unwrap();
        let folded = weight(&rt, &values, 2 * half, k, RowOrder::GateUp).scaled(&parts).unwrap();
        let both = product(&rt, &x, &plain, None);
        let columns = |from: usize| {
            let rows = both.chunks_exact(2 * half).flat_map(|row| &row[from..from + half]);
            Tensor::from_slice(&rows.copied().collect::<Vec<_>>(), &[t, half]).unwrap()
        };
        let (gate, up) = (columns(0), columns(half));
        let [mut expected, mut got] =
            [(); 2].map(|()| Tensor::zeros(&[t, half], DType::F32, Device::Cpu).unwrap());
        silu_mul(&rt, gate.view(), up.view(), expected.view_mut()).unwrap();
        linear(&rt, x.view(), &folded, None, Epilogue::SiluMul, got.view_mut()).unwrap();
        let [got, expected] = [got, expected].map(|y| bits(&y.to_vec_f32().unwrap()));
        assert_eq!(got, expected, "{isa}");
    }
}

#[test]
fn one_factor_for_all_is_a_factor_for_each() {
    let k = 16;
    let rt = runtime(Isa::best(), 1);
    let values = rounded(&numbers(8, N * k));
    let x = activations(&numbers(9, k), 1, k, DType::BF16);
    let of = |parts: &[(usize, f32)]| {
        let weight = weight(&rt, &values, N, k, RowOrder::Plain).scaled(parts).unwrap();
        bits(&product(&rt, &x, &weight, None))
    };
    let other = of(&[(40, 0.3), (6, 0.7)]);
    assert_eq!(of(&[(N, 0.3)])[..40], other[..40]);
    assert_eq!(of(&[(N, 0.7)])[40..], other[40..]);
    assert_eq!(of(&[(20, 0.3), (26, 0.3)]), of(&[(N, 0.3)]));
}

#[test]
fn a_row_is_multiplied_by_its_factor_in_f32() {
    let k = 5;
    let rt = runtime(Isa::best(), 1);
    let values = numbers(10, N * k);
    let scaled = weight(&rt, &values, N, k, RowOrder::Plain).scaled(&PARTS).unwrap();
    let mut row = vec![0.0; k];
    for (i, factor) in factors().into_iter().enumerate() {
        scaled.row(i, &mut row).unwrap();
        let expected: Vec<f32> =
            values[i * k..][..k].iter().map(|x| bf16::from_f32(*x).to_f32() * factor).collect();
        assert_eq!(row, expected, "row {i}");
    }
    assert!(scaled.row(N, &mut row).is_err());
}

#[test]
fn factors_that_do_not_fit_are_refused() {
    let rt = runtime(Isa::best(), 1);
    let scaled = |parts: &[(usize, f32)]| {
        weight(&rt, &numbers(11, 8), 4, 2, RowOrder::Plain).scaled(parts).map(|_| ())
    };
    for parts in [
        &[][..],
        &[(3, 1.0)],
        &[(4, 1.0), (1, 1.0)],
        &[(usize::MAX, 1.0), (5, 1.0)],
        &[(4, f32::NAN)],
        &[(2, 1.0), (2, f32::INFINITY)],
    ] {
        let error = scaled(parts).unwrap_err();
        assert!(matches!(error, Error::BadParameter { .. }), "{parts:?}: {error}");
    }
    let once = weight(&rt, &numbers(12, 8), 4, 2, RowOrder::Plain).scaled(&[(4, 2.0)]).unwrap();
    assert!(once.scaled(&[(4, 2.0)]).is_err(), "factors of factors");
}

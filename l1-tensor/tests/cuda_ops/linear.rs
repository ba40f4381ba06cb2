//! Matmuls and what becomes of their products.

use l1_tensor::ops::{Epilogue, linear, linear_low_rank};
use l1_tensor::{DType, LowRank, Result, RowOrder, Runtime, RuntimeOptions, TensorRef};

use crate::elementwise::table;
use crate::support::{bits, noise, within};
use crate::{on_cuda_with, refused, same, same_error, tensor, tensor_of, zeros};

/// A layer over noise: `[t, k]` to `[t, n]`.
fn layer(
    rt: &Runtime,
    [t, k, n]: [usize; 3],
    x: DType,
    epilogue: Epilogue,
    with_bias: bool,
    to: DType,
) -> Result<Vec<f32>> {
    let folds = !matches!(epilogue, Epilogue::Store | Epilogue::Add);
    let order = if folds { RowOrder::GateUp } else { RowOrder::Plain };
    let weight = table(rt, n, k, order, 1);
    // Columns of something wider.
    let wide = tensor_of(rt, x, &noise(t * (k + 8), 2), &[t, k + 8]);
    let bias = tensor(rt, &noise(n, 3), &[n]);
    let width = if folds { n / 2 } else { n };
    let mut out = tensor_of(rt, to, &noise(t * width, 4), &[t, width]);
    let bias = with_bias.then(|| bias.view());
    linear(rt, wide.view().narrow(1, 8, k)?, &weight, bias, epilogue, out.view_mut())?;
    out.to_vec_f32()
}

const SHAPES: [[usize; 3]; 6] =
    [[1, 1, 2], [1, 60, 34], [3, 64, 96], [17, 171, 30], [33, 32, 66], [0, 8, 4]];

#[test]
fn products_are_the_cpus() {
    for shape in SHAPES {
        for x in [DType::F32, DType::BF16] {
            let what = format!("{shape:?} {x}");
            for with_bias in [false, true] {
                same(&what, within(1e-4, 2e-5), |rt| {
                    layer(rt, shape, x, Epilogue::Store, with_bias, DType::F32)
                });
                same(&what, within(1e-4, 2e-5), |rt| {
                    layer(rt, shape, x, Epilogue::Add, with_bias, DType::F32)
                });
            }
            same(&what, within(1e-2, 1e-4), |rt| {
                layer(rt, shape, x, Epilogue::Store, false, DType::BF16)
            });
        }
    }
}

#[test]
fn folded_gates_and_ups_are_the_cpus() {
    for epilogue in [Epilogue::SiluMul, Epilogue::GeluTanhMul, Epilogue::GeluMul] {
        for shape in SHAPES {
            for x in [DType::F32, DType::BF16] {
                for with_bias in [false, true] {
                    let what = format!("{epilogue:?} {shape:?} {x}");
                    same(&what, within(2e-4, 2e-5), |rt| {
                        layer(rt, shape, x, epilogue, with_bias, DType::F32)
                    });
                }
                same("in bf16", within(1e-2, 1e-4), |rt| {
                    layer(rt, shape, x, epilogue, false, DType::BF16)
                });
            }
        }
    }
}

#[test]
fn a_low_rank_side_term_is_the_cpus() {
    for dtype in [DType::F32, DType::BF16] {
        same("low rank", within(2e-2, 2e-3), |rt| {
            let side = LowRank {
                a: table(rt, 4, 33, RowOrder::Plain, 5),
                b: table(rt, 21, 4, RowOrder::Plain, 6),
                scale: 0.5,
            };
            let x = tensor_of(rt, dtype, &noise(3 * 33, 7), &[3, 33]);
            let mut scratch = zeros(rt, &[3, 4], dtype);
            let mut out = tensor(rt, &noise(3 * 21, 8), &[3, 21]);
            linear_low_rank(rt, x.view(), &side, scratch.view_mut(), out.view_mut())?;
            out.to_vec_f32()
        });
    }
}

#[test]
fn a_row_alone_has_the_bits_it_has_in_a_batch_when_that_is_asked_for() {
    let options = RuntimeOptions { batch_invariant: true, ..RuntimeOptions::default() };
    let rt = on_cuda_with(options);
    let (k, n) = (68, 34);
    for x in [DType::F32, DType::BF16] {
        for epilogue in [Epilogue::Store, Epilogue::SiluMul] {
            let (order, width) = match epilogue {
                Epilogue::Store => (RowOrder::Plain, n),
                _ => (RowOrder::GateUp, n / 2),
            };
            let weight = table(&rt, n, k, order, 1);
            let rows = |first: usize, t: usize| {
                let x = tensor_of(&rt, x, &noise(70 * k, 2), &[70, k]);
                let mut out = zeros(&rt, &[t, width], DType::F32);
                let x = x.view().narrow(0, first, t).unwrap();
                linear(&rt, x, &weight, None, epilogue, out.view_mut()).unwrap();
                bits(&out)
            };
            let batch = rows(0, 70);
            for (first, t) in [(0, 1), (69, 1), (3, 20)] {
                assert_eq!(rows(first, t), batch[first * width..][..t * width], "{epilogue:?} {x}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_said_in_the_cpus_words() {
    let run = |rt: &Runtime, x: TensorRef<'_>, epilogue, out: &[usize]| -> Result<Vec<f32>> {
        let weight = table(rt, 6, 4, RowOrder::Plain, 1);
        let mut out = zeros(rt, out, DType::F32);
        linear(rt, x, &weight, None, epilogue, out.view_mut()).map(|()| vec![])
    };
    let x = |rt: &Runtime| zeros(rt, &[2, 4], DType::F32);
    same_error(|rt| run(rt, x(rt).view(), Epilogue::Store, &[2, 5]));
    same_error(|rt| run(rt, x(rt).view(), Epilogue::Store, &[3, 6]));
    same_error(|rt| run(rt, x(rt).view(), Epilogue::SiluMul, &[2, 3]));
    same_error(|rt| run(rt, x(rt).view().narrow(1, 0, 3)?, Epilogue::Store, &[2, 6]));
    same_error(|rt| run(rt, zeros(rt, &[2, 4], DType::I32).view(), Epilogue::Store, &[2, 6]));
    // A bias is added to what was stored, so that must not be rounded yet.
    refused("F32 output under a bias", |rt| {
        layer(rt, [2, 4, 6], DType::BF16, Epilogue::Store, true, DType::BF16).map(|_| ())
    });
}

#[test]
fn a_weight_of_the_other_side_is_refused() {
    let (cpu, cuda) = (crate::on_cpu(), crate::on_cuda());
    for (ours, theirs) in [(&cpu, &*cuda), (&*cuda, &cpu)] {
        let weight = table(theirs, 6, 4, RowOrder::Plain, 1);
        let (x, mut out) = (zeros(ours, &[2, 4], DType::F32), zeros(ours, &[2, 6], DType::F32));
        let run = linear(ours, x.view(), &weight, None, Epilogue::Store, out.view_mut());
        assert!(matches!(run, Err(l1_tensor::Error::Device { .. })), "{run:?}");
    }
}

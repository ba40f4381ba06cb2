//! Sums, factors, conversions, gates, rows by number.

use l1_tensor::ops::{
    Gelu, add, add_in_place, convert, embedding, gather_rows, gelu_mul, log_softmax, scale,
    silu_mul, softmax,
};
use l1_tensor::{DType, Error, Index, Result, RowOrder, Runtime, Tensor, Weight};

use crate::support::{SAME_BITS, noise, within};
use crate::{refused, same, same_error, tensor, tensor_of, zeros};

const SHAPES: [[usize; 2]; 5] = [[1, 1], [3, 7], [2, 64], [5, 171], [4, 0]];

#[test]
fn sums_and_factors_are_the_cpus_to_the_bit() {
    for shape in SHAPES {
        let n = shape[0] * shape[1];
        let (x, y) = (noise(n, 1), noise(n, 2));
        same("add_in_place", SAME_BITS, |rt| {
            let (mut a, b) = (tensor(rt, &x, &shape), tensor(rt, &y, &shape));
            add_in_place(rt, a.view_mut(), b.view())?;
            a.to_vec_f32()
        });
        same("add", SAME_BITS, |rt| {
            let (a, b) = (tensor(rt, &x, &shape), tensor(rt, &y, &shape));
            let mut out = zeros(rt, &shape, DType::F32);
            add(rt, a.view(), b.view(), out.view_mut())?;
            out.to_vec_f32()
        });
        same("scale", SAME_BITS, |rt| {
            let mut a = tensor(rt, &x, &shape);
            scale(rt, a.view_mut(), 0.37)?;
            a.to_vec_f32()
        });
    }
}

#[test]
fn conversions_round_as_the_cpu_does() {
    // Halfway between two bf16 numbers, to either side; too large; NaN; the smallest.
    let edges = [1.003_906_2, 1.011_718_8, -1.003_906_2, 3.4e38, f32::NAN, f32::INFINITY, 1e-45];
    let types = [DType::F32, DType::BF16];
    for (from, to) in types.iter().flat_map(|from| types.map(|to| (*from, to))) {
        for (data, shape) in [(edges.to_vec(), [1, 7]), (noise(5 * 33, 3), [5, 33])] {
            same("convert", SAME_BITS, |rt| {
                let x = tensor_of(rt, from, &data, &shape);
                let mut out = zeros(rt, &shape, to);
                convert(rt, x.view(), out.view_mut())?;
                out.to_vec_f32()
            });
        }
    }
    refused("F32 or BF16", |rt| {
        let (x, mut out) = (tensor(rt, &[1.0], &[1]), zeros(rt, &[1], DType::F16));
        convert(rt, x.view(), out.view_mut())
    });
}

#[test]
fn a_column_of_a_wider_buffer_is_as_good_as_a_tensor() {
    let data = noise(6 * 40, 4);
    same("convert into columns", SAME_BITS, |rt| {
        let x = tensor(rt, &data, &[6, 40]);
        let mut out = zeros(rt, &[6, 50], DType::F32);
        convert(rt, x.view().narrow(1, 3, 17)?, out.view_mut().narrow(1, 21, 17)?)?;
        out.to_vec_f32()
    });
}

/// Gates and ups of `i` elements each in one buffer, with something beside them.
fn gates(rt: &Runtime, gelu: Option<Gelu>, t: usize, i: usize, to: DType) -> Result<Vec<f32>> {
    let packed = tensor(rt, &noise(t * (2 * i + 3), 5), &[t, 2 * i + 3]);
    let (gate, up) = (packed.view().narrow(1, 2, i)?, packed.view().narrow(1, 2 + i, i)?);
    let mut out = zeros(rt, &[t, i], to);
    match gelu {
        None => silu_mul(rt, gate, up, out.view_mut())?,
        Some(kind) => gelu_mul(rt, kind, gate, up, out.view_mut())?,
    }
    out.to_vec_f32()
}

#[test]
fn gates_in_one_buffer_fold_as_on_the_cpu() {
    for (t, i) in [(1, 1), (3, 8), (2, 171), (0, 4)] {
        for gelu in [None, Some(Gelu::Erf), Some(Gelu::Tanh)] {
            same("gated", within(1e-5, 1e-6), |rt| gates(rt, gelu, t, i, DType::F32));
            same("gated, bf16", within(8e-3, 1e-5), |rt| gates(rt, gelu, t, i, DType::BF16));
        }
    }
    refused("halves of one buffer", |rt| {
        let (gate, up) = (tensor(rt, &[1.0; 6], &[2, 3]), tensor(rt, &[1.0; 6], &[2, 3]));
        let mut out = zeros(rt, &[2, 3], DType::F32);
        silu_mul(rt, gate.view(), up.view(), out.view_mut())
    });
    // Halves the wrong way round are not the same thing.
    refused("halves of one buffer", |rt| {
        let packed = tensor(rt, &[1.0; 12], &[2, 6]);
        let (gate, up) = (packed.view().narrow(1, 3, 3)?, packed.view().narrow(1, 0, 3)?);
        let mut out = zeros(rt, &[2, 3], DType::F32);
        silu_mul(rt, gate, up, out.view_mut())
    });
}

/// A table of noise.
pub fn table(rt: &Runtime, n: usize, k: usize, order: RowOrder, seed: u64) -> Weight {
    let values = noise(n * k, seed);
    let row = |i: usize, out: &mut [f32]| -> Result<()> {
        out.copy_from_slice(&values[i * k..][..k]);
        Ok(())
    };
    Weight::load::<Error>(rt, n, k, order, &row).unwrap()
}

#[test]
fn rows_of_a_table_are_the_cpus_to_the_bit() {
    for (v, h) in [(1, 1), (37, 18), (90, 64)] {
        same("embedding", SAME_BITS, |rt| {
            let table = table(rt, v, h, RowOrder::Plain, 6);
            let tokens = [0, v as u32 - 1, v as u32 / 2, 0];
            let mut out = zeros(rt, &[4, h], DType::F32);
            embedding(rt, &table, &tokens, out.view_mut())?;
            out.to_vec_f32()
        });
    }
}

#[test]
fn a_loaded_weight_reads_back_as_on_the_cpu() {
    for (n, k, order) in [(33, 7, RowOrder::Plain), (34, 20, RowOrder::GateUp)] {
        same("weight rows", SAME_BITS, |rt| {
            let weight = table(rt, n, k, order, 7);
            assert_eq!((weight.n(), weight.k(), weight.order()), (n, k, order));
            let mut out = vec![0.0; n * k];
            out.chunks_mut(k).enumerate().try_for_each(|(i, out)| weight.row(i, out))?;
            Ok(out)
        });
    }
    same_error(|rt| table(rt, 3, 4, RowOrder::Plain, 7).row(3, &mut [0.0; 4]).map(|()| vec![]));
    same_error(|rt| {
        let row = |_: usize, _: &mut [f32]| -> Result<()> { Ok(()) };
        Weight::load::<Error>(rt, 3, 4, RowOrder::GateUp, &row).map(|_| vec![])
    });
    same_error(|rt| {
        let row = |i: usize, _: &mut [f32]| -> Result<()> {
            let (index, limit) = (i as i64, 2);
            Err(Error::OutOfRange { op: "a source", what: "row", index: index.min(0), limit })
        };
        Weight::load::<Error>(rt, 40, 4, RowOrder::Plain, &row).map(|_| vec![])
    });
}

#[test]
fn gathered_rows_are_the_cpus_to_the_bit() {
    for dtype in [DType::F32, DType::BF16] {
        same("gather_rows", SAME_BITS, |rt| {
            let x = tensor_of(rt, dtype, &noise(9 * 30, 8), &[9, 30]);
            let mut out = zeros(rt, &[4, 21], dtype);
            let columns = x.view().narrow(1, 5, 21)?;
            gather_rows(rt, columns, &[8, 0, 3, 3], out.view_mut())?;
            out.to_vec_f32()
        });
    }
}

#[test]
fn numbers_that_are_on_the_device_already_are_the_ones_it_reads() {
    let rt = crate::on_cuda();
    let x = tensor(&rt, &noise(4 * 3, 9), &[4, 3]);
    let (host, other) = ([1u32, 2], [3u32, 0]);
    // Other numbers there than here: only so can it be seen which are read.
    let there = Tensor::from_slice(&other, &[2]).unwrap().to_device(rt.device()).unwrap();
    let mut out = zeros(&rt, &[2, 3], DType::F32);
    gather_rows(&rt, x.view(), Index::new(&host, Some(there.view())), out.view_mut()).unwrap();
    let x = x.to_vec_f32().unwrap();
    assert_eq!(out.to_vec_f32().unwrap(), [&x[9..12], &x[0..3]].concat());
    let short = Index::new(&host, Some(there.view().narrow(0, 0, 1).unwrap()));
    let x = tensor(&rt, &x, &[4, 3]);
    let error = gather_rows(&rt, x.view(), short, out.view_mut()).unwrap_err();
    assert!(error.to_string().contains("2 numbers on the host"), "{error}");
}

#[test]
fn what_does_not_fit_is_said_in_the_cpus_words() {
    let t = |rt: &Runtime, shape: &[usize]| zeros(rt, shape, DType::F32);
    same_error(|rt| {
        let (mut a, b) = (t(rt, &[2, 3]), t(rt, &[3, 2]));
        add_in_place(rt, a.view_mut(), b.view()).map(|()| vec![])
    });
    same_error(|rt| {
        let (mut a, b) = (zeros(rt, &[2, 3], DType::BF16), t(rt, &[2, 3]));
        add_in_place(rt, a.view_mut(), b.view()).map(|()| vec![])
    });
    same_error(|rt| {
        let mut a = t(rt, &[4, 3]);
        scale(rt, a.view_mut().transpose(0, 1)?, 2.0).map(|()| vec![])
    });
    same_error(|rt| {
        let (x, mut out) = (t(rt, &[2, 3]), t(rt, &[1, 3]));
        gather_rows(rt, x.view(), &[2], out.view_mut()).map(|()| vec![])
    });
    same_error(|rt| {
        let (x, mut out) = (t(rt, &[2, 3]), t(rt, &[2, 3]));
        gather_rows(rt, x.view(), &[0], out.view_mut()).map(|()| vec![])
    });
    same_error(|rt| {
        let (table, mut out) = (table(rt, 5, 4, RowOrder::Plain, 1), t(rt, &[1, 4]));
        embedding(rt, &table, &[5], out.view_mut()).map(|()| vec![])
    });
    same_error(|rt| {
        let (table, mut out) = (table(rt, 5, 4, RowOrder::Plain, 1), t(rt, &[1, 3]));
        embedding(rt, &table, &[0], out.view_mut()).map(|()| vec![])
    });
    same_error(|rt| {
        let (x, mut out) = (t(rt, &[2, 3]), t(rt, &[3, 3]));
        convert(rt, x.view(), out.view_mut()).map(|()| vec![])
    });
}

#[test]
fn what_has_no_kernel_says_so() {
    type Op = fn(&Runtime, l1_tensor::TensorRef<'_>, l1_tensor::TensorMut<'_>) -> Result<()>;
    for op in [softmax as Op, log_softmax] {
        refused("has no CUDA kernel", |rt| {
            let (x, mut out) = (tensor(rt, &[1.0; 4], &[2, 2]), zeros(rt, &[2, 2], DType::F32));
            op(rt, x.view(), out.view_mut())
        });
    }
}

//! Weights in NVFP4 against the same weights expanded to bf16, bit by bit, and their factors.

use std::sync::Arc;

use half::bf16;
use kernels::Float::{self, Bf16, F32};
use kernels::ops::Activation::{GeluTanh, Silu};
use kernels::ops::Arithmetic::{self, BatchInvariant, Fast};
use kernels::ops::{Accumulate, embedding, linear, linear_gated};
use kernels::{Buffer, Error, Factors, Gpu, Mat, MatMut, Nvfp4, Weights};

use crate::common;
use crate::problem::numbers;

/// A weight in both storages, and activations.
struct Both {
    gpu: Arc<Gpu>,
    rows: usize,
    width: usize,
    packed: Buffer,
    expanded: Buffer,
    /// On the host.
    values: Vec<f32>,
    factors: Buffer,
    runs: Vec<(usize, f32)>,
}

/// What a code stands for.
fn e2m1(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// What a scale stands for: four bits of exponent and three of mantissa, none of them a sign.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3), f32::from(code & 7));
    match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

impl Both {
    /// Rows of any codes and scales. Most scales are moderate, so that no sum hides the others; some are zero,
    /// subnormal and the largest.
    fn new(gpu: &Arc<Gpu>, rows: usize, width: usize, seed: u64) -> Self {
        let mut bytes = numbers(rows * width, seed).into_iter().map(|x| (x.to_bits() >> 3) as u8);
        let mut next = || bytes.next().unwrap();
        let rows_of: Vec<(Vec<u8>, Vec<u8>)> = (0..rows)
            .map(|_| {
                let codes = (0..width / 2).map(|_| next()).collect();
                let scale = |byte: u8| match byte % 16 {
                    0 => 0,
                    1 => byte >> 5,
                    2 => 0x7e,
                    _ => 0x28 + (byte >> 4),
                };
                (codes, (0..width / 16).map(|_| scale(next())).collect())
            })
            .collect();
        Self::of(gpu, width, &rows_of)
    }

    fn of(gpu: &Arc<Gpu>, width: usize, rows: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let size = Nvfp4::row_bytes(width);
        let (mut packed, mut values) = (vec![0; rows.len() * size], Vec::new());
        for ((codes, scales), out) in rows.iter().zip(packed.chunks_exact_mut(size)) {
            Nvfp4::pack_row(codes, scales, out).unwrap();
            for (i, both) in codes.iter().enumerate() {
                let scale = e4m3(scales[i / 8]);
                values.extend([e2m1(both & 15) * scale, e2m1(both >> 4) * scale]);
            }
        }
        let bits: Vec<u16> = values.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
        // Three parts with a factor each, among them one that rounds.
        let (n, first, second) = (rows.len(), rows.len() / 2, rows.len() / 3);
        let runs = vec![(first, 0.37), (second, 1.25e-3), (n - first - second, 3.1)];
        let each: Vec<f32> = runs.iter().flat_map(|(n, f)| std::iter::repeat_n(*f, *n)).collect();
        Self {
            gpu: Arc::clone(gpu),
            rows: n,
            width,
            packed: Buffer::from_slice(gpu, &packed).unwrap(),
            expanded: Buffer::from_slice(gpu, &bits).unwrap(),
            values,
            factors: Buffer::from_slice(gpu, &each).unwrap(),
            runs,
        }
    }

    fn packed(&self) -> Nvfp4<'_> {
        Nvfp4::new(self.packed.view(), self.rows, self.width).unwrap()
    }

    fn expanded(&self) -> Mat<'_> {
        Mat::dense(self.expanded.view(), Bf16, self.rows, self.width).unwrap()
    }

    fn factors(&self) -> Factors<'_> {
        Factors::new(self.factors.view().cast(), &self.runs).unwrap()
    }

    /// Both storages, without factors or with them.
    fn weights(&self, factors: bool) -> [Weights<'_>; 2] {
        let both = [self.packed().into(), self.expanded().into()];
        if !factors {
            return both;
        }
        both.map(|w: Weights<'_>| w.scaled(self.factors()).unwrap())
    }

    /// The bits of what `work` leaves in an output `[tokens, columns]` that held numbers before.
    fn output(
        &self,
        [tokens, columns]: [usize; 2],
        dtype: Float,
        work: impl FnOnce(MatMut<'_>),
    ) -> Vec<u32> {
        let before = numbers(tokens * columns, 5);
        let mut memory = match dtype {
            F32 => Buffer::from_slice(&self.gpu, &before),
            Bf16 => Buffer::zeroed(&self.gpu, before.len() * 2),
        }
        .unwrap();
        work(MatMut::dense(memory.view_mut(), dtype, tokens, columns).unwrap());
        match dtype {
            F32 => memory.to_vec::<u32>().unwrap(),
            Bf16 => memory.to_vec::<u16>().unwrap().into_iter().map(u32::from).collect(),
        }
    }
}

/// Rows of activations, some elements apart.
struct Inputs {
    memory: Buffer,
    dtype: Float,
    tokens: usize,
    width: usize,
    stride: usize,
}

impl Inputs {
    fn new(gpu: &Arc<Gpu>, dtype: Float, tokens: usize, width: usize, apart: usize) -> Self {
        let stride = width + apart;
        let x = numbers(tokens * stride, 77);
        let memory = match dtype {
            F32 => Buffer::from_slice(gpu, &x),
            Bf16 => {
                let bits: Vec<u16> = x.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
                Buffer::from_slice(gpu, &bits)
            }
        };
        Self { memory: memory.unwrap(), dtype, tokens, width, stride }
    }

    fn mat(&self) -> Mat<'_> {
        Mat::new(self.memory.view(), self.dtype, self.tokens, self.width, self.stride).unwrap()
    }
}

const STORE: Accumulate = Accumulate::Store;

fn same_bits(dtype: Float, tokens: usize, [rows, width]: [usize; 2], arithmetic: Arithmetic) {
    let gpu = common::gpu().unwrap();
    let both = Both::new(&gpu, rows, width, (rows * width) as u64);
    for apart in [0, 3] {
        let x = Inputs::new(&gpu, dtype, tokens, width, apart);
        for factors in [false, true] {
            let add = Accumulate::Add { scale: -0.75 };
            for (accumulate, out) in [(STORE, F32), (STORE, Bf16), (add, F32)] {
                let [packed, expanded] = both.weights(factors).map(|w| {
                    both.output([tokens, rows], out, |y| {
                        linear(&gpu, x.mat(), w, accumulate, arithmetic, y).unwrap();
                    })
                });
                let what = format!("{tokens} of {dtype:?} by [{rows}, {width}], {accumulate:?}");
                assert!(packed == expanded, "{what} into {out:?}, factors: {factors}");
            }
        }
    }
}

#[test]
fn packed_weights_of_few_tokens_give_the_bits_of_expanded_ones() {
    // Rows of one group, of less than a block, of blocks that not all warps have, of more than a round.
    for (tokens, shape) in [
        (1, [33, 16]),
        (2, [7, 48]),
        (8, [20, 128]),
        (5, [18, 1040]),
        (9, [35, 176]),
        (16, [16, 2192]),
        (1, [10, 4112]),
    ] {
        same_bits(Bf16, tokens, shape, Fast);
    }
}

#[test]
fn packed_weights_of_many_tokens_give_the_bits_of_expanded_ones() {
    same_bits(Bf16, 17, [33, 144], Fast);
    same_bits(Bf16, 66, [140, 32], Fast);
}

#[test]
fn packed_weights_in_a_fixed_order_and_in_f32_give_the_bits_of_expanded_ones() {
    same_bits(Bf16, 3, [33, 144], BatchInvariant);
    same_bits(F32, 3, [21, 80], Fast);
    same_bits(F32, 10, [21, 80], BatchInvariant);
}

/// As many rows as 32 MiB hold are expanded at once.
#[test]
fn rows_that_are_expanded_in_several_turns_are_each_multiplied_once() {
    let gpu = common::gpu().unwrap();
    // 128 rows at once, and a second turn of two. Most of it is zeros.
    let (rows, width) = (130, 128 << 10);
    let row = |i: usize| {
        let (mut codes, mut scales) = (vec![0; width / 2], vec![0; width / 16]);
        (codes[i], scales[i / 8]) = (0x72, 0x38 + i as u8 % 8);
        (codes[width / 2 - 1], scales[width / 16 - 1]) = (0x10 + i as u8 % 16, 0x38);
        (codes, scales)
    };
    let both = Both::of(&gpu, width, &(0..rows).map(row).collect::<Vec<_>>());
    let x = Inputs::new(&gpu, F32, 1, width, 0);
    let [packed, expanded] = both.weights(true).map(|w| {
        both.output([1, rows], F32, |y| linear(&gpu, x.mat(), w, STORE, Fast, y).unwrap())
    });
    assert!(packed == expanded);
}

#[test]
fn every_code_times_every_scale_is_exact() {
    let gpu = common::gpu().unwrap();
    // A row for each scale, with every code in an even and in an odd column.
    let codes: Vec<u8> = (0..16u8).map(|code| code | (15 - code) << 4).collect();
    let rows: Vec<_> = (0..=0x7e).map(|scale| (codes.clone(), vec![scale; 2])).collect();
    let both = Both::of(&gpu, 32, &rows);
    let ids: Vec<u32> = (0..rows.len() as u32).collect();
    let memory = Buffer::from_slice(&gpu, &ids).unwrap();
    let got = both.output([rows.len(), 32], F32, |y| {
        embedding(&gpu, both.packed(), memory.view().cast(), y).unwrap();
    });
    let expected: Vec<u32> = both.values.iter().map(|x| x.to_bits()).collect();
    assert_eq!(got, expected);
}

#[test]
fn gates_and_ups_of_packed_weights_give_the_bits_of_expanded_ones() {
    let gpu = common::gpu().unwrap();
    for (tokens, rows, width) in [(1, 34, 80), (8, 16, 1040), (12, 22, 144), (19, 22, 48)] {
        let both = Both::new(&gpu, rows, width, 3);
        let x = Inputs::new(&gpu, Bf16, tokens, width, 0);
        let bias = Buffer::from_slice(&gpu, &numbers(rows, 4)).unwrap();
        for (activation, bias, arithmetic) in [
            (Silu, None, Fast),
            (GeluTanh, Some(bias.view().cast()), Fast),
            (Silu, Some(bias.view().cast()), BatchInvariant),
        ] {
            for factors in [false, true] {
                let [packed, expanded] = both.weights(factors).map(|w| {
                    both.output([tokens, rows / 2], F32, |y| {
                        let x = x.mat();
                        linear_gated(&gpu, activation, x, w, bias, arithmetic, y).unwrap();
                    })
                });
                assert!(packed == expanded, "{tokens} tokens, {activation:?} {arithmetic:?}");
            }
        }
    }
}

/// The factor multiplies the sum that there is without it, and nothing else rounds.
#[test]
fn factors_multiply_finished_sums() {
    let gpu = common::gpu().unwrap();
    for (dtype, tokens, arithmetic) in [
        (Bf16, 3, Fast),
        (Bf16, 13, Fast),
        (Bf16, 20, Fast),
        (Bf16, 2, BatchInvariant),
        (F32, 2, Fast),
        (F32, 12, Fast),
    ] {
        let both = Both::new(&gpu, 40, 96, 8);
        let x = Inputs::new(&gpu, dtype, tokens, 96, 0);
        let [plain, scaled] = [false, true].map(|factors| {
            both.weights(factors).map(|w| {
                both.output([tokens, 40], F32, |y| {
                    linear(&gpu, x.mat(), w, STORE, arithmetic, y).unwrap();
                })
            })
        });
        let each: Vec<f32> = both.factors.to_vec().unwrap();
        for (plain, scaled) in plain.iter().zip(&scaled) {
            let expected = plain
                .iter()
                .enumerate()
                .map(|(i, y)| (f32::from_bits(*y) * each[i % 40]).to_bits());
            assert_eq!(scaled, &expected.collect::<Vec<_>>(), "{tokens} tokens of {dtype:?}");
        }
    }
}

/// A multiply-add of factor and bias would round once where two roundings are promised.
#[test]
fn a_gates_factor_rounds_before_its_bias_is_added() {
    let gpu = common::gpu().unwrap();
    let (rows, width) = (34, 64);
    let both = Both::new(&gpu, rows, width, 9);
    let x = Inputs::new(&gpu, Bf16, 2, width, 0);
    let bias = numbers(rows, 10);
    let bias_memory = Buffer::from_slice(&gpu, &bias).unwrap();
    let [w, _] = both.weights(true);
    let sums = both.output([2, rows], F32, |y| linear(&gpu, x.mat(), w, STORE, Fast, y).unwrap());
    let half = rows / 2;
    // As many gates and ups in an output of their own, folded by the op that follows an ordinary product.
    let with_bias: Vec<f32> =
        sums.iter().enumerate().map(|(i, y)| f32::from_bits(*y) + bias[i % rows]).collect();
    let got = both.output([2, half], F32, |y| {
        let bias = Some(bias_memory.view().cast());
        linear_gated(&gpu, Silu, x.mat(), w, bias, Fast, y).unwrap();
    });
    let gate_up = Buffer::from_slice(&gpu, &with_bias).unwrap();
    let expected = both.output([2, half], F32, |y| {
        let gate_up = Mat::dense(gate_up.view(), F32, 2, rows).unwrap();
        kernels::ops::gated(&gpu, Silu, gate_up, y).unwrap();
    });
    assert_eq!(got, expected);
}

#[test]
fn the_order_of_threads_changes_no_bit_of_a_packed_product() {
    let gpu = common::gpu().unwrap();
    let both = Both::new(&gpu, 20, 272, 11);
    for tokens in [3, 10, 20] {
        let x = Inputs::new(&gpu, Bf16, tokens, 272, 0);
        let [w, _] = both.weights(true);
        common::under_every_order(|| {
            let y = both.output([tokens, 20], F32, |y| {
                linear(&gpu, x.mat(), w, STORE, Fast, y).unwrap();
            });
            common::bytes(&y)
        });
    }
}

#[test]
fn few_tokens_of_packed_weights_have_the_same_bits_however_few_they_are() {
    let gpu = common::gpu().unwrap();
    let both = Both::new(&gpu, 20, 1104, 12);
    let x = Inputs::new(&gpu, Bf16, 16, 1104, 0);
    let [w, _] = both.weights(true);
    let of = |tokens: usize| {
        let x = Mat::dense(x.memory.view(), Bf16, tokens, 1104).unwrap();
        both.output([tokens, 20], F32, |y| linear(&gpu, x, w, STORE, Fast, y).unwrap())
    };
    let all = of(16);
    for tokens in [1, 7, 8, 9] {
        assert_eq!(of(tokens), all[..tokens * 20], "{tokens}");
    }
}

#[test]
fn tokens_become_packed_rows_times_their_factors_and_those_beyond_the_table_zeros() {
    let gpu = common::gpu().unwrap();
    let both = Both::new(&gpu, 9, 1056, 13);
    let ids = Buffer::from_slice(&gpu, &[8u32, 0, 9, 3, u32::MAX]).unwrap();
    let each: Vec<f32> = both.factors.to_vec().unwrap();
    for factors in [false, true] {
        for weight in both.weights(factors) {
            let got = both.output([5, 1056], F32, |y| {
                embedding(&gpu, weight, ids.view().cast(), y).unwrap();
            });
            for (row, id) in got.chunks_exact(1056).zip([Some(8), Some(0), None, Some(3), None]) {
                let expected: Vec<u32> = (0..1056)
                    .map(|k| {
                        let factor = |id: usize| if factors { each[id] } else { 1.0 };
                        id.map_or(0.0, |id| both.values[id * 1056 + k] * factor(id)).to_bits()
                    })
                    .collect();
                assert!(row == expected, "{id:?}, factors: {factors}");
            }
        }
    }
}

#[test]
fn threads_that_expand_at_the_same_time_do_not_meet_in_scratch() {
    let gpu = common::gpu().unwrap();
    let problems = [14, 15].map(|seed| Both::new(&gpu, 64, 48, seed));
    let x = Inputs::new(&gpu, Bf16, 18, 48, 0);
    let product = |both: &Both| {
        let [w, _] = both.weights(true);
        both.output([18, 64], F32, |y| linear(&gpu, x.mat(), w, STORE, Fast, y).unwrap())
    };
    let alone = problems.each_ref().map(product);
    std::thread::scope(|scope| {
        for (both, alone) in problems.iter().zip(&alone) {
            scope.spawn(move || (0..30).for_each(|_| assert_eq!(&product(both), alone)));
        }
    });
}

#[test]
fn packed_matrices_and_factors_that_do_not_fit_are_refused() {
    let gpu = common::gpu().unwrap();
    let both = Both::new(&gpu, 4, 32, 16);
    let shape = |refused: Result<(), Error>| {
        assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    };
    let memory = both.packed.view();
    shape(Nvfp4::new(memory, 4, 24).map(|_| ()));
    shape(Nvfp4::new(memory, 5, 32).map(|_| ()));
    shape(Nvfp4::new(memory, usize::MAX, 32).map(|_| ()));
    shape(Nvfp4::new(memory.part(8, memory.len()), 3, 32).map(|_| ()));
    shape(Factors::new(both.factors.view().cast(), &[(3, 1.0)]).map(|_| ()));
    shape(Factors::new(both.factors.view().cast(), &[(usize::MAX, 1.0), (5, 1.0)]).map(|_| ()));
    let three = Mat::dense(both.expanded.view(), Bf16, 3, 32).unwrap();
    shape(Weights::from(three).scaled(both.factors()).map(|_| ()));
    let x = Inputs::new(&gpu, Bf16, 2, 48, 0);
    both.output([2, 4], F32, |y| {
        shape(linear(&gpu, x.mat(), both.packed(), STORE, Fast, y));
    });
}

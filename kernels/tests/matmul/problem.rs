//! A matmul to be done: its operands, on the host and on the device, and its answer.

use std::sync::Arc;

use half::bf16;
use kernels::ops::{Accumulate, Arithmetic, linear};
use kernels::{Buffer, Float, Gpu, Mat, MatMut};

/// What lies between rows, and in what must not be read.
const SENTINEL: f32 = 12_345.0;

pub struct Problem {
    pub gpu: Arc<Gpu>,
    pub dtype: Float,
    pub tokens: usize,
    pub rows: usize,
    pub width: usize,
    /// Elements from one row to the next: of x, of the weight, of the result.
    strides: [usize; 3],
    x: Vec<f32>,
    w: Vec<f32>,
    x_memory: Buffer,
    w_memory: Buffer,
}

/// Random numbers between -1 and 1.
pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn rounded(values: Vec<f32>, dtype: Float) -> Vec<f32> {
    match dtype {
        Float::F32 => values,
        Float::Bf16 => values.into_iter().map(|x| bf16::from_f32(x).to_f32()).collect(),
    }
}

/// Rows in device memory, `stride` apart, as the last bytes of it: nothing may be read behind them.
fn upload(gpu: &Arc<Gpu>, values: &[f32], width: usize, stride: usize, dtype: Float) -> Buffer {
    let mut spread = Vec::new();
    for row in values.chunks(width.max(1)) {
        spread.extend_from_slice(row);
        spread.resize(spread.len() + stride - width, SENTINEL);
    }
    spread.truncate(spread.len() - if values.is_empty() { 0 } else { stride - width });
    match dtype {
        Float::F32 => Buffer::from_slice(gpu, &spread),
        Float::Bf16 => {
            let bits: Vec<u16> = spread.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
            Buffer::from_slice(gpu, &bits)
        }
    }
    .unwrap()
}

/// What was uploaded so, without what lies between the rows, which must be as it was.
fn download(memory: &Buffer, width: usize, stride: usize, dtype: Float) -> Vec<f32> {
    let spread: Vec<f32> = match dtype {
        Float::F32 => memory.to_vec().unwrap(),
        Float::Bf16 => {
            let bits: Vec<u16> = memory.to_vec().unwrap();
            bits.into_iter().map(|x| bf16::from_bits(x).to_f32()).collect()
        }
    };
    let mut values = Vec::new();
    for row in spread.chunks(stride.max(1)) {
        values.extend_from_slice(&row[..width]);
        let between = rounded(vec![SENTINEL], dtype)[0];
        assert!(row[width..].iter().all(|x| *x == between), "written between rows");
    }
    values
}

impl Problem {
    /// Random operands, rows behind each other.
    pub fn new(gpu: &Arc<Gpu>, dtype: Float, shape: [usize; 3], seed: u64) -> Self {
        Self::apart(gpu, dtype, shape, [0; 3], seed)
    }

    /// With so many elements between the rows of x, of the weight, of the result.
    pub fn apart(
        gpu: &Arc<Gpu>,
        dtype: Float,
        [tokens, rows, width]: [usize; 3],
        [x, w, out]: [usize; 3],
        seed: u64,
    ) -> Self {
        let strides = [width + x, width + w, rows + out];
        let x = rounded(numbers(tokens * width, 2 * seed + 1), dtype);
        let w = rounded(numbers(rows * width, 2 * seed + 2), Float::Bf16);
        let x_memory = upload(gpu, &x, width, strides[0], dtype);
        let w_memory = upload(gpu, &w, width, strides[1], Float::Bf16);
        let gpu = Arc::clone(gpu);
        Self { gpu, dtype, tokens, rows, width, strides, x, w, x_memory, w_memory }
    }

    pub fn x(&self) -> Mat<'_> {
        Mat::new(self.x_memory.view(), self.dtype, self.tokens, self.width, self.strides[0])
            .unwrap()
    }

    pub fn weight(&self) -> Mat<'_> {
        let stride = self.strides[1];
        Mat::new(self.w_memory.view(), Float::Bf16, self.rows, self.width, stride).unwrap()
    }

    /// The same weight, and only these tokens.
    pub fn of_tokens(&self, tokens: std::ops::Range<usize>) -> Self {
        let x = self.x[tokens.start * self.width..tokens.end * self.width].to_vec();
        let x_memory = upload(&self.gpu, &x, self.width, self.strides[0], self.dtype);
        let w_memory = upload(&self.gpu, &self.w, self.width, self.strides[1], Float::Bf16);
        let (gpu, w) = (Arc::clone(&self.gpu), self.w.clone());
        Self { gpu, tokens: tokens.len(), x, w, x_memory, w_memory, ..*self }
    }

    /// Make all of a token this number.
    pub fn set_token(&mut self, token: usize, value: f32) {
        self.x[token * self.width..][..self.width].fill(value);
        self.x_memory = upload(&self.gpu, &self.x, self.width, self.strides[0], self.dtype);
    }

    /// What the result's memory holds before.
    pub fn before(&self) -> Vec<f32> {
        numbers(self.tokens * self.rows, 99)
    }

    /// Do `work` with memory for a result `[tokens, columns]`, and give what it left there.
    pub fn with_memory(
        &self,
        columns: usize,
        dtype: Float,
        work: impl FnOnce(MatMut<'_>),
    ) -> Vec<f32> {
        let stride = self.strides[2] - self.rows + columns;
        let before = numbers(self.tokens * columns, 99);
        let mut memory = upload(&self.gpu, &before, columns, stride, dtype);
        work(MatMut::new(memory.view_mut(), dtype, self.tokens, columns, stride).unwrap());
        if columns == 0 { Vec::new() } else { download(&memory, columns, stride, dtype) }
    }

    /// What `linear` makes of it.
    pub fn linear(&self, accumulate: Accumulate, arithmetic: Arithmetic, out: Float) -> Vec<f32> {
        self.with_memory(self.rows, out, |y| {
            linear(&self.gpu, self.x(), self.weight(), accumulate, arithmetic, y).unwrap();
        })
    }

    /// The product of a token and a row of the weight, and the sum of its terms' magnitudes.
    pub fn product(&self, t: usize, n: usize) -> (f64, f64) {
        let x = &self.x[t * self.width..][..self.width];
        let w = &self.w[n * self.width..][..self.width];
        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    }
}

/// Every element is what becomes of the product and what was there, within what f32 can tell (and, where
/// it was stored as bf16, that).
pub fn assert_close(problem: &Problem, y: &[f32], of: impl Fn(f64, f64) -> f64, stored: Float) {
    let before = problem.before();
    assert_eq!(y.len(), before.len());
    let relative = if stored == Float::F32 { 1e-6 } else { 1.0 / 256.0 };
    for (i, (y, before)) in y.iter().zip(&before).enumerate() {
        let (t, n) = (i / problem.rows, i % problem.rows);
        let (product, size) = problem.product(t, n);
        let expected = of(product, f64::from(*before));
        let most = 2e-6 * size + relative * expected.abs() + 1e-6;
        let off = (f64::from(*y) - expected).abs();
        assert!(
            off <= most,
            "{} tokens by {}, {} columns: ({t}, {n}) is {y}, not {expected}",
            problem.tokens,
            problem.rows,
            problem.width
        );
    }
}

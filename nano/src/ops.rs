//! The ops of a decoder, each as its formula says.

/// A matrix in row-major order: `rows` rows of `cols` numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Number of rows.
    pub rows: usize,
    /// Number of elements of a row.
    pub cols: usize,
    /// The rows, one behind the other.
    pub data: Vec<f32>,
}

impl Matrix {
    /// A matrix of zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..][..self.cols]
    }

    /// Row `i`, to write.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..][..self.cols]
    }

    /// The matrix times a vector: element `i` is the dot product of row `i` and `x`.
    ///
    /// A weight of a model is stored like this, `[outputs, inputs]`. `x` has `cols` elements.
    ///
    /// ```
    /// let w = nano::Matrix { rows: 2, cols: 3, data: vec![1.0, 0.0, 2.0, 0.0, 1.0, 1.0] };
    /// assert_eq!(w.times(&[1.0, 2.0, 3.0]), [7.0, 5.0]);
    /// ```
    pub fn times(&self, x: &[f32]) -> Vec<f32> {
        // exercise nano.matmul
        let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum();
        (0..self.rows).map(|i| dot(self.row(i))).collect()
        // end of exercise
    }
}

/// Root mean square norm (Zhang and Sennrich 2019): `x_i / sqrt(mean(x^2) + eps) * weight_i`.
///
/// ```
/// // The mean square of 3 and 4 is 12.5.
/// let y = nano::ops::rms_norm(&[3.0, 4.0], &[1.0, 2.0], 0.0);
/// assert_eq!(y, [3.0 / 12.5f32.sqrt(), 4.0 / 12.5f32.sqrt() * 2.0]);
/// ```
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    // exercise nano.rms_norm
    let mean_square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let rms = (mean_square + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x / rms * w).collect()
    // end of exercise
}

/// Rotary position embedding (Su et al. 2021) of one head of `D` elements, in place.
///
/// Elements `i` and `i + D/2` are the coordinates of a point in a plane, which is rotated by the angle
/// `position * theta^(-2i/D)`. `D` is even.
///
/// ```
/// let mut head = [1.0, 0.0];
/// nano::ops::rope(&mut head, 2, 10_000.0);
/// assert_eq!(head, [2f32.cos(), 2f32.sin()]);
/// ```
pub fn rope(head: &mut [f32], position: usize, theta: f32) {
    // exercise nano.rope
    let half = head.len() / 2;
    for i in 0..half {
        let angle = position as f32 * theta.powf(-2.0 * i as f32 / head.len() as f32);
        let (sin, cos) = angle.sin_cos();
        let (x, y) = (head[i], head[i + half]);
        head[i] = x * cos - y * sin;
        head[i + half] = y * cos + x * sin;
    }
    // end of exercise
}

/// Softmax, in place: `exp(x_i) / sum(exp(x_j))`. Results are positive and their sum is 1.
///
/// The largest element is subtracted from all of them first. That changes nothing in the formula, and without it `exp`
/// of a large number is infinite.
///
/// ```
/// let mut x = [1000.0, 1000.0];
/// nano::ops::softmax(&mut x);
/// assert_eq!(x, [0.5, 0.5]);
/// ```
pub fn softmax(x: &mut [f32]) {
    // exercise nano.softmax
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
    // end of exercise
}

/// The gate of a SwiGLU MLP (Shazeer 2020): `silu(gate_i) * up_i`, where `silu(x) = x / (1 + exp(-x))`.
///
/// ```
/// assert_eq!(nano::ops::swiglu(&[0.0, 100.0], &[5.0, 0.5]), [0.0, 50.0]);
/// ```
pub fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    // exercise nano.swiglu
    let silu = |x: f32| x / (1.0 + (-x).exp());
    gate.iter().zip(up).map(|(gate, up)| silu(*gate) * up).collect()
    // end of exercise
}

/// Index of the largest element; of the first one, if several are equal.
///
/// ```
/// assert_eq!(nano::ops::argmax(&[0.5, 2.0, 2.0]), 1);
/// ```
pub fn argmax(x: &[f32]) -> usize {
    // exercise nano.generate
    let mut best = 0;
    for (i, value) in x.iter().enumerate() {
        if *value > x[best] {
            best = i;
        }
    }
    best
    // end of exercise
}

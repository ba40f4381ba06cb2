//! Numbers in device memory, with something around them that must stay as it is.

use std::sync::Arc;

use half::bf16;
use kernels::{Buffer, Float, Gpu, Heads, HeadsMut, Mat, MatMut};

/// How rows lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    pub rows: usize,
    pub width: usize,
    /// Elements in front of the first row.
    pub before: usize,
    /// Elements from row to row.
    pub stride: usize,
}

impl Layout {
    pub fn dense(rows: usize, width: usize) -> Self {
        Self { rows, width, before: 0, stride: width }
    }

    /// Behind each other; with gaps, but every row aligned if its width is; nowhere aligned.
    pub fn all(rows: usize, width: usize) -> [Self; 3] {
        let dense = Self::dense(rows, width);
        let stride = width.next_multiple_of(4) + 8;
        [dense, Self { before: 4, stride, ..dense }, Self { before: 1, stride: width + 3, ..dense }]
    }

    fn elements(&self) -> usize {
        self.before + self.rows * self.stride + 5
    }

    fn at(&self, row: usize, column: usize) -> usize {
        self.before + row * self.stride + column
    }
}

/// What lies around the rows. No result of a test is this.
const AROUND: f32 = -7.03125e20;

/// Rows in device memory.
pub struct Field {
    buffer: Buffer,
    dtype: Float,
    layout: Layout,
}

impl Field {
    /// Rows with these elements, row by row; rounded, if they are bf16.
    pub fn new(gpu: &Arc<Gpu>, dtype: Float, layout: Layout, values: &[f32]) -> Self {
        assert_eq!(values.len(), layout.rows * layout.width);
        let mut all = vec![AROUND; layout.elements()];
        for (i, value) in values.iter().enumerate() {
            all[layout.at(i / layout.width, i % layout.width)] = *value;
        }
        let buffer = match dtype {
            Float::F32 => Buffer::from_slice(gpu, &all),
            Float::Bf16 => {
                let all: Vec<u16> = all.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
                Buffer::from_slice(gpu, &all)
            }
        };
        Self { buffer: buffer.unwrap(), dtype, layout }
    }

    /// Rows to be written.
    pub fn unwritten(gpu: &Arc<Gpu>, dtype: Float, layout: Layout) -> Self {
        Self::new(gpu, dtype, layout, &vec![AROUND; layout.rows * layout.width])
    }

    fn begin(&self) -> usize {
        self.layout.before * self.dtype.size()
    }

    pub fn mat(&self) -> Mat<'_> {
        let Layout { rows, width, stride, .. } = self.layout;
        let memory = self.buffer.view().part(self.begin(), usize::MAX);
        Mat::new(memory, self.dtype, rows, width, stride).unwrap()
    }

    pub fn mat_mut(&mut self) -> MatMut<'_> {
        let Layout { rows, width, stride, .. } = self.layout;
        let begin = self.begin();
        let memory = self.buffer.view_mut().part(begin, usize::MAX);
        MatMut::new(memory, self.dtype, rows, width, stride).unwrap()
    }

    /// Its rows as `heads` heads each.
    pub fn heads(&self, heads: usize) -> Heads<'_> {
        let Layout { rows, width, stride, .. } = self.layout;
        let memory = self.buffer.view().part(self.begin(), usize::MAX);
        Heads::new(memory, self.dtype, [rows, heads, width / heads], stride).unwrap()
    }

    pub fn heads_mut(&mut self, heads: usize) -> HeadsMut<'_> {
        let Layout { rows, width, stride, .. } = self.layout;
        let begin = self.begin();
        let memory = self.buffer.view_mut().part(begin, usize::MAX);
        HeadsMut::new(memory, self.dtype, [rows, heads, width / heads], stride).unwrap()
    }

    /// Its elements, row by row. Panics when what lies around them has changed.
    pub fn read(&self) -> Vec<f32> {
        let mut all: Vec<f32> = match self.dtype {
            Float::F32 => self.buffer.to_vec().unwrap(),
            Float::Bf16 => {
                let bits: Vec<u16> = self.buffer.to_vec().unwrap();
                bits.into_iter().map(|b| bf16::from_bits(b).to_f32()).collect()
            }
        };
        let layout = self.layout;
        let around = match self.dtype {
            Float::F32 => AROUND,
            Float::Bf16 => bf16::from_f32(AROUND).to_f32(),
        };
        let mut rows = Vec::new();
        for row in 0..layout.rows {
            for column in 0..layout.width {
                rows.push(std::mem::replace(&mut all[layout.at(row, column)], around));
            }
        }
        let changed = all.iter().position(|v| *v != around);
        assert_eq!(changed, None, "an element outside of the rows has changed: {layout:?}");
        rows
    }
}

/// Numbers between -1 and 1 that look random: the upper bits of a linear congruential sequence (Knuth's
/// MMIX constants).
pub fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    for _ in 0..4 {
        next();
    }
    (0..n).map(|_| next()).collect()
}

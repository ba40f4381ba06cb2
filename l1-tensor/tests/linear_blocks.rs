//! Weights in block formats: `fixtures/gguf-blocks.safetensors` has random blocks and their weights by gguf-py.

mod linear_common;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::{Epilogue, linear};
use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{BlockFormat, BlockPart, DType, Device, Error, RowOrder, Runtime, Tensor, Weight};
use linear_common::{activations, fixture, numbers, rounded, runtime, weight};

/// Rows of whole units.
struct Blocks {
    format: BlockFormat,
    n: usize,
    k: usize,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Blocks {
    fn all() -> impl Iterator<Item = Self> {
        let file = SafetensorsFile::open(fixture("gguf-blocks.safetensors")).unwrap();
        // A GGUF file has no NVFP4 in two tensors.
        let formats = BlockFormat::ALL.into_iter().filter(|f| *f != BlockFormat::NVFP4_SPLIT);
        formats.map(move |format| {
            let name = format.name().to_lowercase();
            let bytes = file.bytes(&format!("{name}.bytes")).unwrap().to_vec();
            let values =
                file.tensor(&format!("{name}.values")).unwrap().view().to_vec_f32().unwrap();
            let k = 2 * format.block_len();
            Self { format, n: values.len() / k, k, bytes, values }
        })
    }

    /// Five times as long rows, of the same blocks in another order, and an odd number of them: several spans in most
    /// formats, and a panel that is not full.
    fn longer(&self) -> Self {
        let n = self.n - 1;
        let rows = |values: usize| {
            (0..n).flat_map(move |i| (0..5).map(move |part| (i + 7 * part) % (n + 1) * values))
        };
        let len = self.bytes.len() / self.n;
        Self {
            format: self.format,
            n,
            k: 5 * self.k,
            bytes: rows(len).flat_map(|at| self.bytes[at..][..len].to_vec()).collect(),
            values: rows(self.k).flat_map(|at| self.values[at..][..self.k].to_vec()).collect(),
        }
    }

    fn packed(&self, rt: &Runtime, order: RowOrder) -> Weight {
        let len = self.bytes.len() / self.n;
        let parts = [BlockPart { rows: self.n, format: self.format }];
        let row = |i: usize| Ok::<_, Error>(&self.bytes[i * len..][..len]);
        Weight::load_blocks(rt, self.k, order, &parts, &row).unwrap()
    }
}

#[test]
fn rows_of_blocks_are_those_of_gguf_py_rounded_to_bf16() {
    let rt = runtime(Isa::best(), 2);
    for blocks in Blocks::all() {
        for order in [RowOrder::Plain, RowOrder::GateUp] {
            let packed = blocks.packed(&rt, order);
            let mut row = vec![f32::NAN; blocks.k];
            for (i, values) in blocks.values.chunks_exact(blocks.k).enumerate() {
                packed.row(i, &mut row).unwrap();
                let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&row), bits(&rounded(values)), "row {i} of {}", blocks.format);
            }
        }
    }
}

/// Numbers of rows: all that kernels treat apart, and one that needs several chunks.
fn cases() -> impl Iterator<Item = (usize, DType)> {
    let few = (1..=33).map(|rows| (rows, DType::BF16));
    few.chain([(65, DType::BF16), (601, DType::BF16), (3, DType::F32), (33, DType::F32)])
}

#[test]
fn blocks_multiply_as_the_weights_they_stand_for() {
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        for blocks in Blocks::all().map(|blocks| blocks.longer()) {
            let packed = blocks.packed(&rt, RowOrder::Plain);
            let dense = weight(&rt, &blocks.values, blocks.n, blocks.k, RowOrder::Plain);
            for (rows, dtype) in cases() {
                let x = activations(&numbers(5, rows * blocks.k), rows, blocks.k, dtype);
                let [got, want] = [&packed, &dense].map(|w| {
                    let mut out =
                        Tensor::zeros(&[rows, blocks.n], DType::F32, Device::Cpu).unwrap();
                    linear(&rt, x.view(), w, None, Epilogue::Store, out.view_mut()).unwrap();
                    out.view().to_vec_f32().unwrap()
                });
                let bits = |y: &[f32]| y.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let what = format!("{rows} rows by {} on {isa}", blocks.format);
                assert_eq!(bits(&got), bits(&want), "{what}");
            }
        }
    }
}

//! Weights in block formats: `fixtures/gguf-blocks.safetensors` has random blocks and their weights by gguf-py.

mod linear_common;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::{Epilogue, linear};
use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{BlockFormat, BlockPart, DType, Device, Error, RowOrder, Runtime, Tensor, Weight};
use linear_common::{activations, fixture, numbers, rounded, runtime, weight};

/// Rows of 2 blocks.
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

    fn packed(&self, rt: &Runtime, order: RowOrder) -> Weight {
        let len = 2 * self.format.block_bytes();
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

#[test]
fn blocks_multiply_as_the_weights_they_stand_for() {
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        for blocks in Blocks::all() {
            let packed = blocks.packed(&rt, RowOrder::Plain);
            let dense = weight(&rt, &blocks.values, blocks.n, blocks.k, RowOrder::Plain);
            for (rows, dtype) in [(1, DType::BF16), (17, DType::BF16), (3, DType::F32)] {
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

//! Weights that keep the blocks of their checkpoint, against the same blocks expanded by `dequantize` and rounded to
//! bf16, whose values are those of gguf-py (`checkpoint_quant.rs`).

mod checkpoint_support;
mod judge;
#[path = "support/logits.rs"]
mod logits;

use checkpoint_support::fixture;
use l1_tensor::cpu::Isa;
use l1_tensor::ops::{Epilogue, embedding, linear};
use l1_tensor::{
    BlockFormat, BlockPart, DType, Device, Error, PackedBlocks, RowOrder, Runtime, RuntimeOptions,
    StoredRow, Tensor, Weight, WeightStorage, bf16,
};
use l2_model::ModelFiles;
use l2_model::checkpoint::Checkpoint;
use l2_model::checkpoint::quant::{StoredType, dequantize};
use logits::all_logits;

fn runtime(isa: Isa) -> Runtime {
    runtime_of(isa, 2)
}

fn runtime_of(isa: Isa, threads: usize) -> Runtime {
    let (threads, isa, weights) = (Some(threads), Some(isa), WeightStorage::Packed);
    Runtime::new(RuntimeOptions { threads, isa, weights, ..RuntimeOptions::cpu() }).unwrap()
}

/// Reproducible bytes.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u8 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }
}

/// Where a block has its f16 numbers.
fn halves(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q8_0 | BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::IQ4_NL => &[0],
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4_K | BlockFormat::Q5_K => &[0, 2],
        BlockFormat::Q6_K => &[208],
        BlockFormat::MXFP4 | BlockFormat::NVFP4 | BlockFormat::NVFP4_SPLIT => &[],
    }
}

/// Where a block has its scales of one byte: from, to, and the largest. Blocks of NVFP4 in two tensors have them behind
/// their codes here.
fn bytes_of_scales(format: BlockFormat) -> Option<(usize, usize, u8)> {
    match format {
        BlockFormat::MXFP4 => Some((0, 1, 252)),
        BlockFormat::NVFP4 => Some((0, 4, 0x7e)),
        BlockFormat::NVFP4_SPLIT => Some((8, 9, 0x7e)),
        _ => None,
    }
}

/// Rows of blocks with any bits but infinite scales: negative ones, zeros of either sign, subnormal ones.
#[derive(Clone)]
struct Stored {
    format: BlockFormat,
    k: usize,
    rows: Vec<Vec<u8>>,
}

impl Stored {
    fn random(format: BlockFormat, n: usize, k: usize) -> Self {
        let mut bytes = Bytes((n * k) as u64);
        let blocks = k / format.block_len();
        let mut row = || {
            let mut row: Vec<u8> =
                (0..blocks * format.block_bytes()).map(|_| bytes.next()).collect();
            for block in row.chunks_exact_mut(format.block_bytes()) {
                if let Some((from, to, max)) = bytes_of_scales(format) {
                    for scale in &mut block[from..to] {
                        *scale = match bytes.next() % 8 {
                            0 => bytes.next() % 4,
                            // Of the powers of two only those that make no sum infinite.
                            _ if max == 252 => 100 + bytes.next() % 30,
                            _ => bytes.next() % (max + 1),
                        };
                    }
                }
                for at in halves(format) {
                    // Magnitudes below 2: rows of infinite sums would hide differences.
                    block[at + 1] &= 0xbf;
                    match bytes.next() % 8 {
                        0 => block[*at..at + 2].copy_from_slice(&[0, 0]),
                        1 => block[*at..at + 2].copy_from_slice(&[0, 0x80]),
                        2 => block[at + 1] &= 0x83,
                        _ => {}
                    }
                }
            }
            row
        };
        Self { format, k, rows: (0..n).map(|_| row()).collect() }
    }

    fn dequantize(&self, i: usize, out: &mut [f32]) {
        if self.format != BlockFormat::NVFP4_SPLIT {
            let ty = StoredType::ALL.into_iter().find(|ty| ty.blocks() == Some(self.format));
            return dequantize(ty.unwrap(), &self.rows[i], out).unwrap();
        }
        let (codes, scales) = split(&self.rows[i]);
        dequantize(StoredType::E2M1, &codes, out).unwrap();
        let mut of_groups = vec![0.0; scales.len()];
        dequantize(StoredType::F8_E4M3, &scales, &mut of_groups).unwrap();
        for (group, scale) in out.chunks_exact_mut(16).zip(of_groups) {
            group.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// The row as a file stores it; `apart` is memory for rows of two tensors.
    fn row<'a>(&'a self, i: usize, apart: &'a [(Vec<u8>, Vec<u8>)]) -> StoredRow<'a> {
        match self.format {
            BlockFormat::NVFP4_SPLIT => StoredRow::split(&apart[i].0, &apart[i].1),
            _ => self.rows[i].as_slice().into(),
        }
    }

    fn apart(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.rows.iter().map(|row| split(row)).collect()
    }
}

/// Codes and scales of blocks of eight bytes of codes and one of scales.
fn split(row: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let blocks = row.chunks_exact(9);
    (blocks.clone().flat_map(|b| &b[..8]).copied().collect(), blocks.map(|b| b[8]).collect())
}

/// The same rows packed and expanded.
fn both(rt: &Runtime, parts: &[Stored], order: RowOrder) -> [Weight; 2] {
    let k = parts[0].k;
    let apart: Vec<_> = parts.iter().map(Stored::apart).collect();
    let rows: Vec<(&Stored, &Vec<_>, usize)> = parts
        .iter()
        .zip(&apart)
        .flat_map(|(part, apart)| (0..part.rows.len()).map(move |i| (part, apart, i)))
        .collect();
    let blocks: Vec<_> =
        parts.iter().map(|part| BlockPart { rows: part.rows.len(), format: part.format }).collect();
    let row = |i: usize| Ok::<_, Error>(rows[i].0.row(rows[i].2, rows[i].1));
    let packed = Weight::load_blocks(rt, k, order, &blocks, &row).unwrap();
    let fill = |i: usize, out: &mut [f32]| {
        rows[i].0.dequantize(rows[i].2, out);
        Ok::<_, Error>(())
    };
    [packed, Weight::load(rt, rows.len(), k, order, &fill).unwrap()]
}

fn activations(t: usize, k: usize, dtype: DType) -> Tensor {
    let mut bytes = Bytes(7);
    let values: Vec<f32> = (0..t * k).map(|_| f32::from(bytes.next()) / 64.0 - 2.0).collect();
    tensor(&values, t, k, dtype)
}

fn tensor(values: &[f32], t: usize, k: usize, dtype: DType) -> Tensor {
    match dtype {
        DType::F32 => Tensor::from_slice(values, &[t, k]).unwrap(),
        _ => {
            let values: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
            Tensor::from_slice(&values, &[t, k]).unwrap()
        }
    }
}

/// Outputs of both weights have the same bits.
fn judge_outputs(what: &str, rt: &Runtime, weights: &[Weight; 2], t: usize, dtype: DType) {
    let x = activations(t, weights[0].k(), dtype);
    let [got, expected] = weights.each_ref().map(|weight| multiply(rt, &x, weight));
    let what = format!("{what}, {t} rows of {dtype}, {}", rt.isa());
    judge::same_bits(&what, &[t, got.len() / t], &got, &expected);
}

fn multiply(rt: &Runtime, x: &Tensor, weight: &Weight) -> Vec<f32> {
    let (epilogue, n) = match weight.order() {
        RowOrder::GateUp => (Epilogue::SiluMul, weight.n() / 2),
        RowOrder::Plain => (Epilogue::Store, weight.n()),
    };
    let t = x.view().dims()[0];
    let mut out = Tensor::zeros(&[t, n], DType::F32, Device::Cpu).unwrap();
    linear(rt, x.view(), weight, None, epilogue, out.view_mut()).unwrap();
    out.view().to_vec_f32().unwrap()
}

/// A row length that ends in the middle of a part of a panel.
fn odd_length(format: BlockFormat) -> usize {
    match format.unit_len() {
        32 => 1024 + 96,
        64 => 1024 + 192,
        _ => 1280,
    }
}

#[test]
fn a_row_of_blocks_has_the_bits_of_its_expansion() {
    let rt = runtime(Isa::best());
    for format in BlockFormat::ALL {
        for (n, order) in [(37, RowOrder::Plain), (70, RowOrder::GateUp)] {
            let stored = Stored::random(format, n, odd_length(format));
            let weights = both(&rt, &[stored], order);
            for i in 0..n {
                let [got, expected] = weights.each_ref().map(|weight| {
                    let mut row = vec![f32::NAN; weight.k()];
                    weight.row(i, &mut row).unwrap();
                    row
                });
                judge::same_bits(&format!("row {i} of {format}"), &[got.len()], &got, &expected);
            }
        }
    }
}

#[test]
fn every_format_multiplies_with_the_bits_of_its_expansion() {
    for isa in Isa::available() {
        let rt = runtime(isa);
        for format in BlockFormat::ALL {
            let weights =
                both(&rt, &[Stored::random(format, 45, odd_length(format))], RowOrder::Plain);
            for t in [1, 2, 13, 33] {
                judge_outputs(format.name(), &rt, &weights, t, DType::BF16);
            }
            judge_outputs(format.name(), &rt, &weights, 3, DType::F32);
        }
    }
}

#[test]
fn every_number_of_rows_gives_the_same_bits() {
    for isa in Isa::available() {
        let rt = runtime(isa);
        let weights = both(&rt, &[Stored::random(BlockFormat::Q4_1, 33, 64)], RowOrder::Plain);
        for t in 1..=33 {
            judge_outputs("Q4_1", &rt, &weights, t, DType::BF16);
        }
        let k = odd_length(BlockFormat::Q5_K);
        let weights = both(&rt, &[Stored::random(BlockFormat::Q5_K, 33, k)], RowOrder::Plain);
        for t in [15, 16, 17, 127, 129, 513] {
            judge_outputs("Q5_K", &rt, &weights, t, DType::BF16);
        }
    }
}

#[test]
fn every_scale_decodes_exactly() {
    // Every finite f16 as d, beside the largest codes.
    let finite = (0..=u16::MAX).filter(|half| half & 0x7c00 != 0x7c00);
    let row = |half: u16| [&half.to_le_bytes()[..], &[0x80, 0x7f, 1, 0xff].repeat(8)].concat();
    let rows: Vec<_> = finite.map(row).collect();
    for isa in Isa::available() {
        let rt = runtime(isa);
        let stored = Stored { format: BlockFormat::Q8_0, k: 32, rows: rows.clone() };
        let weights = both(&rt, &[stored], RowOrder::Plain);
        judge_outputs("every d", &rt, &weights, 1, DType::F32);
    }
}

#[test]
fn every_nested_scale_decodes_exactly() {
    // A row has one scale and one minimum in all groups of its block, and all codes beside them.
    for format in [BlockFormat::Q4_K, BlockFormat::Q5_K, BlockFormat::Q6_K] {
        let mut stored = Stored::random(format, 256, 256);
        for (i, row) in stored.rows.iter_mut().enumerate() {
            let nibbles = match format {
                BlockFormat::Q4_K => 16..144,
                BlockFormat::Q5_K => 48..176,
                _ => 0..128,
            };
            row[nibbles].iter_mut().enumerate().for_each(|(j, both)| *both = (j % 16 * 17) as u8);
            // Upper bits: of each 32 bytes the first half has others than the second.
            match format {
                BlockFormat::Q5_K => row[16..48].copy_from_slice(&[[0; 16], [0xff; 16]].concat()),
                BlockFormat::Q6_K => row[128..192].copy_from_slice(
                    &[[0b11_10_01_00; 16], [0b00_01_10_11; 16]].concat().repeat(2),
                ),
                _ => {}
            }
            if format == BlockFormat::Q6_K {
                row[192..208].fill(i as u8);
                continue;
            }
            // Scales and minima of 6 bits: those of the lower groups in bytes of their own, those of the upper ones in
            // halves of a byte and in the top bits of the lower ones.
            let (scale, min) = ((i % 64) as u8, ((i * 37 + 11) % 64) as u8);
            row[4..8].fill(scale | scale >> 4 << 6);
            row[8..12].fill(min | min >> 4 << 6);
            row[12..16].fill(scale & 15 | (min & 15) << 4);
        }
        for isa in Isa::available() {
            let rt = runtime(isa);
            let weights = both(&rt, std::slice::from_ref(&stored), RowOrder::Plain);
            judge_outputs(&format!("every scale of {format}"), &rt, &weights, 1, DType::F32);
        }
    }
}

#[test]
fn infinity_and_nan_in_activations_give_the_bits_of_expanded_weights() {
    for isa in Isa::available() {
        let rt = runtime(isa);
        for format in [BlockFormat::Q4_0, BlockFormat::Q6_K] {
            let stored = Stored::random(format, 40, odd_length(format));
            let weights = both(&rt, &[stored], RowOrder::Plain);
            for dtype in [DType::F32, DType::BF16] {
                let (t, k) = (5, weights[0].k());
                let mut values = activations(t, k, DType::F32).to_vec_f32().unwrap();
                values[3] = f32::INFINITY;
                values[k + 700] = f32::NEG_INFINITY;
                values[2 * k + k - 1] = f32::NAN;
                values[3 * k..3 * k + 2].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY]);
                let x = tensor(&values, t, k, dtype);
                let [got, expected] = weights.each_ref().map(|weight| multiply(&rt, &x, weight));
                assert!(got[2 * 40..3 * 40].iter().all(|y| y.is_nan()), "NaN reaches its row");
                assert!(got[4 * 40..].iter().all(|y| y.is_finite()), "and no other");
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&expected), "{format}, {dtype}, {isa}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let of = |threads: usize, t: usize| {
        let rt = runtime_of(Isa::best(), threads);
        let stored = Stored::random(BlockFormat::Q4_K, 200, 1280);
        let [packed, _] = both(&rt, &[stored], RowOrder::Plain);
        multiply(&rt, &activations(t, 1280, DType::BF16), &packed)
    };
    for t in [1, 7, 130, 600] {
        let one = of(1, t);
        for threads in [2, 3, 8] {
            let what = format!("{t} rows on {threads} threads");
            judge::same_bits(&what, &[t, 200], &of(threads, t), &one);
        }
    }
}

#[test]
fn embeddings_are_the_rows_of_expanded_weights() {
    let rt = runtime(Isa::best());
    let weights = both(&rt, &[Stored::random(BlockFormat::Q8_0, 50, 96)], RowOrder::Plain);
    let ids = [49, 0, 7, 7, 31, 32];
    let [got, expected] = weights.each_ref().map(|weight| {
        let mut out = Tensor::zeros(&[ids.len(), 96], DType::F32, Device::Cpu).unwrap();
        embedding(&rt, weight, &ids, out.view_mut()).unwrap();
        out.to_vec_f32().unwrap()
    });
    judge::same_bits("embeddings", &[ids.len(), 96], &got, &expected);
}

#[test]
fn every_four_bit_float_times_every_scale_decodes_exactly() {
    // A row for each scale, with all codes of either order of nibbles.
    let codes: Vec<u8> = (0..16u8).map(|i| i | (15 - i) << 4).collect();
    let row = |format, scale: u8| match format {
        BlockFormat::MXFP4 => [&[scale][..], &codes, &[scale], &codes].concat(),
        BlockFormat::NVFP4 => [&[scale; 4][..], &codes, &codes].concat(),
        _ => [&codes[..8], &[scale], &codes[8..], &[scale]].concat(),
    };
    for isa in Isa::available() {
        let rt = runtime(isa);
        for format in [BlockFormat::MXFP4, BlockFormat::NVFP4, BlockFormat::NVFP4_SPLIT] {
            let (_, _, max) = bytes_of_scales(format).unwrap();
            let rows = (0..=max).map(|scale| row(format, scale)).collect();
            let stored = Stored { format, k: format.unit_len(), rows };
            let weights = both(&rt, std::slice::from_ref(&stored), RowOrder::Plain);
            let mut expected = vec![0.0; stored.k];
            for i in 0..stored.rows.len() {
                stored.dequantize(i, &mut expected);
                let rounded: Vec<f32> =
                    expected.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
                let what = format!("scale {i} of {format}");
                judge::same_bits(&what, &[stored.k], &rounded, &expected);
            }
            // One input at a time, so that each output is a weight. Sums in f32 keep subnormal weights.
            for input in 0..stored.k {
                let mut x = vec![0.0; stored.k];
                x[input] = 1.0;
                let x = Tensor::from_slice(&x, &[1, stored.k]).unwrap();
                let n = stored.rows.len();
                let [got, expected] = weights.each_ref().map(|weight| {
                    let mut out = Tensor::zeros(&[1, n], DType::F32, Device::Cpu).unwrap();
                    linear(&rt, x.view(), weight, None, Epilogue::Store, out.view_mut()).unwrap();
                    out.view().to_vec_f32().unwrap()
                });
                judge::same_bits(
                    &format!("input {input} of {format}, {isa}"),
                    &[n],
                    &got,
                    &expected,
                );
            }
        }
    }
}

#[test]
fn gates_meet_their_ups() {
    for isa in Isa::available() {
        let rt = runtime(isa);
        for format in BlockFormat::ALL {
            // 19 gates fill a panel and three lanes of the next.
            let half = || Stored::random(format, 19, 256);
            let weights = both(&rt, &[half(), half()], RowOrder::GateUp);
            judge_outputs(&format!("gates and ups in {format}"), &rt, &weights, 5, DType::BF16);
        }
    }
}

#[test]
fn parts_of_several_formats_keep_them_where_panels_allow_it() {
    let part = |format, n| Stored::random(format, n, 512);
    let (a, b, c) = (BlockFormat::Q4_K, BlockFormat::Q6_K, BlockFormat::Q8_0);
    for isa in Isa::available() {
        let rt = runtime(isa);
        let parts = [part(a, 40), part(a, 56), part(b, 64), part(c, 40)];
        let weights = both(&rt, &parts, RowOrder::Plain);
        assert_eq!(weights[0].formats().collect::<Vec<_>>(), ["Q4_K", "Q6_K", "Q8_0"]);
        for t in [1, 7, 40] {
            judge_outputs("q, k and v", &rt, &weights, t, DType::BF16);
        }
    }

    let fits = |parts: &[(BlockFormat, usize)], order| {
        let parts: Vec<_> =
            parts.iter().map(|(format, rows)| BlockPart { rows: *rows, format: *format }).collect();
        PackedBlocks::can_pack(512, order, &parts)
    };
    assert!(fits(&[(a, 48), (a, 48)], RowOrder::Plain), "one format needs no alignment");
    assert!(!fits(&[(a, 48), (b, 48)], RowOrder::Plain), "a panel has one format");
    assert!(!fits(&[(a, 64), (b, 64)], RowOrder::GateUp), "a panel has gates and ups");
    assert!(!fits(&[], RowOrder::Plain));
    assert!(
        fits(&[(b, 0), (a, 48), (b, 0), (a, 48), (b, 0)], RowOrder::GateUp),
        "no rows, no format"
    );
    assert!(!fits(&[(a, 0)], RowOrder::Plain), "no rows at all");
    assert!(!fits(&[(a, 33)], RowOrder::GateUp), "a gate without an up");
    assert!(!fits(&[(a, usize::MAX), (a, 32)], RowOrder::Plain), "too many rows");
    assert!(!PackedBlocks::can_pack(500, RowOrder::Plain, &[BlockPart { rows: 1, format: a }]));
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let rt = runtime(Isa::best());
    let load = |stored: &Stored, order| {
        let parts = [BlockPart { rows: stored.rows.len(), format: stored.format }];
        let apart = stored.apart();
        let row = |i: usize| Ok::<_, Error>(stored.row(i, &apart));
        Weight::load_blocks(&rt, stored.k, order, &parts, &row)
    };
    for format in BlockFormat::ALL {
        for at in halves(format) {
            for (what, bits) in [("infinite", 0x7c00u16), ("not a number", 0xfe01)] {
                let mut stored = Stored::random(format, 40, 512);
                stored.rows[38][at + format.block_bytes()..][..2]
                    .copy_from_slice(&bits.to_le_bytes());
                let expected = "row 38 has a scale in";
                judge::refused(format!("{what} scale"), expected, load(&stored, RowOrder::Plain));
            }
        }
        if let Some((at, _, max)) = bytes_of_scales(format) {
            for scale in [max + 1, 0xff] {
                let mut stored = Stored::random(format, 40, 512);
                stored.rows[38][at + format.block_bytes()] = scale;
                let expected = "row 38 has a scale in";
                judge::refused(format!("scale {scale}"), expected, load(&stored, RowOrder::Plain));
            }
        }
        let mut stored = Stored::random(format, 3, 512);
        stored.rows[2].pop();
        judge::refused("a truncated row", "row 2 has", load(&stored, RowOrder::Plain));
        stored.rows.truncate(1);
        judge::refused("a gate without an up", "pairs", load(&stored, RowOrder::GateUp));
        stored.k = 500;
        judge::refused("half a block", "500 weights", load(&stored, RowOrder::Plain));
        let parts = [BlockPart { rows: usize::MAX / 4, format }];
        let row = |_: usize| Ok::<_, Error>(&[][..]);
        let huge = Weight::load_blocks(&rt, 1 << 20, RowOrder::Plain, &parts, &row);
        judge::refused("more weights than there are addresses", "overflow", huge);
    }
}

#[test]
fn a_format_has_the_same_name_and_sizes_in_a_file_and_in_memory() {
    let blocks = |ty: &StoredType| ty.blocks().map(|format| (*ty, format));
    let pairs: Vec<_> = StoredType::ALL.iter().filter_map(blocks).collect();
    assert_eq!(pairs.len() + 1, BlockFormat::ALL.len(), "all but NVFP4 in two tensors");
    for (ty, format) in pairs {
        let of = |name, len, bytes| (name, len, bytes);
        assert_eq!(
            of(ty.name(), ty.block_len(), ty.block_bytes()),
            of(format.name(), format.block_len(), format.block_bytes())
        );
    }
}

#[test]
fn a_file_with_an_infinite_scale_names_the_tensor_and_its_row() {
    let path = fixture("tiny-gguf/llama-q8_0.gguf");
    let mut file = std::fs::read(&path).unwrap();
    let name = "model.layers.1.mlp.up_proj.weight";
    let checkpoint = Checkpoint::open(&path).unwrap();
    let stored = checkpoint.get(name).unwrap().bytes;
    let at = file.windows(stored.len()).position(|bytes| bytes == stored).unwrap();
    // Row 1 of the ups, which lie behind the gates.
    let row = stored.len() / checkpoint.get(name).unwrap().n_rows();
    file[at + row..at + row + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.gguf");
    std::fs::write(&broken, file).unwrap();
    let files = ModelFiles::open(&broken).unwrap();
    let expected = format!("{name}: row 1 has a scale in Q8_0");
    judge::refused("an infinite scale", &expected, files.decoder(&runtime(Isa::best())));
}

#[test]
fn models_of_blocks_take_their_files_size_and_give_the_logits_of_expanded_ones() {
    let gguf = ["llama-q4_0", "llama-q4_1", "llama-q8_0", "llama-k", "qwen2-q8_0"];
    let gguf = gguf.map(|name| format!("tiny-gguf/{name}.gguf"));
    let nvfp4 = ["tiny-llama-nvfp4", "tiny-qwen3-modelopt-nvfp4"].map(String::from);
    for name in gguf.into_iter().chain(nvfp4) {
        let files = ModelFiles::open(&fixture(&name)).unwrap();
        let tokens: Vec<u32> = (1..20).collect();
        let mut bytes = Vec::new();
        let mut logits = Vec::new();
        for weights in [WeightStorage::Packed, WeightStorage::Bf16] {
            let rt = Runtime::new(RuntimeOptions { weights, ..RuntimeOptions::cpu() }).unwrap();
            let decoder = files.decoder(&rt).unwrap();
            logits.push(all_logits(&rt, &decoder, &tokens));
            bytes.push(decoder.weight_bytes());
        }
        judge::same_bits(&format!("logits of {name}"), &[logits[0].len()], &logits[0], &logits[1]);
        assert!(bytes[0] * 10 < bytes[1] * 7, "{name}: {bytes:?} bytes, packed and expanded");
    }
}

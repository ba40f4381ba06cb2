//! Weights in NVFP4 that stay packed on the device: the same weight expanded there, and on the CPU.

use l1_tensor::ops::{Epilogue, embedding, linear};
use l1_tensor::{
    BlockFormat, BlockPart, DType, Error, Precision, PrecisionRequest, Result, RowOrder, Runtime,
    RuntimeOptions, StoredRow, Weight, WeightStorage, e4m3,
};

use crate::support::{bits, noise, within};
use crate::{on_cuda, on_cuda_with, same, tensor, tensor_of, zeros};

/// Rows in NVFP4: codes, two in a byte, and scales, as a safetensors file has them.
struct Stored {
    k: usize,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
}

const FACTORS: [f32; 3] = [0.37, 1.25e-2, 3.1];

impl Stored {
    fn new(n: usize, k: usize) -> Self {
        let noise = noise(n * k, (n + k) as u64);
        let mut bytes = noise.into_iter().map(|x| (x.to_bits() >> 2) as u8);
        let mut next = || bytes.next().unwrap();
        let mut row = || {
            let codes = (0..k / 2).map(|_| next()).collect();
            (codes, (0..k / 16).map(|_| 0x20 + next() % 32).collect())
        };
        Self { k, rows: (0..n).map(|_| row()).collect() }
    }

    /// The same rows as blocks of a GGUF file: four scales, then four times eight bytes of codes.
    fn gguf(&self) -> Vec<Vec<u8>> {
        let code = |codes: &[u8], i: usize| codes[i / 2] >> (i % 2 * 4) & 15;
        let block = |(codes, scales): (&[u8], &[u8])| -> Vec<u8> {
            let groups = (0..4).flat_map(|g| (0..8).map(move |j| 16 * g + j));
            let codes = groups.map(|i| code(codes, i) | code(codes, i + 8) << 4);
            scales.iter().copied().chain(codes).collect()
        };
        let row = |(codes, scales): &(Vec<u8>, Vec<u8>)| {
            codes.chunks_exact(32).zip(scales.chunks_exact(4)).flat_map(block).collect()
        };
        self.rows.iter().map(row).collect()
    }

    /// Three parts of about a third each.
    fn parts(&self) -> [usize; 3] {
        let n = self.rows.len();
        [n / 2, n / 3, n - n / 2 - n / 3]
    }

    fn packed(&self, rt: &Runtime, order: RowOrder) -> Weight {
        let format = BlockFormat::NVFP4_SPLIT;
        let parts = self.parts().map(|rows| BlockPart { rows, format });
        let row = |i: usize| Ok::<_, Error>(StoredRow::split(&self.rows[i].0, &self.rows[i].1));
        Weight::load_blocks(rt, self.k, order, &parts, &row).unwrap()
    }

    fn expanded(&self, rt: &Runtime, order: RowOrder) -> Weight {
        let row = |i: usize, out: &mut [f32]| -> Result<()> {
            out.copy_from_slice(&self.values(i));
            Ok(())
        };
        Weight::load(rt, self.rows.len(), self.k, order, &row).unwrap()
    }

    fn values(&self, i: usize) -> Vec<f32> {
        const LEVELS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let (codes, scales) = &self.rows[i];
        let value = |i: usize| {
            let code = codes[i / 2] >> (i % 2 * 4);
            let level = LEVELS[usize::from(code & 7)];
            let scale = e4m3::to_f32(scales[i / 16]);
            if code & 8 == 0 { level * scale } else { -level * scale }
        };
        (0..self.k).map(value).collect()
    }

    fn scaled(&self, weight: Weight) -> Weight {
        let [a, b, c] = self.parts();
        weight.scaled(&[(a, FACTORS[0]), (b, FACTORS[1]), (c, FACTORS[2])]).unwrap()
    }
}

/// What `linear` makes of noise.
fn product(
    rt: &Runtime,
    weight: &Weight,
    x: DType,
    t: usize,
    epilogue: Epilogue,
    bias: bool,
) -> Result<Vec<f32>> {
    let (n, k) = (weight.n(), weight.k());
    let x = tensor_of(rt, x, &noise(t * k, 2), &[t, k]);
    let folds = !matches!(epilogue, Epilogue::Store | Epilogue::Add);
    let width = if folds { n / 2 } else { n };
    let of_bias = tensor(rt, &noise(n, 3), &[n]);
    let mut out = tensor(rt, &noise(t * width, 4), &[t, width]);
    let bias = bias.then(|| of_bias.view());
    linear(rt, x.view(), weight, bias, epilogue, out.view_mut())?;
    out.to_vec_f32()
}

fn to_bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

const EPILOGUES: [(Epilogue, RowOrder); 3] = [
    (Epilogue::Store, RowOrder::Plain),
    (Epilogue::Add, RowOrder::Plain),
    (Epilogue::SiluMul, RowOrder::GateUp),
];

#[test]
fn packed_weights_give_the_bits_of_expanded_ones() {
    for batch_invariant in [false, true] {
        let rt = on_cuda_with(RuntimeOptions { batch_invariant, ..RuntimeOptions::default() });
        for (n, k) in [(34, 48), (20, 1040)] {
            let stored = Stored::new(n, k);
            for (epilogue, order) in EPILOGUES {
                let packed = stored.scaled(stored.packed(&rt, order));
                let expanded = stored.scaled(stored.expanded(&rt, order));
                for (t, x) in
                    [(1, DType::BF16), (9, DType::BF16), (19, DType::BF16), (2, DType::F32)]
                {
                    for bias in [false, true] {
                        let of = |weight| product(&rt, weight, x, t, epilogue, bias).unwrap();
                        let [got, expected] = [&packed, &expanded].map(|w| to_bits(of(w)));
                        assert!(got == expected, "{t} rows of {x}, [{n}, {k}], {epilogue:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_packed_weights_are_the_cpus() {
    let stored = Stored::new(34, 160);
    for (epilogue, order) in EPILOGUES {
        for (t, x) in [(3, DType::BF16), (18, DType::BF16), (3, DType::F32)] {
            same(&format!("{t} rows of {x}, {epilogue:?}"), within(2e-3, 2e-5), |rt| {
                let weight = stored.scaled(stored.packed(rt, order));
                product(rt, &weight, x, t, epilogue, true)
            });
        }
    }
}

#[test]
fn blocks_of_a_gguf_file_are_the_same_weight() {
    let rt = on_cuda();
    let stored = Stored::new(21, 192);
    let blocks = stored.gguf();
    let parts = [BlockPart { rows: 21, format: BlockFormat::NVFP4 }];
    let row = |i: usize| Ok::<_, Error>(blocks[i].as_slice());
    let weight = Weight::load_blocks(&rt, 192, RowOrder::Plain, &parts, &row).unwrap();
    let split = stored.packed(&rt, RowOrder::Plain);
    let of = |w| to_bits(product(&rt, w, DType::BF16, 2, Epilogue::Store, false).unwrap());
    assert_eq!(of(&weight), of(&split));
}

#[test]
fn rows_are_read_back_and_embedded_with_their_factors() {
    let rt = on_cuda();
    let stored = Stored::new(12, 176);
    let weight = stored.scaled(stored.packed(&rt, RowOrder::Plain));
    let each = stored.parts().into_iter().zip(FACTORS);
    let each: Vec<f32> = each.flat_map(|(n, factor)| std::iter::repeat_n(factor, n)).collect();
    let tokens = [11u32, 0, 6, 6];
    let mut out = zeros(&rt, &[4, 176], DType::F32);
    embedding(&rt, &weight, &tokens[..], out.view_mut()).unwrap();
    let mut row = vec![0.0; 176];
    for (token, embedded) in tokens.into_iter().zip(bits(&out).chunks_exact(176)) {
        let i = token as usize;
        weight.row(i, &mut row).unwrap();
        let expected: Vec<f32> = stored.values(i).iter().map(|x| x * each[i]).collect();
        assert_eq!(row, expected, "row {i}");
        assert_eq!(embedded, to_bits(expected), "token {i}");
    }
    assert!(weight.row(12, &mut row).is_err());
}

#[test]
fn a_packed_weight_takes_four_and_a_half_bits_and_says_so() {
    let rt = on_cuda();
    let stored = Stored::new(8, 1024);
    let weight = stored.packed(&rt, RowOrder::Plain);
    assert_eq!(weight.bytes() * 8, 8 * 1024 * 9 / 2);
    assert_eq!(weight.formats().collect::<Vec<_>>(), ["NVFP4"]);
    let scaled = stored.scaled(weight);
    assert_eq!(scaled.bytes(), 8 * 1024 * 9 / 16 + 2 * 8 * 4, "a factor a row, twice");
    assert_eq!(scaled.formats().collect::<Vec<_>>(), ["NVFP4"]);
    assert_eq!(stored.scaled(stored.expanded(&rt, RowOrder::Plain)).formats().next(), Some("bf16"));
}

#[test]
fn weights_stay_packed_where_a_kernel_reads_them() {
    let parts = |format| [BlockPart { rows: 32, format }];
    let keeps = |options: RuntimeOptions, k, format| {
        let rt = on_cuda_with(options);
        Weight::keeps_blocks(&rt, k, RowOrder::Plain, &parts(format))
    };
    let with = |precision, batch_invariant, weights| RuntimeOptions {
        precision: PrecisionRequest::Exactly(precision),
        batch_invariant,
        weights,
        ..RuntimeOptions::default()
    };
    use Precision::{Bf16, F32};
    for (options, kept) in [
        (RuntimeOptions::default(), true),
        (with(Bf16, false, WeightStorage::Auto), true),
        (with(Bf16, true, WeightStorage::Auto), false),
        (with(F32, false, WeightStorage::Auto), false),
        (with(F32, true, WeightStorage::Packed), true),
        (with(Bf16, false, WeightStorage::Bf16), false),
    ] {
        let got = keeps(options, 48, BlockFormat::NVFP4_SPLIT);
        assert_eq!(got, kept, "{options:?}");
    }
    let packed = with(Bf16, false, WeightStorage::Packed);
    assert!(!keeps(packed, 48, BlockFormat::NVFP4), "no whole blocks of 64");
    assert!(keeps(packed, 128, BlockFormat::NVFP4));
    assert!(!keeps(packed, 256, BlockFormat::Q4_K));
    assert!(!keeps(packed, 0, BlockFormat::NVFP4_SPLIT));
}

#[test]
fn what_cannot_stay_packed_is_refused() {
    let rt = on_cuda();
    let load = |parts: &[BlockPart], order, k: usize, codes: &[u8], scales: &[u8]| {
        let row = |_| Ok::<_, Error>(StoredRow::split(codes, scales));
        Weight::load_blocks(&rt, k, order, parts, &row).map(|_| ())
    };
    let part = |rows, format| BlockPart { rows, format };
    let split = |rows| part(rows, BlockFormat::NVFP4_SPLIT);
    let (codes, scales) = ([0x12; 16], [0x38; 2]);
    load(&[split(3)], RowOrder::Plain, 32, &codes, &scales).unwrap();
    for (what, parts, order, k) in [
        ("another format", vec![split(1), part(1, BlockFormat::Q8_0)], RowOrder::Plain, 32),
        ("no rows", vec![split(0)], RowOrder::Plain, 32),
        ("half a group", vec![split(1)], RowOrder::Plain, 24),
        ("a gate without an up", vec![split(3)], RowOrder::GateUp, 32),
    ] {
        let error = load(&parts, order, k, &codes, &scales).unwrap_err();
        assert!(matches!(error, Error::BadParameter { .. }), "{what}: {error}");
    }
    for (what, codes, scales) in [
        ("too short", &codes[..15], &scales[..]),
        ("a scale too many", &codes[..], &[0x38; 3][..]),
        ("negative", &codes[..], &[0x38, 0x81]),
        ("not a number", &codes[..], &[0x7f, 0x38]),
    ] {
        let error = load(&[split(1)], RowOrder::Plain, 32, codes, scales).unwrap_err();
        assert!(matches!(error, Error::BadRow { row: 0, .. }), "{what}: {error}");
    }
}

//! The block formats, against gguf-py (`fixtures/reference/make_gguf_blocks.py`) and by hand.

mod checkpoint_support;
mod judge;

use checkpoint_support::fixture;
use half::{bf16, f16};
use l2_model::checkpoint::quant::{StoredType, dequantize, dequantize_bf16};
use safetensors::SafeTensors;

/// (type, stored bytes, values by gguf-py, compressed-tensors and torch)
fn golden_blocks() -> Vec<(StoredType, Vec<u8>, Vec<f32>)> {
    let file = std::fs::read(fixture("gguf-blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let get = |name: String| tensors.tensor(&name).unwrap().data().to_vec();
    StoredType::ALL
        .into_iter()
        .chain([StoredType::E2M1, StoredType::F8_E4M3])
        .filter(|ty| *ty != StoredType::F32)
        .map(|ty| {
            let name = ty.name().to_lowercase();
            let values = get(format!("{name}.values"));
            let values = values.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v));
            (ty, get(format!("{name}.bytes")), values.collect())
        })
        .collect()
}

/// Expands golden blocks and compares the bits.
fn judge_blocks(ty: StoredType, bytes: &[u8], want: &[f32]) {
    let mut got = vec![f32::NAN; want.len()];
    dequantize(ty, bytes, &mut got).unwrap();
    let dims = [want.len() / ty.block_len(), ty.block_len()];
    judge::same_bits(&format!("weights of {ty} blocks"), &dims, &got, want);
}

#[test]
fn blocks_of_32_expand_to_the_bits_of_gguf_py() {
    let mut seen = 0;
    for (ty, bytes, want) in golden_blocks() {
        if ty.block_len() <= 32 {
            judge_blocks(ty, &bytes, &want);
            seen += 1;
        }
    }
    let formats = "F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, E2M1, F8_E4M3";
    assert_eq!(seen, 11, "formats seen: {formats}");
}

#[test]
fn every_format_expands_to_the_bits_of_gguf_py() {
    for (ty, bytes, want) in golden_blocks() {
        judge_blocks(ty, &bytes, &want);
    }
}

/// Expanding one block after another gives what expanding all at once gives.
fn judge_block_by_block(ty: StoredType, bytes: &[u8], want: &[f32]) {
    let mut got = vec![0.0; want.len()];
    let blocks = bytes.chunks(ty.block_bytes()).zip(got.chunks_mut(ty.block_len()));
    for (block, out) in blocks {
        dequantize(ty, block, out).unwrap();
    }
    let dims = [want.len() / ty.block_len(), ty.block_len()];
    judge::close(&format!("weights of {ty} blocks, one at a time"), &dims, &got, want, 0.0);
}

#[test]
fn every_block_of_32_is_expanded_and_none_touches_another() {
    for (ty, bytes, want) in golden_blocks() {
        if ty.block_len() == 32 {
            judge_block_by_block(ty, &bytes, &want);
        }
    }
}

#[test]
fn expanding_block_by_block_equals_expanding_at_once() {
    for (ty, bytes, want) in golden_blocks() {
        judge_block_by_block(ty, &bytes, &want);
    }
}

#[test]
fn bf16_is_the_f32_result_rounded_to_nearest_even() {
    for (ty, bytes, want) in golden_blocks() {
        let mut got = vec![bf16::ZERO; want.len()];
        dequantize_bf16(ty, &bytes, &mut got).unwrap();
        let dims = [want.len() / ty.block_len(), ty.block_len()];
        let got: Vec<f32> = got.iter().map(|x| x.to_f32()).collect();
        let want: Vec<f32> = want.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
        judge::same_bits(&format!("weights of {ty} blocks, rounded to bf16"), &dims, &got, &want);
    }
}

#[test]
fn lengths_that_are_no_whole_blocks_of_each_other_are_refused() {
    for ty in StoredType::ALL {
        let bytes = vec![0; 2 * ty.block_bytes()];
        let n = 2 * ty.block_len();
        for (bytes, n) in [
            (&bytes[..], n + 1),
            (&bytes[..], n - 1),
            (&bytes[1..], n),
            (&bytes[..0], n),
            (&bytes[..], 0),
        ] {
            let error = dequantize(ty, bytes, &mut vec![0.0; n]).unwrap_err();
            assert_eq!((error.ty, error.weights, error.bytes), (ty, n, bytes.len()));
            assert!(dequantize_bf16(ty, bytes, &mut vec![bf16::ZERO; n]).is_err());
        }
        dequantize(ty, &[], &mut []).unwrap();
    }
}

#[test]
fn block_sizes_are_those_of_ggml() {
    // GGML_QUANT_SIZES in gguf-py/gguf/constants.py.
    let want = [
        ("F32", 1, 4),
        ("F16", 1, 2),
        ("BF16", 1, 2),
        ("Q8_0", 32, 34),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q5_0", 32, 22),
        ("Q5_1", 32, 24),
        ("Q4_K", 256, 144),
        ("Q5_K", 256, 176),
        ("Q6_K", 256, 210),
        ("IQ4_NL", 32, 18),
        ("MXFP4", 32, 17),
        ("NVFP4", 64, 36),
    ];
    let got = StoredType::ALL.map(|ty| (ty.name(), ty.block_len(), ty.block_bytes()));
    assert_eq!(got, want);
    assert_eq!(StoredType::Q4_K.bytes_for(512), Some(288));
    assert_eq!(StoredType::Q4_K.bytes_for(511), None);
    assert_eq!(StoredType::F32.bytes_for(usize::MAX), None);
}

#[test]
fn a_q4_1_block_reads_as_documented() {
    // d = 0.5, m = -1; byte j holds code j for weight j and code 15 - j for weight j + 16.
    let mut block = Vec::new();
    block.extend(f16::from_f32(0.5).to_le_bytes());
    block.extend(f16::from_f32(-1.0).to_le_bytes());
    block.extend((0..16u8).map(|j| j | (15 - j) << 4));
    let mut out = [0.0; 32];
    dequantize(StoredType::Q4_1, &block, &mut out).unwrap();
    let codes = (0..16).chain((0..16).rev());
    let want: Vec<f32> = codes.map(|code| 0.5 * code as f32 - 1.0).collect();
    judge::same_bits("weights of one Q4_1 block with d = 0.5, m = -1", &[32], &out, &want);
}

#[test]
fn plain_numbers_keep_infinities_nans_and_signed_zeros() {
    let numbers = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, 1e-40];
    let as_f32: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let as_f16: Vec<u8> = numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    let mut out = [0.0; 5];
    dequantize(StoredType::F32, &as_f32, &mut out).unwrap();
    assert_eq!(out.map(f32::to_bits), numbers.map(f32::to_bits));
    dequantize(StoredType::F16, &as_f16, &mut out).unwrap();
    assert_eq!(out[..2], numbers[..2]);
    assert!(out[2].is_nan());
    assert_eq!(out[3].to_bits(), (-0.0f32).to_bits());
    let mut out = [bf16::ZERO; 5];
    dequantize_bf16(StoredType::F32, &as_f32, &mut out).unwrap();
    assert_eq!(out[0], bf16::INFINITY);
    assert!(out[2].is_nan());
}

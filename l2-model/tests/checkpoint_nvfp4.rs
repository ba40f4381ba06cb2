//! NVFP4 in safetensors: against compressed-tensors (`fixtures/reference/make_nvfp4.py`), by hand, and what is refused.

mod checkpoint_support;
mod judge;

use checkpoint_support::{GgufBuilder, damaged, fixture};
use l1_tensor::{Runtime, RuntimeOptions, e4m3};
use l2_model::ModelFiles;
use l2_model::checkpoint::nvfp4::Nvfp4Problem;
use l2_model::checkpoint::{Checkpoint, CheckpointError, Stored, StoredType};
use serde_json::json;

/// Bytes of a tensor, its type and shape.
type Tensor<'a> = (&'a str, &'a str, Vec<usize>, Vec<u8>);

/// A safetensors file of these tensors.
fn file(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert((*name).into(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

fn open(tensors: &[Tensor<'_>]) -> Checkpoint {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, file(tensors)).unwrap();
    Checkpoint::open(&path).unwrap()
}

/// Two rows of 32 inputs, all codes 2 (one) and all scales one.
fn parts(global: (&'static str, f32)) -> Vec<Tensor<'static>> {
    let one = e4m3::from_f32(1.0);
    vec![
        ("x.weight_packed", "U8", vec![2, 16], vec![0x22; 32]),
        ("x.weight_scale", "F8_E4M3", vec![2, 2], vec![one; 4]),
        (global.0, "F32", vec![1], global.1.to_le_bytes().to_vec()),
    ]
}

const RECIPROCAL: &str = "x.weight_global_scale";
const FACTOR: &str = "x.weight_scale_2";

fn stored(checkpoint: &Checkpoint) -> Result<Stored<'_>, CheckpointError> {
    checkpoint.stored("x.weight").map(|stored| stored.expect("the weight is there"))
}

fn row(stored: &Stored<'_>, row: usize) -> Result<Vec<f32>, CheckpointError> {
    let mut out = vec![f32::NAN; stored.row_len()];
    stored.dequantize_row(row, &mut out).map(|()| out)
}

#[test]
fn rows_are_those_of_compressed_tensors_in_both_layouts() {
    let checkpoint = Checkpoint::open(&fixture("nvfp4.safetensors")).unwrap();
    let values = checkpoint.get("values").unwrap();
    for name in ["compressed.weight", "modelopt.weight"] {
        let stored = checkpoint.stored(name).unwrap().unwrap();
        assert_eq!([stored.n_rows(), stored.row_len()], values.shape, "shape of {name}");
        let factor = stored.factor().expect("NVFP4 has a factor");
        for i in 0..stored.n_rows() {
            let exact = row(&stored, i).unwrap();
            let mut expected = vec![0.0; stored.row_len()];
            values.dequantize_row(i, &mut expected).unwrap();
            let got: Vec<f32> = exact.iter().map(|x| x * factor).collect();
            // Both multiply twice, in another order.
            judge::close(&format!("row {i} of {name}"), &[got.len()], &got, &expected, 1e-6);
            for x in exact {
                assert_eq!(half::bf16::from_f32(x).to_f32(), x, "exact in bf16, row {i} of {name}");
            }
        }
    }
}

#[test]
fn every_code_times_every_scale_is_exact_in_bf16() {
    let scales: Vec<u8> = (0..=0x7e).collect();
    let codes: Vec<u8> = (0..8u8).map(|i| (2 * i) | ((2 * i + 1) << 4)).collect();
    let k = 16 * scales.len();
    let checkpoint = open(&[
        ("x.weight_packed", "U8", vec![1, k / 2], codes.repeat(scales.len())),
        ("x.weight_scale", "F8_E4M3", vec![1, scales.len()], scales.clone()),
        (FACTOR, "F32", vec![], 1.0f32.to_le_bytes().to_vec()),
    ]);
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (i, x) in row(&stored(&checkpoint).unwrap(), 0).unwrap().into_iter().enumerate() {
        let (scale, code) = (scales[i / 16], i % 16);
        let sign = if code < 8 { 1.0 } else { -1.0 };
        let expected = sign * magnitudes[code % 8] * f64::from(e4m3::to_f32(scale));
        assert_eq!(f64::from(x), expected, "code {code} of scale {scale:#x}");
        assert_eq!(half::bf16::from_f32(x).to_f32().to_bits(), x.to_bits());
    }
}

#[test]
fn the_even_input_is_the_low_half_of_its_byte() {
    let mut tensors = parts((RECIPROCAL, 1.0));
    // 1.5 (code 3) and -6 (code 15) in the first byte of the second row, whose scales are 2 and 0.25.
    tensors[0].3[16] = 0xf3;
    tensors[1].3[2..].copy_from_slice(&[e4m3::from_f32(2.0), e4m3::from_f32(0.25)]);
    let checkpoint = open(&tensors);
    let got = row(&stored(&checkpoint).unwrap(), 1).unwrap();
    let expected = [&[3.0, -12.0][..], &[2.0; 14], &[0.25; 16]].concat();
    assert_eq!(got, expected);
}

#[test]
fn a_global_scale_of_compressed_tensors_divides_and_one_of_modelopt_multiplies() {
    let factor = |name| stored(&open(&parts((name, 8.0)))).unwrap().factor();
    assert_eq!(factor(RECIPROCAL), Some(0.125));
    assert_eq!(factor(FACTOR), Some(8.0));
}

#[test]
fn tensors_beside_codes_are_no_weights_and_others_are_unexpected() {
    let mut tensors = parts((FACTOR, 1.0));
    for name in ["x.input_scale", "x.k_scale", "x.input_global_scale"] {
        tensors.push((name, "F32", vec![], vec![0; 4]));
    }
    let expected = [("x.weight".to_string(), vec![2, 32])];
    open(&tensors).check(&expected).unwrap();
    tensors.push(("y.input_scale", "F32", vec![], vec![0; 4]));
    let error = open(&tensors).check(&expected).unwrap_err();
    assert_eq!(error.extra, [("y.input_scale".to_string(), vec![])]);
    let error = open(&tensors).check(&[("x.weight".into(), vec![2, 16])]).unwrap_err();
    assert_eq!(error.mis_shaped[0].found, [2, 32], "a shape is in weights, not in bytes");
}

/// The problem of a weight in these tensors.
fn problem(tensors: &[Tensor<'_>]) -> Nvfp4Problem {
    let checkpoint = open(tensors);
    let error = stored(&checkpoint).and_then(|stored| row(&stored, 1)).unwrap_err();
    match error {
        CheckpointError::Nvfp4(error) => {
            assert_eq!(error.weight, "x.weight");
            error.problem
        }
        other => panic!("another error: {other}"),
    }
}

#[test]
fn globals_that_are_no_positive_numbers_are_refused() {
    for name in [RECIPROCAL, FACTOR] {
        for value in [0.0, -0.0, -2.0, f32::NAN, f32::INFINITY, 1e-40] {
            let got = problem(&parts((name, value)));
            assert!(
                matches!(&got, Nvfp4Problem::Global { tensor, .. } if tensor == name),
                "{name} of {value}: {got:?}"
            );
        }
    }
}

#[test]
fn scales_that_are_negative_or_not_numbers_are_refused() {
    for code in [0x7f, 0xff, 0x80, 0xb8] {
        let mut tensors = parts((RECIPROCAL, 1.0));
        tensors[1].3[3] = code;
        assert_eq!(problem(&tensors), Nvfp4Problem::Scale { row: 1, group: 1, code });
    }
    // Zero is a scale: a block of zeros has it where the writer puts no other number.
    let mut tensors = parts((RECIPROCAL, 1.0));
    tensors[1].3[3] = 0;
    let checkpoint = open(&tensors);
    assert_eq!(row(&stored(&checkpoint).unwrap(), 1).unwrap()[15..18], [1.0, 0.0, 0.0]);
}

#[test]
fn missing_doubled_and_misshapen_parts_are_refused() {
    let whole = parts((RECIPROCAL, 1.0));
    assert!(matches!(problem(&[whole[0].clone(), whole[2].clone()]), Nvfp4Problem::Missing { .. }));
    assert!(
        matches!(problem(&whole[..2]), Nvfp4Problem::Missing { tensors } if tensors.len() == 2)
    );
    let both = [whole.clone(), parts((FACTOR, 1.0))[2..].to_vec()].concat();
    assert!(matches!(problem(&both), Nvfp4Problem::Ambiguous { .. }));

    let changed = |i: usize, tensor: Tensor<'static>| {
        let mut tensors = whole.clone();
        tensors[i] = tensor;
        problem(&tensors)
    };
    let scales = |shape: Vec<usize>| {
        let n = shape.iter().product();
        changed(1, ("x.weight_scale", "F8_E4M3", shape, vec![0x38; n]))
    };
    for shape in [vec![4], vec![2, 1], vec![1, 2], vec![2, 2, 1]] {
        assert!(matches!(scales(shape), Nvfp4Problem::Tensor { .. }));
    }
    let wide = ("x.weight_scale", "F32", vec![2, 2], vec![0; 16]);
    assert!(matches!(
        changed(1, wide),
        Nvfp4Problem::Tensor {
            found_type: StoredType::F32,
            expected_type: StoredType::F8_E4M3,
            ..
        }
    ));
    let two = (RECIPROCAL, "F32", vec![2], vec![0; 8]);
    assert!(matches!(changed(2, two), Nvfp4Problem::Tensor { .. }));
    let odd = ("x.weight_packed", "U8", vec![2, 12], vec![0; 24]);
    assert!(matches!(changed(0, odd), Nvfp4Problem::Rows { inputs: 24 }));
}

#[test]
fn a_gguf_file_has_the_factor_of_a_weight_in_a_tensor_of_its_own() {
    let name = "model.layers.0.mlp.up_proj.weight";
    // Scales of one and codes of one; 40 is ggml's number of NVFP4.
    let block = [&[e4m3::from_f32(1.0); 4][..], &[0x22; 32]].concat();
    let open = |factor: f32| {
        let file = GgufBuilder::default()
            .tensor("blk.0.ffn_up.weight", &[64], 40, block.clone())
            .tensor("blk.0.ffn_up.scale", &[1], 0, factor.to_le_bytes())
            .tensor("blk.0.ffn_up.input_scale", &[1], 0, [0; 4])
            .build();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, file).unwrap();
        Checkpoint::open(&path).unwrap()
    };
    let checkpoint = open(0.25);
    checkpoint.check(&[(name.into(), vec![64])]).unwrap();
    let stored = checkpoint.stored(name).unwrap().unwrap();
    assert_eq!((stored.factor(), row(&stored, 0).unwrap()), (Some(0.25), vec![1.0; 64]));
    assert!(matches!(
        open(f32::NAN).stored(name),
        Err(CheckpointError::Nvfp4(error)) if matches!(error.problem, Nvfp4Problem::Global { .. })
    ));
}

#[test]
fn a_model_with_a_scale_that_is_not_a_number_is_refused_and_the_weight_is_named() {
    let rt = Runtime::new(RuntimeOptions { threads: Some(1), ..RuntimeOptions::cpu() }).unwrap();
    let weight = "model.layers.1.self_attn.k_proj.weight";
    for model in ["tiny-llama-nvfp4", "tiny-qwen3-modelopt-nvfp4"] {
        let dir = tempfile::tempdir().unwrap();
        damaged(model, dir.path(), &format!("{weight}_scale"), 0, &[0x7f]);
        let files = ModelFiles::open(dir.path()).unwrap();
        judge::refused("a NaN scale", weight, files.decoder(&rt));
    }
}

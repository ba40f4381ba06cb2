//! `quantize::to_nvfp4` of GGUF files: a directory with the weights, the config and the tokenizer of the file.

mod checkpoint_support;
#[path = "support/golden.rs"]
mod golden;
mod judge;
#[path = "support/logits.rs"]
mod logits;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;
#[path = "support/quantize.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint_support::{fixture, safetensors, tiny_ggufs};
use golden::Golden;
use half::bf16;
use l1_tensor::Precision;
use l1_tensor::ops::RopeScaling;
use l2_model::chat_template::Message;
use l2_model::checkpoint::{Checkpoint, StoredType};
use l2_model::quantize::{QuantizeError, QuantizeOptions, QuantizeReport, to_nvfp4};
use l2_model::{ModelConfig, ModelFiles, chat_template};
use logits::all_logits;
use runtime::runtime;
use serde_json::{Map, Value, json};
use support::{not_finite, refused};

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

fn quantize(input: &Path, output: &Path) -> QuantizeReport {
    judge::works(input.display(), to_nvfp4(input, output, QuantizeOptions::default()))
}

/// Row of a GGUF file that is row `row` of q or k in Hugging Face's order: llama.cpp puts element i of the first half of a
/// head beside element i of the second.
fn permuted(row: usize, head_dim: usize) -> usize {
    let (head, half, i) =
        (row / head_dim, row % head_dim / (head_dim / 2), row % head_dim % (head_dim / 2));
    head * head_dim + 2 * i + half
}

/// A Hugging Face directory in bf16 with the weights of a GGUF file.
fn twin(gguf: &Path, dir: &Path) {
    let files = ModelFiles::open(gguf).unwrap();
    let (_, attention) = files.config().attention_layers().next().unwrap();
    let architecture = files.checkpoint().gguf().unwrap().architecture().unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, stored) in files.checkpoint().tensors() {
        if name == "rope_freqs.weight" {
            continue;
        }
        let begin = data.len();
        let is_permuted =
            architecture == "llama" && (name.contains("q_proj") || name.contains("k_proj"));
        let mut row = vec![bf16::ZERO; stored.row_len()];
        for i in 0..stored.n_rows() {
            let from = if is_permuted { permuted(i, attention.head_dim) } else { i };
            stored.dequantize_row_bf16(from, &mut row).unwrap();
            data.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        }
        let entry =
            json!({"dtype": "BF16", "shape": stored.shape, "data_offsets": [begin, data.len()]});
        header.insert(name, entry);
    }
    fs::create_dir_all(dir).unwrap();
    let header = Value::Object(header).to_string();
    fs::write(dir.join("model.safetensors"), safetensors(&header, &data)).unwrap();
    let config = files.config().to_hf_json().unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

fn logits(model: &Path, tokens: &[u32]) -> Vec<f32> {
    let rt = runtime(Precision::F32, 2);
    let decoder = judge::works(model.display(), ModelFiles::open(model).unwrap().decoder(&rt));
    all_logits(&rt, &decoder, tokens)
}

/// Order of rows, biases, norms and config: transformers computed the goldens.
#[test]
fn a_file_is_quantised_as_the_directory_with_its_weights_in_bf16() {
    for file in tiny_ggufs() {
        let dir = tempfile::tempdir().unwrap();
        let [hf, of_hf, of_gguf] = ["hf", "of-hf", "of-gguf"].map(|name| dir.path().join(name));
        twin(&file, &hf);
        let golden = Golden::open(&file.with_extension("golden.safetensors"));
        let dims = [golden.tokens.len(), golden.logits.len() / golden.tokens.len()];
        let got = logits(&hf, &golden.tokens);
        judge::close(&format!("the twin of {}", name(&file)), &dims, &got, &golden.logits, 2e-3);
        let (a, b) = (quantize(&hf, &of_hf), quantize(&file, &of_gguf));
        assert_eq!((a.quantized, &a.ignored), (b.quantized, &b.ignored));
        for part in ["model.safetensors", "config.json"] {
            let [a, b] = [&of_hf, &of_gguf].map(|dir| fs::read(dir.join(part)).unwrap());
            assert!(a == b, "{part} of {}", name(&file));
        }
        let what = format!("{} and the directory that was made of it", name(&file));
        judge::same_bits(
            &what,
            &dims,
            &logits(&of_gguf, &golden.tokens),
            &logits(&of_hf, &golden.tokens),
        );
    }
}

#[test]
fn the_config_is_that_of_the_file_and_llama_3s_factors_become_its_rule() {
    for file in tiny_ggufs() {
        let dir = tempfile::tempdir().unwrap();
        quantize(&file, dir.path());
        let (old, new) = (ModelFiles::open(&file).unwrap(), ModelFiles::open(dir.path()).unwrap());
        let mut expected: ModelConfig = old.config().clone();
        if matches!(expected.rope.scaling, RopeScaling::Factors(_)) {
            assert_eq!(name(&file), "llama3-f16");
            expected.rope.scaling = RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position: 64,
            };
        }
        assert_eq!(new.config(), &expected, "{}", name(&file));
        assert_eq!(new.stop_tokens(), old.stop_tokens(), "{}", name(&file));
        let config: Value =
            serde_json::from_slice(&fs::read(dir.path().join("config.json")).unwrap()).unwrap();
        let class = match expected.architecture.as_str() {
            "llama" => "LlamaForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            _ => "Qwen3ForCausalLM",
        };
        assert_eq!(config["architectures"], json!([class]));
        assert_eq!(config["torch_dtype"], "bfloat16");
        assert_eq!(config["quantization_config"]["format"], "nvfp4-pack-quantized");
        let eps = if class == "LlamaForCausalLM" { 1e-5 } else { 1e-6 };
        assert_eq!(config["rms_norm_eps"], eps, "with no digits but those");
    }
}

#[test]
fn the_tokenizer_and_the_chat_template_are_those_of_the_file() {
    let text = fs::read_to_string(fixture("perplexity/glossary.txt")).unwrap();
    let text = format!("{text} 2024 <|im_start|>user\nhi<|im_end|><s></s><tool_call> \u{1f600}é\0");
    for file in tiny_ggufs() {
        let dir = tempfile::tempdir().unwrap();
        assert!(quantize(&file, dir.path()).has_tokenizer);
        let [old, new] = [&file, dir.path()].map(|path: &Path| {
            judge::works(name(&file), ModelFiles::open(path).unwrap().tokenizer())
        });
        for add_special in [false, true] {
            let ids = old.encode(&text, add_special).unwrap();
            assert!(new.encode(&text, add_special).unwrap() == ids, "ids of {}", name(&file));
            for skip in [false, true] {
                assert!(new.decode(&ids, skip).unwrap() == old.decode(&ids, skip).unwrap());
            }
        }
        let named = |t: &l2_model::tokenizer::Tokenizer| (t.bos(), t.eos(), t.prefix().to_vec());
        assert_eq!(named(&new), named(&old), "{}", name(&file));
        let messages = [Message::new("system", "Be brief."), Message::new("user", "Hi!")];
        let [a, b] = [&old, &new].map(|tokenizer| {
            let template = chat_template(tokenizer).unwrap();
            template.map(|template| template.render(&messages, true, &Map::new()).unwrap())
        });
        assert_eq!(a, b, "{}", name(&file));
    }
}

#[test]
fn formats_of_fewer_than_8_bits_are_reported_and_others_are_not() {
    use StoredType::{Q4_0, Q4_1, Q4_K, Q5_K, Q6_K};
    for (file, mut expected) in [
        ("llama-f16", vec![]),
        ("llama-q8_0", vec![]),
        ("llama-q4_0", vec![Q4_0]),
        // Its embedding is in Q8_0, and is not quantised.
        ("llama-q4_1", vec![Q4_1]),
        ("llama-k", vec![Q4_K, Q5_K, Q6_K]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut got = quantize(&gguf(file), dir.path()).rounded_before;
        got.sort_by_key(|format| format.name());
        expected.sort_by_key(|format| format.name());
        assert_eq!(got, expected, "{file}");
    }
}

#[test]
fn a_tied_head_is_quantised_from_the_embedding_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let options = QuantizeOptions { lm_head: true, force: false };
    let report = judge::works("lm_head", to_nvfp4(&gguf("llama-q4_1"), dir.path(), options));
    assert!(report.ignored.is_empty(), "{report:?}");
    let new = ModelFiles::open(dir.path()).unwrap();
    assert!(!new.config().tied_embeddings);
    let embedding = new.checkpoint().get("model.embed_tokens.weight").unwrap();
    let head = new.checkpoint().stored("lm_head.weight").unwrap().unwrap();
    let (mut a, mut b) = (vec![0.0; embedding.row_len()], vec![0.0; head.row_len()]);
    for row in 0..embedding.n_rows() {
        embedding.dequantize_row(row, &mut a).unwrap();
        head.dequantize_row(row, &mut b).unwrap();
        let largest = a.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let close =
            |(a, b): (&f32, &f32)| (a - b * head.factor().unwrap_or(1.0)).abs() < 0.2 * largest;
        assert!(a.iter().zip(&b).all(close), "row {row}");
    }
}

fn gguf(name: &str) -> PathBuf {
    fixture(&format!("tiny-gguf/{name}.gguf"))
}

/// A copy of a file with some bytes replaced by as many others, `after` bytes behind the first occurrence of `at`.
fn patched(dir: &Path, file: &str, at: &[u8], after: usize, bytes: &[u8]) -> PathBuf {
    let mut all = fs::read(gguf(file)).unwrap();
    let found = all.windows(at.len()).position(|window| window == at).unwrap() + after;
    all[found..found + bytes.len()].copy_from_slice(bytes);
    let path = dir.join("patched.gguf");
    fs::write(&path, all).unwrap();
    path
}

#[test]
fn what_a_hugging_face_directory_cannot_say_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let key = b"llama.rope.dimension_count";
    let partial = patched(dir.path(), "llama-f16", key, key.len() + 4, &8u32.to_le_bytes());
    let error = refused(&partial, &out, true);
    let named = error.to_string().contains("rope.dimension_count");
    assert!(matches!(error, QuantizeError::ConfigNotWritten { .. }) && named, "{error}");

    // Twice as slow as any rule of Llama 3 has it.
    let freqs = Checkpoint::open(&gguf("llama3-f16")).unwrap();
    let freqs = freqs.get("rope_freqs.weight").unwrap().bytes.to_vec();
    let odd = patched(dir.path(), "llama3-f16", &freqs, 0, &2f32.to_le_bytes());
    let error = refused(&odd, &out, true);
    let named = error.to_string().contains("rope_freqs.weight");
    assert!(matches!(error, QuantizeError::ConfigNotWritten { .. }) && named, "{error}");

    let unknown = patched(dir.path(), "llama-f16", b"smollm", 0, b"smolxx");
    let error = refused(&unknown, &out, true);
    let named = error.to_string().contains("smolxx");
    assert!(matches!(error, QuantizeError::TokenizerNotWritten { .. }) && named, "{error}");

    fs::create_dir(&out).unwrap();
    let inside = out.join("model.gguf");
    fs::copy(gguf("llama-f16"), &inside).unwrap();
    let error = refused(&inside, &out, true);
    assert!(matches!(error, QuantizeError::InputInOutput { .. }), "{error}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "the file alone");
}

#[test]
fn a_file_without_a_tokenizer_is_a_model_of_token_ids() {
    let dir = tempfile::tempdir().unwrap();
    let key = b"tokenizer.ggml.model";
    let file = patched(dir.path(), "llama-f16", key, key.len() - 5, b"other");
    let out = dir.path().join("out");
    assert!(!quantize(&file, &out).has_tokenizer);
    assert!(!out.join("tokenizer.json").exists() && !out.join("tokenizer_config.json").exists());
    ModelFiles::open(&out).unwrap();
}

#[test]
fn a_number_that_is_not_finite_is_named_as_in_the_file_with_its_indices_there() {
    for (file, hf, at, byte, bytes, expected) in [
        // Rows of q and k are in llama.cpp's order: the indices are those of the file.
        (
            "llama-f16",
            "model.layers.1.self_attn.k_proj.weight",
            vec![3, 0],
            3 * 64 * 2,
            &0x7e00u16.to_le_bytes()[..],
            ("blk.1.attn_k.weight", f32::NAN),
        ),
        // Norms are in f32. A number that bf16 cannot hold becomes infinite in the directory.
        (
            "llama-f16",
            "model.layers.1.input_layernorm.weight",
            vec![2],
            8,
            &f32::MAX.to_le_bytes(),
            ("blk.1.attn_norm.weight", f32::INFINITY),
        ),
        (
            "qwen3-bf16",
            "model.layers.0.self_attn.q_norm.weight",
            vec![1],
            4,
            &f32::NAN.to_le_bytes(),
            ("blk.0.attn_q_norm.weight", f32::NAN),
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(&gguf(file)).unwrap();
        let stored = checkpoint.get(hf).unwrap().bytes.to_vec();
        let file = patched(dir.path(), file, &stored, byte, bytes);
        let got = not_finite(&file, &dir.path().join("out"));
        assert_eq!((&got.0[..], got.1), (expected.0, at));
        assert!(got.2.total_cmp(&expected.1).is_eq(), "{} in place of {}", got.2, expected.1);
    }
}

//! `quantize::to_nvfp4`: what it writes is read back, is close to the original, and runs.

mod checkpoint_support;
mod judge;
#[path = "support/quantize.rs"]
mod support;

use std::path::Path;

use checkpoint_support::{damaged, fixture};
use half::bf16;
use l1_tensor::{Runtime, RuntimeOptions};
use l2_model::ModelFiles;
use l2_model::checkpoint::{Checkpoint, Stored};
use l2_model::quantize::{QuantizeError, QuantizeOptions, QuantizeReport, to_nvfp4};
use serde_json::Value;
use support::{not_finite, refused};

fn quantize(model: &str, output: &Path, lm_head: bool) -> QuantizeReport {
    let options = QuantizeOptions { lm_head, force: false };
    judge::works(model, to_nvfp4(&fixture(model), output, options))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// All rows of a weight, times its factor.
fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let stored = checkpoint.stored(name).unwrap().unwrap();
    let mut row = vec![0.0; stored.row_len()];
    let mut all = Vec::new();
    for i in 0..stored.n_rows() {
        stored.dequantize_row(i, &mut row).unwrap();
        all.extend(row.iter().map(|x| x * stored.factor().unwrap_or(1.0)));
    }
    all
}

#[test]
fn a_quantised_model_opens_loads_and_stays_near_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/out");
    let report = quantize("tiny-llama", &out, false);
    // 204 inputs of the down projections are no whole groups.
    let down: Vec<_> = (0..3).map(|i| format!("model.layers.{i}.mlp.down_proj")).collect();
    assert_eq!(report.quantized, 3 * 6);
    assert_eq!(report.ignored, [down, vec!["lm_head".into()]].concat());
    assert!(report.bytes_after < report.bytes_before, "{report:?}");

    let (old, new) = (
        ModelFiles::open(&fixture("tiny-llama")).unwrap(),
        judge::works("opening", ModelFiles::open(&out)),
    );
    assert_eq!(new.config(), old.config());
    let rt = Runtime::new(RuntimeOptions { threads: Some(1), ..RuntimeOptions::cpu() }).unwrap();
    judge::works("loading", new.decoder(&rt));
    judge::works("its tokenizer", new.tokenizer());
    for (name, _) in old.checkpoint().tensors() {
        let [a, b] = [old.checkpoint(), new.checkpoint()].map(|c| values(c, &name));
        let size = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let error: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let relative = size(&error) / size(&a);
        let quantised = name.contains("_proj") && !name.contains("down_proj");
        // Sixteen random numbers that share a scale lose about a tenth.
        let expected = if quantised { 0.05..0.13 } else { 0.0..1e-12 };
        assert!(expected.contains(&relative), "{name}: relative error {relative}");
    }
}

#[test]
fn fused_matrices_share_their_global_scale() {
    let dir = tempfile::tempdir().unwrap();
    quantize("tiny-llama", dir.path(), false);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let factor = |part: &str| {
        let name = format!("model.layers.1.{part}_proj.weight");
        checkpoint.stored(&name).unwrap().unwrap().factor().unwrap()
    };
    assert_eq!(factor("self_attn.q"), factor("self_attn.k"));
    assert_eq!(factor("self_attn.q"), factor("self_attn.v"));
    assert_eq!(factor("mlp.gate"), factor("mlp.up"));
    assert_ne!(factor("self_attn.q"), factor("mlp.gate"));
}

#[test]
fn a_tied_head_becomes_a_quantised_matrix_and_the_embedding_stays() {
    let dir = tempfile::tempdir().unwrap();
    let report = quantize("tiny-llama", dir.path(), true);
    assert!(!report.ignored.contains(&"lm_head".to_string()));
    let config = json(&dir.path().join("config.json"));
    assert_eq!(config["tie_word_embeddings"], false);
    assert_eq!(config["quantization_config"]["format"], "nvfp4-pack-quantized");
    let new = ModelFiles::open(dir.path()).unwrap();
    let head = new.checkpoint().stored("lm_head.weight").unwrap().unwrap();
    assert!(matches!(head, Stored::Nvfp4(_)));
    let old = Checkpoint::open(&fixture("tiny-llama")).unwrap();
    let embedding = "model.embed_tokens.weight";
    assert_eq!(new.checkpoint().get(embedding).unwrap().bytes, old.get(embedding).unwrap().bytes);
    let rt = Runtime::new(RuntimeOptions { threads: Some(1), ..RuntimeOptions::cpu() }).unwrap();
    judge::works("loading", new.decoder(&rt));
}

#[test]
fn shards_are_read_and_an_untied_head_is_left_or_quantised() {
    for lm_head in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let report = quantize("tiny-llama-untied", dir.path(), lm_head);
        assert_eq!(report.ignored.contains(&"lm_head".to_string()), !lm_head);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let head = checkpoint.stored("lm_head.weight").unwrap().unwrap();
        assert_eq!(matches!(head, Stored::Nvfp4(_)), lm_head);
    }
}

#[test]
fn inputs_and_outputs_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let file = fixture("tiny-llama/model.safetensors");
    assert!(matches!(refused(&file, &out, false), QuantizeError::NotADirectory { .. }));
    for quantised in ["tiny-llama-nvfp4", "tiny-qwen3-modelopt-nvfp4"] {
        let error = refused(&fixture(quantised), &out, false);
        assert!(matches!(error, QuantizeError::AlreadyQuantized { .. }), "{error}");
    }
    assert!(!out.exists(), "a refusal writes nothing");

    let input = fixture("tiny-llama");
    assert!(matches!(refused(&input, &input, true), QuantizeError::SameDirectory { .. }));
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("model-00001-of-00002.safetensors"), "old").unwrap();
    std::fs::write(out.join("notes.md"), "mine").unwrap();
    assert!(matches!(refused(&input, &out, false), QuantizeError::OutputNotEmpty { .. }));
    let options = QuantizeOptions { lm_head: false, force: true };
    judge::works("with force", to_nvfp4(&input, &out, options));
    assert!(!out.join("model-00001-of-00002.safetensors").exists(), "old weights are deleted");
    assert!(out.join("notes.md").exists(), "other files are not");
}

/// The output has links to the input's files, as a directory of symbolic links has: they are replaced, not written through.
#[cfg(unix)]
#[test]
fn links_in_the_output_are_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::create_dir_all(&input).unwrap();
    std::fs::create_dir_all(&output).unwrap();
    let mut before = Vec::new();
    for entry in std::fs::read_dir(fixture("tiny-llama")).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        std::fs::copy(&path, input.join(&name)).unwrap();
        std::os::unix::fs::symlink(input.join(&name), output.join(&name)).unwrap();
        before.push((input.join(name), std::fs::read(path).unwrap()));
    }
    to_nvfp4(&input, &output, QuantizeOptions { lm_head: false, force: true }).unwrap();
    for (path, bytes) in before {
        assert!(std::fs::read(&path).unwrap() == bytes, "{} was changed", path.display());
    }
    ModelFiles::open(&output).unwrap();
}

/// An input whose `link` is a link to the file in the output, or to a link that is there.
#[cfg(unix)]
fn linked_into_the_output(link: &str, through: bool) {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    let kept = if through { dir.path().join("kept") } else { output.clone() };
    for dir in [&input, &output, &kept] {
        std::fs::create_dir_all(dir).unwrap();
    }
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let to = if name == link { &kept } else { &input };
        std::fs::copy(fixture("tiny-llama").join(name), to.join(name)).unwrap();
    }
    if through {
        symlink(kept.join(link), output.join(link)).unwrap();
    }
    symlink(Path::new("../out").join(link), input.join(link)).unwrap();
    std::fs::write(output.join("old.safetensors"), "old").unwrap();
    let error = refused(&input, &output, true);
    let named =
        matches!(&error, QuantizeError::InputInOutput { file, .. } if *file == input.join(link));
    assert!(named && error.to_string().contains(link), "{error}");
    let bytes = |path: &Path| std::fs::read(path).unwrap();
    assert!(bytes(&input.join(link)) == bytes(&fixture("tiny-llama").join(link)), "{link}");
    assert!(output.join("old.safetensors").exists(), "nothing is deleted");
}

#[cfg(unix)]
#[test]
fn an_input_that_is_in_the_output_behind_a_link_is_refused_and_nothing_is_deleted() {
    for link in ["model.safetensors", "config.json", "tokenizer.json"] {
        for through in [false, true] {
            linked_into_the_output(link, through);
        }
    }
}

#[test]
fn the_tokenizer_of_an_earlier_model_is_deleted_and_other_texts_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::create_dir(&input).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("tiny-llama").join(name), input.join(name)).unwrap();
    }
    quantize("tiny-llama", &output, false);
    let stale = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"];
    for name in stale.iter().chain(&["notes.txt"]) {
        std::fs::write(output.join(name), "{}").unwrap();
    }
    let options = QuantizeOptions { lm_head: false, force: true };
    let report = judge::works("with force", to_nvfp4(&input, &output, options));
    assert!(!report.has_tokenizer);
    for name in stale {
        assert!(!output.join(name).exists(), "{name} is of the earlier model");
    }
    assert!(output.join("notes.txt").exists());
}

#[test]
fn a_model_of_which_nothing_can_be_quantised_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = refused(&fixture("tiny-qwen2"), &dir.path().join("out"), false);
    assert!(matches!(error, QuantizeError::NothingToQuantize { .. }), "{error}");
    assert!(!dir.path().join("out").exists());
}

/// Copied tensors as those that are quantised: the result could not run with either.
#[test]
fn a_number_that_is_not_finite_is_named_with_its_tensor_in_what_is_quantised_and_what_is_copied() {
    let (nan, inf) = (0x7fc0u16, 0x7f80u16);
    // The embedding has 96 numbers a row, and a down projection, which is not quantised, 204.
    for (name, element, at, bits) in [
        ("model.layers.2.self_attn.k_proj.weight", 0, vec![0, 0], inf),
        ("model.layers.0.mlp.down_proj.weight", 205, vec![1, 1], nan),
        ("model.embed_tokens.weight", 7 * 96 + 95, vec![7, 95], nan),
        ("model.layers.1.post_attention_layernorm.weight", 3, vec![3], nan),
        ("model.norm.weight", 95, vec![95], 0x8000 | inf),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in");
        std::fs::create_dir(&input).unwrap();
        damaged("tiny-llama", &input, name, 2 * element, &bits.to_le_bytes());
        let got = not_finite(&input, &dir.path().join("out"));
        let value = bf16::from_bits(bits).to_f32();
        assert_eq!((&got.0[..], &got.1), (name, &at));
        assert!(got.2.to_bits() == value.to_bits(), "{} in place of {value}", got.2);
    }
}

//! `strata quantize`: its result is a model, and what it refuses.

use std::path::Path;

use serde_json::Value;

use crate::strata::{arg, fixture, keys, strata};

#[test]
fn a_quantised_model_generates_and_its_report_counts_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let out = arg(dir.path());
    let model = fixture("tiny-llama");
    let args = ["quantize", &model, "--to", "nvfp4", "--lm-head", "--json", "--output", &out];
    let report = strata(args).json();
    assert_eq!(
        keys(&report),
        ["output", "quantized", "ignored", "rounded_before", "bytes_before", "bytes_after"]
    );
    assert_eq!((&report["output"], &report["quantized"]), (&Value::from(out.as_str()), &19.into()));
    let [before, after] = ["bytes_before", "bytes_after"].map(|key| report[key].as_u64().unwrap());
    assert!(after < before, "{report}");
    let args = ["generate", "-m", &out, "The sea", "--max-tokens", "4", "--json"];
    assert_eq!(strata(args).json()["tokens"].as_array().unwrap().len(), 4);
}

#[test]
fn the_summary_says_what_was_not_quantised() {
    let dir = tempfile::tempdir().unwrap();
    let out = arg(dir.path());
    let ran = strata(["quantize", &fixture("tiny-llama-yarn"), "--to", "nvfp4", "-o", &out]);
    let text = ran.text();
    assert!(text.contains("weights in nvfp4") && text.contains("lm_head"), "{text}");
    assert!(text.contains("kB of tensors before"), "{text}");
    let tied =
        text.contains("lm_head (tied to the embedding; --lm-head would add a matrix of 8.8 kB)");
    assert!(tied, "why not: {text}");
    let model = fixture("tiny-llama-untied");
    let ran = strata(["quantize", &model, "--to", "nvfp4", "-o", &out, "--force"]);
    assert!(ran.text().contains("lm_head (--lm-head quantises it)"), "{ran:?}");
}

#[test]
fn layers_are_named_with_the_reason_and_a_model_without_a_tokenizer_gets_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (input, out) = (dir.path().join("in"), arg(dir.path().join("out")));
    std::fs::create_dir(&input).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(&fixture("tiny-llama")).join(file), input.join(file)).unwrap();
    }
    let ran = strata(["quantize", &arg(&input), "--to", "nvfp4", "-o", &out]);
    // Rows of 204 weights.
    let odd = "model.layers.2.mlp.down_proj (their rows are not a multiple of 16 weights long)";
    assert!(ran.text().contains(odd), "{ran:?}");
    assert!(
        ran.stderr.contains("no tokenizer") && ran.stderr.contains("tokenizer.json"),
        "{ran:?}"
    );
    let with = strata(["quantize", &fixture("tiny-llama"), "--to", "nvfp4", "-o", &out, "--force"]);
    assert_eq!((with.code, with.stderr.as_str()), (0, ""), "{with:?}");
}

#[test]
fn the_object_has_the_reason_of_each_layer_that_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let out = arg(dir.path());
    let args = ["quantize", &fixture("tiny-llama"), "--to", "nvfp4", "--json", "-o", &out];
    let report = strata(args).json();
    let ignored: Vec<_> = report["ignored"].as_array().unwrap().iter().map(keys).collect();
    assert_eq!(ignored, [["name", "reason"]; 4]);
    let reason = |i: usize| report["ignored"][i]["reason"].as_str().unwrap();
    assert_eq!(report["ignored"][0]["name"], "model.layers.0.mlp.down_proj");
    assert_eq!(reason(0), "their rows are not a multiple of 16 weights long");
    assert_eq!(report["ignored"][3]["name"], "lm_head");
    assert!(reason(3).starts_with("tied to the embedding"), "{report}");
    assert_eq!(report["rounded_before"], serde_json::json!([]));
}

#[test]
fn a_gguf_file_becomes_a_directory_with_its_tokenizer_and_a_warning_about_weights_of_4_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (fixture("tiny-gguf/llama-q4_1.gguf"), arg(dir.path()));
    let ran = strata(["quantize", &model, "--to", "nvfp4", "--json", "-o", &out]);
    let said = ran.stderr.contains("llama-q4_1.gguf has weights in Q4_1");
    assert!(said && ran.stderr.contains("a second time"), "{ran:?}");
    let report = ran.json();
    assert_eq!(report["rounded_before"], serde_json::json!(["Q4_1"]));
    let tokens = |model: &str| {
        let args = ["tokenize", "-m", model, "--json", "Once upon a time<|im_end|> 42"];
        strata(args).json()["tokens"].clone()
    };
    assert_eq!(tokens(&out), tokens(&model));
    let args = ["generate", "-m", &out, "--chat", "Hi", "--max-tokens", "4", "--json"];
    assert_eq!(strata(args).json()["tokens"].as_array().unwrap().len(), 4);
    let f16 = fixture("tiny-gguf/llama-f16.gguf");
    let ran = strata(["quantize", &f16, "--to", "nvfp4", "--force", "-o", &out]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
}

#[test]
fn inputs_and_outputs_that_do_not_fit_are_errors_that_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes"), "").unwrap();
    let out = arg(dir.path());
    let refused = |model: &str, says: &str| {
        let ran = strata(["quantize", &fixture(model), "--to", "nvfp4", "-o", &out]);
        assert!(ran.code == 1 && ran.stderr.contains(says), "{ran:?}");
    };
    refused("tiny-llama", "--force");
    refused("tiny-llama-nvfp4", "quantised already");
    refused("tiny-llama/model.safetensors", "give the directory that holds config.json");
    let file = arg(dir.path().join("notes"));
    for (output, says) in
        [(file.clone(), "is a file: pass a directory"), (file + "/x", "pass another")]
    {
        let ran = strata(["quantize", &fixture("tiny-llama"), "--to", "nvfp4", "-o", &output]);
        assert!(ran.code == 1 && ran.stderr.contains(says), "{ran:?}");
    }
    let none = strata(["quantize", "nope", "--to", "nvfp4", "-o", &out]);
    let says = none.stderr.contains("no such model: nope; give a Hugging Face directory");
    assert!(none.code == 1 && says && !none.stderr.contains("--model"), "{none:?}");
    let other = strata(["quantize", &fixture("tiny-llama"), "--to", "int4", "-o", &out]);
    assert!(other.code == 2 && other.stderr.contains("nvfp4"), "{other:?}");
}

//! `strata bench` as its users meet it: the built binary, on tiny models. Speed itself is not tested:
//! that would be a test of the machine.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
    path.to_str().unwrap().to_owned()
}

/// Run it with options as one types them.
fn bench(model: &str, options: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.env("HF_HUB_OFFLINE", "1").args(["bench", "--model", model]);
    command.args(options.split_whitespace()).output().unwrap()
}

fn json(model: &str, options: &str) -> Value {
    let out = bench(model, &format!("{options} --json"));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn positive(value: &Value, what: &str) -> f64 {
    let x = value.as_f64().unwrap_or_else(|| panic!("{what} is {value}"));
    assert!(x > 0.0 && x.is_finite(), "{what} is {x}");
    x
}

#[test]
fn json_holds_every_batch_size_beside_the_limits_of_the_machine() {
    let model = fixture("tiny-llama");
    let said = json(
        &model,
        "--prompt-tokens 24 --context 8 --gen-tokens 6 --batch 1,3 --repeat 2 --precision f32 --threads 1",
    );
    let results = said["results"].as_array().unwrap();
    let batches: Vec<_> = results.iter().map(|r| r["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [1, 3]);
    for result in results {
        for key in ["prefill_tokens_per_s", "decode_tokens_per_s", "bytes_per_token", "read_gb_s"] {
            positive(&result[key], key);
        }
        for key in ["decode_of_bandwidth", "decode_of_flops", "prefill_of_flops"] {
            positive(&result["fraction"][key], key);
            positive(&said["fraction"][key], key);
        }
    }
    for key in ["bytes_per_token", "read_gb_s", "load_ms", "weight_bytes"] {
        positive(&said[key], key);
    }
    positive(&said["flops"]["bf16"], "bf16 FLOP/s");
    positive(&said["flops"]["f32"], "f32 FLOP/s");
    assert_eq!((&said["precision"], &said["threads"]), (&"f32".into(), &1.into()));
}

#[test]
fn a_batch_shares_the_weights_but_not_the_keys_and_values() {
    let model = fixture("tiny-llama");
    let said = json(&model, "--prompt-tokens 4 --context 9 --gen-tokens 1 --batch 1,4 --repeat 1");
    let bytes = |i: usize| positive(&said["results"][i]["bytes_per_token"], "bytes_per_token");
    // The one generated token sees the nine before it and itself.
    let own = 10.0 * positive(&said["kv_bytes_per_token"], "kv_bytes_per_token");
    let (alone, in_four) = (bytes(0) - own, bytes(1) - own);
    assert!((alone / in_four - 4.0).abs() < 1e-9, "{alone} and {in_four}");
    assert_eq!(said["bytes_per_token"], said["results"][0]["bytes_per_token"]);
    // Tied embeddings: a step reads all weights.
    assert_eq!(alone, positive(&said["weight_bytes"], "weight_bytes"));
}

#[test]
fn decoding_may_start_from_nothing_and_a_prompt_may_take_several_steps() {
    let model = fixture("tiny-qwen3");
    // Three prompts of 300 tokens do not fit one step of 512.
    let said = json(&model, "--prompt-tokens 300 --context 0 --gen-tokens 2 --batch 3 --repeat 1");
    positive(&said["results"][0]["prefill_tokens_per_s"], "prefill");
    positive(&said["results"][0]["decode_tokens_per_s"], "decode");
}

#[test]
fn the_state_that_was_asked_for_is_measured() {
    let model = fixture("tiny-llama");
    let work =
        "--prompt-tokens 20 --context 8 --gen-tokens 9 --batch 1,3 --repeat 1 --precision f32";
    let kv = |options: &str| json(&model, &format!("{work} {options}"))["kv"].clone();
    let paged = kv("");
    assert_eq!((&paged["state"], &paged["block_size"]), (&"paged".into(), &16.into()));
    // Three sequences of two blocks, the null block, and one to spare.
    assert_eq!((&paged["num_blocks"], &paged["dtype"]), (&8.into(), &"f32".into()));
    let contiguous = kv("--state contiguous --kv-dtype fp8");
    assert_eq!((&contiguous["state"], &contiguous["dtype"]), (&"contiguous".into(), &"fp8".into()));
    assert_eq!(contiguous["block_size"], Value::Null);
    assert_eq!(kv("--block-size 4 --kv-memory 1MiB")["num_blocks"], 340);
    let out = bench(&model, &format!("{work} --kv-memory 80KiB"));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    // Seven blocks of 12 KiB.
    assert!(said.contains("84 KiB") && said.contains("4096 B are missing"), "{said}");
    let out = bench(&model, work);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("paged, 8 blocks of 16 tokens in f32"), "{text}");
}

#[test]
fn people_get_a_table() {
    let model = fixture("tiny-mistral");
    let out = bench(&model, "--prompt-tokens 8 --context 4 --gen-tokens 2 --batch 2 --repeat 1");
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("tiny-mistral (mistral)"), "{text}");
    assert!(text.lines().any(|l| l.trim_start().starts_with("2 ") && l.contains("GB/s")), "{text}");
}

#[test]
fn sequences_beyond_the_context_and_empty_batches_are_refused_with_what_to_change() {
    let model = fixture("tiny-llama");
    let out = bench(&model, "--prompt-tokens 100000");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("512") && said.contains("--prompt-tokens"), "{said}");
    for options in ["--batch 0", "--batch 1,x", "--gen-tokens 0", "--repeat 0"] {
        assert_eq!(bench(&model, options).status.code(), Some(2), "{options}");
    }
}

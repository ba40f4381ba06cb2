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

/// Options of a short run.
const SHORT: &str = "--prompt-tokens 6 --context 4 --gen-tokens 2 --repeat 1 --threads 1";

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

/// The entry of an op in a table by op.
fn op<'a>(table: &'a Value, name: &str) -> &'a Value {
    let ops = table["ops"].as_array().unwrap();
    ops.iter().find(|op| op["op"] == name).unwrap_or_else(|| panic!("no {name} in {table}"))
}

fn sum(table: &Value, names: &[&str], key: &str) -> f64 {
    names.iter().map(|name| op(table, name)[key].as_f64().unwrap()).sum()
}

const MATRICES: [&str; 5] = ["qkv", "o", "gate_up", "down", "lm_head"];

#[test]
fn a_step_by_op_has_every_op_and_the_bytes_and_operations_of_the_model() {
    let model = fixture("tiny-gguf/llama-q4_1.gguf");
    let said = json(&model, &format!("{SHORT} --batch 1,3 --by-op --weights packed"));
    let tables = said["by_op"].as_array().unwrap();
    let works: Vec<_> = tables.iter().map(|t| (&t["work"], &t["batch"])).collect();
    let [one, three] = [1, 3].map(Value::from);
    let [prefill, decode] = ["prefill", "decode"].map(Value::from);
    assert_eq!(works, [(&decode, &one), (&decode, &three), (&prefill, &one)]);
    for table in tables {
        for key in ["step_ms", "read_gb_s", "read_gb_s_median", "gflop_s"] {
            positive(&table[key], key);
        }
        let all = table["ops"].as_array().unwrap();
        let ms: f64 = all.iter().map(|op| op["ms"].as_f64().unwrap()).sum();
        let step = positive(&table["step_ms"], "step_ms");
        assert!((ms / step - 1.0).abs() < 1e-6, "ops take {ms} ms of {step} ms");
        for name in MATRICES {
            for key in ["bytes", "flops", "ms", "gb_s", "gflop_s", "of_limit"] {
                positive(&op(table, name)[key], key);
            }
        }
        for name in ["embedding", "norms + rope", "attention", "KV write", "elementwise", "other"] {
            op(table, name);
        }
        // One thread waits for no other.
        assert_eq!(table["wait_ms"], 0.0);
    }
    let [alone, three, prompt] = tables.as_slice() else { panic!("{tables:?}") };
    // Tied embeddings: a step reads all weights, as they are stored, whatever the batch.
    let weights = positive(&said["weight_bytes"], "weight_bytes");
    for table in [alone, three] {
        assert_eq!(sum(table, &MATRICES, "bytes"), weights);
        assert_eq!(op(table, "argmax")["calls"], 1.0);
    }
    let flops = |table| sum(table, &MATRICES, "flops");
    assert_eq!(flops(three), 3.0 * flops(alone));
    // Six rows of every matrix but the last, of which a prompt needs one.
    let head = op(alone, "lm_head")["flops"].as_f64().unwrap();
    assert_eq!(flops(prompt), 6.0 * flops(alone) - 5.0 * head);
    // A step writes one token's keys and values of each sequence.
    let token = positive(&said["kv_bytes_per_token"], "kv_bytes_per_token");
    assert_eq!(op(alone, "KV write")["bytes"], token);
    assert_eq!(op(three, "KV write")["bytes"], 3.0 * token);
    // Two steps, over five and six keys.
    assert_eq!(op(alone, "attention")["bytes"], 5.5 * token);
}

#[test]
fn people_get_tables_by_op_and_the_median_bandwidth() {
    let model = fixture("tiny-mistral");
    let out = bench(&model, &format!("{SHORT} --batch 2 --by-op"));
    let text = String::from_utf8(out.stdout).unwrap();
    let lines = |beginning: &str| text.lines().filter(|l| l.starts_with(beginning)).count();
    // In the summary and in the tables of batch 2 and of the prompt.
    for name in ["qkv ", "gate_up ", "KV write ", "attention ", "norms + rope ", "other "] {
        assert_eq!(lines(name), 3, "{name} in {text}");
    }
    assert_eq!(lines("waits, part of the ops "), 1, "{text}");
    assert_eq!((lines("batch 2: "), lines("prefill 6: ")), (1, 1), "{text}");
    assert!(text.contains("of median") && text.contains("(median "), "{text}");
    let out = bench(&model, &format!("{SHORT} --batch 2"));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(!text.contains("gate_up") && text.contains("of median"), "{text}");
}

#[test]
fn models_and_storages_of_weights_are_compared_in_one_table() {
    let (a, b) = (fixture("tiny-gguf/llama-q4_1.gguf"), fixture("tiny-gguf/llama-q8_0.gguf"));
    let said = json(&a, &format!("{SHORT} --batch 2 -m {b} --weights packed,bf16"));
    let rows = said["comparison"].as_array().unwrap();
    let key = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        (text("model"), text("weights"))
    };
    let keys: Vec<_> = rows.iter().map(key).collect();
    let expected = [(&a, "packed"), (&a, "bf16"), (&b, "packed"), (&b, "bf16")];
    assert_eq!(keys, expected.map(|(model, weights)| (model.clone(), weights.to_owned())));
    let bytes: Vec<f64> = rows.iter().map(|r| positive(&r["weight_bytes"], "bytes")).collect();
    assert!(bytes[0] < bytes[1] && bytes[2] < bytes[3], "{bytes:?}");
    for row in rows {
        assert_eq!(row["results"].as_array().unwrap().len(), 1);
        if cfg!(target_os = "linux") {
            assert!(row["resident_bytes"].is_i64(), "{row}");
        }
    }

    let options = format!("{SHORT} --batch 1,2 --weights packed,bf16");
    let text = String::from_utf8(bench(&b, &options).stdout).unwrap();
    for label in ["llama-q8_0.gguf, Q8_0", "llama-q8_0.gguf, bf16"] {
        let lines = text.lines().filter(|line| line.starts_with(label)).count();
        // Speeds, bandwidth, and both beside the first row.
        assert_eq!(lines, 3, "{label} in {text}");
    }
    assert!(text.contains("decode 2 tok/s") && text.contains("resident, MB"), "{text}");
}

#[test]
fn an_adapter_is_compared_with_none() {
    let (model, adapter) = (fixture("tiny-llama"), fixture("adapters/tiny-llama-all"));
    let options = format!("{SHORT} --batch 3 --adapter {adapter} --by-op");
    let said = json(&model, &options);
    let [plain, adapted] = said["comparison"].as_array().unwrap().as_slice() else {
        panic!("{said}");
    };
    assert_eq!(
        (&plain["adapter"], &adapted["adapter"]["name"]),
        (&Value::Null, &"tiny-llama-all".into())
    );
    assert_eq!(plain["weight_bytes"], adapted["weight_bytes"]);
    let adapted_step = &adapted["by_op"][0];
    let bytes = &adapted["adapter"]["bytes"];
    // All sequences have the adapter, so a step reads it once for the rows of all.
    assert_eq!(op(adapted_step, "adapter")["bytes"].as_f64(), bytes.as_f64());
    let ops = plain["by_op"][0]["ops"].as_array().unwrap();
    assert!(ops.iter().all(|op| op["op"] != "adapter"), "{ops:?}");
    let text = String::from_utf8(bench(&model, &options).stdout).unwrap();
    assert!(text.contains("tiny-llama, bf16, tiny-llama-all"), "{text}");

    let other = fixture("adapters/tiny-mistral-up");
    let out = bench(&model, &format!("{SHORT} --adapter {other}"));
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_cost_model_is_of_one_model() {
    let model = fixture("tiny-llama");
    for options in [format!("-m {model}"), "--weights packed,bf16".to_owned()] {
        let out = bench(&model, &format!("{options} --fit-cost unwritten.json"));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains("--fit-cost measures one model"), "{said}");
    }
}

#[test]
fn a_config_without_random_weights_is_refused_beside_a_model() {
    let out =
        bench(&fixture("tiny-llama"), &format!("--config {}", fixture("configs/qwen3-8b.json")));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("--config") && said.contains("--model"), "{said}");
}

#[test]
fn rows_that_would_be_equal_are_left_out_and_others_have_different_labels() {
    let dir = tempfile::tempdir().unwrap();
    let copy = |name: &str| {
        let path = dir.path().join(name).join("same.gguf");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::copy(fixture("tiny-gguf/llama-q4_1.gguf"), &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, b) = (copy("a"), copy("b"));
    let options = format!("{SHORT} --batch 1 -m {b} -m {a} --weights bf16");
    let out = bench(&a, &options);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    assert_eq!(said.matches("is given twice").count(), 1, "{said}");
    let text = String::from_utf8(out.stdout).unwrap();
    for label in ["a/same.gguf, bf16", "b/same.gguf, bf16"] {
        assert_eq!(text.lines().filter(|line| line.starts_with(label)).count(), 3, "{text}");
    }
    // Weights in bf16 are the same in every storage.
    let out = bench(&fixture("tiny-llama"), &format!("{SHORT} --batch 1 --weights packed,bf16"));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no row of its own"), "{out:?}");
}

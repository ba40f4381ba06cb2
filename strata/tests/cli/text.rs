//! `strata tokenize`, `chat-template`, `models`, `fetch`, and help.

use std::fs;

use serde_json::Value;

use crate::strata::{arg, comma, fixture, fixtures, ids, json_of, keys, strata, strata_reading};

fn cases(kind: &str) -> Vec<Value> {
    let file = json_of(fixtures().join(format!("tokenizers/{kind}.json")));
    file["cases"].as_array().unwrap().clone()
}

#[test]
fn tokenize_answers_as_the_reference_tokenizers_do() {
    for kind in ["smollm", "llama"] {
        // A byte level vocabulary read from GGUF, a SentencePiece one from tokenizer.json.
        let end = if kind == "smollm" { "gguf" } else { "tokenizer.json" };
        let model = fixture(&format!("tokenizers/{kind}.{end}"));
        for case in cases(kind) {
            let text = case["text"].as_str().unwrap().as_bytes();
            let args = ["tokenize", "-m", &model, "--json", "-"];
            let bare = strata_reading(text, args.into_iter().chain(["--no-special"])).json();
            assert_eq!(keys(&bare), ["tokens", "text"]);
            assert_eq!(bare["tokens"], case["ids"], "{kind}: {}", case["text"]);
            assert_eq!(bare["text"], case["decoded"], "{kind}: {}", case["text"]);
            let full = strata_reading(text, args).json();
            assert_eq!(full["tokens"], case["ids_special"], "{kind}: {}", case["text"]);
        }
    }
}

#[test]
fn tokenize_decodes_with_and_without_special_tokens() {
    let model = fixture("tokenizers/smollm.gguf");
    for case in cases("smollm") {
        let list = comma(&ids(&case["ids"]));
        let args = ["tokenize", "-m", &model, "--decode", "--json", &list];
        let all = strata(args).json();
        assert_eq!((&all["text"], &all["tokens"]), (&case["decoded"], &case["ids"]));
        let text = strata(args.into_iter().chain(["--no-special"])).json();
        assert_eq!(text["text"], case["decoded_no_special"], "{list}");
    }
}

#[test]
fn tokenize_takes_text_that_looks_like_an_option() {
    let model = fixture("tiny-llama");
    for text in ["-5", "--- a/b", "--nonsense"] {
        let answer = strata(["tokenize", "-m", &model, "--json", "--no-special", text]).json();
        assert_eq!(answer["text"], text);
    }
}

#[test]
fn tokenize_shows_a_table_to_people() {
    let model = fixture("tiny-llama");
    let table = strata(["tokenize", "-m", &model, "Hi"]);
    let first = table.text().lines().next().unwrap();
    assert_eq!(first.trim(), "384  \"<|begin_of_text|>\"");
    let text = strata(["tokenize", "-m", &model, "--decode", "--no-special", "384 40"]);
    assert_eq!(text.text().chars().count(), 1, "{text:?}");
}

#[test]
fn tokenize_needs_no_weights() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("tiny-llama/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let answer = strata(["tokenize", "-m", &arg(&dir), "--json", "Hi"]).json();
    let with_all = strata(["tokenize", "-m", &fixture("tiny-llama"), "--json", "Hi"]).json();
    assert_eq!(ids(&answer["tokens"]).last(), ids(&with_all["tokens"]).last());
}

#[test]
fn chat_template_prints_the_prompt_and_not_a_byte_more() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("messages.json");
    let messages =
        r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]"#;
    fs::write(&file, messages).unwrap();
    let (model, file) = (fixture("tiny-qwen2"), arg(&file));
    let args = ["chat-template", "--model", &model, "--messages"];
    let turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n";
    let open = format!("{turns}<|im_start|>assistant\n");
    assert_eq!(strata(args.into_iter().chain([file.as_str()])).text(), open);
    let closed = strata(args.into_iter().chain([file.as_str(), "--no-generation-prompt"]));
    assert_eq!(closed.text(), turns);
    let object = format!("{{\"messages\": {messages}}}");
    assert_eq!(strata_reading(object.as_bytes(), args.into_iter().chain(["-"])).text(), open);
    // This template ends without a line end, and so does the output.
    let mistral = fixture("tiny-mistral");
    let ran = strata(["chat-template", "-m", &mistral, "--messages", &file]);
    assert_eq!(ran.text(), "<s> [INST] Be brief.\n\nHi [/INST]");
}

#[test]
fn models_lists_families_and_types_and_says_what_becomes_of_quantised_weights() {
    let table = strata(["models"]);
    let note = "stay packed in memory";
    for word in ["llama", "mistral", "qwen2", "qwen3", "Q4_1", "Q6_K", "BF16", note] {
        assert!(table.text().contains(word), "{word} in {table:?}");
    }
    let answer = strata(["models", "--json"]).json();
    assert_eq!(keys(&answer), ["families", "types", "containers", "note"]);
    let types = answer["types"].as_array().unwrap();
    let q4_1 = types.iter().find(|t| t["name"] == "Q4_1").unwrap();
    assert_eq!(q4_1["bits_per_weight"], 5.0);
    assert_eq!(q4_1["memory_bits_per_weight"], 5.0);
    let bf16 = types.iter().find(|t| t["name"] == "BF16").unwrap();
    assert_eq!(bf16["memory_bits_per_weight"], 16.0);
}

#[test]
fn fetch_prints_where_the_model_lies() {
    let path = fixture("tiny-gguf/llama-q8_0.gguf");
    assert_eq!(strata(["fetch", &path]).text(), format!("{path}\n"));
}

#[test]
fn help_has_examples_and_the_version_is_that_of_the_crate() {
    let help = strata(["--help"]);
    assert!(
        help.text().contains("Examples:") && help.text().contains("strata generate"),
        "{help:?}"
    );
    let version = concat!("strata ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(strata(["--version"]).text(), version);
    for command in ["generate", "chat", "logits", "tokenize", "chat-template", "compare", "bench"] {
        assert!(strata([command, "--help"]).text().contains("--model"), "{command}");
    }
    // What belongs together stands together, under its own heading.
    let help = strata(["generate", "--help"]);
    let at = |word: &str| help.text().find(word).unwrap_or_else(|| panic!("{word} in {help:?}"));
    let order = [
        "--kv-memory",
        "--device",
        "Sampling:",
        "--top-p",
        "Choices:",
        "--stop",
        "Guides",
        "--choice",
    ];
    assert!(order.map(at).is_sorted(), "{help:?}");
    let nothing = strata([""; 0]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (2, ""));
    assert!(nothing.stderr.contains("Usage:"), "{nothing:?}");
}

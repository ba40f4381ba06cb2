//! `--adapter` of `generate`, `chat`, `logits` and `perplexity`.

use std::path::Path;

use serde_json::Value;

use crate::strata::{arg, fixture, strata, strata_reading};

fn adapter(name: &str) -> String {
    fixture(&format!("adapters/{name}"))
}

#[test]
fn generate_applies_an_adapter_and_prompts_of_a_file_have_the_same_tokens() {
    let (model, dir) = (fixture("tiny-llama"), adapter("tiny-llama-all"));
    let args = ["generate", "-m", &model, "--json", "-n", "16", "--ignore-eos"];
    let one = |more: &[&str]| {
        let all = args.iter().chain(&["--tokens", "5,17,100,3"]).chain(more);
        strata(all.copied()).json()["tokens"].clone()
    };
    let (plain, adapted) = (one(&[]), one(&["--adapter", &dir]));
    assert_ne!(adapted, plain);
    assert_eq!(one(&["--adapter", &dir, "--state", "contiguous"]), adapted);
    assert_eq!(one(&["--adapter", &dir, "--max-lora-rank", "4"]), adapted);
    let lines = b"{\"id\": 1, \"tokens\": [5, 17, 100, 3]}\n{\"id\": 2, \"tokens\": [5, 17]}\n";
    let of_file = ["--prompts", "-", "--adapter", &dir];
    let ran = strata_reading(lines, args.iter().chain(&of_file).copied());
    let first: Value = serde_json::from_str(ran.text().lines().next().unwrap()).unwrap();
    assert_eq!(first["tokens"], adapted, "{ran:?}");
}

#[test]
fn chat_and_logits_apply_an_adapter() {
    let (model, dir) = (fixture("tiny-qwen2"), adapter("tiny-qwen2-attention"));
    let chat = |more: &[&str]| {
        let args = ["chat", "-m", &model, "--max-tokens", "12"];
        strata_reading(b"Hello\n", args.iter().chain(more).copied()).text().to_owned()
    };
    assert_ne!(chat(&["--adapter", &dir]), chat(&[]));
    let logits = |more: &[&str]| {
        let args = ["logits", "-m", &model, "--tokens", "3,1,4,1,5", "--json", "--all"];
        strata(args.iter().chain(more).copied()).json()
    };
    assert_ne!(logits(&["--adapter", &dir]), logits(&[]));
}

#[test]
fn an_adapter_that_cannot_be_applied_is_one_line_that_says_why() {
    let model = fixture("tiny-llama");
    for command in ["generate", "logits"] {
        let ran = |more: &[&str]| {
            let args = [command, "-m", &model, "--tokens", "5,17"];
            strata(args.iter().chain(more).copied())
        };
        for (dir, more, word) in [
            (adapter("tiny-llama-all"), &["--max-lora-rank", "2"][..], "--max-lora-rank"),
            (adapter("tiny-mistral-up"), &[], "for this model"),
            (fixture("tiny-llama"), &[], "adapter_config.json"),
            (fixture("no-such-directory"), &[], "does not exist"),
        ] {
            let ran = ran(&[&["--adapter", dir.as_str()][..], more].concat());
            assert_eq!(ran.code, 1, "{ran:?}");
            assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(word), "{ran:?}");
            assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{ran:?}");
        }
        assert_eq!(ran(&["--adapter", "a", "--max-lora-rank", "0"]).code, 2);
    }
}

/// An adapter whose numbers are finite, and too large for any sum.
fn huge(of: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(Path::new(&adapter(of)).join(name), dir.path().join(name)).unwrap();
    }
    let weights = dir.path().join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let f32s = String::from_utf8_lossy(&bytes[..header]).contains("F32");
    let huge = if f32s { 1e37f32.to_le_bytes().to_vec() } else { vec![0xf0, 0x7d] };
    for (at, byte) in bytes[header..].iter_mut().enumerate() {
        *byte = huge[at % huge.len()];
    }
    std::fs::write(&weights, &bytes).unwrap();
    dir
}

#[test]
fn an_adapter_whose_logits_are_not_numbers_is_an_error_of_every_command_without_advice_for_servers()
{
    let (model, dir) = (fixture("tiny-llama"), huge("tiny-llama-all"));
    let dir = arg(dir.path());
    let with = ["-m", &model, "--adapter", &dir];
    let tokens = ["--tokens", "5,17,100,3"];
    let generate = strata(["generate"].iter().chain(&with).chain(&tokens).copied());
    let logits = strata(["logits"].iter().chain(&with).chain(&tokens).copied());
    let chat = strata_reading(b"Hello\n", ["chat"].iter().chain(&with).copied());
    let perplexity = ["perplexity", "-"].iter().chain(&with).copied();
    let perplexity = strata_reading(b"Once upon a time", perplexity);
    for ran in [&generate, &logits, &chat, &perplexity] {
        assert!(ran.stderr.contains("made the logits non-finite"), "{ran:?}");
        assert!(!ran.stderr.contains("unload") && !ran.stdout.contains("NaN"), "{ran:?}");
    }
    for ran in [generate, logits, perplexity] {
        assert_eq!(ran.code, 1, "{ran:?}");
    }
}

#[test]
fn flags_about_adapters_that_no_server_takes_are_a_warning() {
    let model = fixture("tiny-llama");
    let args = ["serve", &model, "--print-config", "--max-lora-rank", "8", "--max-cpu-loras", "2"];
    let all = args.iter().chain(&["--max-lora-wait", "3"]).copied();
    let off = strata(all.clone());
    for flag in ["--max-lora-rank", "--max-cpu-loras", "--max-lora-wait"] {
        let says = format!("{flag} (command line) has no effect without --enable-lora");
        assert!(off.code == 0 && off.stderr.contains(&says), "{off:?}");
    }
    let on = strata(all.chain(["--enable-lora"]));
    assert!(on.code == 0 && !on.stderr.contains("no effect"), "{on:?}");
}

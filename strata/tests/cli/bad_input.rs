//! Errors are one line on stderr and an exit code: 2 for an invalid command, 1 for any other failure.

use std::fs;
use std::path::Path;

use crate::strata::{Ran, arg, copy_of, fixture, fixtures, json_of, strata, strata_reading};

#[track_caller]
fn check(ran: &Ran, code: i32, part: &str) {
    assert_eq!(ran.code, code, "{ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
    assert!(ran.stderr.starts_with("error: "), "{ran:?}");
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{ran:?}");
    assert!(!ran.stderr.contains("panicked") && !ran.stderr.contains("RUST_BACKTRACE"), "{ran:?}");
    assert!(ran.stderr.contains(part), "`{part}` in {}", ran.stderr);
}

#[track_caller]
fn refused(args: &[&str], part: &str) {
    check(&strata(args), 2, part);
}

#[track_caller]
fn fails(args: &[&str], part: &str) {
    check(&strata(args), 1, part);
}

#[test]
fn invalid_arguments() {
    let model = &fixture("tiny-llama");
    refused(&["generatr", "x"], "generatr");
    refused(&["generate", "--modle", model, "x"], "--modle");
    refused(&["generate", "-m", model], "PROMPT");
    refused(&["generate", "-m", model, "x", "--tokens", "1"], "--tokens");
    refused(&["generate", "-m", model, "--chat", "--tokens", "1"], "--tokens");
    refused(&["generate", "-m", model, "--system", "s", "x"], "--chat");
    refused(&["generate", "-m", model, "--max-tokens", "-1", "x"], "-1");
    refused(&["generate", "-m", model, "--max-tokens", "many", "x"], "many");
    refused(&["generate", "-m", model, "--device", "tpu", "x"], "use auto, cpu, cuda");
    refused(&["generate", "-m", model, "--device", "cuda:x", "x"], "use auto, cpu, cuda");
    refused(&["generate", "-m", model, "--precision", "f64", "x"], "use auto, f32 or bf16");
    refused(&["generate", "-m", model, "--weights", "int4", "x"], "use auto, packed or bf16");
    refused(&["generate", "-m", model, "--threads", "0", "x"], "--threads");
    refused(&["generate", "-m", model, "--threads", "99999999", "x"], "--threads");
    refused(&["logits", "-m", model], "--tokens");
    refused(&["logits", "-m", model, "--tokens", "1", "--top", "-3"], "-3");
    refused(&["tokenize", "-m", model], "TEXT");
    refused(&["tokenize", "-m", model, "--decode", "1,two"], "two");
    refused(&["chat-template", "-m", model], "--messages");
    refused(&["compare", "-m", model], "--golden");
    refused(&["compare", "-m", model, "--golden", "g", "--tolerance", "NaN"], "--tolerance");
    refused(&["models", "--verbose", "--quiet"], "--quiet");
    refused(&["fetch"], "MODEL");
}

#[test]
fn numbers_for_the_sampler_that_are_out_of_range() {
    let model = &fixture("tiny-llama");
    for (flag, values, range) in [
        ("--temperature", &["-1", "-0.001", "NaN", "inf", "hot", "1e39"][..], "0 or above"),
        ("--top-p", &["-0.1", "1.01", "NaN", "50%"], "from 0 to 1"),
        ("--min-p", &["-1", "2", "NaN"], "from 0 to 1"),
        ("--typical-p", &["0", "-1", "1.5", "NaN"], "above 0 and at most 1"),
        ("--repetition-penalty", &["0", "-1.1", "inf", "NaN"], "above 0"),
        ("--presence-penalty", &["-2.1", "3", "NaN"], "from -2 to 2"),
        ("--frequency-penalty", &["-2.1", "3", "inf"], "from -2 to 2"),
        ("--top-k", &["-1", "1.5", "all"], "--top-k"),
        ("--seed", &["-1", "1.5", "18446744073709551616"], "--seed"),
        ("--n", &["0", "-1", "1025", "two"], "--n"),
        ("--best-of", &["0", "-1", "1025"], "--best-of"),
        ("--min-tokens", &["-1", "x"], "--min-tokens"),
        ("--logprobs", &["-1", "x"], "--logprobs"),
    ] {
        for value in values {
            let ran = strata(["generate", "-m", model, "--json", "x", flag, value]);
            check(&ran, 2, flag);
            check(&ran, 2, range);
        }
    }
    for (flag, value) in [("--temperature", "-1"), ("--top-p", "7"), ("--seed", "x")] {
        check(&strata(["chat", "-m", model, flag, value]), 2, flag);
    }
}

#[test]
fn options_of_choices_that_contradict_each_other() {
    let model = &fixture("tiny-llama");
    let refused = |options: &[&str], part: &str| {
        refused(&[&["generate", "-m", model, "x", "--json"], options].concat(), part);
    };
    refused(&["--n", "3", "--best-of", "2"], "--best-of 2 must be at least --n 3");
    refused(&["--include-stop-str"], "--stop");
    refused(&["--logprobs-of", "raw"], "--logprobs");
    refused(&["--logprobs", "1", "--logprobs-of", "cooked"], "use raw or processed");
    refused(&["--logprobs", "400"], "logprobs must be at most");
    refused(&["--stop", ""], "stop string is empty");
    refused(&["--min-tokens", "9", "-n", "8"], "min_tokens must be at most max_tokens");
    let guides =
        [["--json-schema", "s.json"], ["--regex", "a"], ["--grammar", "g.lark"], ["--choice", "a"]];
    for (i, one) in guides.iter().enumerate() {
        for other in guides.iter().skip(i + 1) {
            refused(&[&one[..], other].concat(), one[0]);
        }
    }
    check(&strata(["generate", "-m", model, "x", "--logprobs", "1"]), 2, "--json");
}

#[test]
fn invalid_guides() {
    let model = &fixture("tiny-llama");
    let dir = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = dir.path().join("guide");
        fs::write(&path, text).unwrap();
        arg(path)
    };
    for (flag, text, part) in [
        ("--json-schema", "{", "is not JSON"),
        ("--json-schema", "{\"type\": 3}", "JSON schema cannot be compiled"),
        ("--json-schema", "{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", "JSON schema"),
        ("--grammar", "start: (", "grammar cannot be compiled"),
        ("--grammar", "start: missing", "grammar cannot be compiled"),
    ] {
        let args = ["generate", "-m", model, "x", flag, &file(text)];
        check(&strata(args), 2, part);
        if flag == "--json-schema" {
            let args = ["generate", "-m", model, "x", flag, "-"];
            check(&strata_reading(text.as_bytes(), args), 2, part);
        }
    }
    refused(&["generate", "-m", model, "x", "--regex", "(["], "regular expression");
    refused(&["generate", "-m", model, "x", "--choice", ""], "choice");
    refused(&["generate", "-m", model, "-", "--json-schema", "-"], "stdin");
    for flag in ["--json-schema", "--grammar"] {
        fails(&["generate", "-m", model, "x", flag, "no-such-file"], "no-such-file");
    }
}

#[test]
fn text_that_is_asked_for_where_there_is_no_tokenizer() {
    let dir = copy_of("tiny-llama");
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let model = &arg(&dir);
    for options in [&["--stop", "x"][..], &["--regex", "a"], &["--choice", "a,b"]] {
        refused(&[&["generate", "-m", model, "--tokens", "1,2"], options].concat(), "tokenizer");
    }
}

#[test]
fn token_lists_that_are_no_ids() {
    let model = &fixture("tiny-llama");
    for list in ["1,x", "-1", "4294967296", "1;2", "1.5", "0x10"] {
        refused(&["generate", "-m", model, "--tokens", list], "is not a token id");
        refused(&["logits", "-m", model, "--tokens", list], "is not a token id");
    }
}

#[test]
fn invalid_names_of_models() {
    for command in ["generate", "tokenize"] {
        refused(&[command, "--model", "./no/such/dir", "x"], "no such file or directory");
        refused(&[command, "--model", "no-such-model", "x"], "unknown model");
        refused(&[command, "--model", "a b/c d", "x"], "is not a hub id");
    }
    refused(&["fetch", "a//b"], "hub id");
    // One that could be meant and is not here.
    fails(&["generate", "--model", "no-such-org/no-such-model", "x"], "HF_HUB_OFFLINE");
    fails(&["generate", "--model", "smollm2", "x"], "HF_HUB_OFFLINE");
}

#[test]
fn cuda_where_there_is_none() {
    // Without a driver, or with one that sees no device.
    for device in ["cuda", "cuda:0", "cuda:7"] {
        let args = ["generate", "-m", &fixture("tiny-llama"), "--device", device, "x"];
        fails(&args, "use --device cpu");
    }
    // The device is checked before anything is fetched.
    fails(&["generate", "-m", "org/name", "--device", "cuda", "x"], "use --device cpu");
}

#[test]
fn prompts_that_cannot_be_run() {
    let model = &fixture("tiny-llama");
    fails(&["generate", "-m", model, ""], "prompt is empty");
    fails(&["generate", "-m", model, "--chat", ""], "prompt is empty");
    fails(&["generate", "-m", model, "--tokens", ""], "prompt is empty");
    fails(&["logits", "-m", model, "--tokens", "", "--json"], "prompt is empty");
    check(&strata_reading(b"", ["generate", "-m", model, "-"]), 1, "prompt is empty");
    fails(&["generate", "-m", model, "--tokens", "1,389"], "389 is out of range");
    fails(&["logits", "-m", model, "--tokens", "4294967295", "--json"], "out of range");
    // 512 tokens fill the context and leave no room for output.
    let full = vec!["1"; 512].join(",");
    fails(&["generate", "-m", model, "--tokens", &full], "context holds 512");
    let beyond = format!("{full},1");
    for command in [&["generate", "-n", "0"][..], &["logits"], &["logits", "--all", "--json"]] {
        let args = [command, &["-m", model, "--tokens", &beyond]].concat();
        fails(&args, "513 tokens, but the context holds 512");
    }
    assert_eq!(strata(["logits", "-m", model, "--tokens", &full, "--json"]).code, 0);
    let words = "word ".repeat(600);
    fails(&["generate", "-m", model, &words], "context holds 512");
    check(&strata_reading(b"\xff\xfe", ["generate", "-m", model, "-"]), 1, "stdin");
    fails(&["tokenize", "-m", model, "--decode", "99999"], "out of range");
}

#[test]
fn models_without_a_part_that_is_needed() {
    let dir = copy_of("tiny-llama");
    let model = &arg(&dir);
    let config = dir.path().join("tokenizer_config.json");
    let mut json = json_of(&config);
    json.as_object_mut().unwrap().remove("chat_template");
    fs::write(&config, json.to_string()).unwrap();
    fails(&["generate", "-m", model, "--chat", "x"], "no chat template");
    fails(&["chat", "-m", model], "no chat template");
    let messages = dir.path().join("messages.json");
    fs::write(&messages, "[]").unwrap();
    fails(&["chat-template", "-m", model, "--messages", &arg(&messages)], "no chat template");

    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    for command in [&["generate", "x"][..], &["tokenize", "x"], &["generate", "--chat", "x"]] {
        fails(&[command, &["-m", model]].concat(), "no tokenizer");
    }
    fails(&["chat", "-m", model], "no tokenizer");

    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    fails(&["logits", "-m", model, "--tokens", "1"], "no model.safetensors");
    fs::remove_file(dir.path().join("config.json")).unwrap();
    fails(&["logits", "-m", model, "--tokens", "1"], "config.json");
}

#[test]
fn safetensors_that_are_cut_off_or_damaged() {
    let dir = copy_of("tiny-llama");
    let (model, file) = (arg(&dir), dir.path().join("model.safetensors"));
    let whole = fs::read(&file).unwrap();
    let logits = ["logits", "-m", &model, "--tokens", "1"];
    for len in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..len]).unwrap();
        fails(&logits, "model.safetensors");
    }
    let mut huge_header = whole.clone();
    huge_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&file, huge_header).unwrap();
    fails(&logits, "model.safetensors");
    let mut no_json = whole;
    no_json[8] = b'!';
    fs::write(&file, no_json).unwrap();
    fails(&logits, "model.safetensors");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    fails(&logits, "model.safetensors");
}

#[test]
fn gguf_files_that_are_cut_off_or_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let model = arg(&file);
    let logits = ["logits", "-m", &model, "--tokens", "1"];
    let whole = fs::read(fixtures().join("tiny-gguf/llama-q4_1.gguf")).unwrap();
    for len in [4, 5, 12, 24, 100, 1000, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..len]).unwrap();
        fails(&logits, "model.gguf");
    }
    // The version, the number of tensors, the number of keys.
    for at in [4, 8, 16] {
        let mut bytes = whole.clone();
        bytes[at..at + 4].fill(0xff);
        fs::write(&file, bytes).unwrap();
        fails(&logits, "model.gguf");
    }
    fs::write(&file, b"not a model").unwrap();
    fails(&logits, "is not a GGUF file");
}

#[test]
fn configs_of_models_that_cannot_be() {
    let dir = copy_of("tiny-llama");
    let (model, file) = (arg(&dir), dir.path().join("config.json"));
    let logits = ["logits", "-m", &model, "--tokens", "1"];
    let good = json_of(&file);
    for (key, value) in [
        ("hidden_size", 1u64 << 40),
        ("num_hidden_layers", u64::MAX),
        ("vocab_size", 1 << 62),
        ("num_attention_heads", 0),
        ("intermediate_size", 1 << 50),
        ("max_position_embeddings", 0),
    ] {
        let mut json = good.clone();
        json[key] = value.into();
        fs::write(&file, json.to_string()).unwrap();
        fails(&logits, key);
    }
    // Sizes that are possible and not those of the weights.
    let mut json = good;
    json["intermediate_size"] = 1000.into();
    fs::write(&file, json.to_string()).unwrap();
    fails(&logits, "mis-shaped");
    fs::write(&file, "{").unwrap();
    fails(&logits, "not valid JSON");
    for (name, part) in
        [("mixtral-8x7b", "mixtral"), ("mamba2-2.7b", "mamba2"), ("gemma2-2b", "gemma2")]
    {
        let config = fixtures().join(format!("configs/unsupported-{name}.json"));
        fs::copy(config, &file).unwrap();
        fails(&logits, part);
    }
}

/// A command that computes nothing with these numbers refuses them too: what it writes could not run either.
#[test]
fn every_command_refuses_a_config_that_nothing_can_be_computed_with() {
    let dir = copy_of("tiny-llama-yarn");
    let (model, file) = (arg(&dir), dir.path().join("config.json"));
    let out = dir.path().join("out");
    let good = json_of(&file);
    for (key, value, part) in [
        ("rms_norm_eps", "-1", "config key `rms_norm_eps` is -1: must be a number, at least 0"),
        ("rms_norm_eps", "NaN", "config key `rms_norm_eps` is \"NaN\": must be a number"),
        (
            "rope_theta",
            "0",
            "config key `rope_parameters.rope_theta` is 0: must be a number above 1",
        ),
        ("factor", "0", "config key `rope_parameters.factor` is 0: must be a number above 0"),
    ] {
        let mut json = good.clone();
        let at = if key == "rms_norm_eps" { &mut json } else { &mut json["rope_parameters"] };
        at[key] = "WORD".into();
        fs::write(&file, json.to_string().replace("\"WORD\"", value)).unwrap();
        fails(&["generate", "-m", &model, "x"], part);
        fails(&["logits", "-m", &model, "--tokens", "1"], part);
        fails(&["quantize", &model, "--to", "nvfp4", "-o", &arg(&out)], part);
        assert!(!out.exists(), "{key}");
    }
}

#[test]
fn every_command_refuses_a_weight_that_is_not_a_number() {
    let dir = copy_of("tiny-llama");
    let (model, file) = (arg(&dir), dir.path().join("model.safetensors"));
    let good = fs::read(&file).unwrap();
    let (length, _) = good.split_first_chunk().unwrap();
    let first = 8 + u64::from_le_bytes(*length) as usize;
    let out = dir.path().join("out");
    // The first tensor in the file is a matrix of 96 columns, the last one the final norm.
    let end = "the checkpoint is damaged; fetch the model again";
    for (at, bits, part) in [
        (good.len() - 2, 0x7fc0u16, "`model.norm.weight` has NaN at [95]"),
        (first + 2 * (96 + 3), 0xff80, "`model.embed_tokens.weight` has -inf at [1, 3]"),
    ] {
        let mut bytes = good.clone();
        bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        let part = format!("tensor {part}: {end}");
        fails(&["generate", "-m", &model, "x"], &part);
        fails(&["quantize", &model, "--to", "nvfp4", "-o", &arg(&out)], &part);
        assert!(!out.exists());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_cannot_be_read() {
    // Its owner may open it, and reading at 0 fails: also for root, whom permissions do not stop.
    assert!(fs::read("/proc/self/mem").is_err());
    fails(&["generate", "-m", "/proc/self/mem", "x"], "cannot read /proc/self/mem");
    let model = fixture("tiny-llama");
    fails(&["chat-template", "-m", &model, "--messages", "/proc/self/mem"], "/proc/self/mem");
    fails(&["chat-template", "-m", &model, "--messages", "no-such-file"], "no-such-file");
    fails(&["compare", "-m", &model, "--golden", "no-such-file"], "no-such-file");
}

#[test]
#[cfg(unix)]
fn pipes_and_devices_are_no_models() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = arg(dir.path().join("model.gguf"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe.as_str(), "/dev/null", "/dev/zero"] {
        fails(&["generate", "-m", path, "x"], "is not a GGUF file");
    }
}

#[test]
fn messages_that_are_no_conversation() {
    let model = fixture("tiny-mistral");
    let render = |json: &str| {
        strata_reading(json.as_bytes(), ["chat-template", "-m", &model, "--messages", "-"])
    };
    check(&render("{"), 1, "messages");
    check(&render("3"), 1, "a list of messages");
    check(&render(r#"[{"content": "x"}]"#), 1, "messages[0].role");
    check(&render(r#"[{"role": "user", "content": 3}]"#), 1, "messages[0].content");
    // The template's own refusal: turns must alternate.
    let twice = r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]"#;
    check(&render(twice), 1, "roles must alternate");
}

#[test]
fn a_golden_that_is_none() {
    let model = fixture("tiny-llama");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("golden.safetensors");
    fs::write(&file, b"nothing").unwrap();
    fails(&["compare", "-m", &model, "--golden", &arg(&file)], "golden.safetensors");
    let weights = Path::new(&model).join("model.safetensors");
    fails(&["compare", "-m", &model, "--golden", &arg(weights)], "tokens");
}

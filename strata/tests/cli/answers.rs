//! `strata generate`.

use std::fs;

use l2_model::open_tokenizer;

use crate::golden::{Golden, tiny_models};
use crate::strata::{arg, comma, copy_of, fixture, fixtures, ids, keys, strata, strata_reading};

#[test]
fn every_tiny_model_continues_as_the_reference_does() {
    for (model, golden) in tiny_models() {
        let golden = Golden::open(&golden);
        let prompt = comma(&golden.ids("tokens"));
        let answer = strata([
            "generate",
            "--model",
            &model,
            "--tokens",
            &prompt,
            "--max-tokens",
            "48",
            "--ignore-eos",
            "--precision",
            "f32",
            "--json",
        ])
        .json();
        assert_eq!(ids(&answer["tokens"]), golden.ids("greedy"), "{model}");
    }
}

#[test]
fn the_json_response_has_the_fields_of_the_contract_and_no_others() {
    let ran = strata([
        "generate",
        "--model",
        &fixture("tiny-llama"),
        "--json",
        "-n",
        "5",
        "Hello world",
        "--ignore-eos",
    ]);
    assert_eq!(ran.stderr, "", "nobody watches a pipe");
    let answer = ran.json();
    let choice = ["text", "tokens", "finish_reason", "logprobs"];
    let fields =
        [&["prompt_tokens", "seed"], &choice[..], &["choices", "usage", "timings", "kv"]].concat();
    assert_eq!(keys(&answer), fields);
    assert_eq!(keys(&answer["choices"][0]), choice);
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1);
    for key in choice {
        assert_eq!(answer["choices"][0][key], answer[key], "the first choice at top level");
    }
    assert!(answer["seed"].is_u64() && answer["logprobs"].is_null(), "{answer}");
    assert_eq!(keys(&answer["usage"]), ["prompt_tokens", "completion_tokens", "total_tokens"]);
    assert_eq!(keys(&answer["timings"]), ["load_ms", "prefill_ms", "decode_ms"]);
    assert!(answer["timings"].as_object().unwrap().values().all(|ms| ms.as_f64() >= Some(0.0)));
    let prompt = ids(&answer["prompt_tokens"]).len();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt);
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(answer["usage"]["total_tokens"], prompt + 5);
    assert_eq!(answer["finish_reason"], "length");
}

#[test]
fn streamed_text_is_the_text_of_the_json_response_and_nothing_else() {
    for model in ["tiny-llama", "tiny-mistral", "tiny-qwen3", "tiny-gguf/llama-q8_0.gguf"] {
        let args = ["generate", "-m", &fixture(model), "--ignore-eos", "Once upon"];
        let answer = strata(args.into_iter().chain(["--json"])).json();
        let streamed = strata(args);
        assert!(!streamed.text().is_empty());
        assert_eq!(streamed.text(), answer["text"].as_str().unwrap(), "{model}");
        assert_eq!(streamed.stderr, "");
    }
}

#[test]
fn verbose_talks_on_stderr_only() {
    let args = ["generate", "-m", &fixture("tiny-llama"), "-n", "3", "Hi"];
    let quiet = strata(args);
    let verbose = strata(args.into_iter().chain(["--verbose"]));
    assert_eq!(verbose.text(), quiet.text());
    assert!(
        verbose.stderr.contains("threads") && verbose.stderr.contains("3 output tokens"),
        "{verbose:?}"
    );
}

#[test]
fn a_stop_token_ends_the_choice_and_is_its_last_token() {
    let golden = Golden::open(&fixture("tiny-llama/golden.safetensors"));
    let (prompt, greedy) = (comma(&golden.ids("tokens")), golden.ids("greedy"));
    // The first token that has not come before.
    let at = (5..).find(|i| !greedy[..*i].contains(&greedy[*i])).unwrap();
    let model = copy_of("tiny-llama");
    let config = format!("{{\"eos_token_id\": [{}]}}", greedy[at]);
    fs::write(model.path().join("generation_config.json"), config).unwrap();
    let model = arg(&model);
    let args = ["generate", "-m", &model, "--tokens", &prompt, "--json", "--precision", "f32"];
    let answer = strata(args.into_iter().chain(["-n", "48"])).json();
    assert_eq!(ids(&answer["tokens"]), greedy[..=at]);
    assert_eq!(answer["finish_reason"], "stop");
    let answer = strata(args.into_iter().chain(["-n", "48", "--ignore-eos"])).json();
    assert_eq!(ids(&answer["tokens"]), greedy);
    assert_eq!(answer["finish_reason"], "length");
}

#[test]
fn a_model_without_a_tokenizer_prints_token_ids() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        let from = std::path::Path::new(&fixture("tiny-llama")).join(file);
        fs::copy(from, dir.path().join(file)).unwrap();
    }
    let model = arg(dir.path());
    let args = ["generate", "-m", &model, "--tokens", "1,2", "-n", "3", "--ignore-eos"];
    let tokens = ids(&strata(args.iter().chain(&["--json"])).json()["tokens"]);
    let words: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    assert_eq!((words.len(), strata(args).text()), (3, &*format!("{}\n", words.join(" "))));
}

#[test]
fn zero_tokens_and_more_than_fit_are_both_valid() {
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--tokens", "1,2,3", "--ignore-eos", "--json", "-n"];
    let none = strata(args.into_iter().chain(["0"])).json();
    assert_eq!(none["tokens"], serde_json::json!([]));
    assert_eq!((&none["text"], &none["finish_reason"]), (&"".into(), &"length".into()));
    // tiny-llama's context holds 512 tokens.
    let all = strata(args.into_iter().chain(["1000000000000"])).json();
    assert_eq!(ids(&all["tokens"]).len(), 512 - 3);
    assert_eq!(all["finish_reason"], "length");
}

#[test]
fn a_dash_reads_the_prompt_from_stdin_to_the_last_byte() {
    let prompt = "two lines\nof text\n";
    let model = fixture("tiny-qwen2");
    let args = ["generate", "-m", &model, "--json", "-n", "4"];
    let typed = strata(args.into_iter().chain([prompt])).json();
    let piped = strata_reading(prompt.as_bytes(), args.into_iter().chain(["-"])).json();
    assert_eq!(typed["prompt_tokens"], piped["prompt_tokens"]);
    assert_eq!(typed["tokens"], piped["tokens"]);
}

#[test]
fn a_prompt_gets_one_bos_as_text_and_as_chat_and_none_as_ids() {
    for (model, bos) in [("tiny-llama", 384), ("tiny-mistral", 1), ("tiny-gguf/llama3-f16.gguf", 0)]
    {
        let path = fixture(model);
        let tokenizer = open_tokenizer(&fixtures().join(model)).unwrap();
        let bos = if bos == 0 { tokenizer.bos().unwrap() } else { bos };
        let has_template = tokenizer.chat_template().is_some();
        for how in [&["Hello"][..], &["--chat", "Hello"], &["--tokens", "5,6"]] {
            if how[0] == "--chat" && !has_template {
                continue;
            }
            let args = ["generate", "-m", &path, "--json", "-n", "1"];
            let answer = strata(args.iter().chain(how)).json();
            let prompt = ids(&answer["prompt_tokens"]);
            let wanted = usize::from(how[0] != "--tokens");
            assert_eq!(prompt.iter().filter(|id| **id == bos).count(), wanted, "{model} {how:?}");
            assert_eq!(prompt[0] == bos, wanted == 1, "{model} {how:?}");
        }
    }
}

#[test]
fn a_chat_is_the_rendered_template_with_the_system_message() {
    let model = fixture("tiny-qwen2");
    let answer = strata([
        "generate",
        "-m",
        &model,
        "--json",
        "-n",
        "1",
        "--chat",
        "--system",
        "Be brief.",
        "Hi",
    ])
    .json();
    let tokenizer = open_tokenizer(&fixtures().join("tiny-qwen2")).unwrap();
    let text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(ids(&answer["prompt_tokens"]), tokenizer.encode(text, false).unwrap());
}

#[test]
fn a_prompt_of_ids_needs_no_tokenizer() {
    let model = copy_of("tiny-llama");
    fs::remove_file(model.path().join("tokenizer.json")).unwrap();
    fs::remove_file(model.path().join("tokenizer_config.json")).unwrap();
    let run = |model: String| {
        strata(["generate", "-m", &model, "--tokens", "1,2,3", "--ignore-eos", "--json"])
    };
    let ran = run(arg(&model));
    assert_eq!(ran.stderr, "");
    let (with, without) = (run(fixture("tiny-llama")).json(), ran.json());
    assert_eq!(with["tokens"], without["tokens"]);
    assert_eq!(without["text"], "");
    assert_ne!(with["text"], "");
}

#[test]
fn prompt_and_continuation_read_as_decoded_together() {
    for (model, prompt) in [
        ("tiny-llama", "Once upon a time"),
        ("tiny-llama", "é"),
        // SentencePiece: the first word's space is dropped at the start of a text only.
        ("tiny-gguf/llama-q8_0.gguf", "Once upon a time"),
        ("tiny-mistral", "the end."),
        // This prompt ends in byte tokens, of which a decoder cannot know that they are complete.
        ("tiny-mistral", "é"),
    ] {
        let tokenizer = open_tokenizer(&fixtures().join(model)).unwrap();
        let args = ["generate", "-m", &fixture(model), "--ignore-eos", "--json", prompt];
        let answer = strata(args).json();
        let (before, new) = (ids(&answer["prompt_tokens"]), ids(&answer["tokens"]));
        let decode = |ids: &[u32]| tokenizer.decode(ids, true).unwrap();
        let joined = decode(&before) + answer["text"].as_str().unwrap();
        assert_eq!(joined, decode(&[before, new].concat()), "{model} {prompt}");
    }
}

#[test]
fn threads_and_repetition_do_not_change_a_token() {
    let model = fixture("tiny-qwen3");
    let run = |threads| {
        let args = ["generate", "-m", &model, "--tokens", "9,8,7", "--json", "--threads", threads];
        strata(args).json()["tokens"].clone()
    };
    let one = run("1");
    assert_eq!(run("2"), one);
    assert_eq!(run("3"), one);
    assert_eq!(run("1"), one);
}

//! One engine behind every door: the same request has the same tokens, text and log probabilities from `strata
//! generate`, from a file of prompts and from the server, and the log probabilities are those that `strata logits`
//! prints.

use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

use crate::served::{Served, fixture};

/// Requests that are drawn.
const REQUESTS: usize = 12;

/// A prompt, and what is asked: by the names that a file of prompts and the server share.
#[derive(Clone, Debug)]
struct Asked {
    prompt: Vec<u32>,
    sampling: Map<String, Value>,
    regex: Option<&'static str>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let penalties = (0..3u32, -1..3i32, -1..3i32).prop_map(|(repetition, presence, frequency)| {
        json!({
            "repetition_penalty": 1.0 + f64::from(repetition) / 4.0,
            "presence_penalty": f64::from(presence) / 4.0,
            "frequency_penalty": f64::from(frequency) / 4.0,
        })
    });
    let filters = (0..4u32, 0..50u32, 1..5u32, 0..3u32).prop_map(|(heat, k, p, min_p)| {
        json!({
            "temperature": f64::from(heat) / 2.0,
            "top_k": k,
            "top_p": f64::from(p) / 4.0,
            "min_p": f64::from(min_p) / 32.0,
        })
    });
    let ends =
        (1..24u64, 0..1000u64, 1..4u64, prop::option::of(prop::sample::select(vec!["e", " t"])));
    let ends = ends.prop_map(|(max_tokens, seed, n, stop)| {
        let mut ends = json!({"max_tokens": max_tokens, "seed": seed, "n": n, "ignore_eos": true});
        if let Some(stop) = stop {
            ends["stop"] = json!([stop]);
        }
        ends
    });
    let regex = prop::option::weighted(0.3, Just("(yes|no), [a-z]{2,4} [0-9]{3}"));
    let prompt = prop::collection::vec(3..300u32, 1..40);
    (prompt, penalties, filters, ends, regex).prop_map(
        |(prompt, penalties, filters, ends, regex)| {
            let parts = [penalties, filters, ends];
            let sampling = parts.into_iter().flat_map(|part| part.as_object().unwrap().clone());
            Asked { prompt, sampling: sampling.collect(), regex }
        },
    )
}

/// What every door tells of a choice.
#[derive(Debug, PartialEq)]
struct Told {
    tokens: Vec<u64>,
    text: String,
    finish: String,
    /// As the bits of what is printed.
    logprobs: Vec<u32>,
}

fn told(choice: &Value, tokens: &Value, logprobs: impl Iterator<Item = f64>) -> Told {
    Told {
        tokens: tokens.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect(),
        text: choice["text"].as_str().unwrap().to_owned(),
        finish: choice["finish_reason"].as_str().unwrap().to_owned(),
        logprobs: logprobs.map(|x| (x as f32).to_bits()).collect(),
    }
}

/// Of `generate --json`, and of a line of a file of prompts.
fn of_command(object: &Value) -> Vec<Told> {
    let choices = object["choices"].as_array().unwrap().iter();
    let logprobs = |choice: &Value| choice["logprobs"].as_array().unwrap().clone();
    let one = |choice: &Value| {
        let logprobs = logprobs(choice);
        told(choice, &choice["tokens"], logprobs.iter().map(|l| l["logprob"].as_f64().unwrap()))
    };
    choices.map(one).collect()
}

/// Of a completion.
fn of_server(object: &Value) -> Vec<Told> {
    let one = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap().iter();
        told(choice, &choice["token_ids"], logprobs.map(|l| l.as_f64().unwrap()))
    };
    object["choices"].as_array().unwrap().iter().map(one).collect()
}

fn strata(args: &[String]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    let ran = command.args(args).stdin(Stdio::null()).output().unwrap();
    assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

fn words(args: &str) -> Vec<String> {
    args.split_whitespace().map(str::to_owned).collect()
}

fn model() -> Vec<String> {
    let model = fixture("tiny-llama").display().to_string();
    [words("-m"), vec![model], words("--precision f32")].concat()
}

fn comma(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn generate(asked: &Asked, more: &str) -> Vec<Told> {
    let mut args = [words("generate --json --logprobs 0"), model(), words(more)].concat();
    args.push(format!("--tokens={}", comma(&asked.prompt)));
    for (key, value) in &asked.sampling {
        let flag = key.replace('_', "-");
        match value {
            Value::Bool(_) => args.push(format!("--{flag}")),
            Value::Array(texts) => {
                args.extend(
                    texts.iter().map(|text| format!("--{flag}={}", text.as_str().unwrap())),
                );
            }
            value => args.push(format!("--{flag}={value}")),
        }
    }
    args.extend(asked.regex.map(|regex| format!("--regex={regex}")));
    of_command(&serde_json::from_str(&strata(&args)).unwrap())
}

fn prompts(all: &[Asked]) -> Vec<Vec<Told>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = |asked: &Asked| {
        let mut sampling = asked.sampling.clone();
        sampling.insert("logprobs".into(), 0.into());
        sampling.extend(asked.regex.map(|regex| ("regex".to_owned(), regex.into())));
        format!("{}\n", json!({"tokens": asked.prompt, "sampling": sampling}))
    };
    std::fs::write(file.path(), all.iter().map(line).collect::<String>()).unwrap();
    let path = file.path().display().to_string();
    let args = [words("generate --prompts"), vec![path], model()].concat();
    let lines = strata(&args);
    lines.lines().map(|line| of_command(&serde_json::from_str(line).unwrap())).collect()
}

fn completion(server: &Served, asked: &Asked) -> Vec<Told> {
    let mut body = asked.sampling.clone();
    body.extend(asked.regex.map(|regex| ("guided_regex".to_owned(), regex.into())));
    let more = json!({"prompt": asked.prompt, "logprobs": 0, "return_token_ids": true});
    body.extend(more.as_object().unwrap().clone());
    of_server(&server.post("/v1/completions", &body.into()).json())
}

#[test]
fn a_request_has_the_same_tokens_and_log_probabilities_through_every_door() {
    let mut runner = TestRunner::default();
    let all: Vec<Asked> =
        (0..REQUESTS).map(|_| asked().new_tree(&mut runner).unwrap().current()).collect();
    let server = Served::start("tiny-llama", ["--precision", "f32"]);
    let from_file = prompts(&all);
    assert_eq!(from_file.len(), all.len());
    for (asked, from_file) in all.iter().zip(from_file) {
        let alone = generate(asked, "");
        assert_eq!(alone.len() as u64, asked.sampling["n"].as_u64().unwrap());
        assert_eq!(alone, generate(asked, "--state contiguous"), "contiguous: {asked:?}");
        assert_eq!(alone, from_file, "from a file of prompts: {asked:?}");
        assert_eq!(alone, completion(&server, asked), "through the server: {asked:?}");
        let first = &alone[0];
        let tokens: Vec<u32> = first.tokens.iter().map(|id| *id as u32).collect();
        let whole = comma(&[&asked.prompt[..], &tokens].concat());
        let mut args = [words("logits --all --json --top 400"), model()].concat();
        args.push(format!("--tokens={whole}"));
        let logits: Value = serde_json::from_str(&strata(&args)).unwrap();
        for (i, (token, logprob)) in tokens.iter().zip(&first.logprobs).enumerate() {
            let rows = logits["positions"][asked.prompt.len() - 1 + i]["top"].as_array().unwrap();
            let row = rows.iter().find(|row| row[0] == *token).unwrap();
            let (given, logprob) = (row[2].as_f64().unwrap(), f64::from(f32::from_bits(*logprob)));
            assert!((given - logprob).abs() < 1e-4, "token {i}: {given} and {logprob}, {asked:?}");
        }
    }
}

#[test]
fn a_message_has_the_same_answer_in_a_chat_and_through_the_server() {
    let model = fixture("tiny-qwen2").display().to_string();
    let server = Served::start("tiny-qwen2", ["--precision", "f32"]);
    for (seed, temperature) in [(0, 0.0), (4, 1.0), (9, 0.7)] {
        let options = format!("--precision f32 -n 12 --seed {seed} --temperature {temperature}");
        let mut child = Command::new(env!("CARGO_BIN_EXE_strata"))
            .args(["chat", "-m", &model])
            .args(words(&options))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"Hello there\n").unwrap();
        let chat = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let args = [words("generate --chat -m"), vec![model.clone()], words(&options)].concat();
        let generated = strata(&[args, vec!["Hello there".to_owned()]].concat());
        let generated = generated.trim_end_matches('\n');
        assert_eq!(chat.trim_end_matches('\n'), generated, "chat and generate --chat, {options}");
        let messages = json!([{"role": "user", "content": "Hello there"}]);
        let body = json!({
            "messages": messages, "seed": seed, "temperature": temperature, "max_tokens": 12,
        });
        let response = server.post("/v1/chat/completions", &body).json();
        let content = response["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        assert_eq!(generated, content, "through the server, {options}");
    }
}

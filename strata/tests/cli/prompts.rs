//! `strata generate --prompts`: many prompts, through the engine.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::strata::{Ran, arg, comma, command, end, fixture, ids, keys, strata, strata_reading};

/// Lines as a file.
fn file(lines: &[Value]) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prompts.jsonl");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, text).unwrap();
    let path = arg(path);
    (dir, path)
}

fn answer(lines: &[Value], options: &str) -> Ran {
    let (_dir, path) = file(lines);
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--prompts", &path];
    strata(args.into_iter().chain(options.split_whitespace()))
}

/// stdout, an object a line.
#[track_caller]
fn objects(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn refused(line: Value, part: &str) {
    let ran = answer(&[json!({"prompt": "fine"}), line.clone()], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{line}: {ran:?}");
    assert!(
        ran.stderr.starts_with("error: ") && ran.stderr.trim_end().lines().count() == 1,
        "{ran:?}"
    );
    assert!(ran.stderr.contains("prompts.jsonl line 2"), "{ran:?}");
    assert!(ran.stderr.contains(part), "`{part}` in {}", ran.stderr);
}

#[test]
fn each_prompt_has_the_response_that_it_has_alone_in_the_order_of_the_lines() {
    let lines = [
        json!({"id": "long", "prompt": "Once upon a time", "sampling": {"max_tokens": 30}}),
        json!({"id": 7, "tokens": [1, 5, 9], "sampling": {"temperature": 1, "top_k": 20, "seed": 4}}),
        json!({"prompt": "Hello", "sampling": {"max_tokens": 2, "logprobs": 1}}),
        json!({"prompt": "Hello", "sampling": {"stop": ["e"], "temperature": 0.7, "n": 3}}),
    ];
    let ran = answer(&lines, "-n 9 --seed 3 --ignore-eos");
    assert_eq!(ran.code, 0, "{ran:?}");
    let got = objects(&ran);
    let given: Vec<_> = got.iter().map(|object| object["id"].clone()).collect();
    assert_eq!(given, [json!("long"), json!(7), json!(3), json!(4)], "an id, or the line");
    let model = fixture("tiny-llama");
    let alone = |options: &str| {
        let args = ["generate", "-m", &model, "--json", "--ignore-eos"];
        strata(args.into_iter().chain(options.split(' '))).json()
    };
    let same = |got: &Value, want: &Value| {
        for key in ["prompt_tokens", "seed", "choices", "usage", "tokens", "text", "logprobs"] {
            assert_eq!(got[key], want[key], "{key}");
        }
        assert_eq!(keys(want), keys(got)[1..], "the id, and what a single prompt prints");
    };
    let args = ["generate", "-m", &model, "--json", "--ignore-eos", "--seed", "3"];
    same(&got[0], &strata(args.into_iter().chain(["Once upon a time", "-n", "30"])).json());
    same(&got[1], &alone("--tokens 1,5,9 -n 9 --temperature 1 --top-k 20 --seed 4"));
    same(&got[2], &alone("Hello -n 2 --logprobs 1 --seed 3"));
    same(&got[3], &alone("Hello -n 9 --stop e --temperature 0.7 --n 3 --seed 3"));
}

#[test]
fn prompts_can_come_from_stdin_and_empty_lines_say_nothing() {
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--prompts", "-", "-n", "2"];
    let ran = strata_reading(b"{\"prompt\":\"a\"}\n\n{\"prompt\":\"b\"}", args);
    let got = objects(&ran);
    assert_eq!((ran.code, got.len()), (0, 2), "{ran:?}");
    assert_eq!((&got[0]["id"], &got[1]["id"]), (&json!(1), &json!(3)));
    let none = strata_reading(b"", args);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{none:?}");
}

#[test]
fn the_best_of_several_are_those_of_a_single_prompt() {
    let model = fixture("tiny-llama");
    let sampling = json!({"n": 2, "best_of": 5, "temperature": 1.2, "max_tokens": 8, "seed": 2});
    let got = objects(&answer(&[json!({"prompt": "Hi", "sampling": sampling})], "")).remove(0);
    let args = ["generate", "-m", &model, "--json", "Hi", "--n", "2", "--best-of", "5"];
    let options = ["--temperature", "1.2", "-n", "8", "--seed", "2"];
    let want = strata(args.into_iter().chain(options)).json();
    assert_eq!(got["choices"], want["choices"]);
    assert_eq!(got["usage"], want["usage"]);
    let returned: usize =
        [0, 1].map(|i| got["choices"][i]["tokens"].as_array().unwrap().len()).iter().sum();
    let usage = got["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert!(usage > returned, "the server counts dropped choices, too: {usage} and {returned}");
}

#[test]
fn a_line_may_ask_for_a_shape() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}},
        "required": ["a"], "additionalProperties": false});
    let lines = [
        json!({"prompt": "x", "sampling": {"json_schema": schema}}),
        json!({"prompt": "x", "sampling": {"regex": "[0-9]{3}"}}),
        json!({"prompt": "x", "sampling": {"choice": ["yes", "no"]}}),
        json!({"prompt": "x", "sampling": {"grammar": "start: \"ab\" \"cd\""}}),
        json!({"prompt": "x"}),
    ];
    let got = objects(&answer(&lines, "--choice maybe -n 40"));
    let text = |i: usize| got[i]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text(0)).unwrap()["a"].is_boolean());
    assert!(text(1).len() == 3 && text(1).parse::<u16>().is_ok(), "{}", text(1));
    assert!(["yes", "no"].contains(&text(2)), "{}", text(2));
    assert_eq!((text(3), text(4)), ("abcd", "maybe"), "and the command line's shape otherwise");
}

#[test]
fn a_small_pool_and_small_steps_change_no_output() {
    let lines: Vec<Value> = (0..12)
        .map(|i| {
            let tokens: Vec<u32> = (0..20 + 3 * i).map(|t| 3 + (t * 7 + i) % 200).collect();
            json!({"tokens": tokens, "sampling": {"temperature": 0.9, "seed": i, "max_tokens": 25}})
        })
        .collect();
    // The pool is of one size whatever this processor computes in.
    let plain = objects(&answer(&lines, "--ignore-eos --kv-dtype bf16"));
    let small = "--ignore-eos --kv-dtype bf16 --max-num-seqs 5 --max-num-batched-tokens 16 --kv-memory 48KiB \
        --policy priority --long-prefill-token-threshold 8 --no-prefix-caching";
    let ran = answer(&lines, small);
    assert_eq!(ran.code, 0, "{ran:?}");
    let tokens = |all: &[Value]| all.iter().map(|a| ids(&a["tokens"])).collect::<Vec<_>>();
    assert_eq!(tokens(&objects(&ran)), tokens(&plain));
}

#[test]
fn an_invalid_line_is_reported_with_its_field_before_anything_runs() {
    refused(json!({"promt": "x"}), "`promt`");
    refused(json!({"prompt": "x", "tokens": [1]}), "not both");
    refused(json!({"id": 1}), "prompt");
    refused(json!([1]), "object");
    refused(json!({"prompt": 3}), "prompt");
    refused(json!({"prompt": ""}), "prompt");
    refused(json!({"tokens": [1, -2]}), "tokens");
    refused(json!({"tokens": []}), "prompt");
    refused(json!({"tokens": [1, 99999]}), "99999");
    let sampling = |key: &str, value: Value| json!({"prompt": "x", "sampling": {key: value}});
    refused(json!({"prompt": "x", "sampling": 3}), "sampling");
    refused(sampling("temprature", json!(1)), "`temprature`");
    refused(sampling("temperature", json!("hot")), "temperature");
    refused(sampling("temperature", json!(-1)), "temperature");
    refused(sampling("top_p", json!(1.5)), "top_p");
    refused(sampling("max_tokens", json!(-3)), "max_tokens");
    refused(sampling("n", json!(0)), "n must be");
    refused(sampling("best_of", json!(2000)), "best_of");
    refused(sampling("stop", json!([1])), "stop");
    refused(sampling("stop", json!("")), "stop");
    refused(sampling("ignore_eos", json!(1)), "ignore_eos");
    refused(sampling("logprobs_of", json!("raw")), "logprobs");
    refused(sampling("json_schema", json!("file")), "json_schema");
    refused(sampling("regex", json!("(")), "regular expression");
    refused(sampling("stop_token_ids", json!([99999])), "99999");
    refused(json!({"prompt": "x", "sampling": {"regex": "a", "choice": ["b"]}}), "one of");
    let dir = tempfile::tempdir().unwrap();
    let broken = arg(dir.path().join("broken.jsonl"));
    fs::write(&broken, "{\"prompt\":\"x\"}\n\n{\"prompt\":\n").unwrap();
    let ran = strata(["generate", "-m", &fixture("tiny-llama"), "--prompts", &broken]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("broken.jsonl line 3: not JSON"), "{ran:?}");
}

#[test]
fn options_that_do_not_go_with_many_prompts_or_only_with_them() {
    let model = fixture("tiny-llama");
    let check = |args: &[&str], part: &str| {
        let ran = strata(["generate", "-m", &model].iter().chain(args));
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(part), "{ran:?}");
    };
    check(&["--prompts", "f", "text"], "--prompts");
    check(&["--prompts", "f", "--tokens", "1"], "--prompts");
    check(&["--prompts", "f", "--state", "contiguous"], "--state paged");
    check(&["text", "--max-num-seqs", "3"], "--max-num-seqs");
    check(&["text", "--trace", "f"], "--trace");
    check(&["--prompts", "-", "--grammar", "-"], "stdin");
    check(&["text", "--policy", "fairest"], "strict-priority");
    let ran = strata(["generate", "-m", &model, "--prompts", "no-such-file"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("no-such-file"), "{ran:?}");
    let (_dir, path) = file(&[json!({"prompt": "x"})]);
    check(
        &["--prompts", &path, "--max-num-seqs", "9", "--max-num-batched-tokens", "4"],
        "max_num_seqs",
    );
}

#[test]
fn a_closed_stdout_ends_it_quietly() {
    let lines: Vec<Value> = (0..200).map(|i| json!({"tokens": [1 + i]})).collect();
    let (_dir, path) = file(&lines);
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--prompts", &path, "-n", "2"];
    let mut child = command().args(args).spawn().unwrap();
    drop(child.stdout.take());
    let ran = end(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
}

#[test]
fn a_run_is_recorded_step_by_step() {
    let dir = tempfile::tempdir().unwrap();
    let trace = arg(dir.path().join("run.jsonl"));
    let lines: Vec<Value> = (0..3).map(|i| json!({"tokens": [1, 2, 3 + i]})).collect();
    let ran = answer(&lines, &format!("--ignore-eos -n 4 --trace {trace}"));
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = fs::read_to_string(&trace).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events[0]["strata_trace"].is_u64(), "{}", events[0]);
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((of("arrived"), of("first_token"), of("ended")), (3, 3, 3));
    let nowhere = arg(dir.path().join("no/such/dir"));
    let ran = answer(&lines, &format!("--trace {nowhere}"));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
}

#[test]
fn a_model_without_a_tokenizer_generates_tokens() {
    let model = crate::strata::copy_of("tiny-llama");
    fs::remove_file(model.path().join("tokenizer.json")).unwrap();
    let (_dir, path) = file(&[json!({"tokens": [1, 2, 3]})]);
    let path_of = arg(model.path());
    let args = ["generate", "-m", &path_of, "--ignore-eos", "-n", "4"];
    let ran = strata(args.into_iter().chain(["--prompts", &path]));
    let got = objects(&ran).remove(0);
    let want = strata(args.into_iter().chain(["--json", "--tokens", &comma(&[1, 2, 3])])).json();
    assert_eq!((&got["tokens"], &got["text"]), (&want["tokens"], &want["text"]));
    let (_dir, path) = file(&[json!({"prompt": "x"})]);
    let ran = strata(args.into_iter().chain(["--prompts", &path]));
    assert_eq!(ran.code, 2, "{ran:?}");
}

//! Guided decoding: `--choice`, `--regex`, `--json-schema`, `--grammar`.

use std::fs;

use serde_json::{Value, json};

use crate::strata::{arg, fixture, strata, strata_reading};

const MODELS: [&str; 4] = ["tiny-llama", "tiny-mistral", "tiny-qwen3", "tiny-gguf/qwen2-q8_0.gguf"];

/// Five answers by each of the tiny models.
fn answers(options: &[&str]) -> Vec<Value> {
    let of = |model: &str| {
        let args = ["generate", "-m", &fixture(model), "--json", "Hello", "--n", "5", "-n", "150"];
        let sampled = ["--temperature", "1", "--seed", "6"];
        let args = args.iter().chain(&sampled).chain(options);
        strata(args).json()["choices"].as_array().unwrap().clone()
    };
    MODELS.into_iter().flat_map(of).collect()
}

fn text(answer: &Value) -> &str {
    answer["text"].as_str().unwrap()
}

#[test]
fn the_output_is_exactly_one_of_the_choices() {
    let choices = ["yes", "no", "I don't know"];
    let all = answers(&["--choice", "yes,no,I don't know"]);
    assert!(all.iter().all(|a| choices.contains(&text(a))), "{all:?}");
    assert!(all.iter().any(|a| text(a) != text(&all[0])), "not always the same");
    assert!(all.iter().all(|a| a["finish_reason"] == "stop"), "{all:?}");
    let listed = answers(&["--choice", "yes", "--choice", "no"]);
    assert!(listed.iter().all(|a| ["yes", "no"].contains(&text(a))), "{listed:?}");
}

#[test]
fn the_output_matches_the_expression() {
    for answer in answers(&["--regex", "-?[0-9]{1,3}(kg|lb)"]) {
        let text = text(&answer);
        let number = text.strip_suffix("kg").or(text.strip_suffix("lb")).unwrap();
        let digits = number.strip_prefix('-').unwrap_or(number);
        assert!((1..=3).contains(&digits.len()), "{text}");
        assert!(digits.bytes().all(|b| b.is_ascii_digit()), "{text}");
    }
}

#[test]
fn an_object_has_declared_properties_only_unless_the_schema_allows_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("schema.json");
    let mut schema =
        json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]});
    fs::write(&file, schema.to_string()).unwrap();
    let all = answers(&["--json-schema", &arg(&file)]);
    assert!(all.iter().all(|answer| text(answer) == r#"{"a":1}"#), "{all:?}");
    schema["additionalProperties"] = true.into();
    fs::write(&file, schema.to_string()).unwrap();
    let all = answers(&["--json-schema", &arg(&file)]);
    assert!(all.iter().any(|answer| text(answer).starts_with(r#"{"a":1,"#)), "{all:?}");
}

#[test]
fn the_output_is_json_that_the_schema_describes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("schema.json");
    let schema = json!({
        "type": "object",
        "properties": {
            "answer": { "type": "boolean" },
            "grade": { "type": "integer", "minimum": 1, "maximum": 5 },
        },
        "required": ["answer", "grade"],
        "additionalProperties": false,
    });
    fs::write(&file, schema.to_string()).unwrap();
    for answer in answers(&["--json-schema", &arg(&file)]) {
        let value: Value = serde_json::from_str(text(&answer)).unwrap();
        assert!(value["answer"].is_boolean(), "{value}");
        assert!((1..=5).contains(&value["grade"].as_i64().unwrap()), "{value}");
        assert_eq!(text(&answer), value.to_string(), "compact, in the order of the schema");
    }
    // The same from stdin, and with log probabilities: also tokens that were not sampled have one.
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "Hi", "--json", "--json-schema"];
    let options = ["--logprobs", "2", "--n", "3", "--temperature", "1", "--seed", "2"];
    let from = |file: &str, stdin: &str| {
        let args = args.iter().copied().chain([file]).chain(options);
        strata_reading(stdin.as_bytes(), args).json()["choices"].clone()
    };
    let piped = from("-", &schema.to_string());
    assert_eq!(piped, from(&arg(&file), ""));
    for choice in piped.as_array().unwrap() {
        let told = choice["logprobs"].as_array().unwrap().iter().map(|l| l["id"].clone());
        assert_eq!(choice["tokens"], Value::Array(told.collect()));
    }
}

#[test]
fn the_output_follows_the_grammar() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sum.lark");
    fs::write(&file, "start: NUMBER (\"+\" NUMBER){1,2}\nNUMBER: /[1-9][0-9]{0,2}/\n").unwrap();
    for answer in answers(&["--grammar", &arg(&file)]) {
        let parts: Vec<&str> = text(&answer).split('+').collect();
        assert!(parts.len() == 2 || parts.len() == 3, "{answer}");
        assert!(parts.iter().all(|p| p.parse::<u16>().is_ok_and(|n| n < 1000)), "{answer}");
    }
}

#[test]
fn guided_output_can_be_greedy_and_is_the_same_over_any_state() {
    let model = fixture("tiny-llama");
    let run = |options: &str| {
        let args = ["generate", "-m", &model, "Hi", "--regex", "[a-z]{2,9}!"];
        strata(args.into_iter().chain(options.split_whitespace()))
    };
    let greedy = run("");
    assert!(greedy.text().ends_with('!'), "{greedy:?}");
    assert_eq!(run("--state contiguous").text(), greedy.text());
    // An answer that is cut short is the beginning of one.
    let cut = run("-n 1 --json").json();
    assert_eq!(cut["finish_reason"], "length");
    assert!(greedy.text().starts_with(text(&cut)), "{cut}");
}

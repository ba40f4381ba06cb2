//! `--speculative-config` at the command line: the same tokens, and counts that agree with each other.

use std::fs;

use serde_json::Value;

use crate::strata::{Ran, arg, fixture, strata};

/// All drafts of n-grams of one to three tokens.
const NGRAM: &str = r#"{"method": "ngram", "num_speculative_tokens": 4, "window": "fixed",
    "prompt_lookup_min": 1, "prompt_lookup_max": 3}"#;

/// `strata generate` on tiny-llama with a prompt that repeats itself.
fn generate(options: &[&str]) -> Ran {
    let model = fixture("tiny-llama");
    let args = ["-v", "generate", "-m", &model, "--precision", "f32", "--ignore-eos", "-n", "60"];
    let prompt = ["--tokens", "5,17,100,3,5,17,100,3,5,17"];
    strata(args.iter().chain(&prompt).chain(options))
}

/// Accepted and rejected drafts of a response.
#[track_caller]
fn drafts(response: &Value) -> (u64, u64) {
    let details = &response["usage"]["completion_tokens_details"];
    let count =
        |name: &str| details[name].as_u64().unwrap_or_else(|| panic!("no {name}: {response}"));
    (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
}

#[test]
fn drafts_change_no_token_and_are_counted_on_the_line_of_statistics() {
    for options in [&[][..], &["--temperature", "0.8", "--seed", "3", "--n", "2"]] {
        let plain = generate(&[&["--json"], options].concat());
        let drafted = generate(&[&["--json", "--speculative-config", NGRAM], options].concat());
        assert!(!plain.stderr.contains("drafts"), "{}", plain.stderr);
        let (plain, response) = (plain.json(), drafted.json());
        assert_eq!(response["choices"], plain["choices"], "{options:?}");
        assert_eq!(plain["usage"].get("completion_tokens_details"), None);
        let (accepted, rejected) = drafts(&response);
        assert!(accepted > 0 && rejected > 0, "{response}");
        let choices = response["choices"].as_array().unwrap().len() as f64;
        // Each choice has 60 tokens. A step that samples brings a choice one token and the accepted drafts.
        let mean = 60.0 * choices / (60.0 * choices - accepted as f64);
        let said = format!(
            "drafts {accepted} of {} accepted, {mean:.2} tokens a step",
            accepted + rejected
        );
        assert!(drafted.stderr.contains(&said), "{said}: {}", drafted.stderr);
    }
}

#[test]
fn a_recording_and_a_file_of_prompts_count_the_same_drafts() {
    let dir = tempfile::tempdir().unwrap();
    let (prompts, run) = (dir.path().join("prompts.jsonl"), dir.path().join("run.jsonl"));
    let line = |id: u32| format!("{{\"id\": {id}, \"tokens\": [5, 17, 100, 3, 5, 17, {id}]}}\n");
    fs::write(&prompts, [line(7), line(100), line(101)].concat()).unwrap();
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--precision", "f32", "--ignore-eos", "-n", "50"];
    let file = ["--prompts", &arg(&prompts), "--trace", &arg(&run), "--speculative-config", NGRAM];
    let ran = strata(args.iter().chain(&file));
    let responses: Vec<Value> =
        ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (accepted, rejected) = responses
        .iter()
        .map(drafts)
        .fold((0, 0), |(accepted, rejected), own| (accepted + own.0, rejected + own.1));
    assert!(accepted > 0, "{responses:?}");
    let summary = strata(["trace", "view", &arg(&run), "--summary"]);
    let line = summary.text().lines().find(|line| line.starts_with("drafts")).unwrap().to_owned();
    assert!(line.contains(&format!(" {} ", accepted + rejected)), "{line}");
    assert!(line.contains(&format!("; {accepted} accepted (")), "{line}");
}

#[test]
fn a_benchmark_says_how_often_drafts_were_right() {
    let model = fixture("tiny-llama");
    let load = ["--requests", "4", "--input", "8,16", "--output", "24,32", "--temperature", "0"];
    let bench = |more: &[&str]| {
        strata(["bench", "serve-offline", "-m", &model].iter().chain(&load).chain(more))
    };
    let report = bench(&["--json", "--speculative-config", NGRAM]).json();
    let number =
        |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name}: {report}"));
    assert_eq!(report["spec_decode_method"], "ngram");
    let (drafts, tokens) = (number("spec_decode_num_drafts"), number("spec_decode_draft_tokens"));
    let accepted = number("spec_decode_accepted_tokens");
    assert!(drafts > 0.0 && drafts <= tokens, "{report}");
    assert!((number("spec_decode_acceptance_rate") - 100.0 * accepted / tokens).abs() < 1e-9);
    assert!((number("spec_decode_acceptance_length") - 1.0 - accepted / drafts).abs() < 1e-9);
    let table = bench(&["--speculative-config", NGRAM]);
    assert!(table.text().contains("\nspeculation  ngram: acceptance rate "), "{table:?}");
    assert_eq!(bench(&["--json"]).json().get("spec_decode_num_drafts"), None);
}

#[test]
fn every_command_with_an_engine_takes_the_flag_and_names_the_wrong_field() {
    for (command, config, why) in [
        ("generate x", "[]", "the speculative config is invalid"),
        ("chat", r#"{"method": "ngram"}"#, "method ngram needs num_speculative_tokens"),
        ("bench serve-offline", r#"{"method": "ngram", "k": 3}"#, "unknown field `k`"),
        (
            "serve",
            r#"{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 2}"#,
            "prompt_lookup_min must be at most prompt_lookup_max, 2, got 3",
        ),
        (
            "generate x",
            r#"{"method": "suffix", "suffix_decoding_min_token_prob": 1.5}"#,
            "suffix_decoding_min_token_prob must be from 0 to 1, got 1.5",
        ),
        (
            "chat",
            r#"{"method": "suffix", "prompt_lookup_max": 3}"#,
            "prompt_lookup_max is a field of method ngram, and the method is suffix: remove it",
        ),
        (
            "generate x",
            r#"{"method": "draft_model", "num_speculative_tokens": 3}"#,
            "method draft_model needs model",
        ),
    ] {
        let ran = strata(command.split(' ').chain(["--speculative-config", config]));
        assert_eq!(ran.code, 2, "{command} {config}: {ran:?}");
        assert!(ran.stderr.contains("--speculative-config") && ran.stderr.contains(why), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    }
    for command in ["generate", "chat", "bench serve-offline", "serve"] {
        let help = strata(command.split(' ').chain(["--help"])).text().to_owned();
        for method in ["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa"] {
            let lines =
                help.lines().filter(|line| line.trim_start().starts_with(&format!("{method} ")));
            assert_eq!(lines.count(), 1, "{method} in the help of {command}");
        }
    }
}

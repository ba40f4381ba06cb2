//! Speculation as clients and operators meet it: the same responses with and without, and counts that are those of a
//! drafter written here.

use serde_json::{Value, json};

use crate::served::{Served, command, fixture};
use crate::wire::until;

/// Drafts of a proposal.
const DRAFTS: usize = 4;
/// Tokens of an n-gram, at least and at most.
const NGRAM: (usize, usize) = (1, 3);

/// A server that verifies all drafts, so that the counts are certain.
fn speculating() -> Served {
    let config = format!(
        r#"{{"method": "ngram", "num_speculative_tokens": {DRAFTS}, "prompt_lookup_min": {}, "prompt_lookup_max": {},
            "window": "fixed"}}"#,
        NGRAM.0, NGRAM.1
    );
    Served::start("tiny-llama", ["--precision", "f32", "--speculative-config", &config])
}

fn plain() -> Served {
    Served::start("tiny-llama", ["--precision", "f32"])
}

/// A prompt that repeats itself.
fn prompt() -> Vec<u32> {
    [5, 17, 100, 3].repeat(4)
}

fn completion(fields: Value) -> Value {
    let mut body =
        json!({"prompt": prompt(), "max_tokens": 48, "ignore_eos": true, "temperature": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Accepted and rejected drafts of a usage.
#[track_caller]
fn drafts_of(usage: &Value) -> (u64, u64) {
    let details = &usage["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap_or_else(|| panic!("no {name}: {usage}"));
    (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
}

/// Counts of a run.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    drafts: u64,
    draft_tokens: u64,
    accepted: u64,
    accepted_at: [u64; DRAFTS],
}

/// What follows the longest n-gram at the end of `text` where it occurs first.
fn lookup(text: &[u32], most: usize) -> Vec<u32> {
    for n in (NGRAM.0..=NGRAM.1.min(text.len().saturating_sub(1))).rev() {
        let end = &text[text.len() - n..];
        let found = (0..text.len() - n).find(|at| &text[*at..at + n] == end);
        if let Some(at) = found {
            return text[at + n..].iter().copied().take(most).collect();
        }
    }
    Vec::new()
}

impl Counts {
    /// Plays the steps of a request whose output is known.
    fn of(prompt: &[u32], output: &[u32]) -> Self {
        let mut counts = Self::default();
        let mut done = 1;
        while done < output.len() {
            let text = [prompt, &output[..done]].concat();
            // One more token is sampled behind the drafts.
            let drafts = lookup(&text, DRAFTS.min(output.len() - done - 1));
            let right = drafts.iter().zip(&output[done..]).take_while(|(a, b)| a == b).count();
            counts.drafts += u64::from(!drafts.is_empty());
            counts.draft_tokens += drafts.len() as u64;
            counts.accepted += right as u64;
            counts.accepted_at[..right].iter_mut().for_each(|count| *count += 1);
            done += right + 1;
        }
        counts
    }

    /// What a server has counted.
    fn scraped(server: &Served) -> Self {
        let text = server.get("/metrics").text().to_owned();
        let sum = |name: &str, label: &str| {
            let name = format!("vllm:spec_decode_num_{name}_total{{");
            let found = text.lines().filter(|line| line.starts_with(&name) && line.contains(label));
            let values = found.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
            values.sum::<u64>()
        };
        let at =
            |position: usize| sum("accepted_tokens_per_pos", &format!("position=\"{position}\""));
        Self {
            drafts: sum("drafts", ""),
            draft_tokens: sum("draft_tokens", ""),
            accepted: sum("accepted_tokens", ""),
            accepted_at: std::array::from_fn(at),
        }
    }
}

#[test]
fn counts_are_those_of_a_naive_drafter_over_the_output_of_a_server_that_does_not_speculate() {
    let (server, plain) = (speculating(), plain());
    let body = completion(json!({"return_token_ids": true}));
    let (with, without) =
        (server.post("/v1/completions", &body).json(), plain.post("/v1/completions", &body).json());
    assert_eq!(with["choices"], without["choices"]);
    let ids = with["choices"][0]["token_ids"].as_array().unwrap();
    let output: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let expected = Counts::of(&prompt(), &output);
    assert!(expected.accepted > 0 && expected.accepted < expected.draft_tokens, "{expected:?}");
    let rejected = expected.draft_tokens - expected.accepted;
    assert_eq!(drafts_of(&with["usage"]), (expected.accepted, rejected));
    assert_eq!(with["usage"]["completion_tokens"], 48, "rejected drafts are no completion tokens");
    assert_eq!(without["usage"].get("completion_tokens_details"), None);
    until("the response is counted", || server.metric("vllm:request_success_total") == 1.0);
    assert_eq!(Counts::scraped(&server), expected);
    let state = &server.get("/strata/state").json()["speculation"];
    assert_eq!(state["draft_tokens"], expected.draft_tokens);
    let length = 1.0 + expected.accepted as f64 / expected.drafts as f64;
    assert!((state["mean_acceptance_length"].as_f64().unwrap() - length).abs() < 1e-9, "{state}");
    assert!(!plain.get("/metrics").text().contains("spec_decode"));
    assert_eq!(plain.get("/strata/state").json().get("speculation"), None);
}

#[test]
fn responses_are_the_same_with_and_without_drafts() {
    let (server, plain) = (speculating(), plain());
    let mut verified = 0;
    for fields in [
        json!({"logprobs": 3}),
        json!({"temperature": 0.7, "seed": 11, "n": 3, "repetition_penalty": 1.1, "logprobs": 1}),
        json!({"stop": ["e"], "ignore_eos": false}),
        json!({"structured_outputs": {"regex": "(ab|cd){3,9} [0-9]+"}, "seed": 3, "temperature": 1}),
        json!({"best_of": 3, "n": 2, "temperature": 1, "seed": 5}),
    ] {
        let body = completion(fields);
        let [with, without] =
            [&server, &plain].map(|own| own.post("/v1/completions", &body).json());
        assert_eq!(with["choices"], without["choices"], "{body}");
        let (accepted, rejected) = drafts_of(&with["usage"]);
        verified += accepted + rejected;
    }
    assert!(verified > 0, "no draft was verified");
    let message = "to be or not to be or not to be or not to be or";
    let chat = json!({
        "messages": [{"role": "user", "content": message}], "max_tokens": 40, "temperature": 0, "ignore_eos": true,
    });
    let chats = [speculating_chat(&["--speculative-config", ADAPTIVE]), speculating_chat(&[])];
    let [with, without] =
        chats.each_ref().map(|own| own.post("/v1/chat/completions", &chat).json());
    assert_eq!(with["choices"], without["choices"]);
    drafts_of(&with["usage"]);
}

const ADAPTIVE: &str =
    r#"{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}"#;

/// A server of a model with a chat template.
fn speculating_chat(args: &[&str]) -> Served {
    Served::start(
        "tiny-qwen2",
        [&["--precision", "f32", "--chat-template", TEMPLATE], args].concat(),
    )
}

const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";

#[test]
fn the_last_event_of_a_stream_has_the_drafts_and_no_other_has() {
    let server = speculating();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = completion(json!({"stream": true, "stream_options": options}));
    let mut events = server.post("/v1/completions", &body).events();
    let last = events.pop().unwrap();
    let whole = server.post("/v1/completions", &completion(json!({}))).json();
    assert_eq!(drafts_of(&last["usage"]), drafts_of(&whole["usage"]));
    let early =
        events.iter().filter(|event| !event["usage"]["completion_tokens_details"].is_null());
    assert_eq!(early.count(), 0);
}

#[test]
fn a_request_chooses_how_many_drafts_it_has_up_to_the_servers_number() {
    let server = speculating();
    let asked = |number: Value| {
        let body = completion(json!({"num_speculative_tokens": number}));
        let response = server.post("/v1/completions", &body).json();
        (response["choices"][0]["text"].clone(), drafts_of(&response["usage"]))
    };
    let (text, most) = asked(Value::Null);
    assert_eq!(asked(json!(0)), (text.clone(), (0, 0)), "no speculation");
    let (same, one) = asked(json!(1));
    assert_eq!(same, text);
    assert!(0 < one.0 + one.1 && one.0 + one.1 < most.0 + most.1, "{one:?} of {most:?}");
    assert_eq!(asked(json!(DRAFTS)), (text.clone(), most));
    assert_eq!(asked(json!(1_000_000)), (text, most), "more count as the server's number");
    for wrong in [json!(-1), json!(1.5), json!("many")] {
        let body = completion(json!({"num_speculative_tokens": wrong}));
        let refused = server.post("/v1/completions", &body);
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert_eq!(refused.value()["error"]["param"], "num_speculative_tokens", "{wrong}");
    }
    // A server without speculation ignores the field.
    let body = completion(json!({"num_speculative_tokens": 7}));
    assert_eq!(plain().post("/v1/completions", &body).status, 200);
}

#[test]
fn a_configuration_is_a_flag_a_variable_or_a_table_of_the_file() {
    let printed = |environment: &str, file: &str| {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut config, file.as_bytes()).unwrap();
        let mut command = command();
        command.args(["serve", "--print-config", "--config"]).arg(config.path());
        if !environment.is_empty() {
            command.env("STRATA_SPECULATIVE_CONFIG", environment);
        }
        let output = command.output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            Some(0) => {
                let table: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
                Ok(table["speculative-config"].as_str().unwrap().to_owned())
            }
            code => {
                assert_eq!(code, Some(2), "{complaint}");
                Err(complaint)
            }
        }
    };
    let table = "[speculative-config]\nmethod = \"ngram\"\nnum_speculative_tokens = 2\n";
    let of_table: Value = serde_json::from_str(&printed("", table).unwrap()).unwrap();
    assert_eq!(of_table, json!({"method": "ngram", "num_speculative_tokens": 2}));
    let json = r#"{"method":"suffix"}"#;
    assert_eq!(printed(json, table).as_deref(), Ok(json), "the environment is above the file");
    for (json, why) in [
        ("{", "invalid: EOF while parsing"),
        (r#"{"method": "ngram"}"#, "needs num_speculative_tokens"),
        (r#"{"method": "guess"}"#, "unknown variant `guess`"),
        (r#"{"method": "ngram", "tokens": 3}"#, "unknown field `tokens`"),
        (r#"{"method": "ngram", "num_speculative_tokens": 65}"#, "from 1 to 64, got 65"),
        (
            r#"{"method": "ngram", "num_speculative_tokens": 3, "model": "m"}"#,
            "model is a field of methods draft_model, eagle, eagle3 and medusa",
        ),
    ] {
        let complaint = printed(json, "").unwrap_err();
        assert!(
            complaint.contains("STRATA_SPECULATIVE_CONFIG") && complaint.contains(why),
            "{complaint}"
        );
    }
    let complaint = printed("", &table.replace('2', "0")).unwrap_err();
    assert!(
        complaint.contains("num_speculative_tokens must be from 1 to 64, got 0"),
        "{complaint}"
    );
}

#[test]
fn each_specialist_of_an_ensemble_speculates_or_not() {
    let model = fixture("tiny-llama").display().to_string();
    let file = format!(
        "model = {model:?}\nkv_memory = \"2MiB\"\n\
         [[specialist]]\nname = \"quick\"\nspeculative_config = {{ method = \"ngram\", num_speculative_tokens = 2, \
         window = \"fixed\", prompt_lookup_max = 1 }}\n\
         [[specialist]]\nname = \"plain\"\n"
    );
    let server = Served::ensemble(&file, |command| {
        command.args(["--precision", "f32"]);
    });
    let ask = |name: &str| {
        let body = completion(json!({"model": name}));
        server.post("/v1/completions", &body).json()
    };
    let (quick, plain) = (ask("quick"), ask("plain"));
    assert_eq!(quick["choices"][0]["text"], plain["choices"][0]["text"]);
    assert!(drafts_of(&quick["usage"]).0 > 0, "{quick}");
    assert_eq!(plain["usage"].get("completion_tokens_details"), None);
    let scrape = server.get("/metrics").text().to_owned();
    let lines = scrape.lines().filter(|line| line.starts_with("vllm:spec_decode_num_drafts_total"));
    let lines: Vec<_> = lines.collect();
    assert!(lines.len() == 1 && lines[0].contains("model_name=\"quick\""), "{lines:?}");
}

#[test]
fn a_benchmark_of_a_server_reports_the_drafts_of_its_run_alone() {
    let server = speculating();
    server.post("/v1/completions", &completion(json!({}))).json();
    until("the response is counted", || server.metric("vllm:request_success_total") == 1.0);
    let before = Counts::scraped(&server);
    assert!(before.drafts > 0);
    let bench = |url: &str| {
        let mut command = command();
        command.args(["bench", "serve", "--url", url, "--num-prompts", "4", "--warmup", "0"]);
        command.args(["--input-len", "24", "--output-len", "32", "--token-ids", "5,8"]);
        command.args(["--speculation", "--json", "-"]).output().unwrap()
    };
    let output = bench(&server.url(""));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    until("the responses are counted", || server.metric("vllm:request_success_total") == 5.0);
    let after = Counts::scraped(&server);
    let number = |name: &str| report[format!("spec_decode_{name}")].as_f64().unwrap();
    let (drafts, tokens) = (number("num_drafts"), number("draft_tokens"));
    let accepted = number("accepted_tokens");
    // The last step of a response may be counted a moment after the response.
    let missed = (after.drafts - before.drafts) as f64 - drafts;
    assert!(drafts > 0.0 && (0.0..=4.0).contains(&missed), "{missed} of {after:?}: {report}");
    assert!((number("acceptance_rate") - 100.0 * accepted / tokens).abs() < 1e-9, "{report}");
    assert!((number("acceptance_length") - 1.0 - accepted / drafts).abs() < 1e-9, "{report}");
    let refused = bench(&plain().url(""));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && why.contains("--speculative-config"), "{why}");
}

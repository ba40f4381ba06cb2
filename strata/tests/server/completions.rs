//! `/v1/completions`: a whole response, a stream and `strata generate` agree on the same prompt; and their formats.

use serde_json::{Value, json};

use crate::served::{Response, Served, command, fixture};

const PATH: &str = "/v1/completions";

/// The texts of a response's choices.
#[track_caller]
pub fn texts(response: &Value) -> Vec<String> {
    let choices = response["choices"].as_array().unwrap();
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

/// What a stream says of every choice, joined.
#[track_caller]
fn joined(events: &[Value], choices: usize) -> Vec<String> {
    let mut texts = vec![String::new(); choices];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(choice["text"].as_str().unwrap());
    }
    texts
}

#[track_caller]
fn refused(response: &Response, param: &str) -> String {
    assert_eq!(response.status, 400, "{param}: {}", response.text());
    let error = &response.value()["error"];
    assert_eq!(error["param"], param, "{error}");
    assert_eq!(error["type"], "invalid_request_error");
    error["message"].as_str().unwrap().to_owned()
}

fn generated(model: &str, args: &[&str]) -> Value {
    let mut command = command();
    command.args(["generate", "--json", "--model"]).arg(fixture(model)).args(args);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_stream_a_whole_answer_and_the_command_line_say_the_same() {
    for model in ["tiny-llama", "tiny-mistral", "tiny-qwen3"] {
        let server = Served::start(model, [""; 0]);
        for (temperature, seed) in [("0", "0"), ("0.9", "17")] {
            let args = ["Once upon a", "-n", "24", "--ignore-eos", "--seed", seed, "--temperature"];
            let generated = generated(model, &[&args[..], &[temperature]].concat());
            let mut body = json!({
                "prompt": "Once upon a", "max_tokens": 24, "ignore_eos": true, "return_token_ids": true,
                "seed": seed.parse::<i64>().unwrap(), "temperature": temperature.parse::<f64>().unwrap(),
            });
            // The command line takes no defaults from the model.
            for (field, off) in
                [("top_k", json!(-1)), ("top_p", json!(1)), ("repetition_penalty", json!(1))]
            {
                body[field] = off;
            }
            let whole = server.post(PATH, &body).json();
            assert_eq!(whole["choices"][0]["token_ids"], generated["tokens"], "{model}");
            assert_eq!(whole["choices"][0]["text"], generated["text"], "{model}");
            assert_eq!(whole["choices"][0]["finish_reason"], "length");
            body["stream"] = true.into();
            let events = server.post(PATH, &body).events();
            assert_eq!(joined(&events, 1), texts(&whole), "{model}");
            let ids: Vec<&Value> = events
                .iter()
                .flat_map(|e| e["choices"][0]["token_ids"].as_array().unwrap())
                .collect();
            assert_eq!(json!(ids), generated["tokens"]);
        }
    }
}

#[test]
fn many_prompts_are_answered_in_their_order_and_each_as_it_would_be_alone() {
    let server = Served::start("tiny-llama", [""; 0]);
    let prompts = ["Once upon", "The", "In the beginning there was a"];
    let ask = |prompt: Value, n: u32| json!({"prompt": prompt, "n": n, "seed": 5, "temperature": 0.8, "max_tokens": 9, "ignore_eos": true});
    let together = server.post(PATH, &ask(json!(prompts), 2)).json();
    let tokens = |text: &str| {
        let tokens = server.post("/tokenize", &json!({"prompt": text})).json();
        tokens["tokens"].clone()
    };
    let lists: Vec<Value> = prompts.iter().map(|text| tokens(text)).collect();
    let by_ids = server.post(PATH, &ask(json!(lists), 2)).json();
    let solo: Vec<String> = prompts
        .iter()
        .flat_map(|prompt| texts(&server.post(PATH, &ask(json!(prompt), 2)).json()))
        .collect();
    assert_eq!(texts(&together), solo);
    assert_eq!(texts(&by_ids), solo);
    assert_ne!(solo[0], solo[1], "two samples of one seed");
    let indices: Vec<&Value> =
        together["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(json!(indices), json!([0, 1, 2, 3, 4, 5]));
    let prompt_tokens: usize = lists.iter().map(|list| list.as_array().unwrap().len()).sum();
    assert_eq!(together["usage"]["prompt_tokens"], prompt_tokens, "every prompt counts once");
    assert_eq!(together["usage"]["completion_tokens"], 54);
    assert_eq!(together["usage"]["total_tokens"], prompt_tokens + 54);
    let mut streamed = ask(json!(prompts), 2);
    streamed["stream"] = true.into();
    assert_eq!(joined(&server.post(PATH, &streamed).events(), 6), solo);
    assert_eq!(
        texts(&server.post(PATH, &ask(lists[1].clone(), 1)).json())[0],
        solo[2],
        "one list of ids"
    );
}

#[test]
fn an_echo_begins_with_the_prompt_and_needs_no_answer() {
    let server = Served::start("tiny-llama", [""; 0]);
    let mut body =
        json!({"prompt": ["Once upon", "The"], "max_tokens": 4, "temperature": 0, "n": 2});
    let plain = texts(&server.post(PATH, &body).json());
    body["echo"] = true.into();
    let echoed = texts(&server.post(PATH, &body).json());
    for (at, prompt) in ["Once upon", "Once upon", "The", "The"].into_iter().enumerate() {
        assert_eq!(echoed[at], format!("{prompt}{}", plain[at]));
    }
    body["stream"] = true.into();
    assert_eq!(joined(&server.post(PATH, &body).events(), 4), echoed);
    let nothing = json!({"prompt": "Once upon", "max_tokens": 0, "echo": true});
    let nothing = server.post(PATH, &nothing).json();
    assert_eq!(texts(&nothing), ["Once upon"]);
    assert_eq!(nothing["choices"][0]["finish_reason"], "length");
    assert_eq!(nothing["usage"]["completion_tokens"], 0);
    let ids = server.post("/tokenize", &json!({"prompt": "Once upon"})).json()["tokens"].clone();
    let body = json!({"prompt": ids, "max_tokens": 0, "echo": true});
    assert_eq!(texts(&server.post(PATH, &body).json()), ["Once upon"], "without its BOS");
}

#[test]
fn log_probabilities_lie_side_by_side_with_their_tokens() {
    let server = Served::start("tiny-llama", [""; 0]);
    let mut body = json!({
        "prompt": "Once upon", "max_tokens": 20, "temperature": 0, "ignore_eos": true, "logprobs": 3,
        "return_token_ids": true,
    });
    let whole = server.post(PATH, &body).json();
    let choice = &whole["choices"][0];
    let table = &choice["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(table[list].as_array().unwrap().len(), 20, "{list}");
    }
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    for at in 0..20 {
        let token = table["tokens"][at].as_str().unwrap();
        let logprob = table["token_logprobs"][at].as_f64().unwrap();
        let top = table["top_logprobs"][at].as_object().unwrap();
        assert!(logprob <= 0.0 && top.len() == 3, "{top:?}");
        let best = top.values().map(|x| x.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(top[token].as_f64().unwrap(), best, "greedy takes the likeliest");
        assert_eq!(logprob, best);
        let offset = table["text_offset"][at].as_u64().unwrap() as usize;
        let special = token.starts_with("<|") || token.starts_with("bytes:");
        if !special {
            let there: String = text[offset..].iter().take(token.chars().count()).collect();
            assert_eq!(there, token, "at {offset}");
        }
    }
    body["stream"] = true.into();
    let events = server.post(PATH, &body).events();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let joined: Vec<&Value> = events
            .iter()
            .flat_map(|event| event["choices"][0]["logprobs"][list].as_array().unwrap())
            .collect();
        assert_eq!(json!(joined), table[list], "{list}");
    }
    body["stream"] = false.into();
    body["logprobs"] = 0.into();
    let fewest = server.post(PATH, &body).json();
    assert_eq!(fewest["choices"][0]["logprobs"]["tokens"], table["tokens"]);
    assert_eq!(fewest["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 1);
    body["return_tokens_as_token_ids"] = true.into();
    let by_id = server.post(PATH, &body).json();
    let id = &by_id["choices"][0]["token_ids"][0];
    assert_eq!(by_id["choices"][0]["logprobs"]["tokens"][0], format!("token_id:{id}"));
}

#[test]
fn what_stopped_an_answer_is_told() {
    let server = Served::start("tiny-llama", [""; 0]);
    let forced = |text: &str, more: Value| {
        let mut body =
            json!({"prompt": "x", "max_tokens": 40, "structured_outputs": {"choice": [text]}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(PATH, &body).json()["choices"][0].clone()
    };
    let whole = forced("one two three", json!({}));
    assert_eq!(
        (&whole["text"], &whole["finish_reason"]),
        (&json!("one two three"), &json!("stop"))
    );
    assert_eq!(whole["stop_reason"], Value::Null);
    let cut = forced("one two three", json!({"stop": ["three", " two"]}));
    assert_eq!((&cut["text"], &cut["finish_reason"]), (&json!("one"), &json!("stop")));
    assert_eq!(cut["stop_reason"], " two");
    let cut = forced("one two three", json!({"stop": " two", "include_stop_str_in_output": true}));
    assert_eq!(cut["text"], "one two");
    let late = forced("one two three", json!({"stop": "o", "min_tokens": 3}));
    assert!(late["text"].as_str().unwrap().len() > 1, "{late}");
    let body = json!({"prompt": "Once upon", "max_tokens": 6, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
    let ids = server.post(PATH, &body).json()["choices"][0]["token_ids"].clone();
    let mut body = body;
    body["stop_token_ids"] = json!([ids[3]]);
    let stopped = server.post(PATH, &body).json()["choices"][0].clone();
    assert_eq!((&stopped["stop_reason"], &stopped["finish_reason"]), (&ids[3], &json!("stop")));
    assert!(stopped["token_ids"].as_array().unwrap().len() <= 4, "{stopped}");
}

#[test]
fn a_stream_counts_tokens_if_it_is_asked_to() {
    let server = Served::start("tiny-llama", [""; 0]);
    let mut body = json!({"prompt": "Once upon", "max_tokens": 5, "n": 2, "ignore_eos": true, "stream": true, "seed": 1});
    let silent = server.post(PATH, &body).events();
    assert!(silent.iter().all(|event| event.get("usage").is_none()));
    body["stream_options"] = json!({"include_usage": true});
    let mut events = server.post(PATH, &body).events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 10);
    assert!(events.iter().all(|event| event.get("usage") == Some(&Value::Null)));
    body["stream"] = false.into();
    body.as_object_mut().unwrap().remove("stream_options");
    let whole = server.post(PATH, &body).json();
    assert_eq!(whole["usage"]["prompt_tokens"], last["usage"]["prompt_tokens"]);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = server.post(PATH, &body).events();
    let mut told = [0, 0];
    for event in &events[..events.len() - 1] {
        let at = event["choices"][0]["index"].as_u64().unwrap() as usize;
        let tokens = event["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(tokens > told[at] || !event["choices"][0]["finish_reason"].is_null());
        told[at] = tokens;
    }
    assert_eq!(told, [5, 5]);
}

#[test]
fn the_best_of_several_answers_is_the_likeliest() {
    let server = Served::start("tiny-llama", [""; 0]);
    let mut body = json!({
        "prompt": ["Once upon", "The"], "max_tokens": 6, "seed": 3, "temperature": 1.2, "n": 5, "logprobs": 0,
        "ignore_eos": true,
    });
    let all = server.post(PATH, &body).json();
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|x| x.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    let mut best = Vec::new();
    for group in all["choices"].as_array().unwrap().chunks(5) {
        let mut group: Vec<&Value> = group.iter().collect();
        group.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        best.extend(group[..2].iter().map(|choice| choice["text"].clone()));
    }
    body["n"] = 2.into();
    body["best_of"] = 5.into();
    body.as_object_mut().unwrap().remove("logprobs");
    let chosen = server.post(PATH, &body).json();
    assert_eq!(json!(texts(&chosen)), json!(best));
    assert_eq!(chosen["choices"][0]["logprobs"], Value::Null, "nobody asked");
    assert_eq!(chosen["usage"]["completion_tokens"], 60, "all that was computed");
    body["stream"] = true.into();
    refused(&server.post(PATH, &body), "best_of");
    body["best_of"] = 1.into();
    refused(&server.post(PATH, &body), "best_of");
}

#[test]
fn a_prompt_is_found_in_the_cache_and_the_head_tells_so() {
    let server = Served::start("tiny-llama", [""; 0]);
    let prompt: Vec<u32> = (0..70).map(|i| i % 200).collect();
    let body = json!({"prompt": prompt, "max_tokens": 2, "n": 3, "ignore_eos": true, "return_token_ids": true});
    let first = server.post(PATH, &body);
    assert_eq!(
        first.json()["usage"]["prompt_tokens_details"]["cached_tokens"],
        0,
        "nobody was here before"
    );
    assert_eq!(first.json()["choices"][2]["prompt_token_ids"], json!(prompt));
    let again = server.post(PATH, &body);
    assert_eq!(again.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
    assert_eq!(again.header("x-strata-cached-tokens"), Some("64"));
    assert_eq!(again.header("x-strata-model"), Some("tiny"));
    assert_eq!(again.header("x-strata-replica"), Some("0"));
    assert!(again.header("x-strata-queue-ms").unwrap().parse::<u64>().is_ok());
    let mut body = body;
    body["stream"] = true.into();
    let streamed = server.post(PATH, &body);
    assert_eq!(streamed.header("x-strata-model"), Some("tiny"));
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    let name = streamed.header("x-request-id").unwrap();
    assert_eq!(streamed.events()[0]["id"], format!("cmpl-{name}"));
}

#[test]
fn a_prompt_that_is_too_long_is_told_by_how_much_and_may_be_cut() {
    let server = Served::start("tiny-llama", [""; 0]);
    let ids: Vec<u32> = (0..700).map(|i| i % 300).collect();
    let mut body = json!({"prompt": ids, "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    let response = server.post(PATH, &body);
    let why = refused(&response, "prompt");
    assert!(why.contains("512") && why.contains("700"), "{why}");
    assert_eq!(response.value()["error"]["code"], "context_length_exceeded");
    body["truncate_prompt_tokens"] = 20.into();
    let cut = server.post(PATH, &body).json();
    assert_eq!(cut["usage"]["prompt_tokens"], 20);
    let tail = json!({"prompt": ids[680..], "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    assert_eq!(texts(&server.post(PATH, &tail).json()), texts(&cut));
    body["truncate_prompt_tokens"] = json!(-1);
    assert_eq!(server.post(PATH, &body).json()["usage"]["prompt_tokens"], 508);
    body["truncate_prompt_tokens"] = 0.into();
    refused(&server.post(PATH, &body), "truncate_prompt_tokens");
    let text = json!({"prompt": "word ".repeat(400_000)});
    let response = server.post(PATH, &text);
    assert!(refused(&response, "prompt").contains("at least"));
    assert_eq!(response.value()["error"]["code"], "context_length_exceeded");
    let text = json!({"prompt": ["fine", "word ".repeat(1000)]});
    refused(&server.post(PATH, &text), "prompt[1]");
}

#[test]
fn what_is_invalid_is_named_by_its_path() {
    let server = Served::start("tiny-llama", [""; 0]);
    for (field, value, param) in [
        ("prompt", json!([]), "prompt"),
        ("prompt", json!(17), "prompt"),
        ("prompt", json!([1, -2]), "prompt[1]"),
        ("prompt", json!([[1, 2], [3, "x"]]), "prompt[1][1]"),
        ("prompt", json!(["a", 7]), "prompt[1]"),
        ("prompt", json!([1, 5000]), "prompt[1]"),
        ("prompt", json!([[1], []]), "prompt[1]"),
        ("max_tokens", json!(-1), "max_tokens"),
        ("max_tokens", json!("many"), "max_tokens"),
        ("max_tokens", json!(1.5), "max_tokens"),
        ("logprobs", json!(21), "logprobs"),
        ("suffix", json!("end"), "suffix"),
        ("n", json!(0), "n"),
        ("n", json!(129), "n"),
        ("stop", json!(""), "stop"),
        ("stop", json!(vec!["x"; 65]), "stop"),
        ("stop", json!("x".repeat(5000)), "stop"),
        ("stop_token_ids", json!([100_000]), "stop_token_ids"),
        ("stream_options", json!({"include_usage": true}), "stream_options"),
        ("use_beam_search", json!(true), "use_beam_search"),
        ("min_tokens", json!(20), "min_tokens"),
        ("allowed_token_ids", json!([]), "allowed_token_ids"),
        ("logit_bias", json!({"x": 1}), "logit_bias.x"),
        ("logit_bias", json!({"99999": 1}), "logit_bias"),
        ("temperature", json!(-1), "temperature"),
        ("temperature", json!(1e300), "temperature"),
        ("temperature", json!("hot"), "temperature"),
        ("top_p", json!(1.5), "top_p"),
        ("top_k", json!(-2), "top_k"),
        ("presence_penalty", json!(3), "presence_penalty"),
    ] {
        let mut body = json!({"prompt": "Once"});
        body[field] = value;
        let message = refused(&server.post(PATH, &body), param);
        assert!(message.contains(param.split(['[', '.']).next().unwrap()), "{param}: {message}");
    }
    refused(&server.post(PATH, &json!({"max_tokens": 1})), "prompt");
    let both = json!({"prompt": "Once", "echo": true, "logprobs": 1});
    refused(&server.post(PATH, &both), "logprobs");
    let many = json!({"prompt": vec!["a"; 100], "n": 2});
    refused(&server.post(PATH, &many), "prompt");
    let unknown = server.post(PATH, &json!({"prompt": "Once", "model": "other"}));
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.value()["error"]["code"], "model_not_found");
    let fine = json!({
        "prompt": "Once", "model": "tiny", "max_tokens": 2.0, "n": 1.0, "suffix": null, "stop": null, "seed": null,
        "logit_bias": null, "echo": null, "logprobs": null, "something_else": {"kept": "quiet"},
    });
    assert_eq!(server.post(PATH, &fine).json()["choices"].as_array().unwrap().len(), 1);
}

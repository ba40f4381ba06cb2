//! What one request may cost, and what one client may learn of another: each a request that did harm once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::served::{Response, Served};
use crate::wire::{PATIENCE, Wire, head, status, until};

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

const MIB: usize = 1 << 20;

/// What a server may grow by beside eight times the bytes that are sent.
const ALLOWANCE: usize = 32 * MIB;

#[track_caller]
fn refused(response: &Response, param: &str) -> String {
    let error = &response.value()["error"];
    assert_eq!((response.status, &error["param"]), (400, &json!(param)), "{error}");
    error["message"].as_str().unwrap().to_owned()
}

/// Maximum memory of a server so far.
fn peak(server: &Served) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Post bodies, and see that memory stays within the bound.
#[track_caller]
fn bounded(server: &Served, path: &str, bodies: &[String]) -> Vec<Response> {
    let before = peak(server);
    let post = |body: &String| server.post_bytes(path, body.as_bytes());
    let responses = bodies.iter().map(post).collect();
    let (grew, longest) = (peak(server) - before, bodies.iter().map(String::len).max().unwrap());
    assert!(grew <= 8 * longest + ALLOWANCE, "{} MiB for {longest} bytes", grew / MIB);
    responses
}

fn asked(more: Value) -> Value {
    let mut body = json!({"prompt": "Once upon", "max_tokens": 2, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn what_is_long_is_not_copied_for_each_choice() {
    let server = Served::start("tiny-llama", ["--max-num-seqs", "2"]);
    server.post(COMPLETIONS, &asked(json!({}))).json();
    let properties: serde_json::Map<String, Value> = (0..900)
        .map(|i| {
            (
                format!("a_long_name_of_a_property_{i:04}"),
                json!({"enum": ["one of the values that it may have", "and another one"]}),
            )
        })
        .collect();
    let schema = json!({"type": "object", "properties": properties});
    let biases: serde_json::Map<String, Value> =
        (0..380).map(|id| (id.to_string(), json!(0.5))).collect();
    let bodies = [
        asked(json!({"n": 128, "guided_json": schema})),
        asked(json!({"n": 128, "cache_salt": "s".repeat(MIB)})),
        asked(json!({"n": 128, "job_id": "j".repeat(MIB)})),
    ];
    let bodies: Vec<String> = bodies.iter().map(Value::to_string).collect();
    let responses = bounded(&server, COMPLETIONS, &bodies);
    assert!(refused(&responses[0], "n").contains("guide"));
    assert!(refused(&responses[1], "cache_salt").contains("512"));
    assert!(refused(&responses[2], "job_id").contains("512"));
    // What is shared may be long and many.
    let many = asked(json!({"n": 100, "logit_bias": biases, "prompt": vec![7; 400]}));
    let choices = server.post(COMPLETIONS, &many).json()["choices"].as_array().unwrap().len();
    assert_eq!(choices, 100);
}

#[test]
fn a_queue_that_is_full_is_told_before_a_prompt_is_read() {
    let args = ["--max-num-seqs", "1", "--max-num-waiting", "1"];
    let server = Served::start("tiny-llama", args);
    let mut busy = Wire::open(&server);
    busy.post(COMPLETIONS, &asked(json!({"max_tokens": 480, "n": 2, "stream": true})));
    until("one waits", || server.metric("vllm:num_requests_waiting") == 1.0);
    // It is no prompt: there is no token 999999. That would be a 400.
    let broken = server.post(COMPLETIONS, &asked(json!({"prompt": [[999_999]]})));
    assert_eq!(broken.status, 429, "{}", broken.text());
}

#[test]
fn tools_are_few_and_of_different_names() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let tool = |name: String| json!({"type": "function", "function": {"name": name}});
    let tools = |n: usize| (0..n).map(|i| tool(format!("f{i}"))).collect::<Vec<_>>();
    let many = chat(json!({"tools": tools(20_000)})).to_string();
    let responses = bounded(&server, CHATS, &[many]);
    assert!(refused(&responses[0], "tools").contains("1024"));
    let long = [tool("n".repeat(300))];
    let long = server.post(CHATS, &chat(json!({"tools": long})));
    assert!(refused(&long, "tools[0].function.name").contains("256"));
    let twice = [tool("f".into()), tool("g".into()), tool("f".into())];
    let twice = server.post(CHATS, &chat(json!({"tools": twice})));
    assert!(refused(&twice, "tools[2].function.name").contains("`f`"));
}

#[test]
fn a_body_of_very_many_values_is_refused_before_it_is_parsed() {
    let server = Served::start("tiny-llama", [""; 0]);
    server.post(COMPLETIONS, &asked(json!({}))).json();
    let nested = |one: &str, n: usize| format!("[{one}{}]", format!(",{one}").repeat(n - 1));
    let with = |field: &str, value: String| format!("{{\"prompt\":\"x\",\"{field}\":{value}}}");
    let bodies = [
        with("ignored", nested("[]", 4_000_000)),
        with("ignored", nested("\"\"", 3_000_000)),
        with("guided_json", nested("{}", 3_000_000)),
    ];
    for response in bounded(&server, COMPLETIONS, &bodies) {
        assert_eq!(response.status, 400);
        assert_eq!(response.value()["error"]["code"], "body_too_complex", "{}", response.text());
    }
    // Numbers are cheap where they are tokens, and are not in a value of any shape.
    let numbers =
        [with("ignored", nested("7", 7_000_000)), with("guided_json", nested("7", 7_000_000))];
    let responses = bounded(&server, COMPLETIONS, &numbers);
    assert_eq!(responses[0].status, 200, "{}", responses[0].text());
    assert!(refused(&responses[1], "guided_json[199995]").contains("200000"));
    let messages = "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]";
    let variables =
        format!("{{{messages},\"chat_template_kwargs\":{{\"x\":{}}}}}", nested("7", 7_000_000));
    let responses = bounded(&server, CHATS, &[variables]);
    assert!(refused(&responses[0], "chat_template_kwargs.x[199995]").contains("200000"));
}

#[test]
fn json_within_a_text_counts_like_any_other() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    server.post(CHATS, &chat(json!({}))).json();
    let list = |n: usize| format!("{{\"a\":[{}[0]]}}", "[0],".repeat(n));
    let schemas = [60_000, 2_000_000].map(|n| chat(json!({"guided_json": list(n)})).to_string());
    let responses = bounded(&server, CHATS, &schemas);
    assert!(refused(&responses[0], "guided_json").contains("200000"));
    assert!(refused(&responses[1], "guided_json").contains("bytes"));
    let call = |text: String| json!({"role": "assistant", "content": "x", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": text}}]});
    let messages = json!([{"role": "user", "content": "a"}, call(list(2_000_000)), {"role": "user", "content": "b"}]);
    // What is too much is no object; a template that wants one is given an empty one.
    bounded(&server, CHATS, &[chat(json!({"messages": messages})).to_string()]);
}

#[test]
fn options_and_names_of_a_schema_are_measured_like_its_patterns() {
    let server = Served::start("tiny-llama", [""; 0]);
    let post = |schema: Value| server.post(COMPLETIONS, &asked(json!({"guided_json": schema})));
    let separator = format!("({})", "a?".repeat(16_000));
    let refuses = [
        json!({"type": "array", "items": {"type": "boolean"}, "x-guidance": {"item_separator": separator}}),
        json!({"type": "object", "additionalProperties": true, "required": (0..40_000).map(|i| format!("a{i}")).collect::<Vec<_>>()}),
    ];
    for (schema, why) in refuses.into_iter().zip(["x-guidance", "required"]) {
        let response = post(schema);
        assert!(response.status == 400 && response.text().contains(why), "{}", response.text());
    }
}

#[test]
fn at_least_so_many_tokens_are_no_more_than_fit() {
    let server = Served::start("tiny-llama", ["--max-model-len", "40"]);
    let most = asked(json!({"max_tokens": 1000, "min_tokens": 600}));
    let answer = server.post(COMPLETIONS, &most).json();
    assert_eq!(answer["usage"]["total_tokens"], 40);
}

#[test]
fn memory_of_a_large_body_is_given_back() {
    let server = Served::start("tiny-llama", [""; 0]);
    server.post(COMPLETIONS, &asked(json!({}))).json();
    let before = server.memory();
    let large = json!({"prompt": "x", "ignored": "y".repeat(15 * MIB)}).to_string();
    for _ in 0..3 {
        assert_eq!(server.post_bytes(COMPLETIONS, large.as_bytes()).status, 200);
    }
    until("memory is given back", || server.memory() < before + 12 * MIB);
}

#[test]
fn a_token_is_named_once_however_it_is_spelled() {
    let server = Served::start("tiny-llama", [""; 0]);
    let post = |more| server.post(COMPLETIONS, &asked(more));
    for second in ["01", "+1", "001"] {
        let response = post(json!({"logit_bias": {"1": 100, second: 100}}));
        refused(&response, &format!("logit_bias.{}", if second < "1" { "1" } else { second }));
    }
    assert!(
        refused(&post(json!({"allowed_token_ids": vec![7; 500]})), "allowed_token_ids")
            .contains("500")
    );
    let biases: serde_json::Map<String, Value> =
        (0..500).map(|id| (id.to_string(), json!(1))).collect();
    assert!(refused(&post(json!({"logit_bias": biases})), "logit_bias").contains("500"));
    let mut repeated = asked(json!({"allowed_token_ids": [70, 70, 70], "return_token_ids": true}));
    repeated["max_tokens"] = 3.into();
    let answer = server.post(COMPLETIONS, &repeated).json();
    assert_eq!(answer["choices"][0]["token_ids"], json!([70, 70, 70]));
}

#[test]
fn texts_that_nobody_could_prompt_with_are_not_tokenized() {
    let server = Served::start("tiny-llama", [""; 0]);
    let long = json!({"prompt": "word ".repeat(60_000)});
    let response = server.post("/tokenize", &long);
    refused(&response, "prompt");
    assert_eq!(response.value()["error"]["code"], "text_too_long");
    let messages = json!([{"role": "user", "content": "word ".repeat(60_000)}]);
    let chats = Served::start("tiny-qwen3", [""; 0]);
    refused(&chats.post("/tokenize", &json!({"messages": messages})), "messages");
    refused(&server.post("/detokenize", &json!({"tokens": vec![7; 300_000]})), "tokens");
    // More than the model's context is counted all the same.
    let counted = server.post("/tokenize", &json!({"prompt": "word ".repeat(20_000)})).json();
    assert!(counted["count"].as_u64() > counted["max_model_len"].as_u64(), "{}", counted["count"]);
}

/// Requests that were aborted.
fn aborted(server: &Served) -> f64 {
    let text = server.get("/metrics").text().to_owned();
    let ended = text.lines().filter(|line| line.starts_with("vllm:request_success_total"));
    let aborted = ended.filter(|line| line.contains("\"abort\""));
    aborted.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn one_unread_byte_does_not_keep_an_answer_going_for_nobody() {
    let server = Served::start("tiny-llama", ["--max-num-seqs", "1"]);
    for stream in [true, false] {
        let before = aborted(&server);
        let mut wire = Wire::open(&server);
        let body = asked(json!({"max_tokens": 480, "n": 60, "stream": stream})).to_string();
        // The byte could be the beginning of a next request.
        let head = head(COMPLETIONS, body.len()).replace("Connection: close\r\n", "");
        wire.send(head + &body + "G");
        until("it runs", || server.metric("vllm:num_requests_running") == 1.0);
        drop(wire);
        until("none is left", || server.is_idle());
        assert!(aborted(&server) > before, "all were computed to their ends");
    }
}

/// A completion of a prompt of two blocks, with a key.
fn cached(server: &Served, key: &str, salt: Option<&str>) -> u64 {
    let mut wire = Wire::open(server);
    let body = json!({"prompt": vec![9; 40], "max_tokens": 1, "cache_salt": salt}).to_string();
    let authorized = format!("Authorization: Bearer {key}\r\nContent-Type");
    wire.send(head(COMPLETIONS, body.len()).replace("Content-Type", &authorized) + &body);
    let response = wire.rest();
    assert_eq!(status(&response), 200, "{response}");
    let body: Value = serde_json::from_str(response.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn keys_do_not_find_each_others_cached_prompts() {
    let server = Served::start("tiny-llama", ["--api-key", "alpha", "beta"]);
    assert_eq!((cached(&server, "alpha", None), cached(&server, "alpha", None)), (0, 32));
    assert_eq!((cached(&server, "beta", None), cached(&server, "beta", None)), (0, 32));
    assert_eq!((cached(&server, "beta", Some("s")), cached(&server, "beta", Some("s"))), (0, 32));
    assert_eq!(cached(&server, "alpha", Some("s")), 0);
    let shared =
        Served::start("tiny-llama", ["--api-key", "alpha", "beta", "--share-prefix-cache"]);
    assert_eq!((cached(&shared, "alpha", None), cached(&shared, "beta", None)), (0, 32));
    assert_eq!(cached(&shared, "beta", Some("s")), 0);
}

#[test]
fn a_requests_time_begins_with_its_head() {
    let server = Served::start("tiny-llama", ["--request-timeout", "0.3"]);
    let mut wire = Wire::open(&server);
    wire.send(head(COMPLETIONS, 1000) + "{\"prompt\": ");
    let response = wire.rest();
    assert!(status(&response) == 504 && response.contains("request_timeout"), "{response}");
}

#[test]
fn clients_are_as_urgent_as_the_operator_lets_them() {
    // Enough work that the only seat is taken until both clients wait, however slow this test is.
    const CHOICES: usize = 100;
    let ended = |args: &[&str]| {
        let log = tempfile::NamedTempFile::new().unwrap();
        let path = log.path().to_str().unwrap();
        let all = ["--max-num-seqs", "1", "--policy", "priority", "--access-log", path];
        let mut server = Served::start("tiny-llama", all.iter().chain(args));
        let mut busy = Wire::open(&server);
        busy.post(COMPLETIONS, &asked(json!({"max_tokens": 480, "n": CHOICES, "priority": -1000})));
        until("it runs", || server.metric("vllm:num_requests_running") == 1.0);
        // From the end of a request's way to its beginning: one that moves on meanwhile is never counted twice.
        let arrived = || {
            let ended = server.metric("vllm:request_success_total");
            let running = server.metric("vllm:num_requests_running");
            ended + running + server.metric("vllm:num_requests_waiting")
        };
        let ask = |name: &str, priority: i64, number: f64| {
            let mut wire = Wire::open(&server);
            // Long enough that the first to run has long ended when the second does.
            let body = asked(json!({"priority": priority, "max_tokens": 400})).to_string();
            let named = format!("X-Request-Id: {name}\r\nHost");
            wire.send(head(COMPLETIONS, body.len()).replace("Host", &named) + &body);
            until("it is there", || arrived() >= number);
            wire
        };
        let before = CHOICES as f64;
        let mut wires = [ask("modest", 0, before + 1.0), ask("urgent", -5, before + 2.0)];
        drop(busy);
        wires.iter_mut().for_each(|wire| _ = wire.rest());
        server.signal("TERM");
        assert!(server.ended(PATIENCE).success());
        let text = std::fs::read_to_string(path).unwrap();
        let at = |name: &str| text.find(&format!("\"{name}\"")).unwrap();
        at("modest") < at("urgent")
    };
    assert!(!ended(&[]), "lower goes first");
    assert!(ended(&["--min-client-priority", "0"]), "-5 counts as 0, and came later");
}

#[test]
fn a_local_server_answers_to_local_names_only() {
    let ask = |server: &Served, host: &str| {
        let mut wire = Wire::open(server);
        wire.send(format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        wire.rest()
    };
    let server = Served::start("tiny-llama", [""; 0]);
    assert_eq!(status(&ask(&server, &format!("localhost:{}", 8000))), 200);
    assert_eq!(status(&ask(&server, server.address())), 200);
    let rebound = ask(&server, "evil.example:8000");
    assert!(status(&rebound) == 403 && rebound.contains("host_not_allowed"), "{rebound}");
    let open = Served::start("tiny-llama", ["--allowed-hosts", "models.example"]);
    assert_eq!(status(&ask(&open, "models.example")), 200);
    assert_eq!(status(&ask(&open, "evil.example")), 403);
}

#[test]
fn errors_do_not_repeat_what_was_sent_at_length() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let long = "x".repeat(MIB);
    let messages =
        |role: &str, kind: &str| json!([{"role": role, "content": [{"type": kind, "text": "x"}]}]);
    let fields = [
        json!({"model": long}),
        json!({"tool_choice": long}),
        json!({"temperature": long}),
        json!({"seed": long}),
        json!({"stream": long}),
        json!({"response_format": {"type": long}}),
        json!({"logit_bias": {&long: 1}}),
        json!({"messages": messages("user", &long)}),
        json!({"tools": [{"type": long, "function": {"name": "f"}}]}),
        json!({"tool_choice": {"type": "function", "function": {"name": long}}, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        json!({"guided_regex": format!("({long}")}),
        json!({"reasoning_effort": 1, &long: 2}),
    ];
    for field in fields {
        let response = server.post(CHATS, &chat(field));
        assert!((400..500).contains(&response.status), "{}", response.status);
        assert!(response.body.len() < 2500, "{} bytes", response.body.len());
    }
    let url = server.get(&format!("/{}", "y".repeat(20_000)));
    assert!(url.status == 404 && url.body.len() < 1000, "{} bytes", url.body.len());
}

#[test]
fn a_chat_that_sets_no_limit_has_the_operators() {
    let server = Served::start("tiny-qwen3", ["--default-chat-max-tokens", "7"]);
    let mut body = chat(json!({"ignore_eos": true}));
    body.as_object_mut().unwrap().remove("max_tokens");
    let answer = server.post(CHATS, &body).json();
    assert_eq!(answer["usage"]["completion_tokens"], 7);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    body["max_completion_tokens"] = 9.into();
    assert_eq!(server.post(CHATS, &body).json()["usage"]["completion_tokens"], 9);
    let open =
        Served::start("tiny-qwen3", ["--default-chat-max-tokens", "0", "--max-model-len", "40"]);
    body.as_object_mut().unwrap().remove("max_completion_tokens");
    let answer = open.post(CHATS, &body).json();
    assert_eq!(answer["usage"]["total_tokens"], 40);
}

#[test]
fn as_many_as_could_run_at_once_do_not_wait_for_each_other() {
    let server = Served::start("tiny-llama", ["--max-num-seqs", "64", "--max-num-waiting", "1"]);
    std::thread::scope(|scope| {
        let ask =
            |_| scope.spawn(|| server.post(COMPLETIONS, &asked(json!({"max_tokens": 20}))).status);
        let all: Vec<_> = (0..48).map(ask).collect();
        for one in all {
            assert_eq!(one.join().unwrap(), 200);
        }
    });
}

#[test]
fn a_log_that_nobody_reads_does_not_keep_the_process_from_ending() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("log");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // A reader has it open and does not read.
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut server = Served::start("tiny-llama", ["--access-log".as_ref(), pipe.as_os_str()]);
    for _ in 0..600 {
        server.get(&format!("/{}", "a".repeat(200)));
    }
    server.signal("TERM");
    assert!(server.ended(Duration::from_secs(20)).success());
    drop(reader);
}

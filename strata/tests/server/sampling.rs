//! How a request says which tokens are chosen, and what a model's own defaults are.

use serde_json::{Value, json};

use crate::completions::texts;
use crate::served::{Response, Served};

fn ask(server: &Served, more: &Value) -> Response {
    let mut body = json!({
        "prompt": "Once upon", "max_tokens": 8, "ignore_eos": true, "return_token_ids": true,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/completions", &body)
}

#[track_caller]
fn ids(server: &Served, more: &Value) -> Vec<u64> {
    let answer = ask(server, more).json();
    let ids = answer["choices"][0]["token_ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn a_seed_fixes_every_sample_and_no_seed_fixes_none() {
    let server = Served::start("tiny-llama", [""; 0]);
    let seeded = json!({"seed": -7, "n": 3, "temperature": 1.5});
    let first = texts(&ask(&server, &seeded).json());
    assert_eq!(first, texts(&ask(&server, &seeded).json()));
    assert_ne!(first[0], first[1]);
    let free = json!({"temperature": 1.5, "n": 2, "max_tokens": 30});
    assert_ne!(texts(&ask(&server, &free).json()), texts(&ask(&server, &free).json()));
    // OpenAI's default is to draw, at temperature 1.
    let plain = json!({"seed": 3, "max_tokens": 30});
    let warm = json!({"seed": 3, "temperature": 1.0, "max_tokens": 30});
    assert_eq!(ids(&server, &plain), ids(&server, &warm));
    assert_ne!(ids(&server, &plain), ids(&server, &json!({"temperature": 0, "max_tokens": 30})));
}

#[test]
fn biases_and_lists_decide_which_tokens_may_come() {
    let server = Served::start("tiny-llama", [""; 0]);
    // What is beyond OpenAI's range counts as its end.
    for bias in [100.0, 1e30] {
        assert_eq!(ids(&server, &json!({"logit_bias": {"70": bias}})), [70; 8]);
    }
    let allowed = ids(&server, &json!({"allowed_token_ids": [65, 66], "temperature": 2}));
    assert!(allowed.iter().all(|id| [65, 66].contains(id)), "{allowed:?}");
    let greedy = ids(&server, &json!({"temperature": 0}));
    let mut banned = json!({"temperature": 0, "logit_bias": {}});
    banned["logit_bias"][greedy[0].to_string()] = json!(-100);
    assert_ne!(ids(&server, &banned)[0], greedy[0]);
    for one in [json!({"top_k": 1}), json!({"top_p": 0}), json!({"min_p": 1})] {
        assert_eq!(ids(&server, &one), greedy, "{one}");
    }
    let never = json!({"temperature": 0, "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 50});
    let mut seen = ids(&server, &never);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 8, "no token comes twice");
}

#[test]
fn an_answer_ends_at_the_models_end_token_unless_it_shall_not() {
    let server = Served::start("tiny-llama", [""; 0]);
    let eos = json!({"388": 100});
    let ended = ask(&server, &json!({"logit_bias": eos, "ignore_eos": false})).json();
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    assert_eq!(ended["choices"][0]["stop_reason"], Value::Null);
    assert_eq!(ended["choices"][0]["text"], "");
    assert_eq!(ended["usage"]["completion_tokens"], 1, "the end token was computed");
    let late =
        ask(&server, &json!({"logit_bias": eos, "ignore_eos": false, "min_tokens": 5})).json();
    assert_eq!(late["usage"]["completion_tokens"], 6);
    assert_eq!(ids(&server, &json!({"logit_bias": eos})), [388; 8]);
}

#[test]
fn special_tokens_are_text_where_they_are_not_skipped() {
    let server = Served::start("tiny-llama", [""; 0]);
    let eos = server.post("/detokenize", &json!({"tokens": [388]})).json()["prompt"].clone();
    let eos = eos.as_str().unwrap();
    assert!(eos.starts_with("<|"), "{eos}");
    let mut more = json!({"allowed_token_ids": [65, 388], "seed": 5, "logprobs": 0});
    let skipped = ask(&server, &more).json()["choices"][0].clone();
    more["skip_special_tokens"] = false.into();
    let whole = ask(&server, &more).json()["choices"][0].clone();
    assert_eq!(whole["token_ids"], skipped["token_ids"], "the same answer");
    let text = whole["text"].as_str().unwrap();
    assert!(text.contains(eos), "{text}");
    assert_eq!(text.replace(eos, ""), skipped["text"].as_str().unwrap());
    // Offsets are those of the text in the response.
    let tokens = whole["logprobs"]["tokens"].as_array().unwrap();
    let offsets = whole["logprobs"]["text_offset"].as_array().unwrap();
    for (token, at) in tokens.iter().zip(offsets) {
        assert!(
            text[at.as_u64().unwrap() as usize..].starts_with(token.as_str().unwrap()),
            "{whole}"
        );
    }
    let mut streamed = more.clone();
    streamed["stream"] = true.into();
    let events = ask(&server, &streamed).events();
    let parts = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap());
    assert_eq!(parts.collect::<String>(), text);
    // Stop strings are looked for in it.
    more["stop"] = json!([eos]);
    let stopped = ask(&server, &more).json()["choices"][0].clone();
    assert_eq!((&stopped["stop_reason"], &stopped["finish_reason"]), (&json!(eos), &json!("stop")));
    let first = text.find(eos).unwrap();
    assert_eq!(stopped["text"], text[..first]);
    // A prompt of tokens is shown as it is.
    let echo = json!({"prompt": [65, 388, 66], "echo": true, "max_tokens": 1, "skip_special_tokens": false});
    let echoed = ask(&server, &echo).json()["choices"][0]["text"].clone();
    assert!(echoed.as_str().unwrap().contains(eos), "{echoed}");
}

#[test]
fn what_is_known_and_not_here_is_refused_by_its_name() {
    let server = Served::start("tiny-llama", [""; 0]);
    for (field, value, says) in [
        ("use_beam_search", json!(true), "`n`"),
        ("length_penalty", json!(2.0), "beam search"),
        ("early_stopping", json!(true), "beam search"),
        ("prompt_logprobs", json!(0), "no log probabilities of prompts"),
        ("logits_processors", json!(["x"]), "logit_bias"),
        ("mm_processor_kwargs", json!({"a": 1}), "text only"),
        ("grammar", json!("root ::= \"a\""), "guided_grammar"),
        ("json_schema", json!({}), "response_format"),
        ("bad_words", json!(["x"]), "logit_bias"),
    ] {
        let mut more = json!({});
        more[field] = value;
        let response = ask(&server, &more);
        let error = &response.value()["error"];
        assert_eq!((response.status, &error["param"]), (400, &json!(field)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn the_models_own_configuration_says_what_a_request_does_not() {
    let own = r#"{"temperature": 0, "max_new_tokens": 5, "repetition_penalty": 50}"#;
    let server = Served::start("tiny-llama", ["--override-generation-config", own]);
    let plain = Served::start("tiny-llama", ["--generation-config", "vllm"]);
    let said = json!({"temperature": 0, "repetition_penalty": 50, "max_tokens": 5});
    let default = ids(&server, &json!({"max_tokens": 5}));
    assert_eq!(default, ids(&plain, &said));
    assert_eq!(ids(&server, &json!({"max_tokens": 40})).len(), 5, "nobody gets more");
    assert_eq!(ids(&server, &json!({"max_tokens": 3})).len(), 3);
    let other = json!({"repetition_penalty": 1, "max_tokens": 5});
    let same = json!({"temperature": 0, "max_tokens": 5});
    assert_eq!(ids(&server, &other), ids(&plain, &same), "what a request says goes first");
}

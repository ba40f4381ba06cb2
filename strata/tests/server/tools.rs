//! Calls of tools through the whole server: what a model is made to say, in both formats, whole and in events.

use serde_json::{Value, json};

use crate::chat::{joined, template};
use crate::served::Served;

fn server(format: &str) -> Served {
    let template = template("thinks-and-calls");
    Served::start("tiny-qwen3", ["--chat-template", &template, "--tool-call-parser", format])
}

fn ask(more: Value) -> Value {
    let days = json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2});
    let weather = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {"city": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "days": days},
    });
    let mut body = json!({
        "messages": [{"role": "user", "content": "Go"}],
        "seed": 1,
        "tools": [
            {"type": "function", "function": {"name": "weather", "parameters": weather}},
            {"type": "function", "function": {"name": "now"}},
        ],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Text, calls and finish reason of a whole response, which must equal those of a stream.
fn told(server: &Served, mut body: Value) -> (String, Vec<(String, String)>, String) {
    let of = |choice: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let message = &choice["message"];
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let call =
            |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
        (text(&message["content"]), calls.map(call).collect(), text(&choice["finish_reason"]))
    };
    let whole = of(&server.post("/v1/chat/completions", &body).json()["choices"][0]);
    body["stream"] = true.into();
    let events = server.post("/v1/chat/completions", &body).events();
    assert_eq!(of(&joined(&events)[0]), whole);
    whole
}

fn say(text: &str) -> Value {
    ask(json!({"structured_outputs": {"choice": [text]}}))
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

#[test]
fn calls_in_either_format_reach_the_client() {
    let one = r#"{"city": "Köln", "days": [1]}"#;
    for (format, said) in [
        (
            "hermes",
            format!(
                "<tool_call>{{\"name\": \"weather\", \"arguments\": {one}}}</tool_call>\n<tool_call>\n{{\"name\": \"now\"}}</tool_call>"
            ),
        ),
        (
            "llama3_json",
            format!(
                "{{\"name\": \"weather\", \"parameters\": {one}}}; {{\"name\": \"now\", \"parameters\": {{}}}}"
            ),
        ),
    ] {
        let server = server(format);
        let calls = vec![call("weather", one), call("now", "{}")];
        assert_eq!(told(&server, say(&said)), (String::new(), calls, "tool_calls".into()));

        let no_calls = [
            "{\"name\": \"Ada\", \"age\": 36}",
            "<tool_call>weather(\"Köln\")</tool_call>",
            "1 <",
            "[1, 2]",
        ];
        for said in no_calls {
            assert_eq!(told(&server, say(said)), (said.into(), vec![], "stop".into()), "{format}");
        }
    }
}

#[test]
fn required_calls_keep_to_their_schemas_at_any_temperature() {
    for format in ["hermes", "llama3_json"] {
        let server = server(format);
        for seed in 0..4 {
            let body = ask(
                json!({"tool_choice": "required", "seed": seed, "temperature": 1.5, "max_tokens": 200}),
            );
            let (text, calls, finish) = told(&server, body);
            assert!(!calls.is_empty(), "{format}, seed {seed}");
            // The last may be cut off where tokens ran out, and is text where not even its name was there.
            assert!(text.is_empty() || finish == "length", "{format}, seed {seed}: {text}");
            let whole = calls.len() - usize::from(finish == "length");
            for (name, arguments) in &calls[..whole] {
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                match name.as_str() {
                    "now" => assert_eq!(arguments, json!({})),
                    "weather" => {
                        let city = arguments["city"].as_str().unwrap();
                        assert!((1..=4).contains(&city.len()), "{arguments}");
                        assert!(arguments["days"].as_array().unwrap().len() <= 2, "{arguments}");
                    }
                    name => panic!("{name} is no tool"),
                }
            }
        }
    }
}

#[test]
fn a_call_that_is_cut_off_has_sent_its_beginning() {
    let server = server("hermes");
    let said = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Timbuktu in Mali\"}}</tool_call>";
    let mut body = say(said);
    let tokens = server.post("/tokenize", &json!({"prompt": said})).json();
    body["max_tokens"] = (tokens["count"].as_u64().unwrap() - 8).into();
    let (text, calls, finish) = told(&server, body);
    assert_eq!((text.as_str(), finish.as_str()), ("", "length"));
    let (name, arguments) = &calls[0];
    assert_eq!(name, "weather");
    assert!("{\"city\": \"Timbuktu in Mali\"}".starts_with(arguments), "{arguments}");
    assert!(arguments.starts_with("{\"city\""), "{arguments}");
}

#[test]
fn a_schema_that_no_guide_can_follow_is_refused() {
    let server = server("hermes");
    let tools = |parameters: Value| json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    for parameters in [
        json!({"type": "object", "properties": {"a": {"pattern": "("}}, "required": ["a"]}),
        json!({"properties": {"a": {"$ref": "#/$defs/nowhere"}}, "required": ["a"]}),
    ] {
        let body = ask(json!({"tools": tools(parameters.clone()), "tool_choice": "required"}));
        let response = server.post("/v1/chat/completions", &body);
        assert_eq!(response.status, 400, "{}", response.text());
        // Without a guide it is for the model to read, and harmless.
        let body = ask(json!({"tools": tools(parameters), "max_tokens": 2}));
        server.post("/v1/chat/completions", &body).json();
    }
}

/// What Pydantic says of a model, as LangChain and instructor send it: nothing about further properties.
fn pydantic() -> Value {
    json!({
        "$defs": {
            "Mood": {"enum": ["good", "bad"], "title": "Mood", "type": "string"},
            "Place": {
                "properties": {
                    "indoors": {"title": "Indoors", "type": "boolean"},
                    "floor": {"default": 0, "maximum": 9, "minimum": 0, "title": "Floor", "type": "integer"},
                },
                "required": ["indoors"], "title": "Place", "type": "object",
            },
        },
        "description": "How it went.",
        "properties": {
            "mood": {"$ref": "#/$defs/Mood", "description": "In a word."},
            "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": null},
            "again": {"allOf": [{"$ref": "#/$defs/Place"}], "default": {"indoors": true}},
            "score": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "null"}], "default": null, "title": "Score"},
            "tags": {"items": {"$ref": "#/$defs/Mood"}, "maxItems": 2, "title": "Tags", "type": "array", "uniqueItems": true},
        },
        "required": ["mood"], "title": "Report", "type": "object",
    })
}

#[track_caller]
fn assert_is_report(text: &str) {
    let report: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(["good", "bad"].contains(&report["mood"].as_str().unwrap()), "{text}");
    for (name, value) in report.as_object().unwrap() {
        let place = |place: &Value| {
            place["indoors"].is_boolean()
                && place
                    .as_object()
                    .unwrap()
                    .keys()
                    .all(|name| name == "indoors" || name == "floor")
        };
        let fits = match name.as_str() {
            "mood" => value.is_string(),
            "place" => value.is_null() || place(value),
            "again" => place(value),
            "score" => value.is_null() || (1..=5).contains(&value.as_i64().unwrap()),
            "tags" => value.as_array().unwrap().len() <= 2,
            _ => false,
        };
        assert!(fits, "{name} in {text}");
    }
}

#[test]
fn a_model_that_was_never_taught_calls_what_it_must() {
    let server = server("none");
    let report =
        json!({"type": "function", "function": {"name": "report", "parameters": pydantic()}});
    let now = json!({"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}});
    let named = json!({"type": "function", "function": {"name": "report"}});
    for seed in 0..6 {
        let with = |choice: &Value, parallel: bool| {
            ask(json!({
                "tools": [report, now], "tool_choice": choice, "parallel_tool_calls": parallel,
                "seed": seed, "temperature": 1.5, "max_tokens": 300,
            }))
        };
        let (text, calls, finish) = told(&server, with(&named, true));
        assert_eq!((text.as_str(), finish.as_str(), calls.len()), ("", "stop", 1));
        assert_eq!(calls[0].0, "report");
        assert_is_report(&calls[0].1);

        let (text, calls, finish) = told(&server, with(&"required".into(), false));
        assert_eq!((text.as_str(), finish.as_str(), calls.len()), ("", "tool_calls", 1));
        match calls[0].0.as_str() {
            "now" => assert_eq!(calls[0].1, "{}"),
            _ => assert_is_report(&calls[0].1),
        }
        let (_, calls, finish) = told(&server, with(&"required".into(), true));
        assert!(!calls.is_empty());
        let whole = calls.len() - usize::from(finish == "length");
        for (name, arguments) in &calls[..whole] {
            if name == "report" {
                assert_is_report(arguments);
            }
        }
    }
    // Cut off, a call is there as far as it came.
    let cut = ask(json!({"tools": [report], "tool_choice": named, "max_tokens": 5}));
    let (text, calls, finish) = told(&server, cut);
    assert_eq!((text.as_str(), finish.as_str(), calls.len()), ("", "length", 1));
    assert!(calls[0].1.len() > 2 && "{\"mood\": \"".starts_with(&calls[0].1), "{calls:?}");

    for choice in [json!("auto"), json!(null)] {
        let body = ask(json!({"tools": [report], "tool_choice": choice}));
        let response = server.post("/v1/chat/completions", &body);
        assert_eq!(response.status, 400);
        assert_eq!(response.value()["error"]["code"], "tools_not_supported");
    }
    let unknown = json!({"type": "function", "function": {"name": "nowhere"}});
    let body = ask(json!({"tools": [report], "tool_choice": unknown}));
    assert_eq!(server.post("/v1/chat/completions", &body).status, 400);
}

#[test]
fn what_pydantic_says_of_a_model_is_filled_and_ends() {
    for format in ["hermes", "llama3_json", "none"] {
        let server = server(format);
        let tool =
            json!({"type": "function", "function": {"name": "report", "parameters": pydantic()}});
        let named = json!({"type": "function", "function": {"name": "report"}});
        let schema = json!({"name": "Report", "schema": pydantic()});
        for seed in 0..4 {
            let more = json!({"seed": seed, "temperature": 2, "max_tokens": 300, "tools": null});
            let mut body = ask(more.clone());
            body["tools"] = json!([tool]);
            body["tool_choice"] = named.clone();
            let (_, calls, finish) = told(&server, body);
            assert_eq!((calls.len(), finish.as_str()), (1, "stop"), "{format}, seed {seed}");
            assert_is_report(&calls[0].1);
            let mut body = ask(more);
            body["response_format"] = json!({"type": "json_schema", "json_schema": schema});
            let (text, _, finish) = told(&server, body);
            assert_eq!(finish, "stop", "{text}");
            assert_is_report(&text);
        }
    }
}

//! `/openapi.json`, and whether the server keeps to it.

use std::collections::BTreeSet;

use boon::{Compiler, Schemas};
use serde_json::{Value, json};

use crate::served::{Response, Served};

/// What `$ref` and this file call the document.
const NAME: &str = "memory:openapi.json";

/// What is wrong with a response, by the document; nothing if it says what the document promises.
fn complaint(document: &Value, method: &str, path: &str, response: &Response) -> Option<String> {
    let operation = &document["paths"][path][method];
    let told = &operation["responses"][response.status.to_string()];
    if told.is_null() {
        return Some(format!("{method} {path}: {} is not in the document", response.status));
    }
    let kind = response.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    if told["content"].is_null() && response.body.is_empty() {
        return None;
    }
    if told["content"][kind].is_null() {
        return Some(format!(
            "{method} {path}: {} as {kind} is not in the document",
            response.status
        ));
    }
    if kind != "application/json" {
        return None;
    }
    let escaped = |part: &str| part.replace('~', "~0").replace('/', "~1");
    let place = format!(
        "{NAME}#/paths/{}/{method}/responses/{}/content/{}/schema",
        escaped(path),
        response.status,
        escaped(kind)
    );
    validate(document, &place, &response.value())
}

fn validate(document: &Value, place: &str, value: &Value) -> Option<String> {
    let mut schemas = Schemas::new();
    let mut compiler = Compiler::new();
    compiler.add_resource(NAME, document.clone()).unwrap();
    let schema = match compiler.compile(place, &mut schemas) {
        Ok(schema) => schema,
        Err(why) => return Some(format!("{place} is no schema: {why:#}")),
    };
    let outcome = schemas.validate(value, schema);
    outcome.err().map(|why| format!("{place}: {why:#}\n{value}"))
}

#[test]
fn every_schema_of_the_document_can_be_used_and_every_operation_has_a_name_of_its_own() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let document = server.get("/openapi.json").json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1."), "{document}");
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        let mut schemas = Schemas::new();
        let mut compiler = Compiler::new();
        compiler.add_resource(NAME, document.clone()).unwrap();
        let place = format!("{NAME}#/components/schemas/{name}");
        compiler.compile(&place, &mut schemas).unwrap_or_else(|why| panic!("{name}: {why:#}"));
    }
    let mut names = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(
                names.insert(name.to_owned()),
                "{method} {path}: {name} is another's name, too"
            );
            assert!(!operation["responses"]["200"].is_null() || path.starts_with("/v1/"), "{path}");
        }
    }
}

#[test]
fn answers_and_refusals_look_as_the_document_says() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let document = server.get("/openapi.json").json();
    let gets = ["/", "/health", "/ready", "/version", "/metrics", "/openapi.json", "/v1/models"];
    let mut complaints: Vec<_> = gets
        .into_iter()
        .filter_map(|path| complaint(&document, "get", path, &server.get(path)))
        .collect();
    for name in ["tiny", "other"] {
        let response = server.get(&format!("/v1/models/{name}"));
        complaints.extend(complaint(&document, "get", "/v1/models/{name}", &response));
    }
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": false}}});
    let posts = [
        ("/v1/completions", json!({"prompt": "Once", "max_tokens": 3})),
        (
            "/v1/completions",
            json!({"prompt": [[5, 6], [7]], "max_tokens": 3, "n": 2, "logprobs": 2,
            "return_token_ids": true, "echo": false}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "Once", "stop_token_ids": (0..300).collect::<Vec<_>>()}),
        ),
        ("/v1/completions", json!({"prompt": "Once", "max_tokens": 3, "stream": true})),
        ("/v1/completions", json!({"prompt": "Once", "temperature": -1})),
        ("/v1/completions", json!({"prompt": 1})),
        ("/v1/completions", json!({"prompt": "Once", "model": "other"})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 3})),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 3, "logprobs": true, "top_logprobs": 2,
            "return_token_ids": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 99, "tools": [tool], "tool_choice": "required"}),
        ),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 3, "stream": true})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": 1}]})),
        ("/tokenize", json!({"prompt": "Once", "return_token_strs": true})),
        ("/tokenize", json!({"messages": messages})),
        ("/tokenize", json!({"prompt": []})),
        ("/detokenize", json!({"tokens": [5, 6, 7]})),
        ("/detokenize", json!({"tokens": [-1]})),
        ("/v1/embeddings", json!({"input": "x"})),
        ("/v1/responses", json!({"input": "x"})),
        ("/v1/messages", json!({"messages": messages})),
    ];
    for (path, body) in posts {
        let response = server.post(path, &body);
        complaints.extend(complaint(&document, "post", path, &response));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_event_of_a_stream_is_of_the_type_that_the_document_names() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let document = server.get("/openapi.json").json();
    let more = json!({"max_tokens": 5, "stream": true, "logprobs": 1,
        "stream_options": {"include_usage": true}, "return_token_ids": true});
    let asked = |own: Value, more: &Value| {
        let mut body = more.clone();
        body.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        body
    };
    let text = asked(json!({"prompt": "Once"}), &more);
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = asked(json!({"messages": messages, "logprobs": true, "top_logprobs": 1}), &more);
    for (path, kind, body) in
        [("/v1/completions", "Completion", text), ("/v1/chat/completions", "ChatChunk", chat)]
    {
        let events = server.post(path, &body).events();
        assert!(events.len() > 1, "{events:?}");
        for event in events {
            let place = format!("{NAME}#/components/schemas/{kind}");
            assert_eq!(validate(&document, &place, &event), None);
        }
    }
}

/// Fields of a value that the schema at `place` of the document does not name.
fn unnamed(document: &Value, place: &Value, value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => {
            let items = items
                .iter()
                .flat_map(|item| unnamed(document, &of(document, place)[0]["items"], item));
            items.collect()
        }
        Value::Object(fields) => {
            let schemas = of(document, place);
            let free = schemas.iter().any(|schema| schema["additionalProperties"].is_object());
            let fields = fields.iter().filter(|_| !free).flat_map(|(name, value)| {
                match schemas.iter().find_map(|schema| schema["properties"].get(name)) {
                    Some(schema) => unnamed(document, schema, value),
                    None => vec![name.clone()],
                }
            });
            fields.collect()
        }
        _ => Vec::new(),
    }
}

/// The objects that a schema is made of: what it refers to, and its alternatives and parts.
fn of<'a>(document: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    let parts = ["allOf", "oneOf"].iter().filter_map(|key| schema[*key].as_array()).flatten();
    let parts = parts.flat_map(|part| of(document, part));
    let target = schema["$ref"].as_str().and_then(|path| document.pointer(path.strip_prefix('#')?));
    let targets = target.into_iter().flat_map(|target| of(document, target));
    let own = schema["$ref"].is_null().then_some(schema);
    own.into_iter().chain(targets).chain(parts).collect()
}

#[test]
fn what_operators_of_an_ensemble_get_looks_as_the_document_says() {
    let server = crate::ensemble::served("", &[]);
    let document = server.get("/openapi.json").json();
    server
        .post("/v1/completions", &json!({"specialist": "two", "prompt": "Once", "max_tokens": 3}))
        .json();
    for path in ["/strata/lanes", "/strata/slo", "/strata/ensemble", "/strata/state"] {
        let response = server.get(path);
        assert_eq!(complaint(&document, "get", path, &response), None);
        let place =
            &document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"];
        assert_eq!(unnamed(&document, &place["schema"], &response.json()), [""; 0], "{path}");
    }
    for path in ["/strata/lanes", "/strata/reload"] {
        let refused = server.post(path, &json!({"lane": "one", "breaker": "open"}));
        assert_eq!(refused.status, 403);
        assert_eq!(complaint(&document, "post", path, &refused), None);
        let told = &document["paths"][path]["post"]["responses"]["403"]["description"];
        assert!(told.as_str().unwrap().contains("no_api_keys"), "{told}");
    }
    let bad = &document["paths"]["/strata/reload"]["post"]["responses"]["400"];
    let bad = &bad["content"]["application/json"]["schema"]["$ref"];
    assert!(bad.as_str().unwrap().ends_with("/NotReloaded"), "{bad}");
    let body = &document["paths"]["/strata/lanes"]["post"]["requestBody"]["content"];
    let place = format!("{NAME}#/components/schemas/Change");
    assert!(body["application/json"]["schema"]["$ref"].as_str().unwrap().ends_with("/Change"));
    for valid in [
        json!({"lane": "one", "breaker": "closed", "shadow_below": null}),
        json!({"escalation_level": null}),
        json!({"escalation_level": 2}),
    ] {
        assert_eq!(validate(&document, &place, &valid), None);
    }
    for invalid in [json!({}), json!({"lane": 1}), json!({"lane": "one", "breaker": "off"})] {
        assert!(validate(&document, &place, &invalid).is_some(), "{invalid}");
    }
}

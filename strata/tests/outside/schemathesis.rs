//! Schemathesis makes requests of all kinds out of the OpenAPI document, right ones and wrong ones, and compares what
//! comes back with what the document says.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::served::Served;
use crate::{finish, wanted};

/// What is checked: no 5xx, and status, content type and body as documented.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Requests for each operation and phase.
const EXAMPLES: &str = "40";

/// Few and short answers, none streamed: the OpenAI clients see to streams. And values that mean something to this very
/// model, which no document can know; others come all the same, as wrong ones.
fn cap(document: &mut Value) {
    let tokens = json!({"type": "integer", "minimum": 0, "maximum": 8});
    let id = json!({"type": "integer", "minimum": 0, "maximum": 337});
    let ids = json!({"type": "array", "items": id, "minItems": 1, "maxItems": 12});
    let text = json!({"type": "string", "minLength": 1, "maxLength": 60});
    let nothing = json!({"type": "null"});
    let caps = [
        ("max_tokens", tokens.clone()),
        ("max_completion_tokens", tokens.clone()),
        ("min_tokens", nothing.clone()),
        ("n", json!({"type": "integer", "minimum": 1, "maximum": 2})),
        ("best_of", json!({"type": "integer", "minimum": 2, "maximum": 3})),
        ("stream", json!({"const": false})),
        ("stream_options", nothing.clone()),
        ("suffix", nothing.clone()),
        ("model", json!({"const": "tiny"})),
        ("prompt", json!({"oneOf": [text, ids]})),
        ("allowed_token_ids", ids.clone()),
        ("stop_token_ids", ids),
        (
            "logit_bias",
            json!({"type": "object", "properties": {"7": {"type": "number"}}, "additionalProperties": false}),
        ),
        // An answer follows one guide.
        ("guided_json", nothing.clone()),
        ("guided_regex", nothing.clone()),
        ("guided_grammar", nothing.clone()),
        ("response_format", nothing.clone()),
        ("structured_outputs", nothing),
    ];
    let schemas = document["components"]["schemas"].as_object_mut().unwrap();
    for (name, cap) in caps {
        let requests = schemas.iter_mut().filter(|(schema, _)| of_a_request(schema));
        let properties = requests.filter_map(|(_, schema)| schema["properties"].get_mut(name));
        let capped = properties.map(|property| *property = cap.clone()).count();
        assert!(capped > 0, "no request has a field {name} any more");
    }
}

/// Whether a type is what clients send, not what they get.
fn of_a_request(name: &str) -> bool {
    matches!(
        name,
        "CompletionRequest" | "CompletionFields" | "ChatRequest" | "ChatFields" | "Sampling"
    )
}

#[test]
fn the_document_is_valid_and_the_server_keeps_to_it() {
    let Some(python) = wanted("STRATA_PYTHON") else { return };
    keeps_to_its_document(&Served::start("tiny-qwen3", [""; 0]), &python, EXAMPLES);
}

/// Requests of all kinds, so many `examples` of each operation and phase, are answered as the document says.
pub fn keeps_to_its_document(server: &Served, python: &Path, examples: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("openapi.json");

    let mut document = server.get("/openapi.json").json();
    std::fs::write(&file, document.to_string()).unwrap();
    let validator = ["-m", "openapi_spec_validator"];
    finish(Command::new(python).args(validator).arg(&file), Duration::from_secs(60));

    cap(&mut document);
    std::fs::write(&file, document.to_string()).unwrap();
    let mut run = Command::new(python.with_file_name("schemathesis"));
    run.current_dir(dir.path()).arg("run").arg(&file).args(["--url", &server.url("")]);
    run.args(["--checks", CHECKS, "--max-examples", examples, "--mode", "all"]);
    run.args(["--phases", "examples,coverage,fuzzing", "--workers", "2"]);
    run.arg("--generation-deterministic");
    run.args(["--request-timeout", "60", "--no-color", "--continue-on-failure"]);
    let said = finish(&mut run, Duration::from_secs(540));
    println!("{said}");
    assert_eq!(server.get("/health").status, 200);
}

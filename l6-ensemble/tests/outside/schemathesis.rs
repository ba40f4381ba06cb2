//! Schemathesis makes requests of all kinds out of the OpenAPI document, right ones and wrong ones, and compares what
//! comes back with what the document says.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::served::Served;
use crate::{finish, wanted};

/// What is checked: no 5xx, and status, content type and body as documented.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Requests for each operation and phase.
const EXAMPLES: &str = "40";

/// Few and short answers, none streamed: the OpenAI clients see to streams. Other values come all the same, as wrong ones.
fn cap(document: &mut Value) {
    let schemas = document["components"]["schemas"].as_object_mut().unwrap();
    let caps = [
        ("max_tokens", json!({"type": "integer", "minimum": 0, "maximum": 8})),
        ("max_completion_tokens", json!({"type": "integer", "minimum": 0, "maximum": 8})),
        ("min_tokens", json!({"type": "integer", "minimum": 0, "maximum": 8})),
        ("n", json!({"type": "integer", "minimum": 0, "maximum": 2})),
        ("best_of", json!({"type": "integer", "minimum": 0, "maximum": 3})),
        ("stream", json!({"const": false})),
        ("stream_options", json!({"type": "null"})),
        // Otherwise nearly every request would name a model that is not here.
        ("model", json!({"const": "tiny"})),
    ];
    let mut capped = 0;
    for schema in schemas.values_mut().filter(|schema| schema["properties"].is_object()) {
        for (name, cap) in &caps {
            if let Some(property) = schema["properties"].get_mut(*name)
                && property.get("description").is_some()
                && property["type"] != "string"
            {
                *property = cap.clone();
                capped += 1;
            }
        }
    }
    assert!(capped >= caps.len(), "fields have other names now");
}

#[test]
fn the_document_is_valid_and_the_server_keeps_to_it() {
    let Some(python) = wanted("STRATA_PYTHON") else { return };
    let server = Served::start("tiny-qwen3", [""; 0]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("openapi.json");

    let mut document = server.get("/openapi.json").json();
    std::fs::write(&file, document.to_string()).unwrap();
    let validator = ["-m", "openapi_spec_validator"];
    finish(Command::new(&python).args(validator).arg(&file), Duration::from_secs(60));

    cap(&mut document);
    std::fs::write(&file, document.to_string()).unwrap();
    let mut run = Command::new(python.with_file_name("schemathesis"));
    run.current_dir(dir.path()).arg("run").arg(&file).args(["--url", &server.url("")]);
    run.args(["--checks", CHECKS, "--max-examples", EXAMPLES, "--mode", "all"]);
    run.args(["--phases", "examples,coverage,fuzzing", "--workers", "2"]);
    run.arg("--generation-deterministic");
    run.args(["--request-timeout", "60", "--no-color", "--continue-on-failure"]);
    let said = finish(&mut run, Duration::from_secs(540));
    println!("{said}");
    assert_eq!(server.get("/health").status, 200);
}

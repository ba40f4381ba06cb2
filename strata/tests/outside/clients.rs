//! OpenAI's own clients drive every endpoint: streams, tools, schemas, errors, a queue that is full.

use std::process::Command;
use std::time::Duration;

use crate::served::Served;
use crate::{finish, script, wanted};

const LONGEST: Duration = Duration::from_secs(300);

/// A model with a chat template that knows tools.
const MODEL: &str = "tiny-qwen3";

/// The servers that the scripts ask for: a plain one, one with a key, one that is soon full.
fn servers() -> [Served; 3] {
    [
        Served::start(MODEL, ["--tool-call-parser", "hermes", "--enable-auto-tool-choice"]),
        Served::start(MODEL, ["--api-key", "secret"]),
        Served::start(MODEL, ["--max-num-seqs", "1", "--max-num-waiting", "1"]),
    ]
}

#[test]
fn the_python_client_is_served() {
    let Some(python) = wanted("STRATA_PYTHON") else { return };
    let servers = servers();
    let urls = servers.iter().map(|server| server.url(""));
    finish(Command::new(python).arg(script("sdk.py")).args(urls), LONGEST);
}

#[test]
fn instructor_gets_the_types_that_it_asks_for() {
    let Some(python) = wanted("STRATA_PYTHON_INSTRUCTOR") else { return };
    let server =
        Served::start(MODEL, ["--tool-call-parser", "hermes", "--enable-auto-tool-choice"]);
    finish(Command::new(python).arg(script("instructor_client.py")).arg(server.url("")), LONGEST);
}

#[test]
fn langchain_and_openai_fill_models_that_do_not_forbid_further_fields() {
    let Some(python) = wanted("STRATA_PYTHON") else { return };
    let server =
        Served::start(MODEL, ["--tool-call-parser", "hermes", "--enable-auto-tool-choice"]);
    finish(Command::new(python).arg(script("structured.py")).arg(server.url("")), LONGEST);
}

#[test]
fn the_javascript_client_is_served() {
    let Some(modules) = wanted("STRATA_NODE_MODULES") else { return };
    let servers = servers();
    let urls = servers.iter().map(|server| server.url(""));
    let mut node = Command::new("node");
    node.arg(script("sdk.mjs")).args(urls).env("STRATA_NODE_MODULES", modules);
    finish(&mut node, LONGEST);
}

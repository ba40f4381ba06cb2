//! The same clients against an ensemble: what works with one model works with its specialists.

use std::process::Command;
use std::time::Duration;

use crate::served::{Served, fixture};
use crate::{finish, schemathesis, script, wanted};

const LONGEST: Duration = Duration::from_secs(300);

/// Specialists of the ensemble, which has the name that the clients ask for.
const SPECIALISTS: [&str; 2] = ["left", "right"];

/// A server of two specialists.
fn served(args: &[&str]) -> Served {
    let model = fixture("tiny-qwen3");
    let mut text = "name = \"tiny\"\nkv_memory = \"64MiB\"\nfallback = \"right\"\n".to_owned();
    for name in SPECIALISTS {
        text += &format!("[[specialist]]\nname = {name:?}\nmodel = {model:?}\n");
        text += "policy = \"strict-priority\"\n";
    }
    Served::ensemble(&text, |command| {
        command.args(args);
    })
}

fn servers() -> [Served; 3] {
    [
        served(&["--tool-call-parser", "hermes", "--enable-auto-tool-choice"]),
        served(&["--api-key", "secret"]),
        served(&["--max-num-seqs", "1", "--max-num-waiting", "1"]),
    ]
}

#[test]
fn the_python_client_is_served_by_an_ensemble() {
    let Some(python) = wanted("STRATA_PYTHON") else { return };
    let servers = servers();
    let urls = servers.iter().map(|server| server.url(""));
    let mut python = Command::new(python);
    finish(python.arg(script("sdk.py")).args(urls).args(SPECIALISTS), LONGEST);
}

#[test]
fn a_client_chooses_a_specialist_with_fields_of_its_own() {
    let Some(python) = wanted("STRATA_PYTHON") else { return };
    let server = served(&[]);
    let mut python = Command::new(python);
    finish(python.arg(script("specialists.py")).arg(server.url("")).args(SPECIALISTS), LONGEST);
}

#[test]
fn the_javascript_client_is_served_by_an_ensemble() {
    let Some(modules) = wanted("STRATA_NODE_MODULES") else { return };
    let servers = servers();
    let urls = servers.iter().map(|server| server.url(""));
    let mut node = Command::new("node");
    node.arg(script("sdk.mjs")).args(urls).args(SPECIALISTS);
    finish(node.env("STRATA_NODE_MODULES", modules), LONGEST);
}

#[test]
fn an_ensemble_keeps_to_the_document() {
    let Some(python) = wanted("STRATA_PYTHON") else { return };
    schemathesis::keeps_to_its_document(&served(&[]), &python, "15");
}

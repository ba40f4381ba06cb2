//! The pages at `/` and `/lanes`, in a browser without a screen.

use std::process::Command;
use std::time::Duration;

use crate::served::{Served, command, fixture};
use crate::{finish, script, wanted};

#[test]
fn the_page_talks_to_the_model_and_shows_what_the_engine_does() {
    let (Some(modules), Some(chromium)) =
        (wanted("STRATA_NODE_MODULES"), wanted("STRATA_CHROMIUM"))
    else {
        return;
    };
    let server = Served::start("tiny-qwen3", [""; 0]);
    let mut node = Command::new("node");
    node.arg(script("page.mjs")).arg(server.url(""));
    node.env("STRATA_NODE_MODULES", modules).env("STRATA_CHROMIUM", chromium);
    finish(&mut node, Duration::from_secs(180));
}

#[test]
fn the_page_of_lanes_shows_which_specialist_served_a_question_and_why() {
    let (Some(modules), Some(chromium)) =
        (wanted("STRATA_NODE_MODULES"), wanted("STRATA_CHROMIUM"))
    else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ensemble.toml");
    let (one, two) = (fixture("tiny-llama"), fixture("tiny-qwen3"));
    let text = format!(
        "name = \"pair\"\nkv_memory = \"64MiB\"\nfallback = \"two\"\n[router]\nclassifier = \"off\"\n\
         [[specialist]]\nname = \"one\"\nmodel = {one:?}\n[[specialist]]\nname = \"two\"\nmodel = {two:?}\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut serve = command();
    serve.args(["--quiet", "serve", "--port", "0", "--ensemble"]).arg(&file);
    let server = Served::run(serve);
    let mut node = Command::new("node");
    node.arg(script("lanes_page.mjs")).arg(server.url(""));
    node.env("STRATA_NODE_MODULES", modules).env("STRATA_CHROMIUM", chromium);
    finish(&mut node, Duration::from_secs(180));
}

//! The page at `/`, in a browser without a screen.

use std::process::Command;
use std::time::Duration;

use crate::served::Served;
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

//! The shell fences that need the model or a release build: `sh,full`. `cargo x test --full` runs
//! them, and says by `STRATA_SMOLLM2` that the model is there.

#[allow(dead_code, reason = "each test uses its own part")]
mod support;

use support::{built, fences, normal, pages, run, servers, snapshots};

#[test]
fn every_command_that_needs_the_model_does_what_the_page_shows() {
    let model = std::env::var_os("STRATA_SMOLLM2").filter(|v| !v.is_empty());
    if model.is_none() || run::is_a_learners() {
        println!("needs the model: `cargo x test --full`");
        return;
    }
    snapshots::check("--full", |fence| fence.full);
}

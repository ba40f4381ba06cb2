//! The transcripts of pages, and the snapshots they must equal.

use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;

use crate::fences::{self, Fence};
use crate::pages;
use crate::run::Workshop;

/// Where snapshots lie.
pub fn folder() -> PathBuf {
    pages::root().join("book/tests/snapshots")
}

/// The name of a page's snapshot: `l1-tensors__ops`.
pub fn name(page: &str) -> String {
    page.trim_end_matches(".md").replace('/', "__")
}

/// Run the fences of all pages that `choose` takes, and compare. `suffix` ends the snapshots' names.
///
/// With `INSTA_UPDATE=always` snapshots are written instead. `STRATA_PAGE=l1-tensors/ops.md` leaves
/// all other pages out.
pub fn check(suffix: &str, choose: impl Fn(&Fence) -> bool) {
    let only = std::env::var("STRATA_PAGE").ok();
    let mut workshop = Workshop::default();
    let mut problems = Vec::new();
    let mut commands = 0;
    for page in pages::all() {
        if only.as_ref().is_some_and(|only| *only != page.name) {
            continue;
        }
        let fences = fences::of(&page.text).unwrap_or_else(|e| panic!("{}:{e}", page.name));
        let mut transcripts = Vec::new();
        for fence in fences.iter().filter(|f| !f.norun && choose(f)) {
            let (transcript, wrong) = workshop.run(fence);
            problems.extend(wrong.iter().map(|p| format!("{}:{p}", page.name)));
            transcripts.push(transcript);
            commands += fence.steps.len();
        }
        if transcripts.is_empty() {
            continue;
        }
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path(folder());
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        let name = name(&page.name) + suffix;
        let compare = || insta::assert_snapshot!(name, transcripts.join("\n"));
        // One page that differs should not hide the next.
        if panic::catch_unwind(AssertUnwindSafe(|| settings.bind(compare))).is_err() {
            problems.push(format!("{}: other output than in its snapshot, see above", page.name));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n\n"));
    assert!(commands > 0, "no command was run");
    println!("{commands} commands did what the book says");
}

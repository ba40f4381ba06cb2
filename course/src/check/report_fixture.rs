//! A small learner's workspace for tests of what is shown.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use course_marks::Layer;
use tempfile::TempDir;

use super::walk::{Seen, Trouble};
use crate::programs::Verdict;
use crate::workspace::{Manifest, Member, Workspace};

/// A workspace of one layer `l1` (crate `p`) with exercises `l1.a` and `l1.b`, neither written.
pub fn workspace() -> (TempDir, Workspace) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let dir = root.path().join("p");
    let write = |name: &str, text: &str| {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    };
    let catalogue = catalogue();
    write("p/exercises.toml", &catalogue);
    write("p/src/a.rs", &source("l1.a", "todo!(\"exercise l1.a, chapter c.md\")"));
    write("p/src/b.rs", &source("l1.b", "todo!(\"exercise l1.b, chapter c.md\")"));
    write("p/tests/f.rs", "#[test]\nfn it_is_right() {}\n");
    write(".strata/reference/p/exercises.toml", &catalogue);
    write(".strata/reference/p/src/a.rs", &source("l1.a", "let answer = 42;"));
    write(".strata/reference/p/src/b.rs", &source("l1.b", "let answer = 43;"));
    write("book/src/c.md", "# A page\n");
    write("Cargo.toml", "[workspace.dependencies]\np = { path = \".strata/reference/p\" }\n");
    let layer = Layer::parse(&catalogue, Path::new("exercises.toml")).expect("a catalogue");
    let reference = root.path().join(".strata/reference/p");
    let learner = Manifest { version: 1, layers: vec!["l1".into()], gates: BTreeMap::default() };
    let workspace = Workspace {
        root: root.path().into(),
        members: vec![Member { layer, dir, reference }],
        learner: Some(learner),
    };
    (root, workspace)
}

fn source(id: &str, body: &str) -> String {
    format!("fn f() {{\n    // exercise {id}\n    {body}\n    // end of exercise\n}}\n")
}

fn catalogue() -> String {
    let exercise = |id: &str| {
        format!(
            "[[exercise]]\nid = '{id}'\ntitle = 'An idea'\nchapter = 'c.md'\nminutes = 30\n\
             hints = ['look there', 'and there', 'write this']\n\
             gates = ['f::it_is_right', 'f::it_stays_right']\n"
        )
    };
    let head = "layer = 'l1'\npackage = 'p'\ntitle = 'Tensors'\n";
    format!("{head}{}{}", exercise("l1.a"), exercise("l1.b"))
}

/// An exercise that passed, or one whose first gate did not.
pub fn seen<'a>(workspace: &'a Workspace, id: &str, passed: bool) -> Seen<'a> {
    let task = workspace.task(id).expect("one of the two");
    let gate = &task.exercise.gates[0];
    let trouble = Trouble { gate, verdict: Verdict::Hung, failing: 1, given: None };
    Seen { task, trouble: (!passed).then_some(trouble) }
}

use std::path::PathBuf;

use course_marks::Layer;
use tempfile::TempDir;

use super::*;
use crate::workspace::Manifest;

const LIST: &str = "\
impl List {
    pub fn push(&mut self, block: u32) {
        debug_assert!(!self.has(block), \"block {block} is free twice\");
        // exercise l9.list
        self.links.push(block);
        // end of exercise
    }
    pub fn at(&self, i: usize) -> u32 {
        self.links[i]
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn unit() { assert!(false) }
}
";
const POOL: &str = "\
// A fn of the pool.
impl Pool {
    pub fn release(&mut self, block: u32) -> u32 {
        // exercise l9.pool
        self.free.push(block);
        // end of exercise
        self.free.at(7)
    }
    fn same(&self) {
        // exercise l9.pool
        // end of exercise
    }
}
impl Other {
    fn same(&self) {
        // exercise l9.pool
        // end of exercise
    }
}
";
const ROWS: &str = "\
dispatch! {
    fn softmax_rows<const FMA: bool>(x: &Src<'_, f32>, out: &Dst<'_, f32>) {
        for i in rows {
            // exercise l9.list
            out.row(i);
            // end of exercise
        }
    }
}
";

/// A workspace with a layer `l9` that the learner writes, and one that is given.
fn workspace() -> (TempDir, Workspace) {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let mut members = Vec::new();
    for (id, package) in [("l9", "l9-rec"), ("l8", "l8-given")] {
        let entry = |name: &str| {
            format!(
                "[[exercise]]\nid = '{id}.{name}'\ntitle = 'T'\nchapter = 'c.md'\nminutes = 5\n\
                 hints = ['h']\ngates = ['t::twice']\n"
            )
        };
        let head = format!("layer = '{id}'\npackage = '{package}'\ntitle = 'T'\n");
        let catalogue = format!("{head}{}{}", entry("list"), entry("pool"));
        let layer = Layer::parse(&catalogue, Path::new("exercises.toml")).unwrap();
        let reference = format!(".strata/reference/{package}");
        for dir in [package, &reference] {
            write(&format!("{dir}/src/list.rs"), LIST);
            write(&format!("{dir}/src/pool.rs"), POOL);
            write(&format!("{dir}/src/ops/mod.rs"), ROWS);
        }
        write(&format!("{package}/tests/t.rs"), "#[test]\nfn twice() {}\n");
        let (dir, reference) = (root.path().join(package), root.path().join(reference));
        members.push(Member { layer, dir, reference });
    }
    let learner = Manifest { version: 1, layers: vec!["l9".into()], gates: Default::default() };
    let path: PathBuf = root.path().into();
    (root, Workspace { root: path, members, learner: Some(learner) })
}

fn frames(names: &[&str]) -> Vec<String> {
    let std = ["__rustc::rust_begin_unwind", "core::panicking::panic_fmt"];
    std.iter().chain(names).map(|n| n.to_string()).collect()
}

#[test]
fn only_lines_that_are_neither_tests_nor_marked_are_given() {
    let (_root, workspace) = workspace();
    for (place, given) in [
        ("l9-rec/src/list.rs:3", true),
        ("l9-rec/src/list.rs:5", false),
        ("l9-rec/src/list.rs:9", true),
        ("l9-rec/src/list.rs:16", false),
        ("l9-rec/tests/t.rs:2", false),
        ("l8-given/src/list.rs:5", true),
        (".strata/reference/l9-rec/src/list.rs:5", true),
        ("l9-rec/src/gone.rs:1", false),
        ("/rustc/library/x.rs:1", false),
    ] {
        assert_eq!(is_given(&workspace, place), given, "{place}");
    }
}

#[test]
fn without_its_marks_nothing_is_said_of_a_file() {
    let (root, workspace) = workspace();
    let path = root.path().join("l9-rec/src/list.rs");
    fs::write(path, LIST.replace("        // exercise l9.list\n", "")).unwrap();
    assert!(!is_given(&workspace, "l9-rec/src/list.rs:3"));
}

#[test]
fn the_function_of_the_learner_that_called_is_found_by_its_name() {
    let (_root, workspace) = workspace();
    let member = &workspace.members[0];
    let caller = |names: &[&str], place: &str| caller(member, &frames(names), place);
    let release = Some("l9-rec/src/pool.rs:4 (release)".to_string());
    let (push, pool) = ("l9_rec::list::List::push", "l9_rec::pool::Pool::release");
    assert_eq!(caller(&["l9_rec::list::List::at", pool], "l9-rec/src/list.rs:9"), release);
    assert_eq!(caller(&[push, pool], "l9-rec/src/list.rs:3"), release, "not the one that panicked");
    let outer =
        ["<l9_rec::list::List as core::ops::Drop>::drop", &format!("{pool}::{{{{closure}}}}")];
    assert_eq!(caller(&outer, "l9-rec/src/list.rs:9"), release);
    let called = caller(&[push, "core::ops::function::FnOnce::call_once"], "l9-rec/src/list.rs:9");
    assert_eq!(called.as_deref(), Some("l9-rec/src/list.rs:4 (push)"));
    let rows = caller(&["l9_rec::ops::softmax_rows::avx512"], "l9-rec/src/list.rs:9");
    assert_eq!(rows.as_deref(), Some("l9-rec/src/ops/mod.rs:4 (softmax_rows)"));
}

#[test]
fn nothing_is_claimed_that_a_backtrace_does_not_show() {
    let (_root, workspace) = workspace();
    let caller =
        |names: &[&str]| caller(&workspace.members[0], &frames(names), "l9-rec/src/list.rs:9");
    assert_eq!(caller(&[]), None);
    assert_eq!(caller(&["l9_rec::list::List::at", "t::twice"]), None);
    assert_eq!(caller(&["l8_given::pool::Pool::release"]), None, "the layer of another");
    assert_eq!(caller(&["l9_rec::pool::Pool::same"]), None, "two functions have this name");
}

#[test]
fn a_second_run_is_asked_only_where_it_can_tell_something() {
    let (_root, workspace) = workspace();
    let task = workspace.task("l9.list").unwrap();
    let output = |place: &str, backtrace: &str| {
        Verdict::Failed(format!("\nthread 'twice' (1) panicked at {place}:9:\nm\n{backtrace}"))
    };
    let find = |verdict: Verdict, again: Option<Verdict>| {
        let gate = &task.exercise.gates[0];
        let trouble = Trouble { gate, verdict, failing: 1, given: None };
        of(&workspace, &task, &trouble, &mut |_| Ok(again.clone().expect("no second run"))).unwrap()
    };
    assert_eq!(find(output("l9-rec/tests/t.rs:2", ""), None), None);
    assert_eq!(find(output("l9-rec/src/list.rs:5", ""), None), None);
    assert_eq!(find(Verdict::Hung, None), None);
    let place = "l9-rec/src/list.rs:9";
    let trace =
        "stack backtrace:\n   0: l9_rec::list::List::at\n   1: l9_rec::pool::Pool::release\n";
    let found = find(output(place, ""), Some(output(place, trace)));
    assert_eq!(found, Some(Given { caller: Some("l9-rec/src/pool.rs:4 (release)".into()) }));
    // Random inputs: this time it passed, or failed elsewhere.
    let unknown = Some(Given { caller: None });
    assert_eq!(find(output(place, ""), Some(Verdict::Passed)), unknown);
    assert_eq!(find(output(place, ""), Some(output("l9-rec/src/list.rs:5", trace))), unknown);
}

#[test]
fn symbols_are_read_without_their_generics() {
    for (symbol, path) in [
        ("l9_rec::pool::Pool::release", "l9_rec pool Pool release"),
        ("<l9_rec::list::List as core::iter::Iterator>::next", "l9_rec list List next"),
        ("<&mut l9_rec::a::B<T> as c::D<u8>>::e::<f32>", "l9_rec a B e"),
        ("l9_rec::ops::rows::for_rows::<F>::{closure#0}", "l9_rec ops rows for_rows"),
        ("<<a::B as c::D>::E as f::G>::h", "a B E h"),
    ] {
        assert_eq!(path_of(symbol).join(" "), path, "{symbol}");
    }
}

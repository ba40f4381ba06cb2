//! Where things are in the learner's files: an exercise's marks, the source of a test, and the
//! exercise that a line belongs to.

use std::fs;
use std::path::Path;

use anyhow::Result;
use course_marks::{Gate, marks};

use crate::workspace::{Member, Task, Workspace};

/// A file, and the lines in it that matter, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Relative to the workspace, with forward slashes.
    pub file: String,
    /// Line numbers; empty if they are not known.
    pub lines: Vec<usize>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<String> = self.lines.iter().map(usize::to_string).collect();
        let colon = if lines.is_empty() { "" } else { ":" };
        write!(f, "{}{colon}{}", self.file, lines.join(", "))
    }
}

/// Where an exercise is to be written: the files by the reference, the lines by the marks in the learner's files, if
/// they are still there.
pub fn to_write(task: &Task) -> Result<Vec<Place>> {
    let sources = task.member.sources()?;
    let mut places: Vec<Place> = Vec::new();
    for (file, _) in sources.of(&task.exercise.id) {
        let name = format!("{}/{}", task.member.layer.package, file.path);
        if places.iter().all(|p| p.file != name) {
            let text = fs::read_to_string(task.member.dir.join(&file.path)).unwrap_or_default();
            places.push(Place { file: name, lines: begins_of(&text, &task.exercise.id) });
        }
    }
    Ok(places)
}

/// The lines that open a region of an exercise. Any text will do: while one writes, marks may be
/// unbalanced and regions empty.
fn begins_of(text: &str, id: &str) -> Vec<usize> {
    let opens = |line: &str| line.trim().strip_prefix(marks::BEGIN).is_some_and(|r| r.trim() == id);
    text.lines().enumerate().filter(|(_, l)| opens(l)).map(|(n, _)| n + 1).collect()
}

/// The exercise whose marks enclose a line (from 1) of a file of the workspace.
pub fn exercise_at<'a>(workspace: &'a Workspace, file: &str, line: usize) -> Option<Task<'a>> {
    let text = fs::read_to_string(workspace.root.join(file)).ok()?;
    workspace.task(&enclosing(&text, line)?).ok()
}

fn enclosing(text: &str, line: usize) -> Option<String> {
    let mut inside = None;
    for text in text.lines().take(line) {
        let text = text.trim();
        if let Some(id) = text.strip_prefix(marks::BEGIN) {
            inside = Some(id.trim().to_string());
        } else if text == marks::END {
            inside = None;
        }
    }
    inside
}

/// Where a test is written, as far as its name shows.
pub fn of_gate(member: &Member, gate: &Gate) -> Option<Place> {
    let name = gate.test.rsplit("::").next().unwrap_or(&gate.test);
    let file = candidates(gate).into_iter().find(|f| member.dir.join(f).is_file())?;
    let text = fs::read_to_string(member.dir.join(&file)).unwrap_or_default();
    let head = format!("fn {name}(");
    let line = text.lines().position(|l| l.trim_start().starts_with(&head)).map(|n| n + 1);
    let file = format!("{}/{file}", member.layer.package);
    Some(Place { file, lines: line.into_iter().collect() })
}

/// The files that a gate may be in, relative to the crate.
pub fn candidates(gate: &Gate) -> Vec<String> {
    let modules: Vec<&str> = gate.test.split("::").collect();
    let modules = &modules[..modules.len().saturating_sub(1)];
    let in_folder = |top: String| match modules {
        [] => vec![],
        m => vec![format!("{top}/{}.rs", m.join("/")), format!("{top}/{}/mod.rs", m.join("/"))],
    };
    if gate.target != "lib" {
        let top = format!("tests/{}", gate.target);
        let mut files = in_folder(top.clone());
        files.extend([format!("{top}.rs"), format!("{top}/main.rs")]);
        return files;
    }
    let mut files = in_folder("src".into());
    // A test module may also be in the file of the module around it.
    if let [outer @ .., _] = modules {
        let outer = outer.join("/");
        files.extend([format!("src/{outer}.rs"), format!("src/{outer}/mod.rs")]);
    }
    files
}

/// The title of a page of the book, if the page is there.
pub fn title_of_page(root: &Path, chapter: &str) -> Option<String> {
    let text = fs::read_to_string(root.join("book/src").join(chapter)).ok()?;
    text.lines().find_map(|l| l.strip_prefix("# ")).map(|t| t.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
fn a() {
    // exercise l1.a
    todo!()
    // end of exercise
}
fn b() {
    // exercise l1.b
    half written(
";

    #[test]
    fn marks_are_found_in_a_file_that_is_being_written() {
        assert_eq!(begins_of(TEXT, "l1.a"), [2]);
        assert_eq!(begins_of(TEXT, "l1.b"), [7]);
        assert_eq!(begins_of("", "l1.a"), Vec::<usize>::new());
        assert_eq!(enclosing(TEXT, 3).as_deref(), Some("l1.a"));
        assert_eq!(enclosing(TEXT, 5), None);
        assert_eq!(enclosing(TEXT, 8).as_deref(), Some("l1.b"));
    }

    #[test]
    fn a_gate_is_looked_for_where_cargo_would_have_it() {
        let gate = |text: &str| Gate::try_from(text.to_string()).unwrap();
        assert_eq!(candidates(&gate("ops::t")), ["tests/ops.rs", "tests/ops/main.rs"]);
        let unit = candidates(&gate("lib::cpu::lanes::tests::t"));
        assert_eq!(unit[0], "src/cpu/lanes/tests.rs");
        assert!(unit.contains(&"src/cpu/lanes.rs".to_string()), "{unit:?}");
        let inner = candidates(&gate("state::rollback::t"));
        assert_eq!(inner[0], "tests/state/rollback.rs");
        assert!(inner.contains(&"tests/state.rs".to_string()));
    }

    #[test]
    fn places_are_written_so_that_an_editor_can_open_them() {
        let at = |lines: &[usize]| Place { file: "a/b.rs".into(), lines: lines.to_vec() };
        assert_eq!(at(&[]).to_string(), "a/b.rs");
        assert_eq!(at(&[3, 9]).to_string(), "a/b.rs:3, 9");
    }
}

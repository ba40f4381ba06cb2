//! Whether a test panicked in given code, and which of the learner's functions called that.
//!
//! A given function panics when it is called with something that it does not allow, or uses what the learner's code
//! left behind. Its line then looks like the place of the mistake. So it is named for what it is; and if a backtrace
//! shows one of the learner's functions below it, that one is named, too. Nothing is built with debug information, so
//! a backtrace has names of functions and no lines, and functions that were inlined are missing.

use std::fs;
use std::path::Path;

use anyhow::Result;
use course_marks::{Gate, LEARNER_DIR, marks, sources};

use super::failure;
use super::panics::{self, split_place};
use super::walk::Trouble;
use crate::programs::Verdict;
use crate::workspace::{Member, Task, Workspace};

/// A panic in given code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// `file:line (function)`: the marked lines that called it, if that is known.
    pub caller: Option<String>,
}

/// Whether the gate panicked in given code. `rerun` runs it once more, with a backtrace.
pub fn of(
    workspace: &Workspace,
    task: &Task,
    trouble: &Trouble,
    rerun: &mut dyn FnMut(&Gate) -> Result<Verdict>,
) -> Result<Option<Given>> {
    let complaint = failure::understand(&trouble.verdict, &trouble.gate.test, &task.exercise.id);
    let Some(place) = complaint.as_ref().and_then(|c| c.panicked_at()) else { return Ok(None) };
    if !is_given(workspace, place) {
        return Ok(None);
    }
    let output = match rerun(trouble.gate)? {
        Verdict::Failed(output) | Verdict::Died { output, .. } => output,
        Verdict::Passed | Verdict::Hung | Verdict::Missing => {
            return Ok(Some(Given { caller: None }));
        }
    };
    // Another input may have made it fail elsewhere.
    let same = |p: &&panics::Panic| p.place.as_deref() == Some(place) && !p.frames.is_empty();
    let again = panics::read(&output).into_iter().rev().find(|p| same(&p));
    let caller = again.and_then(|p| caller(task.member, &p.frames, place));
    Ok(Some(Given { caller }))
}

/// Whether a line is neither a test's nor the learner's.
fn is_given(workspace: &Workspace, place: &str) -> bool {
    let Some((file, line)) = split_place(place) else { return false };
    let Ok(text) = fs::read_to_string(workspace.root.join(file)) else { return false };
    if file.starts_with(&format!("{LEARNER_DIR}/")) {
        return true;
    }
    let of_tests = |part: &str| ["tests", "tests.rs", "benches", "examples"].contains(&part);
    if file.split('/').any(of_tests) || test_module(&text).is_some_and(|begin| line > begin) {
        return false;
    }
    let member = workspace.members.iter().find(|m| {
        file.strip_prefix(m.layer.package.as_str()).is_some_and(|rest| rest.starts_with('/'))
    });
    let Some(member) = member.filter(|m| workspace.taught().any(|t| t.layer.id == m.layer.id))
    else {
        return true;
    };
    // Where marks were removed, it is not known which lines are the learner's.
    let inside = file.strip_prefix(&format!("{}/", member.layer.package)).unwrap_or(file);
    let reference = fs::read_to_string(member.reference.join(inside)).unwrap_or_default();
    let all = regions(&text);
    regions(&reference).len() == all.len() && !all.iter().any(|r| r.begin < line && line < r.end)
}

/// The line of the `mod` of unit tests that are in the file itself, counted from 1.
fn test_module(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begins = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    lines.windows(2).position(begins).map(|n| n + 2)
}

/// Marked lines, and the function that they are in. Lines are counted from 1.
#[derive(Debug, PartialEq, Eq)]
struct Region {
    /// Line of the mark that begins it.
    begin: usize,
    /// Line of the mark that ends it.
    end: usize,
    function: Option<Function>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    name: String,
    line: usize,
}

/// Regions as far as their marks are there: a learner's file may be half written.
fn regions(text: &str) -> Vec<Region> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found: Vec<Region> = Vec::new();
    let mut open = None;
    for (n, line) in lines.iter().enumerate() {
        if line.trim().starts_with(marks::BEGIN) {
            open = Some(n + 1);
        } else if line.trim() == marks::END
            && let Some(begin) = open.take()
        {
            found.push(Region { begin, end: n + 1, function: enclosing(&lines, begin) });
        }
    }
    found
}

/// The function around a line (from 1): the last one above that is indented less.
fn enclosing(lines: &[&str], line: usize) -> Option<Function> {
    let indent = |text: &str| text.len() - text.trim_start().len();
    let inner = indent(lines.get(line.checked_sub(1)?)?);
    let mut above = lines[..line - 1].iter().enumerate().rev().filter(|(_, l)| indent(l) < inner);
    above.find_map(|(n, l)| Some(Function { name: function_name(l)?.into(), line: n + 1 }))
}

fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with("//") {
        return None;
    }
    let after =
        line.strip_prefix("fn ").or_else(|| line.split_once(" fn ").map(|(_, after)| after))?;
    let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(after.len());
    Some(&after[..end]).filter(|name| !name.is_empty())
}

/// The innermost of the learner's functions in a backtrace, without the one that panicked itself: its given lines may
/// stand before the learner's.
fn caller(member: &Member, frames: &[String], place: &str) -> Option<String> {
    let library = member.layer.package.replace('-', "_");
    let written = written(member);
    let panicked = panicked_in(member, place);
    for frame in frames {
        let path = path_of(frame);
        let Some((_, path)) = path.split_first().filter(|(first, _)| **first == library) else {
            continue;
        };
        let fits = |w: &&Written| {
            let inside = path.strip_prefix(w.modules.as_slice());
            inside.is_some_and(|rest| rest.contains(&w.function.name))
        };
        // A file's name may be that of a function in a file above it.
        let deepest = written.iter().filter(fits).map(|w| w.modules.len()).max();
        let of_deepest = |w: &&Written| Some(w.modules.len()) == deepest;
        let itself = |w: &&Written| panicked == Some((w.file.clone(), w.function.clone()));
        let fitting: Vec<&Written> =
            written.iter().filter(fits).filter(of_deepest).filter(|w| !itself(w)).collect();
        let Some(first) = fitting.first() else { continue };
        // Two functions of one name in a file: which of them it was is not known.
        let is_clear = fitting.iter().all(|w| w.file == first.file && w.function == first.function);
        return is_clear
            .then(|| format!("{}:{} ({})", first.file, first.begin, first.function.name));
    }
    None
}

/// File and function of a place, if that is in this layer.
fn panicked_in(member: &Member, place: &str) -> Option<(String, Function)> {
    let (file, line) = split_place(place)?;
    let inside = file.strip_prefix(member.layer.package.as_str())?.strip_prefix('/')?;
    let text = fs::read_to_string(member.dir.join(inside)).ok()?;
    let lines: Vec<&str> = text.lines().collect();
    Some((file.into(), enclosing(&lines, line)?))
}

/// A function with marked lines.
struct Written {
    /// In the workspace.
    file: String,
    /// Modules of the file, from the top of the crate.
    modules: Vec<String>,
    function: Function,
    /// Line of the mark.
    begin: usize,
}

fn written(member: &Member) -> Vec<Written> {
    let mut found = Vec::new();
    for path in sources::source_files(&member.dir).unwrap_or_default() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let inside = path.strip_prefix(&member.dir).unwrap_or(&path);
        for Region { begin, function, .. } in regions(&text) {
            let Some(function) = function else { continue };
            let file = format!("{}/{}", member.layer.package, slashes(inside));
            found.push(Written { file, modules: modules(inside), function, begin });
        }
    }
    found
}

fn slashes(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// `src/ops/rows.rs` is `ops::rows`, `src/ops/mod.rs` is `ops`, `src/lib.rs` is the crate.
fn modules(file: &Path) -> Vec<String> {
    let path = file.strip_prefix("src").unwrap_or(file).with_extension("");
    let mut parts: Vec<String> = path.iter().map(|p| p.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    parts
}

/// Crate, modules, type and functions of a symbol, without its generics and closures.
fn path_of(symbol: &str) -> Vec<String> {
    let mut text = symbol.trim().to_string();
    // `<a::B as c::D>::e` is `a::B::e`.
    while text.starts_with('<') {
        let Some(end) = at_depth(&text, 1, ">") else { break };
        let own = &text[1..at_depth(&text, 1, " as ").unwrap_or(end)];
        let own = own.trim_start_matches(['&', '*', ' ']).trim_start_matches("mut ");
        text = format!("{own}{}", &text[end + 1..]);
    }
    let mut depth = 0usize;
    let mut plain = String::new();
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let parts = plain.split("::").map(str::trim);
    parts.filter(|part| !part.is_empty() && !part.starts_with('{')).map(str::to_string).collect()
}

/// Where a text first has this inside of so many angle brackets.
fn at_depth(text: &str, wanted: usize, needle: &str) -> Option<usize> {
    let mut depth = 0usize;
    text.char_indices().find_map(|(n, c)| {
        if depth == wanted && text[n..].starts_with(needle) {
            return Some(n);
        }
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        None
    })
}

#[cfg(test)]
mod tests;

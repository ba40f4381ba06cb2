//! The pages of the book, and what a test looks for in Markdown: links, headings, code spans.

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace that the book is part of.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// A page of the book.
pub struct Page {
    /// From `book/src/`, with forward slashes.
    pub name: String,
    pub path: PathBuf,
    pub text: String,
}

/// Every page, in order of name. `SUMMARY.md` is one of them.
pub fn all() -> Vec<Page> {
    let src = root().join("book/src");
    let read = |path: PathBuf| {
        let parts = path.strip_prefix(&src).unwrap().components();
        let names: Vec<_> = parts.map(|c| c.as_os_str().to_str().unwrap()).collect();
        Page { name: names.join("/"), text: fs::read_to_string(&path).unwrap(), path }
    };
    let all: Vec<Page> = files_below(&src, "md").into_iter().map(read).collect();
    assert!(all.len() > 20, "only {} pages found", all.len());
    all
}

/// All files below a directory that have this extension, in order.
pub fn files_below(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The lines of a page, numbered from 1, each with whether it belongs to a fence.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, bool, &str)> {
    let mut fenced = false;
    text.lines().enumerate().map(move |(i, line)| {
        let edge = line.trim_start().starts_with("```");
        fenced ^= edge;
        (i + 1, fenced || edge, line)
    })
}

/// `[text](target)` and `![alt](target)` outside of fences.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (n, fenced, line) in lines(text) {
        let mut rest = line;
        while let Some(at) = rest.find("](").filter(|_| !fenced) {
            rest = &rest[at + 2..];
            let end = rest.find(')').unwrap_or(rest.len());
            found.push((n, rest[..end].to_string()));
        }
    }
    found
}

/// Code spans outside of fences. A formula, which has a dollar before and behind its backticks, is none.
pub fn spans(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (n, _, line) in lines(text).filter(|(_, fenced, _)| !fenced) {
        let parts: Vec<&str> = line.split('`').collect();
        for i in (1..parts.len()).step_by(2) {
            let behind = parts.get(i + 1).copied().unwrap_or_default();
            if !(parts[i - 1].ends_with('$') && behind.starts_with('$')) {
                found.push((n, parts[i]));
            }
        }
    }
    found
}

/// A heading: its line, counted from 1, its depth (2 for `##`) and its text.
pub struct Heading<'a> {
    pub line: usize,
    pub depth: usize,
    pub text: &'a str,
}

/// The headings of a page, in order.
pub fn headings(text: &str) -> Vec<Heading<'_>> {
    let heading = |(line, fenced, text): (usize, bool, &'_ str)| {
        let depth = text.bytes().take_while(|b| *b == b'#').count();
        (!fenced && depth > 0 && text[depth..].starts_with(' ')).then_some((line, depth))
    };
    let all = lines(text).filter_map(|it| heading(it).map(|(line, depth)| (line, depth, it.2)));
    all.map(|(line, depth, text)| Heading { line, depth, text: text[depth..].trim() }).collect()
}

/// What mdBook makes of a heading's text to link to it.
pub fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

//! What the text of the book says exists, exists: chapters, links, images, files, tests, examples.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The top-level folders that a path in backticks may begin with.
const ROOTS: [&str; 7] =
    ["book", "fixtures", "kernels", "l1-tensor", "l2-model", "l6-ensemble", "xtask"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn files_below(dir: &Path, extension: &str) -> Vec<PathBuf> {
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

struct Chapter {
    /// From `book/src/`, with forward slashes.
    name: String,
    path: PathBuf,
    text: String,
}

fn chapters() -> Vec<Chapter> {
    let src = root().join("book/src");
    let read = |path: PathBuf| {
        let parts = path.strip_prefix(&src).unwrap().components();
        let names: Vec<_> = parts.map(|c| c.as_os_str().to_str().unwrap()).collect();
        Chapter { name: names.join("/"), text: fs::read_to_string(&path).unwrap(), path }
    };
    let all: Vec<Chapter> = files_below(&src, "md").into_iter().map(read).collect();
    assert!(all.len() > 20, "only {} chapters found", all.len());
    all
}

/// The lines of a chapter, each with whether it lies inside of a fence.
fn lines(text: &str) -> impl Iterator<Item = (usize, bool, &str)> {
    let mut fenced = false;
    text.lines().enumerate().map(move |(i, line)| {
        let edge = line.trim_start().starts_with("```");
        fenced ^= edge;
        (i + 1, fenced || edge, line)
    })
}

/// `[text](target)` and `![alt](target)` outside of fences.
fn links(text: &str) -> Vec<(usize, String)> {
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

/// Code spans outside of fences.
fn spans(text: &str) -> Vec<(usize, &str)> {
    let outside = lines(text).filter(|(_, fenced, _)| !fenced);
    outside
        .flat_map(|(n, _, line)| line.split('`').skip(1).step_by(2).map(move |s| (n, s)))
        .collect()
}

/// Remove `..` without asking the file system.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = out.pop(),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

fn none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn the_summary_lists_every_chapter_and_every_chapter_is_compiled() {
    let src = root().join("book/src");
    let summary = fs::read_to_string(src.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<String> = links(&summary).into_iter().map(|(_, target)| target).collect();
    let present: BTreeSet<String> =
        chapters().into_iter().map(|c| c.name).filter(|n| n != "SUMMARY.md").collect();
    assert_eq!(listed, present, "SUMMARY.md against the files in book/src");

    let crate_root = fs::read_to_string(root().join("book/doctests.rs")).unwrap();
    let compiled: BTreeSet<String> = crate_root
        .lines()
        .filter_map(|l| l.split_once("\"src/")?.1.strip_suffix("\","))
        .map(str::to_string)
        .collect();
    assert_eq!(compiled, present, "book/doctests.rs against the files in book/src");
}

#[test]
fn every_link_leads_somewhere() {
    let mut problems = Vec::new();
    for chapter in chapters() {
        for (line, target) in links(&chapter.text) {
            if target.starts_with("http") {
                continue;
            }
            let file = target.split('#').next().unwrap_or_default();
            let path = normal(&chapter.path.parent().unwrap().join(file));
            if file.is_empty() || !path.is_file() || !path.starts_with(root().join("book/src")) {
                problems.push(format!("{}:{line}: no {target}", chapter.name));
            }
        }
    }
    none(&problems);
}

#[test]
fn every_image_is_shown_and_needs_no_network() {
    let img = root().join("book/src/img");
    let all = chapters();
    let mut problems = Vec::new();
    for path in files_below(&img, "svg") {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !all.iter().any(|c| links(&c.text).iter().any(|(_, t)| t.ends_with(name))) {
            problems.push(format!("{name} is in no chapter"));
        }
        let text = fs::read_to_string(&path).unwrap();
        let outside = text.replace("http://www.w3.org/2000/svg", "");
        if outside.contains("http") || outside.contains("href") {
            problems.push(format!("{name} refers to something outside of it"));
        }
    }
    none(&problems);
}

#[test]
fn every_source_path_exists() {
    let root = root();
    let mut problems = Vec::new();
    let mut seen = 0;
    for chapter in chapters() {
        for (line, span) in spans(&chapter.text) {
            let is_path = span.split_once('/').is_some_and(|(first, _)| ROOTS.contains(&first));
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if !is_path || !span.chars().all(plain) {
                continue;
            }
            seen += 1;
            let path = root.join(span);
            let there = if span.ends_with('/') { path.is_dir() } else { path.is_file() };
            if !there {
                problems.push(format!("{}:{line}: no `{span}`", chapter.name));
            }
        }
    }
    assert!(seen > 50, "only {seen} paths found: is this test reading them?");
    none(&problems);
}

/// The Rust sources of a workspace member, tests, benches and examples included.
fn sources(member: &str) -> String {
    let files = files_below(&root().join(member), "rs");
    files.iter().map(|f| fs::read_to_string(f).unwrap()).collect::<Vec<_>>().join("\n")
}

/// The names of all test functions, with the module of the file in front, as a filter sees them.
fn test_names(member: &str) -> Vec<String> {
    let mut names = Vec::new();
    for file in files_below(&root().join(member), "rs") {
        let text = fs::read_to_string(&file).unwrap();
        let module: Vec<_> = file
            .with_extension("")
            .strip_prefix(root().join(member))
            .unwrap()
            .components()
            .map(|c| c.as_os_str().to_string_lossy().into_owned())
            .filter(|c| c != "src" && c != "tests" && c != "mod")
            .collect();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
                let end = rest.find(['(', '<']).unwrap_or(rest.len());
                names.push(format!("{}::tests::{}", module.join("::"), &rest[..end]));
                is_test = false;
            }
        }
    }
    names
}

/// Every `cargo ...` of a chapter, in spans and in fences.
fn cargo_commands(text: &str) -> Vec<(usize, String)> {
    let in_spans = spans(text).into_iter().map(|(n, s)| (n, s.to_string()));
    let in_fences =
        lines(text).filter(|(_, fenced, _)| *fenced).map(|(n, _, l)| (n, l.trim().to_string()));
    let from_cargo = |(n, s): (usize, String)| {
        let at = s.find("cargo ")?;
        // Variables may stand before, nothing else: prose inside of a fence is no command.
        s[..at].split_whitespace().all(|w| w.contains('=')).then(|| (n, s[at..].to_string()))
    };
    in_spans.chain(in_fences).filter_map(from_cargo).collect()
}

#[test]
fn every_test_that_a_command_names_exists() {
    let root = root();
    let mut problems = Vec::new();
    let mut seen = 0;
    for chapter in chapters() {
        for (line, command) in cargo_commands(&chapter.text) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let mut bad = |why: String| {
                problems.push(format!("{}:{line}: `{command}`: {why}", chapter.name));
            };
            let after = |flag: &str| {
                let at = words.iter().position(|w| *w == flag)?;
                words.get(at + 1).copied()
            };
            let Some(package) = after("-p") else { continue };
            let member = if package == "strata-book" { "book" } else { package };
            if !root.join(member).join("Cargo.toml").is_file() {
                bad(format!("no package {package}"));
                continue;
            }
            for (flag, folder) in
                [("--test", "tests"), ("--example", "examples"), ("--bench", "benches")]
            {
                let Some(name) = after(flag) else { continue };
                let dir = root.join(member).join(folder);
                if !dir.join(format!("{name}.rs")).is_file() && !dir.join(name).is_dir() {
                    bad(format!("no {name} in {member}/{folder}"));
                }
            }
            if words.get(1) != Some(&"test") {
                continue;
            }
            seen += 1;
            // What is neither a flag nor a flag's value filters tests by name.
            let mut filter = None;
            let mut i = 2;
            while i < words.len() {
                match words[i] {
                    "-p" | "--test" | "--example" => i += 1,
                    w if w.starts_with('-') => {}
                    w => filter = Some(w),
                }
                i += 1;
            }
            if let Some(filter) = filter.filter(|f| *f != "NAME")
                && !test_names(member).iter().any(|name| name.contains(filter))
            {
                bad(format!("no test of {member} has `{filter}` in its name"));
            }
        }
    }
    assert!(seen > 40, "only {seen} commands found: is this test reading them?");
    none(&problems);
}

#[test]
fn every_long_name_in_backticks_is_in_the_sources() {
    let all: String = ["l1-tensor", "l2-model", "l6-ensemble", "fixtures"].map(sources).join("\n");
    let known: BTreeSet<&str> =
        all.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    // Keys of config.json and other people's names: not ours to define.
    let foreign = ["partial_rotary_factor", "num_key_value_heads", "max_window_layers"];
    let mut problems = Vec::new();
    let mut seen = 0;
    for chapter in chapters() {
        for (line, span) in spans(&chapter.text) {
            let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if !span.chars().all(name) || span.matches('_').count() < 2 || foreign.contains(&span) {
                continue;
            }
            seen += 1;
            if !known.contains(span) {
                problems.push(format!("{}:{line}: nothing is called `{span}`", chapter.name));
            }
        }
    }
    assert!(seen > 50, "only {seen} names found: is this test reading them?");
    none(&problems);
}

#[test]
fn every_fence_says_what_it_is_and_rust_is_never_skipped() {
    let known = ["rust", "text", "sh"];
    let mut problems = Vec::new();
    for chapter in chapters() {
        let mut open = false;
        for (n, line) in chapter.text.lines().enumerate() {
            let Some(kind) = line.trim_start().strip_prefix("```") else { continue };
            open = !open;
            if open && !known.contains(&kind) {
                problems.push(format!("{}:{}: a fence of kind `{kind}`", chapter.name, n + 1));
            }
        }
        if open {
            problems.push(format!("{}: a fence is left open", chapter.name));
        }
        let folds = |tag: &str| chapter.text.matches(tag).count();
        for (from, to) in [("<details>", "</details>"), ("<summary>", "</summary>")] {
            if folds(from) != folds(to) {
                problems.push(format!("{}: {from} without {to}", chapter.name));
            }
        }
    }
    none(&problems);
}

//! Pages, links and pictures.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::none;
use crate::pages::{all, anchor, files_below, headings, links, root};

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

#[test]
fn the_summary_lists_every_page_and_every_page_is_compiled() {
    let src = root().join("book/src");
    let summary = fs::read_to_string(src.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<String> = links(&summary).into_iter().map(|(_, target)| target).collect();
    let present: BTreeSet<String> =
        all().into_iter().map(|page| page.name).filter(|n| n != "SUMMARY.md").collect();
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
fn the_summary_calls_every_page_by_its_own_title() {
    let summary = fs::read_to_string(root().join("book/src/SUMMARY.md")).unwrap();
    let mut problems = Vec::new();
    for page in all().iter().filter(|page| page.name != "SUMMARY.md") {
        let title = headings(&page.text).first().map(|h| h.text.replace('`', ""));
        let entry = format!("[{}]({})", title.unwrap_or_default(), page.name);
        if !summary.contains(&entry) {
            problems.push(format!("SUMMARY.md should have {entry}"));
        }
    }
    none(&problems);
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let mut problems = Vec::new();
    for page in all() {
        for (line, target) in links(&page.text) {
            if target.starts_with("http") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let path = match file {
                "" => page.path.clone(),
                file => normal(&page.path.parent().unwrap().join(file)),
            };
            if target.is_empty() || !path.is_file() || !path.starts_with(root().join("book/src")) {
                problems.push(format!("{}:{line}: no {target}", page.name));
            } else if !heading.is_empty() {
                let text = fs::read_to_string(&path).unwrap();
                if !headings(&text).iter().any(|h| anchor(h.text) == heading) {
                    problems.push(format!("{}:{line}: no heading for {target}", page.name));
                }
            }
        }
    }
    none(&problems);
}

#[test]
fn anchors_are_those_that_mdbook_makes() {
    for (heading, made) in [
        ("The order to write it in", "the-order-to-write-it-in"),
        ("`l1.rope`: Rotating queries and keys", "l1rope-rotating-queries-and-keys"),
        ("f32, bf16 (and f16)", "f32-bf16-and-f16"),
    ] {
        assert_eq!(anchor(heading), made);
    }
}

#[test]
fn every_picture_is_shown_and_needs_no_network() {
    let img = root().join("book/src/img");
    let all = all();
    let mut problems = Vec::new();
    for path in files_below(&img, "svg") {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !all.iter().any(|page| links(&page.text).iter().any(|(_, t)| t.ends_with(name))) {
            problems.push(format!("{name} is on no page"));
        }
        let text = fs::read_to_string(&path).unwrap();
        let outside = text.replace("http://www.w3.org/2000/svg", "");
        if outside.contains("http") || outside.contains("href") {
            problems.push(format!("{name} refers to something outside of it"));
        }
        if !text.contains("<title") || !text.contains("<desc") {
            problems.push(format!("{name} says nothing to those who cannot see it"));
        }
    }
    none(&problems);
}

#[test]
fn every_fence_says_what_it_is_and_rust_is_never_skipped() {
    let known = ["rust", "text", "toml", "json", "math"];
    let mut problems = Vec::new();
    for page in all() {
        let mut open = false;
        for (n, line) in page.text.lines().enumerate() {
            let Some(info) = line.trim_start().strip_prefix("```") else { continue };
            open = !open;
            let shell = crate::fences::SHELL.contains(&info.split(',').next().unwrap_or_default());
            if open && !shell && !known.contains(&info) {
                problems.push(format!("{}:{}: a fence of kind `{info}`", page.name, n + 1));
            }
        }
        if let Err(e) = crate::fences::of(&page.text) {
            problems.push(format!("{}:{e}", page.name));
        }
        let folds = |tag: &str| page.text.matches(tag).count();
        for (from, to) in [("<details>", "</details>"), ("<summary>", "</summary>")] {
            if folds(from) != folds(to) {
                problems.push(format!("{}: {from} without {to}", page.name));
            }
        }
    }
    none(&problems);
}

//! What every page of a layer has, and in which order: what a reader may rely on.

use std::collections::BTreeSet;

use crate::none;
use crate::pages::{Page, all, headings, lines, links};

/// The headings of a section page, in order. Ideas stand between the second and the third.
const ELEMENTS: [&str; 8] = [
    "What you will build",
    "Invariants",
    "Your turn",
    "What you should see",
    "What the tests do not cover",
    "Test your understanding",
    "Going further",
    "Sources",
];

/// Pages of a layer that are about the layer as a whole.
const ABOUT_THE_LAYER: [&str; 6] =
    ["index.md", "order.md", "tests.md", "exercises.md", "sources.md", "where-next.md"];

/// The folder and the file of a page of a layer.
fn place(page: &Page) -> Option<(&str, &str)> {
    let (folder, file) = page.name.split_once('/')?;
    // The chapters of the server and of the fast track are built like those of the layers.
    if folder == "server" || folder == "fast-track" {
        return Some((folder, file));
    }
    let number = folder.strip_prefix('l')?.split('-').next()?;
    number.parse::<u32>().ok().map(|_| (folder, file))
}

fn layers(pages: &[Page]) -> BTreeSet<&str> {
    let found: BTreeSet<&str> = pages.iter().filter_map(|p| Some(place(p)?.0)).collect();
    assert!(found.len() > 1, "{found:?}");
    found
}

/// The lines under a `##` heading, up to the next one, without its own.
fn section<'a>(page: &'a Page, heading: &str) -> Vec<&'a str> {
    let all = headings(&page.text);
    let Some(at) = all.iter().position(|h| h.depth == 2 && h.text == heading) else {
        return Vec::new();
    };
    let end = all[at + 1..].iter().find(|h| h.depth <= 2).map_or(usize::MAX, |h| h.line);
    let inside = lines(&page.text).filter(|(n, _, _)| (all[at].line + 1..end).contains(n));
    inside.map(|(_, _, line)| line).collect()
}

#[test]
fn every_section_of_a_layer_has_the_same_elements_in_the_same_order() {
    let mut problems = Vec::new();
    let pages = all();
    let sections =
        pages.iter().filter(|p| place(p).is_some_and(|(_, file)| !ABOUT_THE_LAYER.contains(&file)));
    for page in sections {
        let mut bad = |what: String| problems.push(format!("{}: {what}", page.name));
        let headings = headings(&page.text);
        let line_of =
            |text: &str| headings.iter().find(|h| h.depth == 2 && h.text == text).map(|h| h.line);
        let mut last = 0;
        for element in ELEMENTS {
            match line_of(element) {
                None => bad(format!("no `## {element}`")),
                Some(line) if line < last => bad(format!("`## {element}` stands too early")),
                Some(line) => last = line,
            }
        }
        if headings.iter().find(|h| h.depth == 2).is_some_and(|h| h.text != ELEMENTS[0]) {
            bad(format!("the first section should be `## {}`", ELEMENTS[0]));
        }
        for state in ["**Before.**", "**After.**"] {
            if !section(page, "What you will build").iter().any(|l| l.contains(state)) {
                bad(format!("`## What you will build` should say {state}"));
            }
        }
        let first = |wanted: &[&str]| {
            let mut all = page.text.lines().enumerate();
            all.find(|(_, l)| wanted.iter().any(|w| l.starts_with(w))).map(|(i, _)| i + 1)
        };
        let code = first(&["```rust", "```sh", "```console"]);
        if code.zip(line_of("Invariants")).is_some_and(|(code, invariants)| code < invariants) {
            bad("the invariants stand before the first code".into());
        }
        let prediction = first(&["> **Predict first.**"]);
        let in_time = |line| line_of("Your turn").is_none_or(|turn| line < turn);
        if !prediction.is_some_and(in_time) {
            bad("no `> **Predict first.**` before `## Your turn`".into());
        }
        if !section(page, "What you should see").iter().any(|l| l.starts_with("```console")) {
            bad("`## What you should see` should show it: a `console` fence".into());
        }
        let questions = section(page, "Test your understanding");
        if questions.iter().filter(|l| l.contains("<details>")).count() < 2 {
            bad("`## Test your understanding` needs two folded answers at least".into());
        }
        for (element, least) in
            [("What the tests do not cover", 40), ("Going further", 40), ("Sources", 20)]
        {
            let said: usize = section(page, element).iter().map(|l| l.len()).sum();
            if line_of(element).is_some() && said < least {
                bad(format!("`## {element}` is empty"));
            }
        }
    }
    none(&problems);
}

#[test]
fn every_layer_has_a_picture_invariants_and_its_state_before_and_after() {
    let pages = all();
    let mut problems = Vec::new();
    for layer in layers(&pages) {
        let page = |file: &str| pages.iter().find(|p| place(p) == Some((layer, file)));
        let Some(index) = page("index.md") else {
            problems.push(format!("{layer} has no index.md"));
            continue;
        };
        let build = section(index, "What you will build").join("\n");
        for wanted in ["](../img/", "**Before.**", "**After.**"] {
            if !build.contains(wanted) {
                problems.push(format!("{}: `## What you will build` needs {wanted}", index.name));
            }
        }
        if section(index, "Invariants").is_empty() {
            problems.push(format!("{}: no `## Invariants`", index.name));
        }
        for file in ["tests.md", "exercises.md", "sources.md"] {
            if page(file).is_none() && layer != "fast-track" {
                problems.push(format!("{layer} has no {file}"));
            }
        }
    }
    none(&problems);
}

#[test]
fn the_pages_of_a_layer_can_be_reached_from_each_other() {
    let pages = all();
    let mut problems = Vec::new();
    for page in pages.iter().filter(|p| place(p).is_some()) {
        let (_, file) = place(page).expect("a page of a layer");
        let linked = pages.iter().any(|other| {
            other.name != "SUMMARY.md"
                && other.name != page.name
                && links(&other.text)
                    .iter()
                    .any(|(_, to)| to.split('#').next().is_some_and(|t| t.ends_with(file)))
        });
        if !linked {
            problems.push(format!("no page links to {}", page.name));
        }
    }
    none(&problems);
}

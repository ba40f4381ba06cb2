//! Exercises and mutants: the catalogues and the pages say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use course_marks::Sources;
use course_marks::marks::is_layer;

use crate::none;
use crate::pages::{Page, all, files_below, headings, lines, root, spans};
use crate::run::layers;

fn is_id(word: &str) -> bool {
    let Some((layer, name)) = word.split_once('.') else { return false };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    is_layer(layer) && !name.is_empty() && name.chars().all(plain)
}

#[test]
fn every_exercise_that_a_page_names_exists() {
    let layers = layers();
    let exists = |id: &str| layers.iter().any(|f| f.layer.exercise(id).is_some());
    let mut problems = Vec::new();
    let mut seen = 0;
    for page in all() {
        // In spans (also behind a command: `cargo x check l1.rope`) and in shell fences.
        let in_spans = spans(&page.text).into_iter().map(|(n, s)| (n, s.to_string()));
        let fences = crate::fences::of(&page.text).unwrap_or_default();
        let in_fences = fences.iter().flat_map(|f| f.steps.iter().map(|s| (s.line, &s.command)));
        let in_fences = in_fences.map(|(n, s)| (n, s.clone()));
        for (line, text) in in_spans.chain(in_fences) {
            for word in text.split_whitespace().filter(|w| is_id(w)) {
                seen += 1;
                if !exists(word) {
                    problems.push(format!("{}:{line}: no exercise `{word}`", page.name));
                }
            }
        }
    }
    assert!(seen > 20, "only {seen} exercises found: is this test reading them?");
    none(&problems);
}

#[test]
fn every_exercise_has_its_task_on_its_page_in_the_order_of_the_catalogue() {
    let pages = all();
    let mut problems = Vec::new();
    for sources in layers() {
        let mut by_page: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for exercise in &sources.layer.exercises {
            by_page.entry(&exercise.chapter).or_default().push(&exercise.id);
        }
        for (name, ids) in by_page {
            let Some(page) = pages.iter().find(|page| page.name == name) else {
                problems.push(format!("{name} is no page, and {} is taught there", ids.join(", ")));
                continue;
            };
            problems.extend(tasks(&sources, page, &ids));
        }
    }
    none(&problems);
}

/// What is wrong with the task blocks of a page.
fn tasks(sources: &Sources, page: &Page, ids: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let headings = headings(&page.text);
    let mut last = 0;
    for id in ids {
        let exercise = sources.layer.exercise(id).expect("an id of this catalogue");
        let wanted = format!("`{id}`: {}", exercise.title);
        let Some(at) = headings.iter().position(|h| h.depth == 3 && h.text == wanted) else {
            problems.push(format!("{}: no heading `### {wanted}`", page.name));
            continue;
        };
        let line = headings[at].line;
        let mut bad = |what: String| problems.push(format!("{}:{line}: {id}: {what}", page.name));
        if line < last {
            bad("the catalogue has it before the one above".into());
        }
        last = line;
        let turn = headings[..at].iter().rev().find(|h| h.depth == 2);
        if turn.is_none_or(|h| h.text != "Your turn") {
            bad("tasks stand under `## Your turn`".into());
        }
        let end = headings.get(at + 1).map_or(usize::MAX, |h| h.line);
        let block: Vec<&str> = lines(&page.text)
            .filter(|(n, _, _)| (line..end).contains(n))
            .map(|(_, _, text)| text)
            .collect();
        let block = block.join("\n");
        let files: BTreeSet<&str> = sources.of(id).map(|(file, _)| file.path.as_str()).collect();
        for file in files {
            let path = format!("`{}/{file}`", sources.layer.package);
            if !block.contains(&path) {
                bad(format!("some of it is to be written in {path}; say so"));
            }
        }
        for wanted in
            [format!("`cargo x check {id}`"), format!("about {} minutes", exercise.minutes)]
        {
            if !block.contains(&wanted) {
                bad(format!("it should say {wanted}"));
            }
        }
    }
    problems
}

/// Numbers of mutants in a text: `cargo x mutant l1 7`, and "mutant 7 of l1".
fn mutants_in(text: &str) -> Vec<(String, u32)> {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let number = |w: &&str| w.parse::<u32>().ok();
    let is_layer = |w: &&&str| is_layer(w);
    let mut found = Vec::new();
    for (i, word) in words.iter().enumerate() {
        if !word.eq_ignore_ascii_case("mutant") {
            continue;
        }
        let after = &words[i + 1..];
        let layer_first = after.first().filter(is_layer).zip(after.get(1).and_then(number));
        let number_first = match after {
            [n, "of", layer, ..] => Some(layer).filter(is_layer).zip(number(n)),
            _ => None,
        };
        found.extend(layer_first.or(number_first).map(|(layer, n)| (layer.to_string(), n)));
    }
    found
}

#[test]
fn every_mutant_that_a_page_names_exists() {
    assert_eq!(
        mutants_in("`cargo x mutant l1 7`, a mutant, Mutant 3 of l2; mutant 4."),
        [("l1".to_string(), 7), ("l2".to_string(), 3)]
    );
    let mut problems = Vec::new();
    for page in all() {
        for (layer, number) in mutants_in(&page.text) {
            let known = files_below(&root().join("mutants").join(&layer), "toml");
            let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
            let its = |name: String| name.split('-').next().and_then(|n| n.parse().ok());
            if !known.iter().any(|path| its(name(path)) == Some(number)) {
                problems.push(format!("{}: {layer} has no mutant {number}", page.name));
            }
        }
    }
    none(&problems);
}

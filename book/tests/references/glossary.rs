//! The glossary is in order, and every word in it is one that a reader meets.

use crate::none;
use crate::pages::{Page, all, lines};

/// The terms of an entry: `**BOS, EOS.** ..` has two. What stands in parentheses is no part of them.
fn entries(page: &Page) -> Vec<(usize, String)> {
    let entry = |(n, fenced, line): (usize, bool, &str)| {
        let term = line.strip_prefix("**").filter(|_| !fenced)?.split_once(".**")?.0;
        Some((n, term.to_string()))
    };
    lines(&page.text).filter_map(entry).collect()
}

fn words_of(term: &str) -> Vec<String> {
    let bare = term.split('(').next().unwrap_or_default();
    let short = term.split_once('(').map(|(_, rest)| rest.trim_end_matches(')').to_string());
    let mut words: Vec<String> = bare.split(',').map(|w| w.trim().to_string()).collect();
    words.extend(short.filter(|s| !s.contains(' ')));
    words
}

#[test]
fn the_glossary_is_in_alphabetical_order_and_its_words_are_used() {
    let pages = all();
    let glossary = pages.iter().find(|p| p.name == "glossary.md").expect("a glossary");
    let entries = entries(glossary);
    assert!(entries.len() > 40, "only {} entries found", entries.len());
    let mut problems = Vec::new();
    for two in entries.windows(2) {
        if two[0].1.to_lowercase() > two[1].1.to_lowercase() {
            problems.push(format!("glossary.md:{}: {} comes too late", two[1].0, two[1].1));
        }
    }
    let text: String = pages
        .iter()
        .filter(|p| !["glossary.md", "SUMMARY.md"].contains(&&*p.name))
        .map(|p| p.text.to_lowercase().replace('\n', " "))
        .collect();
    for (line, term) in &entries {
        // A plural or another form of the verb will do.
        let used = |word: &String| text.contains(word.to_lowercase().trim_end_matches('s'));
        if !words_of(term).iter().all(used) {
            problems.push(format!("glossary.md:{line}: no page speaks of `{term}`"));
        }
    }
    none(&problems);
}

#[test]
fn every_bold_term_of_a_section_is_in_the_glossary() {
    let pages = all();
    let glossary = pages.iter().find(|p| p.name == "glossary.md").expect("a glossary");
    let known = glossary.text.to_lowercase();
    let mut problems = Vec::new();
    for page in pages.iter().filter(|p| p.name.contains('/')) {
        for (line, fenced, text) in lines(&page.text) {
            if fenced || text.starts_with(['>', '#', '*', '|', '-']) {
                continue;
            }
            for bold in text.split("**").skip(1).step_by(2) {
                // A sentence or a label is not a term; nor is what stands in backticks.
                let word = bold.trim_end_matches('s').to_lowercase();
                let is_term = bold.split_whitespace().count() <= 2
                    && bold.chars().all(|c| c.is_alphabetic() || c == ' ' || c == '-');
                if is_term && !known.contains(&word) {
                    problems
                        .push(format!("{}:{line}: **{bold}** is not in the glossary", page.name));
                }
            }
        }
    }
    none(&problems);
}

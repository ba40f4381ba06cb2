//! Prose: pages that can be read at one sitting, and sentences with a concrete subject.

use strata_book::prose;

use crate::none;
use crate::pages::all;

/// Minutes to read the prose of a page, at most.
const MOST_MINUTES: usize = 15;

/// Pages that may take longer, with the reason.
const LONGER: [(&str, &str); 1] = [("glossary.md", "it is looked things up in, not read")];

#[test]
fn no_page_takes_longer_than_a_sitting() {
    let pages = all();
    let mut problems = Vec::new();
    for page in pages.iter().filter(|page| page.name != "SUMMARY.md") {
        let figures = prose::figures(&page.text);
        let minutes = figures.minutes();
        let exception = LONGER.iter().find(|(name, _)| *name == page.name);
        match exception {
            None if minutes > MOST_MINUTES => problems.push(format!(
                "{}: {} words of prose take {minutes} minutes; {MOST_MINUTES} are the most: split the page",
                page.name, figures.words
            )),
            Some((_, reason)) if minutes <= MOST_MINUTES => problems.push(format!(
                "{} takes {minutes} minutes, and needs no exception (\"{reason}\")",
                page.name
            )),
            _ => {}
        }
    }
    none(&problems);
}

#[test]
fn no_page_speaks_of_somebody_or_of_now() {
    let mut problems = Vec::new();
    for page in all() {
        let found = prose::banned(&page.text).into_iter();
        problems.extend(found.map(|(line, phrase)| format!("{}:{line}: `{phrase}`", page.name)));
    }
    none(&problems);
}

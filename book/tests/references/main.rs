//! What the text of the book says exists, exists; and every page has what a page must have.

#[allow(dead_code, reason = "each test uses its own part")]
#[path = "../support/mod.rs"]
mod support;

mod commands;
mod exercises;
mod formulas;
mod glossary;
mod links;
mod names;
mod prose;
mod structure;

use support::{built, fences, normal, pages, run, servers};

fn none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

//! Paths and names in backticks.

use std::collections::BTreeSet;
use std::fs;

use crate::none;
use crate::pages::{all, files_below, root, spans};

/// The top-level folders that a path in backticks may begin with.
const ROOTS: [&str; 15] = [
    "book",
    "course",
    "fixtures",
    "kernels",
    "l1-tensor",
    "l2-model",
    "l3-paged-kv",
    "l4-sampler",
    "l5-scheduler",
    "l6-ensemble",
    "mutants",
    "nano",
    "server",
    "strata",
    "xtask",
];

/// The sources of a workspace member, tests, benches, examples and kernels included. In a learner's
/// workspace also those of the reference: what is not written yet is in no other place.
fn sources(member: &str) -> String {
    let reference = root().join(course_marks::LEARNER_DIR).join("reference").join(member);
    let of = |ending| [root().join(member), reference.clone()].map(|dir| files_below(&dir, ending));
    let files = ["rs", "cu", "cuh", "hpp", "cpp"].map(of).concat().concat();
    files.iter().map(|f| fs::read_to_string(f).unwrap()).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_source_path_exists() {
    let root = root();
    let mut problems = Vec::new();
    let mut seen = 0;
    for page in all() {
        for (line, span) in spans(&page.text) {
            let is_path = span.split_once('/').is_some_and(|(first, _)| ROOTS.contains(&first));
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if !is_path || !span.chars().all(plain) {
                continue;
            }
            seen += 1;
            let path = root.join(span);
            let there = if span.ends_with('/') { path.is_dir() } else { path.is_file() };
            if !there {
                problems.push(format!("{}:{line}: no `{span}`", page.name));
            }
        }
    }
    assert!(seen > 50, "only {seen} paths found: is this test reading them?");
    none(&problems);
}

#[test]
fn every_long_name_in_backticks_is_in_the_sources() {
    let all_sources: String = [
        "l1-tensor",
        "l2-model",
        "l3-paged-kv",
        "l4-sampler",
        "l5-scheduler",
        "l6-ensemble",
        "nano",
        "server",
        "strata",
        "kernels",
        "course",
        "xtask",
        "fixtures",
    ]
    .map(sources)
    .join("\n");
    let known: BTreeSet<&str> =
        all_sources.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    // Keys of config.json and other people's names: not ours to define.
    let foreign = [
        "partial_rotary_factor",
        "num_key_value_heads",
        "max_window_layers",
        "query_start_loc",
        "gpu_memory_utilization",
        "allowed_token_ids",
        "bad_words_ids",
        "include_stop_str_in_output",
        "min_new_tokens",
        "update_from_output",
        "common_sampler_sample_and_accept_n",
    ];
    let mut problems = Vec::new();
    let mut seen = 0;
    for page in all() {
        for (line, span) in spans(&page.text) {
            let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if !span.chars().all(name) || span.matches('_').count() < 2 || foreign.contains(&span) {
                continue;
            }
            seen += 1;
            if !known.contains(span) {
                problems.push(format!("{}:{line}: nothing is called `{span}`", page.name));
            }
        }
    }
    assert!(seen > 50, "only {seen} names found: is this test reading them?");
    none(&problems);
}

//! The section of the book that has the rule of a kind of question.
//!
//! A kind may name it by its anchor (`page.md#anchor`). For the others it is in the list here. Headings move from one
//! page to another when a page is divided, so such a heading is looked for on the kind's page first and then on the
//! others of its chapter.

use std::fs;
use std::path::Path;

/// Headings by the name of the kind. A kind that is not here is explained by its whole page.
const HEADINGS: &[(&str, &str)] = &[
    ("warp-pieces", "Three kinds of memory"),
    ("padded-width", "Widths"),
    ("memory-floor", "Many threads hide a slow memory"),
    ("fragment-lane", "A matrix, spread over a warp"),
    ("butterfly", "Five exchanges for 32 lanes"),
    ("running-softmax", "Why the maximum may change late"),
    ("split-blocks", "132 multiprocessors, 8 KV heads"),
    ("merged-parts", "The merge"),
    ("window-tiles", "Causal: no query sees what comes after it"),
    ("mask-row", "Causal: no query sees what comes after it"),
    ("gqa-head", "Grouped-query attention"),
    ("lane-of", "Sixteen lanes, always"),
    ("bf16-round", "Round to nearest, ties to even"),
    ("layout-element", "A layout"),
    ("reshape-view", "Merging and splitting"),
    ("linear-bytes", "SmolLM2 in numbers"),
    ("linear-intensity", "Two limits"),
    ("rms-norm", "RMS norm"),
    ("rope-angle", "The rotation"),
    ("rope-partner", "The rotation"),
    ("argmax-tie", "Argmax and top-k"),
    ("softmax-mask", "Softmax"),
    ("panel-bytes", "Outputs side by side"),
    ("bos-ids", "Special tokens"),
    ("missing-tensor", "Names in two formats"),
    ("unpermute-row", "The row order of q and k"),
    ("layer-weights", "How large is the model?"),
    ("model-weights", "How large is the model?"),
    ("sliding-layers", "From keys to fields"),
    ("kv-bytes", "How large is the model?"),
    ("logit-rows", "A batch, never a request"),
    ("gguf-offset", "One file with everything"),
    ("stored-bytes", "The idea"),
    ("quant-weight", "One block of Q4_1, by hand"),
    ("sequence-bytes", "Memory"),
    ("next-position", "Rolling back"),
    ("held-bytes", "What can no longer change"),
    ("keys-seen", "Decode is the case q_len = 1"),
    ("same-block", "Everything before the block"),
    ("batch-lengths", "The example, by hand"),
    ("batch-slots", "The example, by hand"),
    ("block-users", "How many sequences use a block"),
    ("evicted-next", "Where a freed block goes"),
    ("pool-usage", "Cached is free"),
    ("admit-free", "Admission"),
    ("prefix-hit", "One token is left over"),
    ("block-bytes", "Bytes of a token"),
    ("longest-context", "When it does not fit"),
    ("budget-blocks", "From memory to blocks"),
    ("rollback-copy", "Rolling back into a shared block"),
    ("hashed-tokens", "Pending"),
    ("replanned", "Followers"),
    ("token-slot", "From a position to a slot"),
    ("missing-blocks", "Lengths, rounded up once"),
    ("tier-tokens", "Chunks"),
    ("may-be-chosen", "Three sets"),
    ("drawn-token", "Laying shares end to end"),
    ("top-p-kept", "Top-p"),
    ("temperature-ratio", "Softmax with temperature"),
    ("filter-survivors", "The order matters"),
    ("guide-allows", "From a grammar to bits"),
    ("row-logprob", "Of which distribution?"),
    ("penalised-logit", "Three penalties"),
    ("same-number", "From a name to a number"),
    ("greedy-token", "One order"),
    ("scanned-blocks", "A threshold from block maxima"),
    ("text-shown", "Strings are not tokens"),
    ("stop-wins", "Which stop string wins"),
    ("drafts-accepted", "Requests that sample"),
    ("residual-share", "Requests that sample"),
    ("expected-tokens", "How long is a draft accepted?"),
    ("abandoned-step", "What is not undone"),
    ("admitted-now", "The tests, in their order"),
    ("rows-ahead", "Rows that turn out to be useless"),
    ("computed-after", "Two numbers"),
    ("chunk-steps", "The threshold"),
    ("budget-shares", "The threshold"),
    ("shared-prompt", "Sharing the prompt"),
    ("drafts", "Why guess"),
    ("draft-speed-up", "The fastest number of drafts"),
    ("leased-blocks", "The union, not the sum"),
    ("fed-tokens", "Which tokens are fed"),
    ("recomputed-tokens", "Ten blocks, three requests"),
    ("gives-way", "Which request is preempted"),
    ("queue-order", "A rank is asked for once"),
    ("arrival-verdict", "Requests that can never be completed"),
    ("answer-length", "What ends a request"),
    ("longest-rest", "Expected rest of a pause"),
    ("returning-step", "A memory behind the pool"),
    ("lease-cost", "What a lease costs"),
    ("leased-gaps", "Five turns"),
    ("kv-exhausted", "Outgrown"),
    ("free-after-step", "How many slots"),
    ("sampled-rows", "Three numberings"),
    ("seat", "The lowest free seat"),
    ("replayable-steps", "Prompts can wait"),
    ("step-time", "What a step takes"),
    ("strict-room", "The rule, with an example"),
    ("breaker-state", "Back in three steps"),
    ("retry-after", "Retry-After"),
    ("door-code", "Four questions"),
    ("escalation-level", "Which time"),
    ("quotes-wrong", "What a quote is worth"),
    ("replica-choice", "When a prefix is followed"),
    ("route-verdict", "When the classifier rejects"),
    ("rule-decides", "Tripwires"),
    ("shadow-reason", "What asks for one"),
    ("latency-percentile", "Counts instead of samples"),
];

/// Where a rule is in the book.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// The page, below `book/src/`.
    pub page: String,
    /// The heading of the section, if it is known.
    pub section: Option<String>,
}

/// The rule of a kind that is explained in `chapter`, in the book below `book`.
pub fn rule(book: &Path, kind: &str, chapter: &str) -> Rule {
    let (page, anchor) = chapter.split_once('#').unwrap_or((chapter, ""));
    let whole = Rule { page: page.into(), section: None };
    if !anchor.is_empty() {
        let section = headings(&book.join(page)).into_iter().find(|h| anchor_of(h) == anchor);
        return Rule { section, ..whole };
    }
    let listed = HEADINGS.iter().find(|(name, _)| *name == kind);
    let Some((_, heading)) = listed else { return whole };
    let has = |page: &String| headings(&book.join(page)).iter().any(|h| h == heading);
    let found = Some(page.to_string()).filter(has);
    match found.or_else(|| beside(book, page).into_iter().find(has)) {
        Some(page) => Rule { page, section: Some(heading.to_string()) },
        None => whole,
    }
}

/// The other pages of a chapter, in the order of their names.
fn beside(book: &Path, page: &str) -> Vec<String> {
    let Some((folder, _)) = page.rsplit_once('/') else { return Vec::new() };
    let entries = fs::read_dir(book.join(folder)).into_iter().flatten().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    let mut pages: Vec<String> =
        names.filter(|n| n.ends_with(".md")).map(|n| format!("{folder}/{n}")).collect();
    pages.sort();
    pages
}

/// The headings of a page. In code, a line with a `#` is none.
fn headings(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap_or_default();
    let mut in_code = false;
    let heading = |line: &str| {
        in_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        let is_one = !in_code && title.len() < line.len() && title.starts_with(' ');
        is_one.then(|| title.trim().to_string())
    };
    text.lines().filter_map(heading).collect()
}

/// The anchor that mdBook gives a heading.
fn anchor_of(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::LAYERS;
    use super::*;
    use crate::shell;

    #[test]
    fn every_heading_named_is_in_the_book() {
        let book = shell::root().join("book/src");
        for (name, heading) in HEADINGS {
            let kind = LAYERS.iter().flat_map(|l| l.kinds).find(|k| k.name == *name);
            let kind = kind.unwrap_or_else(|| panic!("there is no kind {name}"));
            let rule = rule(&book, name, kind.chapter);
            assert!(
                rule.section.is_some(),
                "{name}: no page beside {} has the heading \"{heading}\"; correct it here",
                kind.chapter
            );
        }
        let mut names: Vec<&str> = HEADINGS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn a_heading_is_found_on_the_page_or_beside_it() {
        let book = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(book.path().join(name), text).unwrap();
        fs::create_dir(book.path().join("l5")).unwrap();
        write("l5/a.md", "# Page\n\n```sh\n# The lowest free seat\n```\n");
        write("l5/b.md", "# Other\n\n## The lowest free seat\n");
        let at = |page: &str, section: Option<&str>| Rule {
            page: page.into(),
            section: section.map(str::to_string),
        };
        let known = Some("The lowest free seat");
        assert_eq!(rule(book.path(), "seat", "l5/a.md"), at("l5/b.md", known));
        assert_eq!(rule(book.path(), "seat", "l5/b.md"), at("l5/b.md", known));
        write("l5/b.md", "# Other\n");
        assert_eq!(rule(book.path(), "seat", "l5/a.md"), at("l5/a.md", None));
        assert_eq!(rule(book.path(), "no-such-kind", "l5/b.md"), at("l5/b.md", None));
        let anchored = |anchor: &str| rule(book.path(), "seat", &format!("l5/c.md#{anchor}"));
        write("l5/c.md", "## Stations 6 and 7: logits, and `a` choice\n");
        let heading = "Stations 6 and 7: logits, and `a` choice";
        assert_eq!(anchored("stations-6-and-7-logits-and-a-choice"), at("l5/c.md", Some(heading)));
        assert_eq!(anchored("gone"), at("l5/c.md", None));
    }
}

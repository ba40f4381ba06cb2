//! Proposals as TOML, which an ensemble file can take over.

use std::fmt::Write;

use l6_ensemble::tune::{Proposal, TuneReport};

/// The proposals of all intents. Comments say what they follow from.
pub(super) fn toml(report: &TuneReport, files: usize) -> String {
    let mut text = String::new();
    let lines = &report.lines;
    // Writing to a String does not fail.
    let _ = writeln!(text, "# records: {}; files: {files}", lines.records);
    if lines.skipped() > 0 {
        let _ = writeln!(
            text,
            "# lines skipped: {} ({} malformed, {} torn, {} of another version, {} out of range, {} too long)",
            lines.skipped(),
            lines.malformed,
            lines.torn,
            lines.other_version,
            lines.out_of_range,
            lines.too_long
        );
    }
    let router = &report.router;
    let _ = writeln!(text, "\n[router]");
    counts(&mut text, router.records, router.judged, router.routing_errors);
    proposal(&mut text, "min_score", &router.min_score);
    for (name, intent) in &report.intents {
        let _ = writeln!(text, "\n[intents.{}]", key(name));
        counts(&mut text, intent.records, intent.judged, intent.routing_errors);
        proposal(&mut text, "shadow_below", &intent.shadow_below);
        proposal(&mut text, "spill_below", &intent.spill_below);
    }
    text
}

fn counts(text: &mut String, records: u64, judged: u64, errors: u64) {
    let _ = writeln!(text, "# records: {records}; judged: {judged}; routing errors: {errors}");
}

fn proposal(text: &mut String, name: &str, proposal: &Proposal) {
    let why = &proposal.why;
    let _ = match proposal.value {
        Some(value) => writeln!(text, "{name} = {value:?}  # {why}"),
        None => writeln!(text, "# {name}: no proposal: {why}"),
    };
}

/// Name as a key of TOML, quoted if it must be. A string of JSON is one of TOML, too.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) {
        return name.to_owned();
    }
    let quoted = serde_json::to_string(name).unwrap_or_default();
    // JSON leaves DEL as it is; TOML does not.
    quoted.replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_a_key() {
        for name in ["review", "build-fix", "", "a.b", "a\"b\\\n", "ü", "\u{7f}\u{1}", "[x]\n[y]"]
        {
            let parsed: toml::Table = format!("[intents.{}]", key(name)).parse().unwrap();
            assert!(parsed["intents"].as_table().unwrap().contains_key(name), "{name:?}");
        }
    }
}

//! One copy of a layer in which every blank and every mutant sits behind a switch.
//!
//! To prove that a gate notices a missing body or a wrong one, one could edit, build and test for
//! each of them: hundreds of builds. Instead all of them are compiled in at once, and an
//! environment variable says which is on (Untch, Offutt and Harrold, "Mutation analysis using
//! mutant schemata", 1993). One build, then only test programs to run.

use crate::edit::indent_of;
use crate::marks;
use crate::{Language, Layer, MarkProblem, Mutant};

/// The environment variable that lists what is on: ids of exercises (blank) and
/// [switches](Mutant::switch) of mutants, with commas between them.
pub const VARIABLE: &str = "STRATA_SCHEMATA";

/// To be appended to the `lib.rs` of an instrumented crate.
pub const MODULE: &str = r#"
#[doc(hidden)]
pub mod schemata {
    use std::sync::OnceLock;

    static ACTIVE: OnceLock<Vec<String>> = OnceLock::new();

    /// Whether a blank or a mutant is switched on.
    pub fn on(name: &str) -> bool {
        let listed = || {
            let all = std::env::var("STRATA_SCHEMATA").unwrap_or_default();
            all.split(',').filter(|s| !s.is_empty()).map(str::to_string).collect()
        };
        ACTIVE.get_or_init(listed).iter().any(|active| active == name)
    }
}
"#;

/// Why a file could not be instrumented.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemataError {
    /// The marks are wrong.
    #[error("line {}: {}", .0 + 1, .1)]
    Mark(usize, MarkProblem),
    /// Two mutants want to change overlapping text.
    #[error("mutants {0} and {1} overlap: give them the same `original`, or shorter ones")]
    Overlap(String, String),
    /// A mutant's text is not there.
    #[error("mutant {0}: its `original` is not in the file exactly once")]
    Missing(String),
}

/// Put a switch at the beginning of every region and around the text of every mutant of this file.
///
/// # Errors
/// [`SchemataError`].
pub fn instrument(
    text: &str,
    language: Language,
    layer: &Layer,
    mutants: &[&Mutant],
) -> Result<String, SchemataError> {
    let text = switch_mutants(text, language, mutants)?;
    let regions = marks::regions(&text).map_err(|(line, p)| SchemataError::Mark(line, p))?;
    let mut out = String::new();
    for (n, line) in text.lines().enumerate() {
        out.push_str(line);
        out.push('\n');
        let begins = regions.iter().find(|r| r.begin == n);
        if let Some(exercise) = begins.and_then(|r| layer.exercise(&r.id)) {
            let blank = language.when(&exercise.id, &language.todo(exercise));
            out.push_str(&format!("{}{blank}\n", indent_of(line)));
        }
    }
    Ok(out)
}

/// Put a switch around the text of every mutant of this file, and no blanks.
///
/// # Errors
/// [`SchemataError`].
pub fn switch_mutants(
    text: &str,
    language: Language,
    mutants: &[&Mutant],
) -> Result<String, SchemataError> {
    let mut places: Vec<(usize, &Mutant)> = Vec::new();
    for mutant in mutants {
        let mut found = text.match_indices(&mutant.original);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => places.push((at, mutant)),
            _ => return Err(SchemataError::Missing(mutant.switch())),
        }
    }
    places.sort_by_key(|(at, mutant)| (*at, mutant.original.len(), mutant.number));
    let mut out = String::new();
    let mut copied = 0;
    let mut i = 0;
    while i < places.len() {
        let (at, first) = places[i];
        let same = |(a, m): &&(usize, &Mutant)| *a == at && m.original == first.original;
        let group = places[i..].iter().take_while(same).count();
        if let Some((next_at, next)) = places.get(i + group)
            && *next_at < at + first.original.len()
        {
            return Err(SchemataError::Overlap(first.switch(), next.switch()));
        }
        out.push_str(&text[copied..at]);
        let wrong = places[i..i + group].iter().map(|(_, m)| (m.switch(), m.mutant.as_str()));
        out.push_str(&language.choice(&first.original, &wrong.collect::<Vec<_>>()));
        copied = at + first.original.len();
        i += group;
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn layer() -> Layer {
        let text = "layer = 'l1'\npackage = 'p'\ntitle = 'T'\n[[exercise]]\nid = 'l1.a'\n\
            title = 'A'\nchapter = 'c.md'\nminutes = 5\nhints = ['h']\ngates = ['f::t']\n";
        Layer::parse(text, Path::new("exercises.toml")).unwrap()
    }

    fn mutant(number: u32, original: &str, mutant: &str) -> Mutant {
        let none = String::new;
        Mutant {
            number,
            title: none(),
            exercise: "l1.a".into(),
            file: none(),
            original: original.into(),
            mutant: mutant.into(),
            story: none(),
            symptom: none(),
            choices: vec![],
        }
    }

    const SOURCE: &str =
        "fn f() {\n    // exercise l1.a\n    g(x + 1);\n    // end of exercise\n}\n";

    #[test]
    fn blanks_and_mutants_become_branches() {
        let (one, two) = (mutant(1, "x + 1", "x"), mutant(2, "x + 1", "x - 1"));
        let made = instrument(SOURCE, Language::Rust, &layer(), &[&two, &one]).unwrap();
        let expected = "fn f() {\n    // exercise l1.a\n    \
            if crate::schemata::on(\"l1.a\") { todo!(\"exercise l1.a, chapter c.md\") }\n    \
            g((if crate::schemata::on(\"l1#1\") { x } else \
            if crate::schemata::on(\"l1#2\") { x - 1 } else { x + 1 }));\n    \
            // end of exercise\n}\n";
        assert_eq!(made, expected);
    }

    #[test]
    fn statements_are_not_put_into_parentheses() {
        let wrong = mutant(1, "g(x + 1);", "h();");
        let made = instrument(SOURCE, Language::Rust, &layer(), &[&wrong]).unwrap();
        assert!(
            made.contains("\n    if crate::schemata::on(\"l1#1\") { h(); } else { g(x + 1); }\n")
        );
    }

    #[test]
    fn overlapping_mutants_are_refused() {
        let (one, two) = (mutant(1, "g(x + 1)", "g(x)"), mutant(2, "x + 1", "x"));
        let error = instrument(SOURCE, Language::Rust, &layer(), &[&one, &two]).unwrap_err();
        assert_eq!(error, SchemataError::Overlap("l1#1".into(), "l1#2".into()));
        let gone =
            instrument(SOURCE, Language::Rust, &layer(), &[&mutant(1, "y", "z")]).unwrap_err();
        assert_eq!(gone, SchemataError::Missing("l1#1".into()));
    }
}

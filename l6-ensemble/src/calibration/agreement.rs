//! How the responses of primary and shadow agree.

use serde::{Deserialize, Serialize};

/// Verdicts about one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdicts {
    /// Whether its code compiles; `None` if it was not checked, or the check was inconclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compiles: Option<bool>,
    /// Whether its tests pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<bool>,
}

/// Which of two responses are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Both responses are right.
    Both,
    /// The primary alone is right.
    PrimaryOnly,
    /// The shadow alone is right: another specialist would have served the request better, a *routing error*.
    ShadowOnly,
    /// Neither response is right: no choice between the two would have helped.
    Neither,
}

impl Outcome {
    /// The outcome of two verdicts.
    pub fn of(primary: bool, shadow: bool) -> Self {
        match (primary, shadow) {
            (true, true) => Self::Both,
            (true, false) => Self::PrimaryOnly,
            (false, true) => Self::ShadowOnly,
            (false, false) => Self::Neither,
        }
    }
}

/// Agreement of a primary and its shadow, by each kind of verdict that both have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agreement {
    /// By compiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compiles: Option<Outcome>,
    /// By tests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<Outcome>,
    /// Whether the texts are equal, [normalized]. It does not say which of two different texts is right.
    pub exact: bool,
}

impl Agreement {
    /// Compares two responses by their verdicts and texts.
    pub fn of(primary: (&Verdicts, &str), shadow: (&Verdicts, &str)) -> Self {
        let ((first, text), (second, other)) = (primary, shadow);
        let outcome = |a: Option<bool>, b: Option<bool>| Some(Outcome::of(a?, b?));
        Self {
            compiles: outcome(first.compiles, second.compiles),
            tests: outcome(first.tests, second.tests),
            exact: normalized(text) == normalized(other),
        }
    }

    /// The outcome by the strongest kind of verdict: tests, or else compiling. Code that fails its tests is wrong even
    /// if it compiles.
    pub fn outcome(&self) -> Option<Outcome> {
        self.tests.or(self.compiles)
    }
}

/// Text without the differences that say nothing about a response: line ends are `\n`, lines have no white space at
/// their end, and the text has no empty lines at its beginning and end. Indentation, empty lines within, and case stay.
pub fn normalized(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    let start = lines.iter().position(|line| !line.is_empty()).unwrap_or(lines.len());
    lines[start..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tests_decide_before_compiling() {
        let primary = Verdicts { compiles: Some(true), tests: Some(false) };
        let shadow = Verdicts { compiles: Some(true), tests: Some(true) };
        let agreement = Agreement::of((&primary, "a"), (&shadow, "b"));
        assert_eq!(agreement.compiles, Some(Outcome::Both));
        assert_eq!(agreement.outcome(), Some(Outcome::ShadowOnly));
        let untested = Verdicts { tests: None, ..shadow };
        let agreement = Agreement::of((&primary, "a"), (&untested, "b"));
        assert_eq!((agreement.tests, agreement.outcome()), (None, Some(Outcome::Both)));
        let nothing = Agreement::of((&primary, "a"), (&Verdicts::default(), "a\r\n"));
        assert_eq!((nothing.outcome(), nothing.exact), (None, true));
    }

    #[test]
    fn only_line_ends_and_outer_empty_lines_are_ignored() {
        assert_eq!(
            normalized("\n \n  int x; \r\n\r\n\treturn x;\t\n\n"),
            "  int x;\n\n\treturn x;"
        );
        for (a, b) in [("int x;", "int  x;"), ("a\nb", "a\n\nb"), (" a", "a"), ("A", "a")] {
            assert_ne!(normalized(a), normalized(b), "{a:?} {b:?}");
        }
    }

    proptest! {
        #[test]
        fn a_normalized_text_is_normal(text in "[ a\r\n\tb]{0,40}") {
            let once = normalized(&text);
            prop_assert_eq!(normalized(&once), once);
        }

        #[test]
        fn agreement_is_symmetric(
            a in any::<(Option<bool>, Option<bool>)>(), b in any::<(Option<bool>, Option<bool>)>(),
        ) {
            let verdicts = |(compiles, tests)| Verdicts { compiles, tests };
            let one = Agreement::of((&verdicts(a), "x"), (&verdicts(b), "y"));
            let other = Agreement::of((&verdicts(b), "y"), (&verdicts(a), "x"));
            let swapped = one.outcome().map(|outcome| match outcome {
                Outcome::PrimaryOnly => Outcome::ShadowOnly,
                Outcome::ShadowOnly => Outcome::PrimaryOnly,
                same => same,
            });
            prop_assert_eq!(other.outcome(), swapped);
        }
    }
}

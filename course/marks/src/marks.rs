//! The two comments that mark a piece of source as (part of) an exercise.
//!
//! They are ordinary line comments inside of a function body, so rustfmt leaves them where they are
//! and a reader who does not care skips them. Each stands alone on its line.

use crate::MarkProblem;

/// What opens a region, before the id.
pub const BEGIN: &str = "// exercise ";
/// What closes it.
pub const END: &str = "// end of exercise";

/// A marked piece of a source file. Lines are counted from 0; the marks themselves lie just outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The exercise it belongs to.
    pub id: String,
    /// The line of the opening mark.
    pub begin: usize,
    /// The line of the closing mark.
    pub end: usize,
}

impl Region {
    /// How many lines lie between the marks, blank ones and comments left out: what a learner has
    /// to write, about.
    pub fn code_lines(&self, text: &str) -> usize {
        let inside = text.lines().skip(self.begin + 1).take(self.end - self.begin - 1);
        inside.map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("//")).count()
    }
}

/// All regions of a source file, in their order.
///
/// # Errors
/// The line (counted from 0) of the first mark that is wrong, and what is wrong with it.
pub fn regions(text: &str) -> Result<Vec<Region>, (usize, MarkProblem)> {
    let mut found: Vec<Region> = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(id) = line.strip_prefix(BEGIN) {
            let id = id.trim();
            if !is_id(id) {
                return Err((n, MarkProblem::BadId(id.into())));
            }
            if let Some((outer, _)) = open {
                return Err((n, MarkProblem::Nested { outer, inner: id.into() }));
            }
            open = Some((id.into(), n));
        } else if line == END {
            let Some((id, begin)) = open.take() else {
                return Err((n, MarkProblem::NotOpen));
            };
            let region = Region { id, begin, end: n };
            if region.code_lines(text) == 0 {
                return Err((begin, MarkProblem::Empty(region.id)));
            }
            found.push(region);
        }
    }
    match open {
        Some((id, begin)) => Err((begin, MarkProblem::Open(id))),
        None => Ok(found),
    }
}

/// The crate of the fast track, which is not one of the numbered layers.
pub const FAST_TRACK: &str = "nano";

/// Whether this could be the id of a layer: `l1`, or that of the fast track.
pub fn is_layer(text: &str) -> bool {
    let digits = text.strip_prefix('l').unwrap_or_default();
    text == FAST_TRACK || !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

/// Whether this could be the id of an exercise: `l1.rms_norm`.
pub fn is_id(text: &str) -> bool {
    let Some((layer, name)) = text.split_once('.') else { return false };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    is_layer(layer) && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "\
fn a() {
    // exercise l1.a
    one();

    // why
    two();
    // end of exercise
}
fn b() {
    check();
    // exercise l1.b
    three();
    // end of exercise
}
";

    #[test]
    fn regions_are_found_with_their_lines() {
        let found = regions(TWO).unwrap();
        let at: Vec<_> = found.iter().map(|r| (r.id.as_str(), r.begin, r.end)).collect();
        assert_eq!(at, [("l1.a", 1, 6), ("l1.b", 10, 12)]);
        assert_eq!(found[0].code_lines(TWO), 2, "comments and blank lines are not counted");
    }

    #[test]
    fn every_broken_pair_is_named_at_its_line() {
        let case = |text: &str| regions(text).unwrap_err();
        let id = || "l1.a".to_string();
        assert_eq!(case("x\n// exercise l1.a\ny\n"), (1, MarkProblem::Open(id())));
        assert!(is_id("nano.rope") && is_id("l12.b_2") && !is_id("nana.rope"));
        assert_eq!(case("// end of exercise\n"), (0, MarkProblem::NotOpen));
        assert_eq!(case("// exercise l1.a\n\n// end of exercise"), (0, MarkProblem::Empty(id())));
        let nested = MarkProblem::Nested { outer: id(), inner: "l1.b".into() };
        assert_eq!(case("// exercise l1.a\nx\n// exercise l1.b\n"), (2, nested));
        for bad in ["rms_norm", "l1", "l1.", "l.a", "l1.RMS", "lx.a", "l1.a b", "l1.2"] {
            let (line, problem) = case(&format!("// exercise {bad}\nx\n// end of exercise\n"));
            assert_eq!((line, problem), (0, MarkProblem::BadId(bad.trim().into())));
        }
    }

    #[test]
    fn prose_that_mentions_an_exercise_is_no_mark() {
        let text =
            "// The exercise l1.a is fun.\n/// // exercise l1.a\nlet x = 1; // exercise l1.a\n";
        assert_eq!(regions(text), Ok(vec![]));
    }
}

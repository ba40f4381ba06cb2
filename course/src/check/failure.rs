//! Why a test failed, taken from its output.

use course_marks::edit;

use super::panics::{self, Panic};
use super::property::{self, Property};
use super::shorten;
use crate::programs::Verdict;

/// Why a test failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It reached the `todo!` of its own exercise.
    NotWritten {
        /// `file:line`.
        place: Option<String>,
    },
    /// It reached the `todo!` of another exercise.
    OtherBlank {
        /// Id of that exercise.
        id: String,
        /// `file:line`.
        place: Option<String>,
    },
    /// Two things should have been equal.
    Unequal {
        /// What was compared, in words.
        about: String,
        /// Expected value.
        expected: String,
        /// Actual value.
        got: String,
        /// `file:line` of the assertion.
        place: Option<String>,
        /// The smallest input that a property test found: each argument as `name = value`.
        input: Vec<String>,
    },
    /// It printed a message of its own.
    Said {
        /// The message.
        message: String,
        /// `file:line`.
        place: Option<String>,
        /// The smallest input that a property test found: each argument as `name = value`.
        input: Vec<String>,
    },
    /// The test program ended during the test.
    Died {
        /// How it ended, in words.
        how: String,
        /// Message printed before, if any.
        message: Option<String>,
        /// `file:line`.
        place: Option<String>,
    },
    /// It did not end in time.
    Endless,
    /// There is no such test.
    Missing,
}

impl Complaint {
    /// `file:line` of the panic that made the test fail, if that is not a `todo!`.
    pub fn panicked_at(&self) -> Option<&str> {
        match self {
            Self::Unequal { place, .. } | Self::Said { place, .. } | Self::Died { place, .. } => {
                place.as_deref()
            }
            Self::NotWritten { .. } | Self::OtherBlank { .. } | Self::Endless | Self::Missing => {
                None
            }
        }
    }
}

/// Why the test called `test`, a gate of the exercise `own`, did not pass.
pub fn understand(verdict: &Verdict, test: &str, own: &str) -> Option<Complaint> {
    Some(match verdict {
        Verdict::Passed => return None,
        Verdict::Hung => Complaint::Endless,
        Verdict::Missing => Complaint::Missing,
        Verdict::Failed(output) => {
            reached_blank(output, own).unwrap_or_else(|| failed(output, test))
        }
        Verdict::Died { how, output } => {
            reached_blank(output, own).unwrap_or_else(|| died(how, output))
        }
    })
}

/// A `todo!` of the course explains everything that follows it.
fn reached_blank(output: &str, own: &str) -> Option<Complaint> {
    let blamed = edit::blamed(output);
    let id = blamed.iter().find(|id| *id == own).or(blamed.first())?;
    let needle = format!("exercise {id},");
    // A property test repeats the message as its own, from a place of its own.
    let reached = |p: &Panic| p.message.contains(&needle) && property::read(&p.message).is_none();
    let place = panics::read(output).into_iter().find(reached).and_then(|p| p.place);
    Some(match id == own {
        true => Complaint::NotWritten { place },
        false => Complaint::OtherBlank { id: id.clone(), place },
    })
}

fn failed(output: &str, test: &str) -> Complaint {
    let all = panics::read(output);
    if let Some(found) = all.iter().rev().find_map(|p| property::read(&p.message)) {
        let inner = all.iter().rfind(|p| property::read(&p.message).is_none());
        let Property { reason, place, input } = found;
        return worded(&reason, place.or_else(|| inner.and_then(|p| p.place.clone())), input);
    }
    if let Some(complaint) = should_have_panicked(output) {
        return complaint;
    }
    // A test may provoke panics, on its own thread and on others. What made it fail came last; but
    // where it only passes on what happened on another thread, that one knows better.
    let own = |p: &&Panic| p.thread == test || p.thread == "main";
    if let Some(panic) = all.iter().rfind(own).or(all.first()) {
        return worded(&panic.message, panic.place.clone(), Vec::new());
    }
    let error = output.lines().rfind(|l| l.starts_with("Error: "));
    let last: Vec<&str> = output.lines().rev().filter(|l| !l.trim().is_empty()).take(6).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Complaint::Said {
        message: error.map(str::to_string).unwrap_or_else(|| last.join("\n")),
        place: None,
        input: Vec::new(),
    }
}

fn died(how: &str, output: &str) -> Complaint {
    let words = if output.contains("has overflowed its stack") {
        "the stack overflowed: something calls itself without an end, most likely".into()
    } else if let Some(line) = output.lines().find(|l| l.starts_with("memory allocation of")) {
        format!("{line}: a size is wrong, most likely")
    } else if how.contains("SIGSEGV") || how.contains("SIGBUS") {
        "it touched memory that is not its own: an index in unsafe code is wrong, most likely"
            .into()
    } else if how.contains("SIGILL") {
        "it reached an instruction that this processor does not have".into()
    } else {
        how.to_string()
    };
    let first = panics::read(output).into_iter().next();
    let (message, place) = first.map(|p| (Some(p.message), p.place)).unwrap_or_default();
    Complaint::Died { how: words, message, place }
}

/// A panic's message, understood if it is that of an assertion.
fn worded(message: &str, place: Option<String>, input: Vec<String>) -> Complaint {
    if let Some(Compared { about, left, right }) = compared("==", message) {
        let (expected, got) = match floats(&about, right, left) {
            Some(both) => both,
            None => shorten::around_difference(right, left),
        };
        let about = if about.is_empty() { "two values that should be equal".into() } else { about };
        return Complaint::Unequal { about, expected, got, place, input };
    }
    let message = match compared("!=", message) {
        Some(Compared { about, left, .. }) if about.is_empty() => {
            format!("two values that should differ are both {left}")
        }
        Some(Compared { about, left, .. }) => format!("{about}: both are {left}"),
        None => message.into(),
    };
    Complaint::Said { message, place, input }
}

/// The numbers whose bits were compared, if the words of the assertion contain both.
fn floats(about: &str, expected: &str, got: &str) -> Option<(String, String)> {
    let (expected, got): (u64, u64) = (expected.parse().ok()?, got.parse().ok()?);
    let separates = |c: char| c.is_whitespace() || ",;:()[]{}`'\"".contains(c);
    let words: Vec<&str> = about.split(separates).map(|w| w.trim_end_matches('.')).collect();
    let has_bits = |word: &str, bits: u64| {
        let single = word.parse::<f32>().is_ok_and(|v| u64::from(v.to_bits()) == bits);
        single || word.parse::<f64>().is_ok_and(|v| v.to_bits() == bits)
    };
    let shown = |bits: u64| {
        let word = words.iter().find(|word| has_bits(word, bits))?;
        Some(format!("{word} (bits {bits:#010x})"))
    };
    Some((shown(expected)?, shown(got)?))
}

/// The two sides of a failed assertion, and its message.
struct Compared<'a> {
    about: String,
    left: &'a str,
    right: &'a str,
}

/// The sides of a failed `assert_eq!` or `prop_assert_eq!` (with `!=`, of those that end in `_ne!`).
fn compared<'a>(operator: &str, message: &'a str) -> Option<Compared<'a>> {
    of_std_assertion(operator, message).or_else(|| of_prop_assertion(operator, message))
}

/// ``assertion `left == right` failed: ABOUT``, `left:` and `right:` on lines of their own.
fn of_std_assertion<'a>(operator: &str, message: &'a str) -> Option<Compared<'a>> {
    let (own, rest) = message.split_once(&format!("assertion `left {operator} right` failed"))?;
    let (about, values) = rest.split_once("\n  left: ")?;
    let (left, right) = values.split_once("\n right: ")?;
    let about = about_of(own, about.trim_start_matches(':'));
    Some(Compared { about, left: left.trim(), right: right.trim() })
}

/// The same of `prop_assert_eq!`, which puts values between backquotes and ABOUT behind them.
fn of_prop_assertion<'a>(operator: &str, message: &'a str) -> Option<Compared<'a>> {
    let (own, rest) =
        message.split_once(&format!("assertion failed: `(left {operator} right)`"))?;
    let (_, values) = rest.split_once("left: `")?;
    let (left, rest) = values.split_once('\n')?;
    let left = left.trim_end().trim_end_matches(',').trim_end_matches('`');
    let (_, right) = rest.split_once("right: `")?;
    let (right, about) = right.split_once("`: ").unwrap_or((right.trim_end_matches('`'), ""));
    Some(Compared { about: about_of(own, about), left, right })
}

/// What was compared: the words of the test around the assertion, and those of the assertion.
fn about_of(own: &str, about: &str) -> String {
    format!("{own}{}", about.trim()).trim_end().trim_end_matches(':').into()
}

/// What the test runner says of a test that must panic.
fn should_have_panicked(output: &str) -> Option<Complaint> {
    if output.contains("note: test did not panic as expected") {
        return Some(Complaint::Said {
            message: "this should have been refused with a panic, and was not".into(),
            place: None,
            input: Vec::new(),
        });
    }
    let (_, note) = output.split_once("note: panic did not contain expected string")?;
    let quoted = |head: &str| {
        let line = note.lines().find_map(|l| l.trim().strip_prefix(head))?;
        Some(line.trim().to_string())
    };
    let expected = quoted("expected substring:")?;
    let got = quoted("panic message:")?;
    let about = "a panic whose message contains".into();
    Some(Complaint::Unequal { about, expected, got, place: None, input: Vec::new() })
}

#[cfg(test)]
mod tests;

//! Why a test failed, taken from its output.

use course_marks::edit;

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
        /// The smallest input that a property test found.
        input: Option<String>,
    },
    /// It printed a message of its own.
    Said {
        /// The message.
        message: String,
        /// `file:line`.
        place: Option<String>,
        /// The smallest input that a property test found.
        input: Option<String>,
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

/// One panic, as Rust reports it.
#[derive(Debug, PartialEq, Eq)]
struct Panic {
    thread: String,
    /// `file:line`.
    place: Option<String>,
    message: String,
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
    let reached = |p: &Panic| p.message.contains(&needle) && !p.message.starts_with(PROPERTY);
    let place = panics(output).into_iter().find(reached).and_then(|p| p.place);
    Some(match id == own {
        true => Complaint::NotWritten { place },
        false => Complaint::OtherBlank { id: id.clone(), place },
    })
}

/// How the message of a failed property test begins.
const PROPERTY: &str = "Test failed: ";

fn failed(output: &str, test: &str) -> Complaint {
    let all = panics(output);
    if let Some(property) = all.iter().rfind(|p| p.message.starts_with(PROPERTY)) {
        let inner = all.iter().rfind(|p| !p.message.starts_with(PROPERTY));
        return of_property(&property.message, inner.and_then(|p| p.place.clone()));
    }
    if let Some(complaint) = should_have_panicked(output) {
        return complaint;
    }
    // A test may provoke panics, on its own thread and on others. What made it fail came last; but
    // where it only passes on what happened on another thread, that one knows better.
    let own = |p: &&Panic| p.thread == test || p.thread == "main";
    if let Some(panic) = all.iter().rfind(own).or(all.first()) {
        return worded(&panic.message, panic.place.clone(), None);
    }
    let error = output.lines().rfind(|l| l.starts_with("Error: "));
    let last: Vec<&str> = output.lines().rev().filter(|l| !l.trim().is_empty()).take(6).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Complaint::Said {
        message: error.map(str::to_string).unwrap_or_else(|| last.join("\n")),
        place: None,
        input: None,
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
    let first = panics(output).into_iter().next();
    let (message, place) = first.map(|p| (Some(p.message), p.place)).unwrap_or_default();
    Complaint::Died { how: words, message, place }
}

/// A panic's message, understood if it is that of an assertion.
fn worded(message: &str, place: Option<String>, input: Option<String>) -> Complaint {
    if let Some((about, got, expected)) = of_std_assertion(message).or(of_prop_assertion(message)) {
        let (expected, got) = shorten::around_difference(expected, got);
        let about = if about.is_empty() { "two values that should be equal" } else { about };
        return Complaint::Unequal { about: about.into(), expected, got, place, input };
    }
    Complaint::Said { message: message.into(), place, input }
}

/// ``assertion `left == right` failed: ABOUT``, `left:` and `right:` on lines of their own.
fn of_std_assertion(message: &str) -> Option<(&str, &str, &str)> {
    let rest = message.strip_prefix("assertion `left == right` failed")?;
    let (about, values) = rest.split_once("\n  left: ")?;
    let (left, right) = values.split_once("\n right: ")?;
    Some((about.trim_start_matches(':').trim(), left.trim(), right.trim()))
}

/// The same of `prop_assert_eq!`, which puts values between backquotes and ABOUT behind them.
fn of_prop_assertion(message: &str) -> Option<(&str, &str, &str)> {
    let rest = message.strip_prefix("assertion failed: `(left == right)`")?;
    let (_, values) = rest.split_once("left: `")?;
    let (left, rest) = values.split_once('\n')?;
    let left = left.trim_end().trim_end_matches(',').trim_end_matches('`');
    let (_, right) = rest.split_once("right: `")?;
    let (right, about) = right.split_once("`: ").unwrap_or((right.trim_end_matches('`'), ""));
    Some((about.trim(), left, right))
}

/// `Test failed: REASON at FILE:LINE.`, `minimal failing input: INPUT`, and counts.
fn of_property(message: &str, inner: Option<String>) -> Complaint {
    let rest = message.strip_prefix(PROPERTY).unwrap_or(message);
    let (reason, input) = rest.split_once("\nminimal failing input: ").unwrap_or((rest, ""));
    let input = input.split("\n\tsuccesses:").next().unwrap_or_default().trim();
    let reason = reason.trim_end().trim_end_matches('.');
    let at = reason.rsplit_once(" at ").filter(|(_, p)| is_place(p));
    let (reason, place) = match at {
        Some((reason, place)) => (reason, Some(place.to_string())),
        None => (reason, inner),
    };
    worded(reason, place, (!input.is_empty()).then(|| input.into()))
}

fn is_place(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(file, line)| file.ends_with(".rs") && line.parse::<u32>().is_ok())
}

/// What the test runner says of a test that must panic.
fn should_have_panicked(output: &str) -> Option<Complaint> {
    if output.contains("note: test did not panic as expected") {
        return Some(Complaint::Said {
            message: "this should have been refused with a panic, and was not".into(),
            place: None,
            input: None,
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
    Some(Complaint::Unequal { about, expected, got, place: None, input: None })
}

/// All panics that are reported in what a test printed.
fn panics(output: &str) -> Vec<Panic> {
    let mut found: Vec<Panic> = Vec::new();
    let mut open = false;
    for line in output.lines() {
        if let Some((thread, place)) = panic_head(line) {
            found.push(Panic { thread: thread.into(), place, message: String::new() });
            open = true;
        } else if line.starts_with("note: ") || line.starts_with("stack backtrace:") {
            open = false;
        } else if let (true, Some(panic)) = (open, found.last_mut()) {
            panic.message.push_str(line);
            panic.message.push('\n');
        }
    }
    for panic in &mut found {
        panic.message.truncate(panic.message.trim_end().len());
    }
    found
}

/// `thread 'NAME' (7) panicked at FILE:LINE:COLUMN:`.
fn panic_head(line: &str) -> Option<(&str, Option<String>)> {
    let rest = line.strip_prefix("thread '")?;
    let (thread, place) = rest.split_once(" panicked at ")?;
    let (thread, _) = thread.rsplit_once('\'')?;
    let (place, _column) = place.strip_suffix(':')?.rsplit_once(':')?;
    // A learner cannot change a file outside of the workspace (the standard library, a crate).
    let ours = is_place(place) && !place.starts_with('/');
    Some((thread, ours.then(|| place.to_string())))
}

#[cfg(test)]
mod tests;

//! The screen about the first exercise that fails.

use course_marks::Gate;

use super::failure::Complaint;
use super::origin::Given;
use super::places::{self, Place};
use super::walk::Trouble;
use crate::link::Version;
use crate::screen::{HEIGHT, Screen, Tone, WIDTH};
use crate::workspace::Task;

/// Number of lines of a hint that are shown with a failure.
const NUDGE_LINES: usize = 5;
/// Number of lines of the input of a property.
const INPUT_LINES: usize = 4;
/// Indentation of the lines of the middle part.
const INDENT: &str = "  ";

/// Contents of the screen.
pub struct Report<'a> {
    /// The exercise.
    pub task: Task<'a>,
    /// The gate that did not pass.
    pub trouble: &'a Trouble<'a>,
    /// Why it failed.
    pub complaint: Complaint,
    /// Where to write.
    pub places: Vec<Place>,
    /// Files of its gates that were edited, and the command that brings them back.
    pub edited: Option<(Vec<String>, String)>,
    /// Which version of the layer of another blank is linked, if the complaint is about one.
    pub linked: Option<Version>,
    /// Number of hints that were shown before.
    pub hints: usize,
    /// The hint that belongs to this gate.
    pub nudge: Option<&'a str>,
}

/// The screen, below lines that are there already.
pub fn render(report: &Report, above: Screen) -> Screen {
    let mut head = above;
    heading(report, &mut head);
    let mut tail = Screen::default();
    nudge(report, &mut tail);
    tail.blank();
    commands(report, &mut tail);

    let mut middle = Screen::default();
    test(report, &mut middle);
    complain(report, &mut middle);
    let room = HEIGHT.saturating_sub(head.height() + tail.height() + 2);
    let rest = format!("{INDENT}.. all of it: {}", whole_output(report));
    middle.keep(room, &rest);

    head.blank();
    head.append(middle).blank();
    head.append(tail);
    head
}

/// `l1.rms_norm, exercise 5 of 13: Root mean square norm, about 30 min`, and where.
fn heading(report: &Report, screen: &mut Screen) {
    screen.line(Tone::Strong, report.task.to_string());
    where_and_what(&report.task, &report.places, screen);
    if let Some((files, remedy)) = &report.edited {
        let more = match files.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let said = format!("{}{more} was edited: this result is that of an edited test.", files[0]);
        screen.line(Tone::Bad, format!("{INDENT}note     {said}"));
        screen.line(Tone::Plain, format!("{INDENT}         {remedy}"));
    }
}

/// The files to write in and the page to read.
pub fn where_and_what(task: &Task, places: &[Place], screen: &mut Screen) {
    const FILES: usize = 5;
    for (n, place) in places.iter().take(FILES).enumerate() {
        let label = if n == 0 { "write" } else { "" };
        let more = match places.len() {
            all if n + 1 == FILES && all > FILES => format!(", and in {} more", all - FILES),
            _ => String::new(),
        };
        screen.line(Tone::Plain, format!("{INDENT}{label:<9}{place}{more}"));
    }
    let page = format!("{INDENT}{:<9}book/src/{}", "read", task.exercise.chapter);
    screen.line(Tone::Plain, page);
}

/// The name of the test in words, and where it is.
fn test(report: &Report, screen: &mut Screen) {
    let gate = report.trouble.gate;
    screen.line(Tone::Bad, format!("{INDENT}failed   {}", in_words(gate)));
    let place = places::of_gate(report.task.member, gate).map(|p| p.to_string());
    let place = place.unwrap_or_else(|| gate.to_string());
    let others = match (report.trouble.failing - 1, report.task.exercise.gates.len() - 1) {
        (_, 0) => String::new(),
        (0, 1) => "; the other test passed".into(),
        (0, all) => format!("; the {all} other tests passed"),
        (1, 1) => "; the other test failed too".into(),
        (n, all) if n == all => format!("; the {all} other tests failed too"),
        (n, all) => format!("; {n} of the {all} other tests failed too"),
    };
    screen.line(Tone::Faint, format!("{INDENT}         {place}{others}"));
    screen.blank();
}

/// The name of a test as a sentence. The modules of an integration test begin the sentence; those of a unit test are
/// left out.
fn in_words(gate: &Gate) -> String {
    let name = match gate.target.as_str() {
        "lib" => gate.test.rsplit("::").next().unwrap_or(&gate.test),
        _ => &gate.test,
    };
    name.replace("::", ", ").replace('_', " ")
}

/// What was expected and what the test got.
fn complain(report: &Report, screen: &mut Screen) {
    let own = &report.task;
    let mut say = |text: &str| {
        screen.wrapped(Tone::Plain, INDENT, text);
    };
    match &report.complaint {
        Complaint::NotWritten { place } => match place {
            Some(place) => say(&format!("not written yet: {place}")),
            None => say("not written yet"),
        },
        Complaint::OtherBlank { id, place } => {
            let at = place.as_ref().map(|p| format!(" ({p})")).unwrap_or_default();
            say(&format!("it reached {id}, which is not written yet{at}."));
            say(&other_blank(own, id, report.linked));
        }
        Complaint::Unequal { about, expected, got, place, input } => {
            lines(screen, about);
            screen.line(Tone::Plain, format!("{INDENT}  expected  {expected}"));
            screen.line(Tone::Plain, format!("{INDENT}  got       {got}"));
            origin(screen, report, place, input);
        }
        Complaint::Said { message, place, input } => {
            lines(screen, message);
            origin(screen, report, place, input);
        }
        Complaint::Died { how, message, place } => {
            say(&format!("the test program ended early: {how}"));
            if let Some(message) = message {
                lines(screen, message);
            }
            origin(screen, report, place, &[]);
        }
        Complaint::Endless => {
            let seconds = super::walk::PATIENCE.as_secs();
            say(&format!(
                "it did not end within {seconds} s and was stopped: probably an endless loop, or threads \
                 that wait for each other."
            ));
        }
        Complaint::Missing => {
            say("this test is missing, so the exercise cannot pass. Restore its file.")
        }
    }
}

/// A message as it is, line by line; only what is too long is wrapped, which loses its columns.
fn lines(screen: &mut Screen, message: &str) {
    for line in message.lines() {
        if line.chars().count() + INDENT.len() <= WIDTH {
            screen.line(Tone::Plain, format!("{INDENT}{line}"));
        } else {
            let space = line.len() - line.trim_start().len();
            screen.wrapped(Tone::Plain, &format!("{INDENT}{}", " ".repeat(space.min(20))), line);
        }
    }
}

/// The line that panicked, and the input for which a property failed.
fn origin(screen: &mut Screen, report: &Report, place: &Option<String>, input: &[String]) {
    if let Some(place) = place {
        match &report.trouble.given {
            None => {
                screen.line(Tone::Faint, format!("{INDENT}  at        {place}"));
            }
            Some(Given { caller }) => {
                let caller = caller.as_ref().map(|c| format!(", called from your {c}"));
                let said =
                    format!("panicked in given code at {place}{}", caller.unwrap_or_default());
                screen.wrapped(Tone::Plain, &format!("{INDENT}  "), &said);
            }
        }
    }
    if !input.is_empty() {
        let mut shown = Screen::default();
        for argument in input {
            shown.wrapped(Tone::Plain, &format!("{INDENT}  "), argument);
        }
        shown.keep(INPUT_LINES, &format!("{INDENT}  .."));
        screen.line(Tone::Plain, format!("{INDENT}fails for"));
        screen.append(shown);
    }
}

fn other_blank(own: &Task, id: &str, linked: Option<Version>) -> String {
    let layer = id.split('.').next().unwrap_or_default();
    if layer != own.member.layer.id {
        return match linked {
            Some(Version::Mine) => format!(
                "Your {layer} is in use here. Until it is complete: cargo x use {layer} reference"
            ),
            _ => format!("That is in {layer}: cargo x check {layer}"),
        };
    }
    let number = own.member.tasks().find(|t| t.exercise.id == id).map_or(0, |t| t.number);
    if number > own.number {
        format!("That is a later exercise; {} can be done without it.", own.exercise.id)
    } else {
        format!("The tests of {} need it. Write it first: cargo x check {id}", own.exercise.id)
    }
}

fn nudge(report: &Report, screen: &mut Screen) {
    let own = match &report.complaint {
        // It says nothing yet of what may be wrong.
        Complaint::NotWritten { .. } | Complaint::OtherBlank { .. } | Complaint::Missing => None,
        _ => report.nudge,
    };
    let first = report.task.exercise.hints.first().map(String::as_str);
    let Some(hint) = own.or(first) else { return };
    let mut nudge = Screen::default();
    nudge.wrapped(Tone::Plain, "  nudge    ", hint);
    nudge.keep(NUDGE_LINES, "           .. all of it: cargo x hint ID");
    screen.append(nudge);
}

fn commands(report: &Report, screen: &mut Screen) {
    let exercise = &report.task.exercise;
    let id = &exercise.id;
    let all = exercise.hints.len();
    let next = match report.hints.max(1) + 1 {
        n if n <= all => format!("hint {n} of {all}"),
        _ => "all hints again".to_string(),
    };
    let only = format!("cargo x check {id}");
    screen.line(Tone::Plain, format!("{INDENT}{only:<32} only this exercise"));
    screen.line(Tone::Plain, format!("{INDENT}{:<32} {next}", format!("cargo x hint {id}")));
}

/// The command that shows everything a test prints.
fn whole_output(report: &Report) -> String {
    let gate = report.trouble.gate;
    let target = match gate.target.as_str() {
        "lib" => "--lib".to_string(),
        name => format!("--test {name}"),
    };
    format!("cargo test -p {} {target} {}", report.task.member.layer.package, gate.test)
}

#[cfg(test)]
mod tests;

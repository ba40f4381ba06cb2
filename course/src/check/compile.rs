//! The screen about code that does not compile.

use super::walk::Walk;
use super::{gates, places};
use crate::programs::{Diagnostic, NotBuilt};
use crate::screen::{HEIGHT, Screen, Tone, count};
use crate::workspace::{Task, Workspace};

/// The screen, below lines that are there already. `None` when everything was built.
pub fn render(workspace: &Workspace, walk: &Walk, above: Screen) -> Option<Screen> {
    let (task, why) = walk.not_built.first()?;
    Some(match why {
        NotBuilt::Compile(errors) => refused(workspace, task, &distinct(errors), above),
        NotBuilt::Cargo(said) => cargo(task, said, above),
    })
}

/// A crate is compiled as a library and as a test program, and complains twice.
fn distinct(errors: &[Diagnostic]) -> Vec<&Diagnostic> {
    let mut found: Vec<&Diagnostic> = Vec::new();
    for error in errors {
        if !found.iter().any(|f| f.place == error.place && f.message == error.message) {
            found.push(error);
        }
    }
    found
}

fn refused(workspace: &Workspace, task: &Task, errors: &[&Diagnostic], above: Screen) -> Screen {
    let mut screen = above;
    let package = &task.member.layer.package;
    let first = errors[0];
    match &first.place {
        Some((file, line, column)) => {
            screen.line(Tone::Strong, format!("This does not compile: {file}:{line}:{column}"));
            if let Some(inside) = places::exercise_at(workspace, file, *line) {
                let e = inside.exercise;
                screen.line(Tone::Plain, format!("  within   {}: {}", e.id, e.title));
            } else if is_gate(workspace, file) {
                let edited = gates::changed(workspace, task.member).contains(file);
                let why = match edited {
                    true => "a test that was edited; restore the original with",
                    false => "a test; it calls your code by the signatures of the reference",
                };
                screen.line(Tone::Plain, format!("  within   {why}"));
                if edited {
                    let remedy = gates::remedy(workspace, std::slice::from_ref(file));
                    screen.line(Tone::Plain, format!("           {remedy}"));
                }
            }
        }
        None => {
            screen.line(Tone::Strong, format!("{package} does not compile."));
        }
    }
    screen.blank();

    let mut tail = Screen::default();
    if errors.len() > 1 {
        let others = count(errors.len() - 1, "more error");
        tail.line(Tone::Plain, format!("{others} after this one, perhaps caused by it."));
    }
    let all = format!("cargo test --no-run -p {package}");
    tail.line(Tone::Faint, format!("All errors: {all}"));

    let mut rendered = Screen::default();
    for line in first.rendered.lines() {
        rendered.line(Tone::Plain, format!("  {line}"));
    }
    if first.rendered.trim().is_empty() {
        rendered.wrapped(Tone::Plain, "  ", &first.message);
    }
    rendered.keep(HEIGHT.saturating_sub(screen.height() + tail.height() + 1), "  ..");
    screen.append(rendered).blank();
    screen.append(tail);
    screen
}

fn is_gate(workspace: &Workspace, file: &str) -> bool {
    workspace.learner.as_ref().is_some_and(|m| m.gates.contains_key(file))
}

/// Cargo has a problem of its own: no network, a broken manifest, a file that is gone.
fn cargo(task: &Task, said: &str, above: Screen) -> Screen {
    let mut screen = above;
    let package = &task.member.layer.package;
    screen.line(Tone::Strong, format!("The tests of {package} cannot be built. Cargo says:"));
    screen.blank();
    // Progress and warnings come before the error; causes after it.
    let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
    let from = lines.iter().position(|l| l.starts_with("error")).unwrap_or(0);
    let mut middle = Screen::default();
    for line in &lines[from..] {
        middle.line(Tone::Plain, format!("  {line}"));
    }
    middle.keep(HEIGHT.saturating_sub(screen.height() + 2), "  ..");
    screen.append(middle).blank();
    screen.line(Tone::Faint, format!("To see it again: cargo test --no-run -p {package}"));
    screen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report_fixture;

    fn error(n: usize, lines: usize) -> Diagnostic {
        let rendered = vec!["source line ".repeat(12); lines].join("\n");
        Diagnostic::error_at("p/src/a.rs", n, "E0308: mismatched types", &rendered)
    }

    #[test]
    fn the_first_error_is_shown_in_one_screen_and_the_others_are_counted() {
        let (_dir, workspace) = report_fixture::workspace();
        let task = workspace.task("l1.a").unwrap();
        // The same error of the library and of the test program, and another.
        let errors = vec![error(2, 40), error(2, 40), error(9, 1)];
        let walk = Walk { seen: vec![], not_built: vec![(task, NotBuilt::Compile(errors))] };
        let screen = render(&workspace, &walk, Screen::default()).unwrap();
        let text = screen.text();
        assert!(screen.height() <= HEIGHT, "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 100));
        assert!(text.starts_with("This does not compile: p/src/a.rs:2:5\n"), "{text}");
        assert!(text.contains("within   l1.a: An idea"), "{text}");
        assert!(text.contains("\n1 more error after"), "{text}");
    }

    #[test]
    fn what_cargo_says_begins_at_its_error() {
        let (_dir, workspace) = report_fixture::workspace();
        let said = "    Updating index\nwarning: x\nerror: failed to parse manifest\n\nCaused by:\n  \
            no";
        let why = NotBuilt::Cargo(said.into());
        let walk = Walk { seen: vec![], not_built: vec![(workspace.task("l1.a").unwrap(), why)] };
        let text = render(&workspace, &walk, Screen::default()).unwrap().text();
        assert!(
            text.contains("\n\n  error: failed to parse manifest\n  Caused by:\n    no"),
            "{text}"
        );
        assert!(!text.contains("Updating"), "{text}");
    }
}

//! The screens about what passes, and what to do next.

use std::fs;

use course_marks::marks::FAST_TRACK;

use super::walk::Walk;
use crate::link::{self, Version};
use crate::screen::{Screen, Tone};
use crate::workspace::{Member, Task, Workspace};

/// Everything passed.
pub fn everything(workspace: &Workspace, above: Screen) -> Screen {
    let mut screen = above;
    let names: Vec<&str> = workspace.taught().map(|f| f.layer.id.as_str()).collect();
    let names = names.join(" and ");
    if workspace.learner.is_none() {
        screen.line(
            Tone::Good,
            format!("All exercises of {names} pass, as expected: this is the reference workspace."),
        );
        screen.blank();
        screen.line(Tone::Plain, "To write them yourself, make a workspace to learn in:");
        screen.blank();
        screen.line(Tone::Plain, "  cargo x start ../my-strata --all");
        screen.line(Tone::Plain, "  cd ../my-strata");
        screen.line(Tone::Plain, "  cargo x check");
        return screen;
    }
    let what = if names == FAST_TRACK { "fast track" } else { "course" };
    screen.line(Tone::Good, format!("All exercises of {names} pass. The {what} is complete."));
    screen.blank();
    screen.line(Tone::Plain, "What you can do next:");
    screen.blank();
    for member in workspace.taught() {
        let id = &member.layer.id;
        if is_unused(workspace, member) {
            let command = format!("cargo x use {id} mine");
            screen
                .line(Tone::Plain, format!("  {command:<30} link your {id} into the layers above"));
        }
    }
    let first = workspace.taught().next().map_or("l1", |f| f.layer.id.as_str());
    let last = workspace.taught().last().map_or("l1", |f| f.layer.id.as_str());
    for (command, about) in [
        ("cargo run --release -- chat".to_string(), "chat with a model"),
        (format!("cargo x mutant {first} 1"), "find the mistake in a wrong version"),
        (format!("cargo x predict {last}"), "work out a number by hand"),
        (format!("cargo x reveal {last}.<name>"), "compare your code with the reference"),
        (
            format!("cargo bench -p {}", bench_package(workspace)),
            "measure it against the limits of the machine",
        ),
    ] {
        screen.line(Tone::Plain, format!("  {command:<30} {about}"));
    }
    screen.blank();
    if allows_unused(workspace) {
        screen.wrapped(
            Tone::Plain,
            "",
            "Warnings about unused code were off while bodies were missing. Remove the line \
             `unused = ..` from Cargo.toml to see them.",
        );
    }
    screen
}

/// All of one layer passed.
pub fn layer(workspace: &Workspace, member: &Member, above: Screen) -> Screen {
    let mut screen = above;
    let layer = &member.layer;
    let taught = workspace.taught().any(|f| f.layer.id == layer.id);
    let whose = if taught { "" } else { ", as expected: here it is the reference" };
    let (id, title) = (&layer.id, &layer.title);
    screen.line(Tone::Good, format!("All exercises of {id} ({title}) pass{whose}."));
    if !taught && workspace.learner.is_some() {
        return screen;
    }
    if workspace.learner.is_none() {
        screen.line(
            Tone::Plain,
            "This is the reference workspace; `cargo x start ../my-strata` makes one to learn in.",
        );
        return screen;
    }
    if is_unused(workspace, member) {
        let id = &layer.id;
        screen.line(
            Tone::Plain,
            format!("  cargo x use {id} mine    link your {id} into the layers above"),
        );
    }
    screen.line(Tone::Plain, "  cargo x check         go on with the next exercise");
    screen
}

/// One exercise passed.
pub fn exercise(workspace: &Workspace, task: &Task) -> Screen {
    let mut screen = Screen::default();
    let e = task.exercise;
    let tests = match e.gates.len() {
        1 => "its test passes".to_string(),
        n => format!("all {n} tests pass"),
    };
    screen.line(Tone::Good, format!("{} passes: {tests}. {}.", e.id, e.title));
    if workspace.learner.is_some() {
        for (command, about) in [
            (format!("cargo x reveal {}", e.id), "compare your code with the reference"),
            ("cargo x check".into(), "go on with the next exercise"),
        ] {
            screen.line(Tone::Plain, format!("  {command:<30} {about}"));
        }
    }
    screen
}

/// A line about exercises that failed when last checked and pass now.
pub fn newly(ids: &[&str]) -> Option<String> {
    let last = ids.last()?;
    let others = match ids.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    Some(format!("{last} passes now{others}. Compare: cargo x reveal {last}"))
}

/// A screen about what passes, with a note about tests that were edited.
pub fn with_note(screen: Screen, edited: Option<(Vec<String>, String)>) -> Screen {
    let mut screen = screen;
    if let Some((files, remedy)) = edited {
        let verb = if files.len() == 1 { "was" } else { "were" };
        screen.blank();
        let said = format!(
            "{} {verb} edited, so these results are those of edited tests.",
            files.join(", ")
        );
        screen.wrapped(Tone::Bad, "note  ", &said);
        screen.wrapped(Tone::Plain, "      ", &remedy);
    }
    screen
}

/// A layer that is complete while the layers above still use the reference of it.
pub fn unused_layer(workspace: &Workspace, tasks: &[Task], walk: &Walk) -> Option<String> {
    let complete = |member: &&Member| {
        let mut of_member =
            tasks.iter().filter(|t| t.member.layer.id == member.layer.id).peekable();
        let passed = |t: &Task| {
            let id = &t.exercise.id;
            walk.seen.iter().any(|s| s.trouble.is_none() && s.task.exercise.id == *id)
        };
        of_member.peek().is_some() && of_member.all(passed)
    };
    let member = workspace.taught().filter(complete).find(|f| is_unused(workspace, f))?;
    let id = &member.layer.id;
    Some(format!("    {id} is complete; to run the layers above on yours: cargo x use {id} mine"))
}

/// Whether the layers above use the reference of this one. No layer is above the fast track.
fn is_unused(workspace: &Workspace, member: &Member) -> bool {
    let linked = link::linked(&cargo_toml(workspace), &member.layer.package);
    member.layer.id != FAST_TRACK && linked == Some(Version::Reference)
}

fn allows_unused(workspace: &Workspace) -> bool {
    cargo_toml(workspace).lines().any(|l| l.starts_with("unused = "))
}

fn cargo_toml(workspace: &Workspace) -> String {
    fs::read_to_string(workspace.root.join("Cargo.toml")).unwrap_or_default()
}

fn bench_package(workspace: &Workspace) -> &str {
    let mut with_benches = workspace.taught().filter(|f| f.dir.join("benches").is_dir());
    with_benches.next().map_or("l1-tensor", |f| f.layer.package.as_str())
}

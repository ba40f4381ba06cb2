//! The screens about what holds, and what to do next.

use std::fs;

use super::walk::Walk;
use crate::learn::house::{Floor, House, Task};
use crate::learn::link::{self, Version};
use crate::learn::screen::{Screen, Tone};

/// Everything passed.
pub fn everything(house: &House, above: Screen) -> Screen {
    let mut screen = above;
    let names: Vec<&str> = house.taught().map(|f| f.layer.id.as_str()).collect();
    let names = names.join(" and ");
    if house.learner.is_none() {
        screen.line(
            Tone::Good,
            format!("Everything in {names} holds, as it should: this is the reference."),
        );
        screen.blank();
        screen.line(Tone::Plain, "To write it yourself, make a workspace of your own:");
        screen.blank();
        screen.line(Tone::Plain, "  cargo x start ../my-strata --all");
        screen.line(Tone::Plain, "  cd ../my-strata");
        screen.line(Tone::Plain, "  cargo x check");
        return screen;
    }
    screen.line(Tone::Good, format!("Every exercise of {names} holds. You have written it all."));
    screen.blank();
    screen.line(Tone::Plain, "What to do with it:");
    screen.blank();
    for floor in house.taught() {
        let id = &floor.layer.id;
        if version(house, floor) == Some(Version::Reference) {
            let command = format!("cargo x use {id} mine");
            screen.line(
                Tone::Plain,
                format!("  {command:<30} let the layers above run on your {id}"),
            );
        }
    }
    let first = house.taught().next().map_or("l1", |f| f.layer.id.as_str());
    let last = house.taught().last().map_or("l1", |f| f.layer.id.as_str());
    for (command, about) in [
        ("cargo run --release -- chat".to_string(), "talk to a model that runs on it"),
        (format!("cargo x mutant {first} 1"), "have a bug planted, and find it"),
        (format!("cargo x predict {last}"), "say a number before the machine does"),
        (format!("cargo x reveal {last}.<name>"), "compare yours with the reference"),
        (
            format!("cargo bench -p {}", bench_package(house)),
            "see how near to the machine's limits it is",
        ),
    ] {
        screen.line(Tone::Plain, format!("  {command:<30} {about}"));
    }
    screen.blank();
    if allows_unused(house) {
        screen.wrapped(
            Tone::Plain,
            "",
            "While bodies were missing, the compiler kept quiet about unused things. Take the line \
             `unused = ..` out of Cargo.toml and see what it says now.",
        );
    }
    screen
}

/// All of one layer passed.
pub fn layer(house: &House, floor: &Floor, above: Screen) -> Screen {
    let mut screen = above;
    let layer = &floor.layer;
    let taught = house.taught().any(|f| f.layer.id == layer.id);
    let whose = if taught { "" } else { ", as it should: here it is the reference" };
    let (id, title) = (&layer.id, &layer.title);
    screen.line(Tone::Good, format!("Every exercise of {id} ({title}) holds{whose}."));
    if !taught && house.learner.is_some() {
        return screen;
    }
    if house.learner.is_none() {
        screen.line(
            Tone::Plain,
            "This is the reference; `cargo x start ../my-strata` makes a workspace to learn in.",
        );
        return screen;
    }
    if version(house, floor) == Some(Version::Reference) {
        let id = &layer.id;
        screen.line(
            Tone::Plain,
            format!("  cargo x use {id} mine    let the layers above run on your {id}"),
        );
    }
    screen.line(Tone::Plain, "  cargo x check         go on with what is next");
    screen
}

/// One exercise passed.
pub fn exercise(house: &House, task: &Task) -> Screen {
    let mut screen = Screen::default();
    let e = task.exercise;
    let tests = match e.gates.len() {
        1 => "its test passes".to_string(),
        n => format!("all {n} tests pass"),
    };
    screen.line(Tone::Good, format!("{} holds: {tests}. {}.", e.id, e.title));
    if house.learner.is_some() {
        for (command, about) in [
            (format!("cargo x reveal {}", e.id), "compare yours with the reference"),
            ("cargo x check".into(), "go on with what is next"),
        ] {
            screen.line(Tone::Plain, format!("  {command:<30} {about}"));
        }
    }
    screen
}

/// A word about exercises that did not hold the last time and do now.
pub fn newly(ids: &[&str]) -> Option<String> {
    let last = ids.last()?;
    let others = match ids.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    Some(format!("{last} holds now{others}. Compare: cargo x reveal {last}"))
}

/// A screen about what holds, with a word about tests that were edited.
pub fn with_note(screen: Screen, edited: Option<(Vec<String>, String)>) -> Screen {
    let mut screen = screen;
    if let Some((files, remedy)) = edited {
        let verb = if files.len() == 1 { "was" } else { "were" };
        screen.blank();
        let said = format!("{} {verb} edited: edited tests have passed.", files.join(", "));
        screen.wrapped(Tone::Bad, "note  ", &said);
        screen.wrapped(Tone::Plain, "      ", &remedy);
    }
    screen
}

/// A layer that is complete while the layers above still use the reference of it.
pub fn unused_layer(house: &House, tasks: &[Task], walk: &Walk) -> Option<String> {
    let complete = |floor: &&Floor| {
        let mut of_floor = tasks.iter().filter(|t| t.floor.layer.id == floor.layer.id).peekable();
        let passed = |t: &Task| {
            let id = &t.exercise.id;
            walk.seen.iter().any(|s| s.trouble.is_none() && s.task.exercise.id == *id)
        };
        of_floor.peek().is_some() && of_floor.all(passed)
    };
    let floor =
        house.taught().filter(complete).find(|f| version(house, f) == Some(Version::Reference))?;
    let id = &floor.layer.id;
    Some(format!("    {id} is complete; to run the layers above on yours: cargo x use {id} mine"))
}

fn version(house: &House, floor: &Floor) -> Option<Version> {
    link::linked(&cargo_toml(house), &floor.layer.package)
}

fn allows_unused(house: &House) -> bool {
    cargo_toml(house).lines().any(|l| l.starts_with("unused = "))
}

fn cargo_toml(house: &House) -> String {
    fs::read_to_string(house.root.join("Cargo.toml")).unwrap_or_default()
}

fn bench_package(house: &House) -> &str {
    let mut with_benches = house.taught().filter(|f| f.dir.join("benches").is_dir());
    with_benches.next().map_or("l1-tensor", |f| f.layer.package.as_str())
}

//! `cargo x check`: runs the gates in order and explains the first that fails.
//!
//! * `walk` runs gates in the order of the curriculum;
//! * `building` prints how a build goes;
//! * `failure` understands what a failed test printed (`panics` and `property` parse it, `shorten` cuts what is too
//!   long), `origin` whether given code panicked;
//! * [`places`] knows where things are in the files, `gates` whether tests were edited;
//! * [`report`], `compile` and `green` are the three screens it can end with.

mod building;
mod compile;
mod failure;
mod gates;
mod green;
mod origin;
mod panics;
pub mod places;
mod property;
pub mod report;
mod shorten;
mod walk;

#[cfg(test)]
pub mod report_fixture;

use std::fs;
use std::process::exit;

use anyhow::{Result, bail};
use clap::Args;
use course_marks::marks::FAST_TRACK;

use super::screen::{HEIGHT, Screen, Tone, bar};
use super::state::State;
use super::watch;
use super::workspace::{Task, Workspace};
use super::{celebrate, link};

pub use building::{Building, with_progress};
pub use gates::{changed as changed_gates, that_matter as gates_that_matter};
#[cfg(test)]
pub use report_fixture::seen;
pub use walk::{Walk, walk};

/// Run the tests of the exercises in order and explain the first that fails
#[derive(Args)]
pub struct CheckArgs {
    /// One exercise (l1.rms_norm) or one layer (l1); without it, everything in order
    what: Option<String>,
    /// Check again whenever a source file changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// What is to be checked.
enum Selection {
    Everything,
    Layer(String),
    Exercise(String),
}

/// Run the command.
pub fn run(args: &CheckArgs) -> Result<()> {
    let workspace = Workspace::open()?;
    // An unknown name is an error now, not once per change.
    let selection = select(&workspace, args.what.as_deref())?;
    if args.watch {
        return watch::run(&workspace.root, &mut || {
            once(&Workspace::open()?, &selection).map(drop)
        });
    }
    if !once(&workspace, &selection)? {
        // The screen shows the reason; the status is for scripts.
        exit(1);
    }
    Ok(())
}

fn select(workspace: &Workspace, what: Option<&str>) -> Result<Selection> {
    let Some(what) = what else { return Ok(Selection::Everything) };
    if let Ok(member) = workspace.member(what) {
        return Ok(Selection::Layer(member.layer.id.clone()));
    }
    // Neither a layer nor a name with a layer in front of it: `l7`.
    let number = what.strip_prefix('l').unwrap_or_default();
    if !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()) {
        bail!("{:#}", workspace.member(what).err().map(|e| e.to_string()).unwrap_or_default());
    }
    Ok(Selection::Exercise(workspace.task(what)?.exercise.id.clone()))
}

/// Check, print, remember. Whether everything passed.
fn once(workspace: &Workspace, selection: &Selection) -> Result<bool> {
    let mut state = State::load(workspace);
    let tasks: Vec<Task> = match selection {
        Selection::Everything => workspace.taught().flat_map(|f| f.tasks()).collect(),
        Selection::Layer(id) => workspace.member(id)?.tasks().collect(),
        Selection::Exercise(id) => vec![workspace.task(id)?],
    };
    let bars = !matches!(selection, Selection::Exercise(_));
    let walk = with_progress(|building| walk(workspace, &state, &tasks, true, building))?;
    let above = if bars { standing(workspace, &state, &tasks, &walk) } else { Screen::default() };

    let (screen, passed) = if let Some(screen) = compile::render(workspace, &walk, above.clone()) {
        (screen, false)
    } else if let Some(seen) = walk.seen.iter().find(|s| s.trouble.is_some()) {
        (explain(workspace, &state, seen, above)?, false)
    } else {
        let edited = edited_of(workspace, &tasks);
        let green = match selection {
            Selection::Everything => green::everything(workspace, above),
            Selection::Layer(id) => green::layer(workspace, workspace.member(id)?, above),
            Selection::Exercise(_) => green::exercise(workspace, &tasks[0]),
        };
        (green::with_note(green, edited), true)
    };
    let mut screen = screen;
    let is_new = |s: &&walk::Seen| s.trouble.is_none() && !state.of(&s.task.exercise.id).holds;
    let new: Vec<&str> =
        walk.seen.iter().filter(is_new).map(|s| s.task.exercise.id.as_str()).collect();
    if bars
        && workspace.learner.is_some()
        && screen.height() + 2 <= HEIGHT
        && let Some(word) = green::newly(&new)
    {
        screen.blank().line(Tone::Good, word);
    }
    screen.print();
    let ends_fast_track = ends_fast_track(workspace, selection, passed, &new);
    remember(&mut state, &walk)?;
    if ends_fast_track {
        celebrate::run(workspace)?;
    }
    Ok(passed)
}

/// Whether the fast track is complete and this check was about it alone, or is the first in which its last exercise passes.
fn ends_fast_track(
    workspace: &Workspace,
    selection: &Selection,
    passed: bool,
    new: &[&str],
) -> bool {
    let Ok(member) = workspace.member(FAST_TRACK) else { return false };
    let alone = match selection {
        Selection::Everything => workspace.taught().all(|f| f.layer.id == FAST_TRACK),
        Selection::Layer(id) => id == FAST_TRACK,
        Selection::Exercise(_) => false,
    };
    let last = member.layer.exercises.last().map(|e| e.id.as_str());
    let done = passed && alone || last.is_some_and(|last| new.contains(&last));
    workspace.learner.is_some() && done
}

/// Everything about an exercise that does not hold.
fn explain(
    workspace: &Workspace,
    state: &State,
    seen: &walk::Seen,
    above: Screen,
) -> Result<Screen> {
    let Some(trouble) = &seen.trouble else { return Ok(above) };
    let task = seen.task;
    let id = &task.exercise.id;
    let complaint = failure::understand(&trouble.verdict, &trouble.gate.test, id);
    let complaint = complaint.unwrap_or(failure::Complaint::Missing);
    let linked = match &complaint {
        failure::Complaint::OtherBlank { id, .. } => linked_version(workspace, id),
        _ => None,
    };
    let places = places::to_write(&task)?;
    let report = report::Report {
        task,
        trouble,
        complaint,
        places,
        edited: edited_of(workspace, &[task]),
        linked,
        hints: state.of(id).hints,
        nudge: course_marks::Nudge::of(&task.exercise.nudges, trouble.gate),
    };
    Ok(report::render(&report, above))
}

/// Files of the gates of these exercises that were edited, with the command that restores them.
fn edited_of(workspace: &Workspace, tasks: &[Task]) -> Option<(Vec<String>, String)> {
    let mut edited: Vec<String> = Vec::new();
    for tasks in tasks.chunk_by(|a, b| a.member.layer.id == b.member.layer.id) {
        let changed = gates::changed(workspace, tasks[0].member);
        for task in tasks {
            edited.extend(gates::that_matter(&changed, task.member, &task.exercise.gates));
        }
    }
    edited.sort();
    edited.dedup();
    let remedy = if edited.is_empty() { return None } else { gates::remedy(workspace, &edited) };
    Some((edited, remedy))
}

/// Which version of the layer of an exercise the layers above it use.
fn linked_version(workspace: &Workspace, id: &str) -> Option<link::Version> {
    let member = workspace.task(id).ok()?.member;
    let text = fs::read_to_string(workspace.root.join("Cargo.toml")).ok()?;
    link::linked(&text, &member.layer.package)
}

/// `l1  ####.........  4 of 13`: a line for each layer that was begun.
fn standing(workspace: &Workspace, state: &State, tasks: &[Task], walk: &Walk) -> Screen {
    let mut screen = Screen::default();
    let mut complete: Vec<String> = Vec::new();
    for tasks in tasks.chunk_by(|a, b| a.member.layer.id == b.member.layer.id) {
        let layer = &tasks[0].member.layer;
        let of_layer = |t: &Task| t.member.layer.id == layer.id;
        let passed = walk.seen.iter().filter(|s| of_layer(&s.task) && s.trouble.is_none()).count();
        if passed == tasks.len() {
            complete.push(format!("{}  {}  all {passed}", layer.id, bar(passed, passed)));
            continue;
        }
        let line = |n: usize, when: &str| {
            format!("{}  {}  {n} of {}{when}", layer.id, bar(n, tasks.len()), tasks.len())
        };
        let not_built = walk.not_built.iter().any(|(t, _)| of_layer(t));
        if not_built && passed == 0 {
            let held = tasks.iter().filter(|t| state.of(&t.exercise.id).holds).count();
            let when = if state.is_kept() { ", when last checked" } else { "" };
            complete.push(line(held, when));
        } else {
            complete.push(line(passed, ""));
        }
        // The layers above it were not looked at.
        break;
    }
    // Of many layers the last ones are of interest; a screen is small.
    let from = complete.len().saturating_sub(3);
    for line in &complete[from..] {
        let tone = if line.contains("  all ") { Tone::Good } else { Tone::Plain };
        screen.line(tone, line);
    }
    // Where all is green there is a longer list of what to do.
    let goes_on = walk.seen.iter().any(|s| s.trouble.is_some()) || !walk.not_built.is_empty();
    if goes_on
        && workspace.learner.is_some()
        && let Some(advice) = green::unused_layer(workspace, tasks, walk)
    {
        screen.line(Tone::Faint, advice);
    }
    screen.blank();
    screen
}

/// Remember what held, and that the nudge of the one that did not was shown.
fn remember(state: &mut State, walk: &Walk) -> Result<()> {
    for seen in &walk.seen {
        let id = &seen.task.exercise.id;
        state.verified(id, seen.trouble.is_none());
        if seen.trouble.is_some() {
            state.change(id, |record| record.hints = record.hints.max(1));
        }
    }
    state.save()
}

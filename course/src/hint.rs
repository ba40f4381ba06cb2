//! `cargo x hint`: shows the next hint.

use anyhow::Result;
use clap::Args;

use super::screen::{Screen, Tone};
use super::state::State;
use super::workspace::{Task, Workspace};

/// Show the next hint of an exercise
#[derive(Args)]
pub struct HintArgs {
    /// The exercise; without it, the first that is not done
    id: Option<String>,
}

/// Run the command.
pub fn run(args: &HintArgs) -> Result<()> {
    let workspace = Workspace::open()?;
    let mut state = State::load(&workspace);
    let task = match &args.id {
        Some(id) => Some(workspace.task(id)?),
        None if workspace.learner.is_some() => state.first_open(&workspace)?,
        None => {
            println!(
                "This is the reference workspace: every exercise is written. Name one, such as\n\n    \
                 cargo x hint {}",
                workspace.members[0].layer.exercises[0].id
            );
            return Ok(());
        }
    };
    let Some(task) = task else {
        println!("All exercises passed when last checked. `cargo x check` checks them again.");
        return Ok(());
    };
    let id = &task.exercise.id;
    let before = state.of(id).hints;
    let shown = (before + 1).min(task.exercise.hints.len());
    render(&task, before, state.is_kept()).print();
    state.change(id, |record| record.hints = shown);
    state.save()
}

/// The hints so far and the next one.
fn render(task: &Task, before: usize, is_kept: bool) -> Screen {
    let exercise = task.exercise;
    let all = exercise.hints.len();
    let shown = (before + 1).min(all);
    let mut screen = Screen::default();
    screen.line(Tone::Strong, format!("{}: {}", exercise.id, exercise.title));
    for (n, hint) in exercise.hints.iter().take(shown).enumerate() {
        let tone = if n + 1 == shown { Tone::Plain } else { Tone::Faint };
        screen.blank();
        screen.wrapped(tone, &format!("  {} of {all}   ", n + 1), hint);
    }
    screen.blank();
    if shown == all {
        let last =
            if before >= all { "There are no more hints." } else { "That was the last one." };
        let reveal = format!("cargo x reveal {} shows the reference's code.", exercise.id);
        screen.line(Tone::Plain, format!("{last} {reveal}"));
    } else {
        screen.line(Tone::Faint, "cargo x hint again gives the next one.");
    }
    if !is_kept {
        screen.line(Tone::Faint, "Shown hints are not remembered here, so this is the first one.");
    }
    screen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report_fixture;
    use crate::screen::{HEIGHT, WIDTH};

    #[test]
    fn hints_come_one_by_one_and_the_last_points_at_the_reference() {
        let (_dir, workspace) = report_fixture::workspace();
        let task = workspace.task("l1.a").unwrap();
        let text = |before| render(&task, before, true).text();
        assert!(text(0).contains("1 of 3   look there") && !text(0).contains("and there"));
        assert!(text(1).contains("1 of 3") && text(1).contains("2 of 3   and there"));
        assert!(text(1).contains("again gives the next"));
        assert!(text(2).contains("3 of 3   write this") && text(2).contains("the last one"));
        assert!(text(3).contains("no more hints") && text(3).contains("cargo x reveal l1.a"));
        assert!(render(&task, 0, false).text().contains("not remembered here"));
    }

    #[test]
    fn the_longest_hints_of_the_course_fit_a_screen() {
        let workspace = Workspace::open().unwrap();
        for task in workspace.members.iter().flat_map(|f| f.tasks()) {
            let screen = render(&task, 3, false);
            let (id, text) = (&task.exercise.id, screen.text());
            assert!(screen.height() <= HEIGHT, "{id}: {} lines", screen.height());
            assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        }
    }
}

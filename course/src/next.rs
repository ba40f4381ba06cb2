//! `cargo x next`: shows what to read and where to write. It builds nothing.

use anyhow::Result;

use super::check::{places, report};
use super::needs::Needs;
use super::screen::{Screen, Tone};
use super::state::State;
use super::workspace::{Task, Workspace};

/// Run the command.
pub fn run() -> Result<()> {
    let workspace = Workspace::open()?;
    if workspace.learner.is_none() {
        println!(
            "This is the reference workspace: every exercise is written. To make one to learn in:\n\n    \
             cargo x start ../my-strata --all"
        );
        return Ok(());
    }
    match State::load(&workspace).first_open(&workspace)? {
        Some(task) => render(&workspace, &Needs::read(&workspace.root)?, &task)?.print(),
        None => {
            println!("All exercises passed when last checked. `cargo x check` checks them again.")
        }
    }
    Ok(())
}

fn render(workspace: &Workspace, needs: &Needs, task: &Task) -> Result<Screen> {
    let exercise = task.exercise;
    let mut screen = Screen::default();
    screen.line(Tone::Strong, task.to_string());
    report::where_and_what(task, &places::to_write(task)?, &mut screen);
    if let Some(title) = places::title_of_page(&workspace.root, &exercise.chapter) {
        screen.line(Tone::Plain, format!("           {title}"));
    }
    let ids = needs.of(&exercise.id).unwrap_or_default();
    if !ids.is_empty() {
        screen.line(Tone::Plain, format!("  uses     {}", ids.join(", ")));
    }
    screen.blank();
    for (options, about) in [("", "only this exercise"), (" --watch", "again after every change")] {
        let command = format!("cargo x check {}{options}", exercise.id);
        screen.line(Tone::Plain, format!("  {command:<32} {about}"));
    }
    Ok(screen)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::check::report_fixture;

    #[test]
    fn what_is_next_is_said_without_building_anything() {
        let (dir, workspace) = report_fixture::workspace();
        let mut state = State::load(&workspace);
        let first = |state: &State| {
            state.first_open(&workspace).unwrap().map(|t| t.exercise.id.clone()).unwrap_or_default()
        };
        assert_eq!(first(&state), "l1.a");
        // Written and never checked: still to be looked at.
        fs::write(dir.path().join("p/src/a.rs"), "fn f() {}\n").unwrap();
        assert_eq!(first(&state), "l1.a");
        state.verified("l1.a", true);
        assert_eq!(first(&state), "l1.b");
        // An exercise that passed once and is blank again is open.
        state.verified("l1.b", true);
        assert_eq!(first(&state), "l1.b");
        fs::remove_file(dir.path().join("p/src/b.rs")).unwrap();
        assert_eq!(first(&state), "");

        let mut needs = Needs::default();
        needs.set(&workspace.members[0].layer, &[BTreeSet::new(), BTreeSet::from([0])]);
        let task = workspace.task("l1.b").unwrap();
        let text = render(&workspace, &needs, &task).unwrap().text();
        let expected = "\
l1.b, exercise 2 of 2: An idea, about 30 min
  write    p/src/b.rs
  read     book/src/c.md
           A page
  uses     l1.a

  cargo x check l1.b               only this exercise
  cargo x check l1.b --watch       again after every change
";
        assert_eq!(text, expected);
    }
}

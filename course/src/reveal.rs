//! `cargo x reveal`: shows the reference's code. It writes no source file.

use anyhow::{Result, bail};
use clap::Args;
use course_marks::edit;

use super::screen;
use super::state::State;
use super::workspace::{Task, Workspace};

/// Show how the reference does an exercise
#[derive(Args)]
pub struct RevealArgs {
    /// The exercise
    id: String,
    /// Do not ask first
    #[arg(long)]
    yes: bool,
}

/// Run the command.
pub fn run(args: &RevealArgs) -> Result<()> {
    let workspace = Workspace::open()?;
    let task = workspace.task(&args.id)?;
    let mut state = State::load(&workspace);
    // In the reference there is nothing to give away.
    if !args.yes && workspace.learner.is_some() {
        let hints_left = task.exercise.hints.len().saturating_sub(state.of(&args.id).hints);
        let Some(answer) = screen::ask(&question(&task, hints_left))? else {
            bail!(
                "there is no terminal to confirm on; `cargo x reveal {} --yes` shows the code",
                args.id
            );
        };
        if !is_yes(&answer) {
            println!("Not shown.");
            return Ok(());
        }
        println!();
    }
    screen::print(&bodies(&workspace, &task)?);
    state.change(&args.id, |record| record.revealed = true);
    state.save()
}

fn question(task: &Task, hints_left: usize) -> String {
    let left = match hints_left {
        0 => String::new(),
        n => format!(" There {} left: cargo x hint {}.", are(n), task.exercise.id),
    };
    format!("This shows the reference's code for {}.{left}\nShow it? [y/N] ", task.exercise.id)
}

fn are(hints: usize) -> String {
    let verb = if hints == 1 { "is" } else { "are" };
    format!("{verb} {}", screen::count(hints, "hint"))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// The reference's text between the marks, each piece below the name of its file.
fn bodies(workspace: &Workspace, task: &Task) -> Result<String> {
    let id = &task.exercise.id;
    let sources = task.member.sources()?;
    let mut text = String::new();
    for file in &sources.files {
        let bodies = edit::bodies(&file.text, id)
            .map_err(|(line, problem)| anyhow::anyhow!("{}:{}: {problem}", file.path, line + 1))?;
        let regions = file.regions.iter().filter(|r| r.id == *id);
        for (body, region) in bodies.iter().zip(regions) {
            let path = task.member.reference.join(&file.path);
            let path = path.strip_prefix(&workspace.root).unwrap_or(&path).display().to_string();
            // The line of the function around the region.
            let signature = signature_above(&file.text, region.begin);
            text.push_str(&format!("// {path}:{}\n{signature}{body}\n\n", region.begin + 2));
        }
    }
    text.push_str(&format!("// Your files are unchanged. cargo x check {id}\n"));
    Ok(text)
}

/// The line that begins the function around a line, or nothing if there is none.
fn signature_above(text: &str, line: usize) -> String {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let is_head = |l: &&str| {
        let l = l.trim_start();
        !l.starts_with("//") && (l.starts_with("fn ") || l.contains(" fn "))
    };
    lines.iter().rev().find(|l| is_head(l)).map(|l| format!("{l}\n")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report_fixture;

    #[test]
    fn the_reference_is_shown_with_its_place_and_nothing_is_written() {
        let (dir, workspace) = report_fixture::workspace();
        let mine = dir.path().join("p/src/a.rs");
        let before = std::fs::read_to_string(&mine).unwrap();
        let text = bodies(&workspace, &workspace.task("l1.a").unwrap()).unwrap();
        assert!(text.starts_with("// .strata/reference/p/src/a.rs:3\nfn f() {\n"), "{text}");
        assert!(text.contains("    let answer = 42;\n") && !text.contains("43"), "{text}");
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), before);
    }

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, yes) in
            [("y\n", true), ("Yes", true), ("", false), ("\n", false), ("yo", false)]
        {
            assert_eq!(is_yes(answer), yes, "{answer:?}");
        }
    }

    #[test]
    fn the_question_mentions_hints_that_are_left() {
        let (_dir, workspace) = report_fixture::workspace();
        let task = workspace.task("l1.a").unwrap();
        assert!(question(&task, 2).contains("There are 2 hints left: cargo x hint l1.a."));
        assert!(question(&task, 1).contains("There is 1 hint left"));
        assert!(!question(&task, 0).contains("hint"));
    }
}

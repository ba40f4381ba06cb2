//! `cargo x progress`: which exercises are done. It runs all gates. The remembered state is shown only where the tree does
//! not compile, and is marked as such.
//!
//! An exercise whose `todo!` is still there is not done, and its test programs are not built.

use std::collections::BTreeMap;

use anyhow::Result;

use super::check::{self, Walk};
use super::pace::{Finished, Pace, pace};
use super::programs::NotBuilt;
use super::screen::{Screen, Tone, bar, cut};
use super::state::{Blanks, Record, State};
use super::workspace::{Member, Task, Workspace};

/// State of an exercise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// All its gates pass.
    Done,
    /// Something was written, and a gate does not pass.
    Failing,
    /// Its `todo!` is still there.
    NotYet,
    /// Not verified now; it passed when last checked.
    WasDone,
    /// Not verified now; it failed when last checked, or was never checked.
    Unknown,
}

/// Run the command.
pub fn run() -> Result<()> {
    let workspace = Workspace::open()?;
    let mut state = State::load(&workspace);
    let mut tasks: Vec<Task> = Vec::new();
    for member in workspace.taught() {
        let blanks = Blanks::of(member)?;
        let (blank, written): (Vec<Task>, Vec<Task>) = member.tasks().partition(|t| blanks.has(t));
        tasks.extend(written);
        for task in blank {
            state.verified(&task.exercise.id, false);
        }
    }
    let walk = check::with_progress(|tell| check::walk(&workspace, &state, &tasks, false, tell))?;
    for seen in &walk.seen {
        state.verified(&seen.task.exercise.id, seen.trouble.is_none());
    }
    render(&workspace, &state, &walk)?.print();
    state.save()
}

fn render(workspace: &Workspace, state: &State, walk: &Walk) -> Result<Screen> {
    let mut screen = Screen::default();
    let mut first_open = None;
    let mut any_edited = false;
    let mut minutes_left = 0;
    for member in workspace.taught() {
        let standings = standings(member, state, walk)?;
        let changed = check::changed_gates(workspace, member);
        let guessed = |s: &Standing| matches!(s, Standing::WasDone | Standing::Unknown);
        let verified = !standings.iter().any(guessed);
        heading(member, &standings, verified, &mut screen);
        for (task, standing) in member.tasks().zip(&standings) {
            let open = !matches!(standing, Standing::Done | Standing::WasDone);
            let is_first = open && first_open.is_none();
            if is_first {
                first_open = Some(task);
            }
            minutes_left += if open { task.exercise.minutes } else { 0 };
            let matter = check::gates_that_matter(&changed, member, &task.exercise.gates);
            let edited = !matter.is_empty() && *standing == Standing::Done;
            any_edited |= edited;
            let record = state.of(&task.exercise.id);
            line(&task, *standing, is_first, edited, &record, &mut screen);
        }
        screen.blank();
    }
    if any_edited {
        screen.line(Tone::Bad, "* by edited tests; `cargo x check` names the files.");
    }
    if let Some((task, why)) = walk.not_built.first() {
        screen.line(Tone::Bad, unverified(task, why));
    }
    if let Some(pace) = measured(workspace, state) {
        screen.line(Tone::Plain, at_your_pace(pace, minutes_left));
    }
    match first_open {
        _ if workspace.learner.is_none() => screen
            .line(Tone::Plain, "This is the reference workspace: cargo x start ../my-strata --all"),
        Some(task) => {
            screen.line(Tone::Plain, format!("Next is {}: cargo x next", task.exercise.id))
        }
        None => {
            screen.line(Tone::Good, "All exercises pass. `cargo x check` lists what to do next.")
        }
    };
    Ok(screen)
}

/// States of the exercises of a layer.
fn standings(member: &Member, state: &State, walk: &Walk) -> Result<Vec<Standing>> {
    let seen = walk.seen.iter();
    let found: BTreeMap<&str, bool> =
        seen.map(|s| (s.task.exercise.id.as_str(), s.trouble.is_none())).collect();
    let blanks = Blanks::of(member)?;
    let standing = |task: Task| match found.get(task.exercise.id.as_str()) {
        Some(true) => Standing::Done,
        _ if blanks.has(&task) => Standing::NotYet,
        Some(false) => Standing::Failing,
        None if state.of(&task.exercise.id).holds => Standing::WasDone,
        None => Standing::Unknown,
    };
    Ok(member.tasks().map(standing).collect())
}

/// `l1  ####.........  4 of 13, Tensors, about 9 h to go`.
fn heading(member: &Member, standings: &[Standing], verified: bool, screen: &mut Screen) {
    let layer = &member.layer;
    let is_done = |s: &Standing| matches!(s, Standing::Done | Standing::WasDone);
    let done = standings.iter().filter(|s| is_done(s)).count();
    let left = layer.exercises.iter().zip(standings).filter(|(_, s)| !is_done(s));
    let minutes: u32 = left.map(|(e, _)| e.minutes).sum();
    let to_go = match minutes {
        0 => "complete".to_string(),
        m => format!("about {} to go", duration(m)),
    };
    let now = if verified { "" } else { " (as last known, not verified)" };
    let tone = if minutes == 0 && verified { Tone::Good } else { Tone::Strong };
    let all = standings.len();
    let bar = bar(done, all);
    let title = &layer.title;
    screen.line(tone, format!("{}  {bar}  {done} of {all}, {title}, {to_go}{now}", layer.id));
}

fn line(
    task: &Task,
    standing: Standing,
    is_first: bool,
    edited: bool,
    record: &Record,
    screen: &mut Screen,
) {
    let exercise = task.exercise;
    let (word, tone) = match standing {
        Standing::Done if edited => ("done*", Tone::Good),
        Standing::Done => ("done", Tone::Good),
        Standing::Failing => ("fails", Tone::Bad),
        Standing::NotYet if is_first => ("next", Tone::Strong),
        Standing::NotYet => ("", Tone::Plain),
        Standing::WasDone => ("was done", Tone::Faint),
        Standing::Unknown => ("unknown", Tone::Faint),
    };
    let mut used = Vec::new();
    if let Some(track) = &exercise.track {
        used.push(format!("side: {track}"));
    }
    // The first hint is shown with every failure, so it does not count.
    if record.hints > 1 {
        used.push(format!("hint {}/{}", record.hints, exercise.hints.len()));
    }
    if record.revealed {
        used.push("revealed".to_string());
    }
    let used = used.join(", ");
    let (id, title, minutes) = (&exercise.id, cut(&exercise.title, 45), exercise.minutes);
    screen.line(tone, format!("  {word:<9} {id:<14} {title:<45} {minutes:>3} min  {used}"));
}

/// The pace over all exercises that the learner wrote.
fn measured(workspace: &Workspace, state: &State) -> Option<Pace> {
    let finished = workspace.taught().flat_map(Member::tasks).filter_map(|task| {
        let record = state.of(&task.exercise.id);
        let at = record.first_green.filter(|_| !record.revealed)?;
        Some(Finished { at, minutes: task.exercise.minutes })
    });
    pace(finished.collect())
}

fn at_your_pace(Pace { ratio, exercises }: Pace, minutes_left: u32) -> String {
    let left = match (f64::from(minutes_left) * ratio).round() as u32 {
        0 => String::new(),
        minutes => format!("; at this pace, {} are left", duration(minutes)),
    };
    format!("Your pace: {ratio:.1} times the listed minutes (over {exercises} exercises){left}.")
}

fn unverified(task: &Task, why: &NotBuilt) -> String {
    let layer = &task.member.layer.id;
    let reason = match why {
        NotBuilt::Compile(errors) => match errors.first().and_then(|e| e.place.as_ref()) {
            Some((file, line, _)) => format!("{file}:{line} does not compile"),
            None => "it does not compile".into(),
        },
        NotBuilt::Cargo(_) => "cargo cannot build it".into(),
    };
    format!("{layer} is not verified: {reason} (cargo x check {layer}).")
}

/// `40 min`, `2 h`, `9.5 h`.
fn duration(minutes: u32) -> String {
    if minutes < 60 {
        return format!("{minutes} min");
    }
    let halves = (minutes + 15) / 30;
    let half = if halves % 2 == 1 { ".5" } else { "" };
    format!("{}{half} h", halves / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{report_fixture, seen};
    use crate::programs::Diagnostic;
    use crate::screen::WIDTH;

    #[test]
    fn what_was_found_out_now_is_what_is_drawn() {
        let (_dir, workspace) = report_fixture::workspace();
        let mut state = State::load(&workspace);
        // Remembered as done, which it is not.
        state.verified("l1.b", true);
        state.change("l1.b", |r| (r.hints, r.revealed) = (2, true));
        let walk = Walk {
            seen: vec![seen(&workspace, "l1.a", true), seen(&workspace, "l1.b", false)],
            not_built: vec![],
        };
        let text = render(&workspace, &state, &walk).unwrap().text();
        let row = |word: &str, id: &str| format!("  {word:<9} {id:<14} {:<45}  30 min", "An idea");
        let expected = format!(
            "l1  #.  1 of 2, Tensors, about 30 min to go\n{}\n{}  hint 2/3, revealed\n\n\
             Next is l1.b: cargo x next\n",
            row("done", "l1.a"),
            row("next", "l1.b")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_tree_that_does_not_compile_shows_what_was_known_and_says_so() {
        let (dir, workspace) = report_fixture::workspace();
        std::fs::write(dir.path().join("p/src/a.rs"), "fn f() { half written").unwrap();
        let mut state = State::load(&workspace);
        state.verified("l1.a", true);
        let errors = vec![Diagnostic::error_at("p/src/a.rs", 1, "expected `}`", "")];
        let task = workspace.task("l1.a").unwrap();
        let walk = Walk { seen: vec![], not_built: vec![(task, NotBuilt::Compile(errors))] };
        let text = render(&workspace, &state, &walk).unwrap().text();
        assert!(
            text.contains("1 of 2") && text.contains("(as last known, not verified)"),
            "{text}"
        );
        assert!(text.contains("was done  l1.a"), "{text}");
        assert!(text.contains("l1 is not verified: p/src/a.rs:1 does not compile"), "{text}");
    }

    #[test]
    fn the_longest_titles_of_the_course_fit_a_line() {
        let workspace = Workspace::open().unwrap();
        let state = State::load(&workspace);
        let walk = Walk { seen: vec![], not_built: vec![] };
        let text = render(&workspace, &state, &walk).unwrap().text();
        for task in workspace.taught().flat_map(|f| f.tasks()) {
            assert!(text.contains(&task.exercise.title), "cut: {}", task.exercise.title);
        }
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn what_is_left_is_told_at_the_pace_of_the_learner() {
        let pace = Pace { ratio: 1.46, exercises: 7 };
        let said = "Your pace: 1.5 times the listed minutes (over 7 exercises)";
        assert_eq!(at_your_pace(pace, 120), format!("{said}; at this pace, 3 h are left."));
        assert_eq!(at_your_pace(pace, 0), format!("{said}."));
    }

    #[test]
    fn times_are_rounded_to_what_one_would_say() {
        assert_eq!([20, 60, 80, 590].map(duration), ["20 min", "1 h", "1.5 h", "10 h"]);
    }
}

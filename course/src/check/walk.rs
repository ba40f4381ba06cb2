//! Runs gates in the order of the curriculum.
//!
//! Building takes most of the time. So one call of cargo builds only the programs of the exercises that passed when
//! last checked, and of the one after them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use course_marks::Gate;

use super::building::{self, Building};
use super::origin::{self, Given};
use crate::programs::{NotBuilt, Programs, Verdict};
use crate::state::State;
use crate::workspace::{Member, Task, Workspace};

/// Maximum time of the tests of one program. They take a second or two; a busy machine may be much slower.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// For a test that is run once more, to learn what called the function that panicked.
const WITH_BACKTRACE: (&str, &str) = ("RUST_BACKTRACE", "1");

/// Results of a run.
pub struct Walk<'a> {
    /// Exercises whose gates were run, in order.
    pub seen: Vec<Seen<'a>>,
    /// Layers whose programs could not be built, with the first exercise that needs them.
    pub not_built: Vec<(Task<'a>, NotBuilt)>,
}

/// An exercise whose gates were run.
pub struct Seen<'a> {
    /// The exercise.
    pub task: Task<'a>,
    /// The first of its gates that did not pass.
    pub trouble: Option<Trouble<'a>>,
}

/// A gate that did not pass.
pub struct Trouble<'a> {
    /// The first one, in the order of the catalogue.
    pub gate: &'a Gate,
    /// Outcome of the gate.
    pub verdict: Verdict,
    /// Number of gates of the exercise that did not pass.
    pub failing: usize,
    /// Set if it panicked in given code.
    pub given: Option<Given>,
}

/// Run the gates of these exercises. With `stop` only up to the first that does not pass; without,
/// all of them.
pub fn walk<'a>(
    workspace: &'a Workspace,
    state: &State,
    tasks: &[Task<'a>],
    stop: bool,
    building: &mut Building,
) -> Result<Walk<'a>> {
    let mut walk = Walk { seen: Vec::new(), not_built: Vec::new() };
    for tasks in tasks.chunk_by(|a, b| a.member.layer.id == b.member.layer.id) {
        let member = tasks[0].member;
        let mut programs: Option<Programs> = None;
        for (n, task) in tasks.iter().enumerate() {
            let ahead = match stop {
                true => &tasks[..tasks.len().min(reach(workspace, state, tasks).max(n + 1))],
                false => tasks,
            };
            if let Err(why) = provide(workspace, member, task, ahead, &mut programs, building)? {
                walk.not_built.push((*task, why));
                if stop {
                    return Ok(walk);
                }
                break;
            }
            let Some(programs) = &programs else { continue };
            let mut trouble = judge(programs, task)?;
            let failed = trouble.is_some();
            // Only the failure that is explained is worth a second run.
            if let (true, Some(trouble)) = (stop, &mut trouble) {
                trouble.given = origin::of(workspace, task, trouble, &mut |gate| {
                    let mut verdicts = programs.judge(&[gate], &[WITH_BACKTRACE], PATIENCE)?;
                    Ok(verdicts.pop().unwrap_or(Verdict::Missing))
                })?;
            }
            walk.seen.push(Seen { task: *task, trouble });
            if failed && stop {
                return Ok(walk);
            }
        }
    }
    Ok(walk)
}

/// How many exercises will probably be reached: those that held, and the next.
fn reach(workspace: &Workspace, state: &State, tasks: &[Task]) -> usize {
    let held = |t: &&Task| workspace.learner.is_none() || state.of(&t.exercise.id).holds;
    tasks.iter().take_while(held).count() + 1
}

/// Builds the programs for a task and those of the tasks ahead, unless the task's are built.
fn provide(
    workspace: &Workspace,
    member: &Member,
    task: &Task,
    ahead: &[Task],
    programs: &mut Option<Programs>,
    building: &mut Building,
) -> Result<Result<(), NotBuilt>> {
    let there = |target: &str| programs.as_ref().is_some_and(|p| p.has(target));
    if task.exercise.gates.iter().all(|g| there(&g.target)) {
        return Ok(Ok(()));
    }
    let gates = ahead.iter().flat_map(|t| &t.exercise.gates).map(|g| g.target.as_str());
    let targets: BTreeSet<&str> = gates.filter(|t| !there(t)).collect();
    let targets: Vec<&str> = targets.into_iter().collect();
    let package = &member.layer.package;
    let built = building.during(&member.layer.id, building::is_cold(package), |tell| {
        Programs::build(&workspace.root, package, &member.dir, &targets, tell)
    })?;
    Ok(built.map(|built| match programs {
        Some(programs) => programs.absorb(built),
        None => *programs = Some(built),
    }))
}

fn judge<'a>(programs: &Programs, task: &Task<'a>) -> Result<Option<Trouble<'a>>> {
    let gates: Vec<&Gate> = task.exercise.gates.iter().collect();
    let verdicts = programs.judge(&gates, &[], PATIENCE)?;
    let failing = verdicts.iter().filter(|v| **v != Verdict::Passed).count();
    let first = task.exercise.gates.iter().zip(verdicts).find(|(_, v)| *v != Verdict::Passed);
    Ok(first.map(|(gate, verdict)| Trouble { gate, verdict, failing, given: None }))
}

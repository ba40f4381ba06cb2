//! Running gates in the order of the curriculum.
//!
//! What takes time is building, so no more is built than the answer needs: the programs of the
//! exercises that held the last time and of the one after them, in one call of cargo. On the first
//! day that is one program; later it is those of all exercises so far, side by side.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use course::Gate;

use crate::learn::house::{Floor, House, Task};
use crate::learn::programs::{NotBuilt, Programs, Verdict};
use crate::learn::state::State;

/// How long the tests of one program may take. They take a second or two; this is for a slow
/// machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What was found out.
pub struct Walk<'a> {
    /// Exercises whose gates were run, in order.
    pub seen: Vec<Seen<'a>>,
    /// Layers whose programs could not be built, with the first exercise that misses them.
    pub not_built: Vec<(Task<'a>, NotBuilt)>,
}

/// An exercise whose gates were run.
pub struct Seen<'a> {
    /// Which one.
    pub task: Task<'a>,
    /// The first of its gates that did not pass.
    pub trouble: Option<Trouble<'a>>,
}

/// A gate that did not pass.
pub struct Trouble<'a> {
    /// The first one, in the order of the catalogue.
    pub gate: &'a Gate,
    /// How it ended.
    pub verdict: Verdict,
    /// How many gates of the exercise did not pass.
    pub failing: usize,
}

/// Run the gates of these exercises. With `stop` only up to the first that does not pass; without,
/// all of them.
pub fn walk<'a>(
    house: &'a House,
    state: &State,
    tasks: &[Task<'a>],
    stop: bool,
    tell: &mut dyn FnMut(&str),
) -> Result<Walk<'a>> {
    let mut walk = Walk { seen: Vec::new(), not_built: Vec::new() };
    for tasks in tasks.chunk_by(|a, b| a.floor.layer.id == b.floor.layer.id) {
        let floor = tasks[0].floor;
        let mut programs: Option<Programs> = None;
        for (n, task) in tasks.iter().enumerate() {
            let ahead = match stop {
                true => &tasks[..tasks.len().min(reach(house, state, tasks).max(n + 1))],
                false => tasks,
            };
            if let Err(why) = provide(house, floor, task, ahead, &mut programs, tell)? {
                walk.not_built.push((*task, why));
                if stop {
                    return Ok(walk);
                }
                break;
            }
            let Some(programs) = &programs else { continue };
            let trouble = judge(programs, task)?;
            let failed = trouble.is_some();
            walk.seen.push(Seen { task: *task, trouble });
            if failed && stop {
                return Ok(walk);
            }
        }
    }
    Ok(walk)
}

/// How many exercises will probably be reached: those that held, and the next.
fn reach(house: &House, state: &State, tasks: &[Task]) -> usize {
    let held = |t: &&Task| house.learner.is_none() || state.of(&t.exercise.id).holds;
    tasks.iter().take_while(held).count() + 1
}

/// See to it that the programs for a task are there; if they are not, build them and those of the
/// tasks ahead.
fn provide(
    house: &House,
    floor: &Floor,
    task: &Task,
    ahead: &[Task],
    programs: &mut Option<Programs>,
    tell: &mut dyn FnMut(&str),
) -> Result<Result<(), NotBuilt>> {
    let there = |target: &str| programs.as_ref().is_some_and(|p| p.has(target));
    if task.exercise.gates.iter().all(|g| there(&g.target)) {
        return Ok(Ok(()));
    }
    let gates = ahead.iter().flat_map(|t| &t.exercise.gates).map(|g| g.target.as_str());
    let targets: BTreeSet<&str> = gates.filter(|t| !there(t)).collect();
    let targets: Vec<&str> = targets.into_iter().collect();
    let package = &floor.layer.package;
    Ok(Programs::build_telling(&house.root, package, &floor.dir, &targets, tell)?.map(|built| {
        match programs {
            Some(programs) => programs.absorb(built),
            None => *programs = Some(built),
        }
    }))
}

fn judge<'a>(programs: &Programs, task: &Task<'a>) -> Result<Option<Trouble<'a>>> {
    let gates: Vec<&Gate> = task.exercise.gates.iter().collect();
    let verdicts = programs.judge(&gates, &[], PATIENCE)?;
    let failing = verdicts.iter().filter(|v| **v != Verdict::Passed).count();
    let first = task.exercise.gates.iter().zip(verdicts).find(|(_, v)| *v != Verdict::Passed);
    Ok(first.map(|(gate, verdict)| Trouble { gate, verdict, failing }))
}

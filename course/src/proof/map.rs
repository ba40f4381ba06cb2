//! Which exercises an exercise builds on, measured with the instrumented copy.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use course_marks::{Exercise, Gate, schemata};

use super::seconds;
use crate::programs::{Programs, Verdict};

/// How long the later gates may take while one exercise is blank.
const PATIENCE: Duration = Duration::from_secs(60);

/// Property tests draw the same cases each time, so that the same needs are found.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "2610");

/// For each exercise, by its position, the positions of those without which some gate of it does not pass: one exercise
/// after the other is blank, and the gates of all later ones run.
pub fn measure(programs: &Programs, exercises: &[Exercise]) -> Result<Vec<BTreeSet<usize>>> {
    let start = Instant::now();
    let needs = Mutex::new(vec![BTreeSet::new(); exercises.len()]);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let run = || -> Result<()> {
        loop {
            let blank = next.fetch_add(1, Ordering::Relaxed);
            let Some(exercise) = exercises.get(blank) else { return Ok(()) };
            for (at, red) in later(programs, exercises, blank, &exercise.id)? {
                if red {
                    needs.lock().unwrap_or_else(|e| e.into_inner())[at].insert(blank);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    println!("{:>7}  what needs what", seconds(start.elapsed()));
    Ok(needs.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// Positions of the exercises behind a blank one, and whether one of their gates does not pass.
fn later(
    programs: &Programs,
    exercises: &[Exercise],
    blank: usize,
    id: &str,
) -> Result<Vec<(usize, bool)>> {
    let later = exercises.iter().enumerate().skip(blank + 1);
    let gates: Vec<(usize, &Gate)> =
        later.flat_map(|(at, e)| e.gates.iter().map(move |gate| (at, gate))).collect();
    if gates.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&Gate> = gates.iter().map(|(_, gate)| *gate).collect();
    let verdicts = programs.judge(&names, &[(schemata::VARIABLE, id), SEED], PATIENCE)?;
    let red = verdicts.iter().map(|verdict| *verdict != Verdict::Passed);
    Ok(gates.iter().map(|(at, _)| *at).zip(red).collect())
}

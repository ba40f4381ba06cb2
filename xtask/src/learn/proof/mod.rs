//! `cargo x proof`: the course holds what it promises. CI runs this.
//!
//! * [`starter`]: what `cargo x start` makes compiles without a warning, and its history is clean.
//! * [`schemata`]: every blank makes its gate fail because of that blank, and no gate needs a later
//!   exercise; every mutant is killed by the gate of its exercise.
//! * [`walk`]: in a real learner's workspace, putting the reference's bodies back one by one walks
//!   `cargo x check` from the first exercise to green.

mod schemata;
mod starter;
mod walk;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::house::House;

/// Prove that the course holds what it promises
#[derive(Args)]
pub struct ProofArgs {
    /// What to prove; without it, everything
    parts: Vec<Part>,
    /// Only the gates of this layer, for whoever writes some: l1, l2, ..
    #[arg(long, conflicts_with = "parts")]
    layer: Option<String>,
    /// Of a walk: check every N-th exercise of a layer, which takes N times less long
    #[arg(long, value_name = "N", default_value_t = 1)]
    stride: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The starter compiles without a warning
    Starter,
    /// Every blank and every mutant is noticed by its gate
    Gates,
    /// Solving the exercises in order walks `check` to green
    Walk,
}

/// Run the command.
pub fn run(args: &ProofArgs) -> Result<()> {
    let house = House::open()?;
    if house.learner.is_some() {
        bail!("what is proven is the reference; run this where you cloned Strata");
    }
    let wanted = |part| match args.layer {
        Some(_) => part == Part::Gates,
        None => args.parts.is_empty() || args.parts.contains(&part),
    };
    let mut took = Vec::new();
    let mut timed = |name: &'static str, part: &dyn Fn(&House) -> Result<()>| -> Result<()> {
        println!("\n== {name}");
        let start = Instant::now();
        part(&house)?;
        took.push((name, start.elapsed()));
        Ok(())
    };
    if wanted(Part::Starter) {
        timed("starter", &starter::prove)?;
    }
    if wanted(Part::Gates) {
        timed("gates", &|house| schemata::prove(house, args.layer.as_deref()))?;
    }
    if wanted(Part::Walk) {
        timed("walk", &|house| walk::prove(house, args.stride))?;
    }
    println!();
    for (name, time) in took {
        println!("{:>7}  {name}", seconds(time));
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// An error that lists everything that is wrong, if anything is.
fn none(problems: &[String]) -> Result<()> {
    match problems {
        [] => Ok(()),
        some => bail!("{} things are wrong:\n  {}", some.len(), some.join("\n  ")),
    }
}

//! The course: a learner's workspace, and the commands in it. `cargo x` runs them.
//!
//! * [`workspace`] knows the layers, and whether the workspace is a learner's.
//! * [`start`] makes a learner's workspace, [`link`] says which version of a layer others use.
//! * [`mutant`] installs a version with one mistake, to be found.
//! * [`proof`] proves the exercises and mutants.
//! * [`check`] runs gates and explains the first that fails; [`watch`] repeats it after each change.
//!   [`progress`] and [`next`] show what is done and what is next, [`hint`] and [`reveal`] help,
//!   [`state`] keeps what is remembered between commands, [`pace`] compares times with the listed minutes.
//! * [`celebrate`] runs the learner's engine when the fast track is done.
//! * [`predict`] asks for a number to work out by hand, and grades it.
//! * [`needs`] knows which exercises an exercise builds on, as [`proof`] measured it; [`svg`] draws.
//! * [`programs`] builds and runs test programs, [`patience`] runs one with a time limit; [`screen`] formats output,
//!   [`shell`] runs other programs.
//!
//! Exercises, their marks and mutants are in the crate `course-marks`, on which every layer's build script depends.
//! This crate uses no layer, so it works while one does not compile.

pub mod celebrate;
pub mod check;
pub mod hint;
pub mod link;
pub mod mutant;
pub mod needs;
pub mod next;
pub mod pace;
pub mod patience;
pub mod predict;
pub mod programs;
pub mod progress;
pub mod proof;
pub mod reveal;
pub mod screen;
pub mod shell;
pub mod start;
pub mod state;
pub mod svg;
pub mod watch;
pub mod workspace;

use anyhow::Result;
use clap::Subcommand;

/// The commands of the course.
#[derive(Subcommand)]
pub enum LearnCommand {
    /// Make a workspace to learn in: the same crates, the exercises' bodies taken out
    Start(start::StartArgs),
    /// Choose whether the layers above use your version of a layer or the reference
    Use(link::UseArgs),
    /// Run the tests of the exercises in order and explain the first that fails
    Check(check::CheckArgs),
    /// Show the next hint of an exercise
    Hint(hint::HintArgs),
    /// Show how the reference does an exercise
    Reveal(reveal::RevealArgs),
    /// Run the tests of all exercises and show which pass
    Progress,
    /// Show what to read and where to write next, without building anything
    Next,
    /// Find a mistake: install a wrong version of a layer, then name the exercise or write a test that fails
    Mutant(mutant::MutantArgs),
    /// Prove that each exercise's tests fail without it and kill its mutants
    Proof(proof::ProofArgs),
}

/// Run a command of the course.
pub fn run(command: &LearnCommand) -> Result<()> {
    match command {
        LearnCommand::Start(args) => start::run(args),
        LearnCommand::Use(args) => link::run(args),
        LearnCommand::Check(args) => check::run(args),
        LearnCommand::Hint(args) => hint::run(args),
        LearnCommand::Reveal(args) => reveal::run(args),
        LearnCommand::Progress => progress::run(),
        LearnCommand::Next => next::run(),
        LearnCommand::Mutant(args) => mutant::run(args),
        LearnCommand::Proof(args) => proof::run(args),
    }
}

//! The course: `cargo x start`, `check` and what belongs to them.
//!
//! * [`house`] knows the layers of a workspace, and whether it is a learner's.
//! * [`start`] makes a learner's workspace, [`link`] says which version of a layer others use.
//! * [`mutant`] is the hunt for mistakes that people make.
//! * [`proof`] shows that all of this holds.
//! * [`check`] runs gates and explains the first that fails, again and again under [`watch`];
//!   [`progress`] and [`next`] say where one stands, [`hint`] and [`reveal`] help,
//!   [`state`] remembers.
//! * [`programs`] builds and runs test programs, [`patience`] waits for them; [`screen`] is how things
//!   are shown.

mod check;
mod hint;
mod house;
mod link;
mod mutant;
mod next;
mod patience;
mod programs;
mod progress;
mod proof;
mod reveal;
pub mod screen;
mod start;
mod state;
mod watch;

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
    /// Run all tests of all exercises and draw where you stand
    Progress,
    /// Say what to read and where to write, without building anything
    Next,
    /// Hunt a mistake: install a wrong version of a layer, then name it or write a test that catches it
    Mutant(mutant::MutantArgs),
    /// Prove that the course holds what it promises
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

//! The course: `cargo x start`, `check` and what belongs to them.
//!
//! * [`house`] knows the layers of a workspace, and whether it is a learner's.
//! * [`start`] makes a learner's workspace, [`link`] says which version of a layer others use.
//! * [`proof`] shows that all of this holds.
//! * [`programs`] builds and runs test programs.

mod house;
mod link;
mod programs;
mod proof;
mod start;

use anyhow::Result;
use clap::Subcommand;

/// The commands of the course.
#[derive(Subcommand)]
pub enum LearnCommand {
    /// Make a workspace to learn in: the same crates, the exercises' bodies taken out
    Start(start::StartArgs),
    /// Choose whether the layers above use your version of a layer or the reference
    Use(link::UseArgs),
    /// Prove that the course holds what it promises
    Proof(proof::ProofArgs),
}

/// Run a command of the course.
pub fn run(command: &LearnCommand) -> Result<()> {
    match command {
        LearnCommand::Start(args) => start::run(args),
        LearnCommand::Use(args) => link::run(args),
        LearnCommand::Proof(args) => proof::run(args),
    }
}

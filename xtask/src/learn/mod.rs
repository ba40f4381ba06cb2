//! The course: `cargo x start`, `check` and what belongs to them.
//!
//! * [`house`] knows the layers of a workspace, and whether it is a learner's.
//! * [`start`] makes a learner's workspace, [`link`] says which version of a layer others use.
//! * [`programs`] builds and runs test programs.

mod house;
mod link;
mod programs;
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
}

/// Run a command of the course.
pub fn run(command: &LearnCommand) -> Result<()> {
    match command {
        LearnCommand::Start(args) => start::run(args),
        LearnCommand::Use(args) => link::run(args),
    }
}

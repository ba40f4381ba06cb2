//! The tools of the project and of the course: `cargo x <command>`.
//!
//! * `cargo x start` makes a workspace to learn in; there, `check`, `hint`, `reveal`, `progress`, `next`
//!   and `use` are for writing, `predict` and `mutant` for thinking.
//! * `cargo x proof` shows that each exercise's tests fail without it and kill its mutants.
//! * `cargo x test` runs every test; `--full` adds the long ones.
//! * `cargo x book` builds the book and tests the code in it.
//! * `cargo x deps` checks licences, versions and sources of dependencies.
//! * `cargo x nvrtc` compiles every kernel with NVIDIA's compiler, which needs no GPU.
//! * `cargo x gpu` runs all checks and benchmarks on a GPU, or makes a directory to copy to a machine with one.
//! * `cargo x bench-peers` measures Strata beside llama.cpp, and beside ik_llama.cpp where a build is given.
//!
//! The course's commands are in the crate `course`; the rest is here. Neither uses a layer, so both build in seconds on
//! a fresh machine and work while a layer does not compile.

mod book;
mod deps;
mod gpu;
mod neighbour;
mod nvrtc;
mod peers;
mod pip;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The tools of the project and of the course.
#[derive(Parser)]
#[command(name = "cargo x", bin_name = "cargo x", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Learn(course::LearnCommand),
    /// Run the tests of every crate, with doc tests and examples
    Test(test::TestArgs),
    /// Build the book, or test its code
    Book(book::BookArgs),
    /// Check licences, duplicates and sources of all dependencies against deny.toml
    Deps(deps::DepsArgs),
    /// Ask for a number to work out by hand, and grade the answer
    Predict(course::predict::PredictArgs),
    /// Compile every kernel for GPUs; show registers, shared memory and spills
    Nvrtc(nvrtc::NvrtcArgs),
    /// Run all checks on a GPU: parity, graphs, compute-sanitizer, benchmarks
    Gpu(gpu::GpuArgs),
    /// Measure Strata beside llama.cpp, and ik_llama.cpp, on the same weights
    BenchPeers(peers::PeersArgs),
    /// Keep one core busy until killed (bench-peers starts it)
    #[command(hide = true)]
    Neighbour,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Learn(command) => course::run(&command),
        Command::Test(args) => test::run(&args),
        Command::Deps(args) => deps::run(&args),
        Command::Book(args) => book::run(&args),
        // The exit status says whether the answer was right: 1 is wrong.
        Command::Predict(args) => return course::predict::run(&args),
        Command::Nvrtc(args) => nvrtc::run(&args),
        Command::Gpu(args) => gpu::run(&args),
        Command::BenchPeers(args) => peers::run(&args),
        Command::Neighbour => neighbour::be_busy(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

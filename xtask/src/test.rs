//! `cargo x test`: everything that should hold, in one command.
//!
//! Without options it is `cargo test` over the whole workspace, with a summary at the end. `--full`
//! adds what takes longer or needs a download: the server's clients that others made, the gates on SmolLM2, more cases
//! for every property test, and the first floor on every instruction set this processor has.

mod outside;
mod tally;
mod targets;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::shell::{build_release, cargo, output, program, stream};
use tally::Tally;

/// The variable that tells tests where the real model is.
const MODEL_VARIABLE: &str = "STRATA_SMOLLM2";

/// The variable that makes the tests of many requests those of very many.
const LONG: &str = "STRATA_LONG";

/// The variable that names the binary that hostile clients attack.
const ATTACKED: &str = "STRATA_ATTACKED";

/// Cases for each property test in the long tests. Normally 24 to 400.
const CASES: &str = "1000";

/// Run the tests of every crate, with doc tests and examples
#[derive(Args)]
pub struct TestArgs {
    /// Add the server's clients that others made (installing them), the SmolLM2 gates (fetching the model), more property
    /// test cases, every instruction set
    #[arg(long)]
    full: bool,
    /// With --full: only what it adds
    #[arg(long, requires = "full")]
    only_extra: bool,
    /// For `cargo test`: a filter, or `-- --nocapture` and the like
    #[arg(last = true)]
    cargo_args: Vec<String>,
}

/// Run the command.
pub fn run(args: &TestArgs) -> Result<()> {
    let started = Instant::now();
    let mut stages = Stages::default();
    // First, so that a machine without network hears of it before it has worked for minutes.
    let model = if args.full { Some(smollm2()?) } else { None };
    if !args.only_extra {
        stages.run("the workspace", workspace().args(&args.cargo_args))?;
    }
    if let Some(model) = model {
        other_programs(&mut stages)?;
        very_many_requests(&mut stages)?;
        real_model(&mut stages, &model)?;
        more_cases(&mut stages)?;
        every_instruction_set(&mut stages)?;
    }
    stages.conclude(started, args.full)
}

/// `cargo test` on the workspace. Always all packages, even where few of their tests are wanted: the
/// features of a dependency are those that the chosen packages ask for, so any other choice would
/// build half the tree once more.
fn workspace() -> Command {
    let mut command = cargo("test");
    command.args(["--workspace", "--locked", "--no-fail-fast"]);
    command
}

fn choose(command: &mut Command, tests: impl IntoIterator<Item = String>) {
    for test in tests {
        command.arg("--test").arg(test);
    }
}

/// The gates that need the real model, with what they have to say about it.
fn real_model(stages: &mut Stages, model: &Path) -> Result<()> {
    let gates = targets::mentioning(MODEL_VARIABLE)?;
    ensure!(!gates.is_empty(), "no test reads {MODEL_VARIABLE}: where are the SmolLM2 gates?");
    let mut test = workspace();
    choose(&mut test, gates);
    test.args(["--", "--nocapture"]).env(MODEL_VARIABLE, model);
    stages.run("SmolLM2", &mut test)
}

/// The server and those who are made for others: OpenAI's clients, Prometheus, a browser.
fn other_programs(stages: &mut Stages) -> Result<()> {
    let tools = outside::install()?;
    let mut test = workspace();
    choose(&mut test, targets::mentioning(outside::VARIABLE)?);
    test.args(["--", "--nocapture"]).envs(tools);
    stages.run("other people's programs", &mut test)
}

/// The server under the load that it is held to: five hundred streams at once, ten thousand requests one after another,
/// and every attack beside a neighbour's stream. The bounds of an attack are those of a release build.
fn very_many_requests(stages: &mut Stages) -> Result<()> {
    let tests = targets::mentioning(LONG)?;
    ensure!(!tests.is_empty(), "no test reads {LONG}: where are the tests of a server's load?");
    let mut test = workspace();
    choose(&mut test, tests);
    test.args(["--", "load::", "hostile::", "crowd::", "shutdown::", "soak::"]);
    test.env(LONG, "1").env(ATTACKED, build_release("l6-ensemble", "strata")?);
    stages.run("very many requests", &mut test)
}

fn more_cases(stages: &mut Stages) -> Result<()> {
    let mut test = workspace();
    test.args(["--lib", "--tests"]).env("PROPTEST_CASES", CASES);
    // The commands in the book have no cases, and one run of them is enough.
    test.args(["--", "--skip", "every_command_of_the_book"]);
    stages.run(&format!("{CASES} cases a property"), &mut test)
}

/// Floor 1, and the models of floor 2 that it carries.
fn every_instruction_set(stages: &mut Stages) -> Result<()> {
    let mut tests = targets::of("l1-tensor")?;
    tests.extend(targets::of("l2-model")?.into_iter().filter(|test| test.starts_with("tiny")));
    for isa in instruction_sets() {
        let mut test = workspace();
        choose(test.arg("--lib").env("STRATA_CPU", isa), tests.iter().cloned());
        stages.run(&format!("tensors and tiny models on {isa}"), &mut test)?;
    }
    Ok(())
}

/// Where SmolLM2 is: named by the environment, or fetched by the program under test.
fn smollm2() -> Result<PathBuf> {
    let path = match std::env::var_os(MODEL_VARIABLE).filter(|v| !v.is_empty()) {
        Some(given) => PathBuf::from(given),
        None => fetch(&build_release("l6-ensemble", "strata")?)?,
    };
    ensure!(path.is_file(), "SmolLM2 should be at {}, but there is no file", path.display());
    // Tests run in their own crate's directory.
    let path = path.canonicalize()?;
    eprintln!("SmolLM2 is {}", path.display());
    Ok(path)
}

/// Let `strata` find the default model, fetching it if it must, and say where it is.
pub fn fetch(strata: &Path) -> Result<PathBuf> {
    let said = output(program(strata).args(["fetch", "smollm2"]))?;
    match said.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(path) => Ok(path.into()),
        None => bail!("`strata fetch smollm2` did not say where the model is"),
    }
}

/// What `STRATA_CPU` may be on this processor; the same list as `l1_tensor::cpu::Isa::available`.
/// Were they to disagree, the floor itself would refuse the name.
fn instruction_sets() -> Vec<&'static str> {
    let mut sets = vec!["portable"];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        sets.push("avx2");
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            sets.push("avx512");
            if is_x86_feature_detected!("avx512bf16") {
                sets.push("avx512bf16");
            }
        }
    }
    sets
}

/// What has been run so far.
#[derive(Default)]
struct Stages {
    done: Vec<Stage>,
}

struct Stage {
    name: String,
    tally: Tally,
    succeeded: bool,
    seconds: f64,
}

impl Stages {
    /// Run a command and count its tests. What fails is told at the end, after all stages.
    fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let mut tally = Tally::default();
        let exited_well = stream(command, |line| {
            println!("{line}");
            tally.read(line);
        })?;
        // A stage in which nothing ran proves nothing.
        let succeeded = exited_well && tally.any_passed();
        let seconds = started.elapsed().as_secs_f64();
        self.done.push(Stage { name: name.into(), tally, succeeded, seconds });
        Ok(())
    }

    /// Print what came out, and make it an error if anything failed.
    fn conclude(&self, started: Instant, full: bool) -> Result<()> {
        println!();
        for stage in &self.done {
            let word = if stage.succeeded { "ok" } else { "FAILED" };
            println!("{word:>6}  {:<40} {}, {:.0} s", stage.name, stage.tally, stage.seconds);
            for test in &stage.tally.failed_tests {
                println!("        failed: {test}");
            }
            if !stage.succeeded && stage.tally.failed_tests.is_empty() {
                println!(
                    "        it did not build, ran no test, or a program ended early: see above"
                );
            }
        }
        if !full {
            println!("        not run: what takes long (`cargo x test --full`)");
        }
        let failed = self.done.iter().filter(|stage| !stage.succeeded).count();
        ensure!(failed == 0, "{failed} of {} stages failed", self.done.len());
        println!("all is well, in {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}

//! `cargo x test`: every test, in one command.
//!
//! Without options it is `cargo test` over the whole workspace, with a summary at the end. `--full`
//! adds what takes longer or needs a download: other projects' clients of the server, the gates on SmolLM2, more cases
//! for every property test, and layer 1 on every instruction set of this processor.

mod outside;
mod tally;
mod targets;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;
use course::proof::receipt::Due;
use course::workspace::{Member, Workspace};

use course::shell::{build_release, cargo, output, program, stream};
use tally::Tally;

/// The variable that tells tests where the real model is.
const MODEL_VARIABLE: &str = "STRATA_SMOLLM2";

/// The variable that names the program of a Redis or Valkey server.
const REDIS: &str = "STRATA_REDIS_SERVER";

/// The variable that makes the load tests run at full length.
const LONG: &str = "STRATA_LONG";

/// The variable that names the binary that hostile clients attack.
const ATTACKED: &str = "STRATA_ATTACKED";

/// Cases for each property test in the long tests. Normally 24 to 400.
const CASES: &str = "1000";

/// Run the tests of every crate, with doc tests and examples
#[derive(Args)]
pub struct TestArgs {
    /// Add other projects' clients of the server (installed first), the SmolLM2 gates (downloads the model), more cases
    /// for each property test, every instruction set
    #[arg(long)]
    full: bool,
    /// With --full: only what it adds
    #[arg(long, requires = "full")]
    only_extra: bool,
    /// With --full: more cases and every instruction set only for the layers that `cargo x proof` would prove now:
    /// those that course/proven.toml does not cover, and one that the commit draws
    #[arg(long, requires = "full")]
    changed: bool,
    /// For `cargo test`: a filter, or `-- --nocapture` and the like
    #[arg(last = true)]
    cargo_args: Vec<String>,
}

/// Run the command.
pub fn run(args: &TestArgs) -> Result<()> {
    let started = Instant::now();
    let mut stages = Stages::default();
    // First, so that a machine without network fails at once and not after minutes.
    let model = if args.full { Some(smollm2()?) } else { None };
    if !args.only_extra {
        stages.run("the workspace", workspace().args(&args.cargo_args))?;
    }
    if let Some(model) = model {
        other_programs(&mut stages)?;
        real_redis(&mut stages)?;
        load_and_attacks(&mut stages)?;
        real_model(&mut stages, &model)?;
        let layers = layers(args.changed)?;
        more_cases(&mut stages, &layers, args.changed)?;
        every_instruction_set(&mut stages, &layers)?;
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

/// The gates that need the real model, with their output.
fn real_model(stages: &mut Stages, model: &Path) -> Result<()> {
    let gates = targets::mentioning(MODEL_VARIABLE)?;
    ensure!(!gates.is_empty(), "no test reads {MODEL_VARIABLE}: the SmolLM2 gates are missing");
    let mut test = workspace();
    choose(&mut test, gates);
    test.args(["--", "--nocapture"]).env(MODEL_VARIABLE, model);
    stages.run("SmolLM2", &mut test)
}

/// The server with other projects' programs: OpenAI's clients, Prometheus, a browser.
fn other_programs(stages: &mut Stages) -> Result<()> {
    let tools = outside::install()?;
    let mut test = workspace();
    choose(&mut test, targets::mentioning(outside::VARIABLE)?);
    test.args(["--", "--nocapture"]).envs(tools);
    stages.run("other projects' programs", &mut test)
}

/// The tier on a Redis server with a real one, if this machine has its program.
fn real_redis(stages: &mut Stages) -> Result<()> {
    let starts = |program: &&str| Command::new(program).arg("--version").output().is_ok();
    let Some(program) = ["redis-server", "valkey-server"].into_iter().find(starts) else {
        println!(
            "not run: the tier on a Redis server, for there is no redis-server or valkey-server"
        );
        return Ok(());
    };
    let tests = targets::mentioning(REDIS)?;
    ensure!(!tests.is_empty(), "no test reads {REDIS}: the test with a real server is missing");
    let mut test = workspace();
    choose(&mut test, tests);
    test.args(["--", "redis::", "--nocapture"]).env(REDIS, program);
    stages.run("a Redis server", &mut test)
}

/// The server under load: many concurrent streams, many requests one after another, and every attack beside a
/// well-behaved client's stream. The bounds of an attack are those of a release build.
fn load_and_attacks(stages: &mut Stages) -> Result<()> {
    let tests = targets::mentioning(LONG)?;
    ensure!(!tests.is_empty(), "no test reads {LONG}: the load tests of the server are missing");
    let mut test = workspace();
    choose(&mut test, tests);
    test.args(["--", "load::", "hostile::", "crowd::", "shutdown::", "soak::"]);
    test.env(LONG, "1").env(ATTACKED, build_release("strata", "strata")?);
    stages.run("load and attacks", &mut test)
}

/// Packages of the layers whose long tests are wanted: all, or those that the receipt of the course does not cover and
/// one that the commit draws.
fn layers(changed: bool) -> Result<Vec<String>> {
    let workspace = Workspace::open()?;
    let package = |member: &&Member| member.layer.package.clone();
    if !changed {
        return Ok(workspace.members.iter().map(|member| package(&member)).collect());
    }
    let due = Due::of(&workspace)?;
    let wanted = due.layers(&workspace);
    println!("{}", due.explain());
    for member in &workspace.members {
        if !wanted.iter().any(|due| due.layer.id == member.layer.id) {
            println!(
                "not run: {CASES} cases for each property of {}, which the receipt covers",
                package(&member)
            );
        }
    }
    Ok(wanted.iter().map(package).collect())
}

/// Property tests with more cases: of everything or, with `changed`, of all libraries and of the integration tests of
/// `layers`. (Cargo chooses integration tests by name: those of other packages with the same name run, too.)
fn more_cases(stages: &mut Stages, layers: &[String], changed: bool) -> Result<()> {
    let mut test = workspace();
    test.arg("--lib").env("PROPTEST_CASES", CASES);
    if changed {
        for layer in layers {
            choose(&mut test, targets::of(layer)?);
        }
    } else {
        test.arg("--tests");
    }
    // The commands in the book are no property tests; one run of them is enough.
    test.args(["--", "--skip", "every_command_of_the_book"]);
    stages.run(&format!("{CASES} cases a property"), &mut test)
}

/// Layer 1, and the tiny models of layer 2, on every instruction set.
fn every_instruction_set(stages: &mut Stages, layers: &[String]) -> Result<()> {
    if !["l1-tensor", "l2-model"].iter().any(|wanted| layers.iter().any(|layer| layer == wanted)) {
        println!("not run: every instruction set, since the receipt covers l1-tensor and l2-model");
        return Ok(());
    }
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
        None => fetch(&build_release("strata", "strata")?)?,
    };
    ensure!(path.is_file(), "there is no file {}: SmolLM2 should be there", path.display());
    // Tests run in their own crate's directory.
    let path = path.canonicalize()?;
    eprintln!("SmolLM2 is {}", path.display());
    Ok(path)
}

/// Returns the path of the default model, which `strata` downloads if it is not cached.
pub fn fetch(strata: &Path) -> Result<PathBuf> {
    let said = output(program(strata).args(["fetch", "smollm2"]))?;
    match said.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(path) => Ok(path.into()),
        None => bail!("`strata fetch smollm2` did not say where the model is"),
    }
}

/// What `STRATA_CPU` may be on this processor; the same list as `l1_tensor::cpu::Isa::available`.
/// A name that the layer does not know is an error of the layer.
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
                // The standard library cannot be asked for it yet, and neither for the system's permission.
                let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
                let has = |wanted| processor.split_whitespace().any(|flag| flag == wanted);
                if has("amx_tile") && has("amx_bf16") {
                    sets.push("amx");
                }
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
    /// Runs a command and counts its tests. Failures are reported at the end, after all stages.
    fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let mut tally = Tally::default();
        let exited_well = stream(command, |line| {
            println!("{line}");
            tally.read(line);
        })?;
        // A stage without a test counts as failed.
        let succeeded = exited_well && tally.any_passed();
        let seconds = started.elapsed().as_secs_f64();
        self.done.push(Stage { name: name.into(), tally, succeeded, seconds });
        Ok(())
    }

    /// Prints the results; an error if a stage failed.
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
            println!("        not run: long tests and downloads (`cargo x test --full`)");
        }
        let failed = self.done.iter().filter(|stage| !stage.succeeded).count();
        ensure!(failed == 0, "{failed} of {} stages failed", self.done.len());
        println!("all stages passed, in {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}

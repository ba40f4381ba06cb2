//! `strata-gpu`: parity, benches and reports of a CUDA device. Runs where the directory `fixtures` is.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use strata_gpu::report::{Report, measure_line, size, verdict_line};
use strata_gpu::{Context, bench, compare, parity, sanitize};

/// Try Strata on a CUDA device.
#[derive(Parser)]
#[command(name = "strata-gpu", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say whether CUDA can be used here; ends with 3 if not
    Probe,
    /// Hold every kernel and the tiny models against the CPU
    Parity {
        #[command(flatten)]
        device: DeviceArgs,
        /// Small sizes only
        #[arg(long)]
        quick: bool,
        /// Only checks whose names contain this
        #[arg(long, default_value = "", value_name = "TEXT")]
        only: String,
        /// No checks whose names contain this
        #[arg(long, value_name = "TEXT")]
        without: Option<String>,
    },
    /// Measure the device's limits, and kernels and models against them
    Bench {
        #[command(flatten)]
        device: DeviceArgs,
        /// Only this part: memory, gemv, attention, chunks, model or serve
        #[arg(long, default_value = "", value_name = "PART")]
        only: String,
    },
    /// All of it, into a file and as a table
    Report {
        #[command(flatten)]
        device: DeviceArgs,
        /// Path of the output file
        #[arg(long, default_value = "kernels/reports", value_name = "DIR")]
        out: PathBuf,
        /// Also run this machine's torch and transformers on a model of the same shape
        #[arg(long)]
        compare: bool,
        /// Leave compute-sanitizer out
        #[arg(long)]
        no_sanitizer: bool,
    },
}

#[derive(Args)]
struct DeviceArgs {
    /// Let a CPU stand in for the device: shows that everything runs, and measures nothing
    #[arg(long)]
    emulated: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Probe => return probe(),
        Command::Parity { device, quick, only, without } => {
            run_parity(&device, quick, &only, without.as_deref())
        }
        Command::Bench { device, only } => run_bench(&device, &only),
        Command::Report { device, out, compare, no_sanitizer } => {
            run_report(&device, &out, compare, !no_sanitizer)
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(NO_DEVICE)
        }
    }
}

/// Exit status if there is no device.
const NO_DEVICE: u8 = 3;

fn probe() -> ExitCode {
    // Opened and not only counted, because the device may be too old.
    match kernels::probe().map_err(kernels::Error::from).and_then(|_| kernels::Gpu::open(0)) {
        Ok(gpu) => {
            println!("{}", gpu.properties().name);
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            ExitCode::from(NO_DEVICE)
        }
    }
}

fn run_parity(device: &DeviceArgs, quick: bool, only: &str, without: Option<&str>) -> Result<bool> {
    let ctx = Context::new(device.emulated, size(quick, device.emulated))?;
    let wanted = |name: &str| name.contains(only) && without.is_none_or(|w| !name.contains(w));
    let verdicts = parity::run(&ctx, wanted, |verdict| println!("{}", verdict_line(verdict)));
    let failed = verdicts.iter().filter(|verdict| !verdict.holds).count();
    println!("{} checks, {failed} failed", verdicts.len());
    Ok(failed == 0 && !verdicts.is_empty())
}

fn run_bench(device: &DeviceArgs, only: &str) -> Result<bool> {
    let ctx = Context::new(device.emulated, size(false, device.emulated))?;
    if ctx.gpu.is_emulated() {
        println!("EMULATED: a CPU stands in for the device. Figures mean nothing.");
    }
    let (_, _, failures) = bench::run(&ctx, only, |measure| println!("{}", measure_line(measure)))?;
    for failure in &failures {
        eprintln!("NOT MEASURED  {failure}");
    }
    Ok(failures.is_empty())
}

fn run_report(
    device: &DeviceArgs,
    out: &std::path::Path,
    beside: bool,
    sanitizer: bool,
) -> Result<bool> {
    let ctx = Context::new(device.emulated, size(false, device.emulated))?;
    let mut report = Report::new(&ctx)?;
    report.parity = parity::run(&ctx, |_| true, |verdict| println!("{}", verdict_line(verdict)));
    // Written after each part, so that an error in a later one does not lose the results before it.
    report.write(out)?;
    match bench::run(&ctx, "", |measure| println!("{}", measure_line(measure))) {
        Ok((limits, measures, failures)) => {
            report.limits = Some(limits);
            report.measures = measures;
            report.failures = failures;
        }
        Err(e) => report.failures.push(format!("benches: {e:#}")),
    }
    report.write(out)?;
    if sanitizer && !ctx.gpu.is_emulated() {
        report.sanitizer = Some(sanitize::run(|tool| {
            println!(
                "compute-sanitizer {}: {}",
                tool.name,
                if tool.clean { "clean" } else { "ERRORS" }
            );
        })?);
        report.write(out)?;
    }
    if beside {
        let compared = compare::run(&ctx, |comparison| {
            report.compare = Some(comparison.clone());
            report.write(out).map(|_| ())
        });
        if let Err(e) = compared {
            report.failures.push(format!("beside transformers: {e:#}"));
        }
    }
    let path = report.write(out)?;
    println!("\n{}\n{}", report.table(), path.display());
    Ok(report.is_sound())
}

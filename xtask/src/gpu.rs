//! `cargo x gpu`: checks and benchmarks that need a GPU.
//!
//! On a machine with a GPU it runs everything and writes a report; on another it says that there is none. `--carry`
//! makes a directory with all that a machine with a GPU and without cargo needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use course::shell::{build_release, program, root, run as run_command};

/// Exit status of `strata-gpu` where there is no device.
const NO_DEVICE: i32 = 3;

/// Directory of the reports.
const REPORTS: &str = "kernels/reports";

/// Fixtures that the copied program reads.
const FIXTURES: [&str; 12] = [
    "configs/llama-3.1-8b.json",
    "configs/qwen3-0.6b.json",
    "configs/qwen3-8b.json",
    "tiny-llama",
    "tiny-llama-nvfp4",
    "tiny-llama-untied",
    "tiny-llama-yarn",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen3-modelopt-nvfp4",
    "README.md",
];

/// Run all checks on a GPU: parity, graphs, compute-sanitizer, benchmarks
#[derive(Args)]
pub struct GpuArgs {
    /// Fill this directory with all that is needed on a machine without cargo, and run nothing
    #[arg(long, value_name = "DIR")]
    carry: Option<PathBuf>,
    /// Also measure this machine's own torch and transformers
    #[arg(long)]
    compare: bool,
    /// Fail where there is no GPU
    #[arg(long)]
    required: bool,
}

/// Run the command.
pub fn run(args: &GpuArgs) -> Result<()> {
    let strata_gpu = build_release("strata-gpu", "strata-gpu")?;
    if let Some(folder) = &args.carry {
        return carry(&strata_gpu, folder);
    }
    if let Some(why) = no_cuda(&strata_gpu)? {
        println!("no CUDA: {why}");
        println!("not yet measured: {REPORTS} has no report of this machine.");
        println!("`cargo x gpu --carry DIR` makes a directory to copy to a machine with a GPU.");
        if args.required {
            bail!("a GPU is required");
        }
        return Ok(());
    }
    let mut report = program(&strata_gpu);
    report.args(["report", "--out", REPORTS]);
    if args.compare {
        report.arg("--compare");
    }
    run_command(&mut report)
}

/// Why CUDA cannot be used here, as `kernels` has it: this program links no other of the workspace's.
fn no_cuda(strata_gpu: &Path) -> Result<Option<String>> {
    let output = Command::new(strata_gpu)
        .arg("probe")
        .output()
        .with_context(|| strata_gpu.display().to_string())?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    match output.status.code() {
        Some(0) => Ok(None),
        Some(NO_DEVICE) => Ok(Some(said(&output.stdout))),
        _ => bail!("strata-gpu probe: {}", said(&output.stderr)),
    }
}

/// Fill a directory: program, script, fixtures, machine code where there is a compiler for it, and how
/// to run all that.
fn carry(strata_gpu: &Path, folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder)?;
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let carried = folder.join("strata-gpu");
    copy(strata_gpu, &carried)?;
    // Debug information is most of the file and is not needed there. Without `strip` the file is only larger.
    let _ = Command::new("strip").arg("--strip-debug").arg(&carried).status();
    copy(&root().join("gpu/compare/transformers_bench.py"), &folder.join("transformers_bench.py"))?;
    for name in FIXTURES {
        copy(&root().join("fixtures").join(name), &folder.join("fixtures").join(name))?;
    }
    let cubins = folder.join("kernels");
    let compiled = crate::nvrtc::compile_into(&cubins);
    if let Err(e) = &compiled {
        println!("the directory has no machine code ({e:#}): the other machine needs NVRTC");
    }
    let script = folder.join("run.sh");
    fs::write(&script, RUN).with_context(|| script.display().to_string())?;
    make_executable(&script)?;
    println!("{} is ready: copy it to a machine with a GPU, and run there", folder.display());
    println!("    bash run.sh              # parity, benchmarks, compute-sanitizer");
    println!(
        "    bash run.sh --compare    # also torch and transformers, where they are installed"
    );
    println!("Copy what it writes to `reports` into {REPORTS}.");
    Ok(())
}

/// The script that runs the copied program.
const RUN: &str = "\
#!/usr/bin/env bash
# Everything, on a machine with a GPU: bash run.sh [--compare] [--no-sanitizer]
# Reports go to the directory `reports` beside this file, or to $OUT.
set -euo pipefail
cd \"$(dirname \"$0\")\"
export STRATA_FIXTURES=$PWD/fixtures
# Machine code for sm_80 and sm_90a; another device needs NVRTC, which comes with CUDA and with torch.
export STRATA_KERNELS=$PWD/kernels
exec ./strata-gpu report --out \"${OUT:-reports}\" \"$@\"
";

/// Copy a file, or a directory with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("copying {} to {}", from.display(), to.display());
    if from.is_dir() {
        fs::create_dir_all(to).with_context(failed)?;
        for entry in fs::read_dir(from).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(failed)?;
    }
    fs::copy(from, to).with_context(failed)?;
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| path.display().to_string())
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_filled_with_all_that_the_program_reads() {
        let folder = tempfile::tempdir().unwrap();
        // Any file does for the program: it is not run here.
        let anything = root().join("Cargo.toml");
        let to = folder.path().join("deep/carried");
        for name in FIXTURES {
            copy(&root().join("fixtures").join(name), &to.join("fixtures").join(name)).unwrap();
        }
        copy(&anything, &to.join("strata-gpu")).unwrap();
        assert!(to.join("fixtures/tiny-qwen3/model.safetensors").is_file());
        assert!(to.join("fixtures/configs/qwen3-8b.json").is_file());
        assert_eq!(fs::read(to.join("strata-gpu")).unwrap(), fs::read(anything).unwrap());
    }

    #[test]
    fn the_script_names_only_what_is_carried() {
        for carried in ["./strata-gpu", "fixtures", "kernels"] {
            assert!(RUN.contains(carried), "{carried}");
        }
    }
}

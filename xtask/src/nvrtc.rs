//! `cargo x nvrtc`: compiles every kernel with NVIDIA's own compiler, on any machine.
//!
//! Tests run the kernels on a CPU, which shows that their results are right. Only NVIDIA's compiler shows that a GPU
//! can run them and how many registers they use. It is one library, comes by pip, and needs no GPU.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::pip;
use course::shell::{cargo, run as run_command, spelled};

/// The package with the library, and the list that holds its version and hashes.
const PACKAGE: &str = "nvidia-cuda-nvrtc";
const REQUIREMENTS: &str = "nvrtc.txt";

/// Exit status of the check where there is no compiler.
const NO_COMPILER: i32 = 3;

/// Compile every kernel for GPUs; show registers, shared memory and spills
#[derive(Args)]
pub struct NvrtcArgs {
    /// Fail where the compiler is not here and cannot be fetched (also when CI is set)
    #[arg(long)]
    required: bool,
    /// Also write the machine code there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Run the command.
pub fn run(args: &NvrtcArgs) -> Result<()> {
    let required = args.required || std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    match compile(args.out.as_deref())? {
        Outcome::Compiled => Ok(()),
        Outcome::NoCompiler if std::env::var_os("STRATA_NVRTC").is_some() => {
            bail!("STRATA_NVRTC names no usable compiler: see above")
        }
        Outcome::NoCompiler => {
            match fetch(&cache()?, &[]).and_then(|()| compile(args.out.as_deref())) {
                Ok(Outcome::Compiled) => Ok(()),
                Ok(Outcome::NoCompiler) => {
                    bail!("{PACKAGE} was downloaded but cannot be loaded: see above")
                }
                Err(e) if e.is::<CannotFetch>() && !required => {
                    eprintln!("{}", boxed(&format!("{e:#}")));
                    Ok(())
                }
                Err(e) => Err(e),
            }
        }
    }
}

/// Write the machine code of every kernel to a directory.
///
/// # Errors
/// There is no compiler, and none can be fetched; a kernel does not compile.
pub fn compile_into(folder: &Path) -> Result<()> {
    if matches!(compile(Some(folder))?, Outcome::Compiled) {
        return Ok(());
    }
    fetch(&cache()?, &[])?;
    match compile(Some(folder))? {
        Outcome::Compiled => Ok(()),
        Outcome::NoCompiler => bail!("{PACKAGE} was downloaded but cannot be loaded: see above"),
    }
}

enum Outcome {
    Compiled,
    NoCompiler,
}

/// Let the `kernels` crate compile its files: this one links no other of the workspace's.
fn compile(out: Option<&Path>) -> Result<Outcome> {
    let mut command = cargo("run");
    command.args(["--quiet", "--locked", "--package", "kernels", "--example", "nvrtc_check"]);
    if let Some(out) = out {
        command.arg("--").arg(std::path::absolute(out)?);
    }
    let text = spelled(&command);
    eprintln!("$ {text}");
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    match status.code() {
        Some(0) => Ok(Outcome::Compiled),
        Some(NO_COMPILER) => Ok(Outcome::NoCompiler),
        _ => bail!("some kernels do not compile as required: see above"),
    }
}

/// The package could not be fetched, which is not the kernels' fault.
#[derive(Debug)]
struct CannotFetch(String);

impl std::fmt::Display for CannotFetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for CannotFetch {}

/// Install the package below the cache, where `kernels` looks; `more` is for pip.
fn fetch(cache: &Path, more: &[&str]) -> Result<()> {
    let target = cache.join("nvrtc");
    let cannot = |why: String| CannotFetch(format!("{PACKAGE} cannot be downloaded: {why}"));
    let python = pip::python().ok_or_else(|| cannot("there is no Python with pip".into()))?;
    let mut install = pip::wheels(python, "install", &pip::requirements(REQUIREMENTS));
    install.args(["--no-deps", "--upgrade", "--target"]).arg(&target).args(more);
    if let Err(e) = run_command(&mut install) {
        return Err(cannot(format!("{e:#}")).into());
    }
    let library = target.join("nvidia/cu13/lib/libnvrtc.so.13");
    ensure!(library.is_file(), cannot(format!("{} is not in it", library.display())));
    Ok(())
}

/// Strata's cache directory, as `kernels` has it.
fn cache() -> Result<PathBuf> {
    let path = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty())
    };
    let xdg = || path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let home = || Some(path("HOME").or_else(std::env::home_dir)?.join(".cache"));
    let below = || Some(xdg().or_else(home)?.join("strata"));
    path("STRATA_CACHE")
        .or_else(below)
        .context("there is no home directory for NVIDIA's compiler: set HOME or STRATA_CACHE")
}

/// What must not be overlooked.
fn boxed(why: &str) -> String {
    let mut lines = vec![
        "SKIPPED: no kernel was compiled for a GPU.".to_string(),
        "NVIDIA's compiler is not installed, and could not be downloaded:".into(),
        String::new(),
    ];
    for line in why.lines() {
        let mut part = String::new();
        for word in line.split(' ') {
            if part.len() + word.len() > 90 {
                lines.push(std::mem::take(&mut part));
            }
            part.push_str(word);
            part.push(' ');
        }
        lines.push(part);
    }
    lines.push(String::new());
    lines.push("STRATA_NVRTC can name another path of it; --required makes this an error.".into());
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let edge = "#".repeat(width + 4);
    let body: String = lines.iter().map(|line| format!("# {line:<width$} #\n")).collect();
    format!("\n{edge}\n{body}{edge}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_stands_in_a_box() {
        let text = boxed(&"why ".repeat(60));
        let lines: Vec<&str> = text.trim().lines().collect();
        let width = lines[0].chars().count();
        assert!(lines.iter().all(|line| line.chars().count() == width), "{text}");
        assert!(lines.iter().all(|line| line.starts_with('#') && line.ends_with('#')), "{text}");
        assert!(text.contains("SKIPPED"));
    }

    #[test]
    fn a_package_that_cannot_be_fetched_is_told_apart_from_kernels_that_do_not_compile() {
        let cache = tempfile::tempdir().unwrap();
        let error = fetch(cache.path(), &["--no-index"]).unwrap_err();
        assert!(error.is::<CannotFetch>(), "{error:?}");
        assert!(error.to_string().contains("nvidia-cuda-nvrtc"), "{error}");
    }
}

//! Runs other programs, in the workspace root, and prints their command lines.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The directory of the workspace.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Cargo's target directory: the one this program was built in.
pub fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find the path of this program")?;
    let dir = exe.parent().and_then(Path::parent);
    Ok(dir.context("this program is not inside a target directory")?.into())
}

/// The cargo that runs this program, ready for a subcommand.
pub fn cargo(subcommand: &str) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand);
    command
}

/// A program, to be run in the workspace root.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    // Other programs need not know what `cargo run` sets for this package. Some build scripts (ring's) watch these
    // variables, and would build again after every change of caller.
    for (name, _) in std::env::vars_os() {
        let of_this_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if of_this_package.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// The command as one would type it. Paths inside the workspace are shown relative to it.
pub fn spelled(command: &Command) -> String {
    let set = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), short(value?))));
    let program = match Path::new(command.get_program()) {
        p if p.is_absolute() && !p.starts_with(root()) => {
            short(p.file_name().unwrap_or(p.as_os_str()))
        }
        p => short(p.as_os_str()),
    };
    set.chain([program]).chain(command.get_args().map(short)).collect::<Vec<_>>().join(" ")
}

fn short(word: &OsStr) -> String {
    let path = Path::new(word);
    let word = path.strip_prefix(root()).unwrap_or(path).to_string_lossy();
    if word.contains([' ', '*', '"']) { format!("'{word}'") } else { word.into_owned() }
}

/// Prints a command and runs it.
///
/// # Errors
/// The command fails.
pub fn run(command: &mut Command) -> Result<()> {
    let text = spelled(command);
    eprintln!("$ {text}");
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    if !status.success() {
        bail!("`{text}` failed ({status})");
    }
    Ok(())
}

/// Prints a command, runs it and returns its stdout; its stderr passes through.
pub fn output(command: &mut Command) -> Result<String> {
    eprintln!("$ {}", spelled(command));
    quiet_output(command.stderr(Stdio::inherit()))
}

/// Run a command and return its stdout. If it fails, the error holds the end of its stderr.
pub fn quiet_output(command: &mut Command) -> Result<String> {
    let text = spelled(command);
    let out = command.output().with_context(|| format!("cannot start `{text}`"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        let last: Vec<&str> = said.trim().lines().rev().take(12).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        bail!("`{text}` failed ({})\n{last}", out.status);
    }
    String::from_utf8(out.stdout).with_context(|| format!("what `{text}` printed"))
}

/// Prints a command and runs it; every line of its stdout goes to `line` as it comes. Returns whether the command
/// succeeded.
pub fn stream(command: &mut Command, mut line: impl FnMut(&str)) -> Result<bool> {
    let text = spelled(command);
    eprintln!("$ {text}");
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{text}`"))?;
    if let Some(stdout) = child.stdout.take() {
        for bytes in BufReader::new(stdout).split(b'\n') {
            line(&String::from_utf8_lossy(&bytes?));
        }
    }
    Ok(child.wait()?.success())
}

/// Build one of the workspace's programs in release mode and return its path.
pub fn build_release(package: &str, bin: &str) -> Result<PathBuf> {
    let mut build = cargo("build");
    build.args(["--release", "--locked", "--package", package, "--bin", bin]);
    build.arg("--message-format=json-render-diagnostics");
    let messages = output(&mut build)?;
    let path = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == bin)
            .then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    path.with_context(|| format!("cargo did not say where it put `{bin}`"))
}

/// Whether a program can be started at all.
pub fn exists(name: &str) -> bool {
    let mut probe = Command::new(name);
    probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|s| s.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_spelled_as_it_would_be_typed() {
        let mut command = program("tool");
        command.env("KEY", "value").arg("--file").arg(root().join("a/b")).arg("two words");
        assert_eq!(spelled(&command), "KEY=value tool --file a/b 'two words'");
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = quiet_output(program("cargo").arg("no-such-subcommand")).unwrap_err();
        assert!(error.to_string().contains("cargo no-such-subcommand"), "{error}");
    }

    #[test]
    fn lines_come_one_by_one() {
        let mut lines = 0;
        assert!(stream(program("cargo").arg("--version"), |_| lines += 1).unwrap());
        assert_eq!(lines, 1);
    }
}

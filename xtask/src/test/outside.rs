//! Other projects' programs that talk to the server: what `cargo x test --full` installs for them, below the target
//! directory, in versions that are named here.
//!
//! Where a registry cannot be reached, a warning names the missing program, and the tests that need it are skipped. In
//! CI that is a failure.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::pip;
use course::shell::{exists, program, quiet_output, root, run, target_dir};

/// The variable that names a test as one that needs these programs.
pub const VARIABLE: &str = "STRATA_PYTHON";

/// The npm packages: OpenAI's client, and what drives a browser.
const NODE_PACKAGES: [&str; 2] = ["openai@7.57.0", "playwright-core@1.65.1"];

/// The oldest Node.js that OpenAI's client runs on.
const NODE: u32 = 20;

/// The list that holds the wheel with vLLM's bench client, and where in that wheel the client is.
const VLLM: &str = "vllm.txt";
const VLLM_BENCH: &str = "vllm/vllm-rs";

/// Takes one file out of a wheel, which is a zip archive.
const UNPACK: &str = "
import os, shutil, sys, zipfile
wheel, name, to = sys.argv[1:]
with zipfile.ZipFile(wheel) as files, files.open(name) as source, open(to + '.part', 'wb') as target:
    shutil.copyfileobj(source, target)
os.chmod(to + '.part', 0o755)
os.replace(to + '.part', to)
";

/// One thing to be had: the variable that tells tests where it is, and how it is got.
struct Tool {
    variable: &'static str,
    what: &'static str,
    install: fn(&Path) -> Result<PathBuf>,
}

const TOOLS: [Tool; 6] = [
    Tool {
        variable: VARIABLE,
        what: "OpenAI's Python client, LangChain and schemathesis",
        install: |dir| python_packages(dir, "python", "requirements.txt"),
    },
    Tool {
        variable: "STRATA_PYTHON_INSTRUCTOR",
        what: "Instructor",
        install: |dir| python_packages(dir, "instructor", "instructor.txt"),
    },
    Tool {
        variable: "STRATA_NODE_MODULES",
        what: "OpenAI's JavaScript client",
        install: node_packages,
    },
    Tool { variable: "STRATA_CHROMIUM", what: "a browser", install: |_| debian("chromium") },
    Tool { variable: "STRATA_PROMETHEUS", what: "Prometheus", install: |_| debian("prometheus") },
    Tool { variable: "STRATA_VLLM_BENCH", what: "vLLM's bench client", install: vllm_bench },
];

/// Install what can be installed; the variables that say where it is. What a variable names already is left as it is.
///
/// # Errors
/// In CI: something cannot be installed.
pub fn install() -> Result<Vec<(&'static str, PathBuf)>> {
    let dir = target_dir()?.join("outside");
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let mut found = Vec::new();
    for tool in TOOLS {
        let given = std::env::var_os(tool.variable).filter(|path| !path.is_empty());
        let path = match given {
            Some(path) => Ok(path.into()),
            None => (tool.install)(&dir),
        };
        match path {
            Ok(path) => found.push((tool.variable, path)),
            Err(why) if in_ci() => {
                return Err(why.context(format!("cannot install {}", tool.what)));
            }
            Err(why) => eprintln!(
                "\n!!! NOT TESTED: cannot install {}; tests that need it are skipped\n!!! {why:#}\n",
                tool.what
            ),
        }
    }
    Ok(found)
}

/// Whether nothing may be left out.
fn in_ci() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    set("CI") || set("STRATA_CI")
}

/// The virtual environment `name` with the packages of a list; its Python.
fn python_packages(dir: &Path, name: &str, list: &str) -> Result<PathBuf> {
    let venv = dir.join(name);
    let python = venv.join("bin/python");
    if !python.is_file() {
        let made = run(program("python3").args(["-I", "-m", "venv", "--clear"]).arg(&venv));
        // Debian keeps this module apart.
        made.or_else(|_| {
            apt_get(&["python3-venv"])?;
            run(program("python3").args(["-I", "-m", "venv", "--clear"]).arg(&venv))
        })?;
    }
    let list = root().join("strata/tests/outside").join(list);
    run(&mut pip::wheels(&python, "install", &list))?;
    Ok(python)
}

/// The directory of npm's packages.
fn node_packages(dir: &Path) -> Result<PathBuf> {
    if !exists("node") || !exists("npm") {
        apt_get(&["nodejs", "npm"])?;
    }
    let version = quiet_output(program("node").arg("--version"))?;
    let major = version.trim().trim_start_matches('v').split('.').next();
    let major: u32 = major.and_then(|major| major.parse().ok()).context("node's version")?;
    ensure!(major >= NODE, "node is {}: OpenAI's client needs {NODE}", version.trim());
    let prefix = dir.join("node");
    fs::create_dir_all(&prefix)?;
    let mut npm = program("npm");
    npm.args(["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]);
    run(npm.arg("--prefix").arg(&prefix).args(NODE_PACKAGES))?;
    Ok(prefix.join("node_modules"))
}

/// A program that Debian has, unless it is there.
fn debian(name: &str) -> Result<PathBuf> {
    if !exists(name) {
        apt_get(&[name])?;
    }
    let path = quiet_output(program("sh").args(["-c", &format!("command -v {name}")]))?;
    Ok(path.trim().into())
}

/// The client out of vLLM's wheel, which is large and not kept.
fn vllm_bench(dir: &Path) -> Result<PathBuf> {
    let list = pip::requirements(VLLM);
    let text = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let version = text.lines().find_map(|line| line.strip_prefix("vllm==")?.split(' ').next());
    let kept =
        dir.join(format!("vllm-{}", version.context("the list of vLLM's wheel has no version")?));
    if kept.is_file() {
        return Ok(kept);
    }
    let wheels = dir.join("wheels");
    let _ = fs::remove_dir_all(&wheels);
    run(pip::wheels("python3", "download", &list).args(["--no-deps", "--dest"]).arg(&wheels))?;
    let wheel = fs::read_dir(&wheels)?.next().context("pip left no wheel")??.path();
    let unpacked = run(program("python3")
        .args(["-I", "-c", UNPACK])
        .args([&wheel, Path::new(VLLM_BENCH)])
        .arg(&kept));
    fs::remove_dir_all(&wheels)?;
    unpacked?;
    Ok(kept)
}

/// Install Debian's packages, as root or not at all.
fn apt_get(packages: &[&str]) -> Result<()> {
    if !exists("apt-get") {
        bail!("{} is not installed, and there is no apt-get to install it", packages.join(" and "));
    }
    let apt_get = || {
        let mut command = program("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt_get().args(["update", "-qq"]))?;
    run(apt_get().args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_read_by_a_test_and_every_one_read_is_set() {
        let dir = root().join("strata/tests/outside");
        let mut read = std::collections::BTreeSet::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(path).unwrap();
            let named = text.split("wanted(\"").skip(1).filter_map(|rest| rest.split('"').next());
            read.extend(named.map(str::to_owned));
        }
        let set = TOOLS.iter().map(|tool| tool.variable.to_owned()).collect();
        assert_eq!(read, set);
    }
}

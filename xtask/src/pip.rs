//! Fetching Python packages: only files whose hashes are in this repository.
//!
//! A version alone does not identify a file: an index, a mirror or a proxy may send another file under the
//! same name. So each list of packages holds the sha256 of every permitted file, and pip rejects all others.
//! Python runs isolated (`-I`): neither the current directory nor `PYTHONPATH` nor the user's own packages
//! can replace pip's modules. Only wheels are used, since the metadata of a source distribution is made by
//! running its code.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use course::shell::{program, root};

/// A list of packages with their hashes, in `xtask/requirements`.
pub fn requirements(name: &str) -> PathBuf {
    root().join("xtask/requirements").join(name)
}

/// Command `pip <subcommand>` of the given Python, for the packages of `requirements` as wheels. Options
/// follow.
pub fn wheels(python: impl AsRef<OsStr>, subcommand: &str, requirements: &Path) -> Command {
    let mut pip = hashed(python, subcommand, requirements);
    pip.arg("--only-binary=:all:");
    pip
}

/// As [`wheels`], for a source distribution. Reading its metadata runs its build system, which must be
/// installed for that Python already: pip would fetch it without checking hashes.
pub fn sources(python: impl AsRef<OsStr>, subcommand: &str, requirements: &Path) -> Command {
    let mut pip = hashed(python, subcommand, requirements);
    pip.args(["--no-binary=:all:", "--no-build-isolation"]);
    pip
}

fn hashed(python: impl AsRef<OsStr>, subcommand: &str, requirements: &Path) -> Command {
    let mut pip = program(python);
    // Both a search for a newer pip and a prompt for a password would wait in vain.
    pip.env("PIP_NO_INPUT", "1").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    pip.args(["-I", "-m", "pip", subcommand, "--quiet", "--require-hashes", "--requirement"]);
    pip.arg(requirements);
    pip
}

/// A Python that has pip.
pub fn python() -> Option<&'static str> {
    let has_pip = |python: &&str| {
        let output = Command::new(python).args(["-I", "-m", "pip", "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    ["python3", "python"].into_iter().find(has_pip)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Every list of packages of the workspace from which a program here installs.
    fn lists() -> Vec<PathBuf> {
        let dirs = ["xtask/requirements", "strata/tests/outside"];
        let files = dirs.iter().flat_map(|dir| fs::read_dir(root().join(dir)).unwrap());
        let files = files.map(|entry| entry.unwrap().path());
        let mut lists: Vec<_> =
            files.filter(|f| f.extension().is_some_and(|e| e == "txt")).collect();
        lists.sort();
        lists
    }

    #[test]
    fn every_python_package_is_of_one_version_and_its_files_are_known_by_hash() {
        assert!(lists().len() >= 6, "{:?}", lists());
        for path in lists() {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>();
            for (at, line) in lines.iter().enumerate() {
                if let Some(hash) = line.strip_prefix("    --hash=sha256:") {
                    let hash = hash.trim_end_matches(" \\");
                    let hex = hash.bytes().all(|c| c.is_ascii_hexdigit());
                    assert!(hash.len() == 64 && hex, "{}: {line}", path.display());
                } else {
                    let next = lines.get(at + 1).copied().unwrap_or_default();
                    let pinned = line.contains("==") && line.ends_with(" \\");
                    assert!(
                        pinned && next.starts_with("    --hash="),
                        "{}: {line}",
                        path.display()
                    );
                }
            }
        }
    }

    #[test]
    fn what_a_list_is_made_from_is_in_it_and_its_head_says_how_it_was_made() {
        for path in lists() {
            let text = fs::read_to_string(&path).unwrap();
            let head = text.lines().nth(1).unwrap_or_default();
            let (from, to) =
                (path.with_extension("in"), path.file_name().unwrap().to_string_lossy());
            assert!(
                head.contains("uv pip compile") && head.ends_with(&*to),
                "{}: {head}",
                path.display()
            );
            let from = fs::read_to_string(&from).unwrap();
            for wanted in from.lines().filter(|line| !line.starts_with('#')) {
                let held = text.lines().any(|line| line.split(' ').next() == Some(wanted));
                assert!(held, "{} lacks {wanted}", path.display());
            }
        }
    }

    #[test]
    fn pip_runs_isolated_and_takes_only_wheels_with_known_hashes() {
        let list = requirements("nvrtc.txt");
        let command = wheels("python3", "install", &list);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(&words[..4], ["-I", "-m", "pip", "install"]);
        assert!(words.iter().any(|word| word == "--require-hashes"), "{words:?}");
        assert!(words.iter().any(|word| word == "--only-binary=:all:"), "{words:?}");
    }

    #[test]
    fn no_other_file_calls_pip_by_itself() {
        for file in course_marks::sources::rust_files(&root().join("xtask/src")).unwrap() {
            if file.ends_with("pip.rs") {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            for call in ["\"pip\"", "\"pip3\""] {
                assert!(!text.contains(call), "{} calls {call}", file.display());
            }
        }
    }
}

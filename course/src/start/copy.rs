//! Which files a learner's workspace consists of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use course_marks::sources::rust_files;
use sha2::{Digest, Sha256};

use crate::shell;

/// Top-level entries that are about developing Strata, not about learning from it.
const LEFT_OUT: [&str; 4] = [".ci", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"];
/// Top-level entries that are never part of the source, for a tree without git.
const NEVER: [&str; 3] = [".git", "target", ".strata"];

/// Copy the source tree from `from` to `to`, which must not exist.
pub fn workspace(from: &Path, to: &Path) -> Result<()> {
    for file in source_files(from)? {
        copy_file(&from.join(&file), &to.join(&file))?;
    }
    Ok(())
}

fn source_files(root: &Path) -> Result<Vec<PathBuf>> {
    let kept = |file: &PathBuf| !LEFT_OUT.iter().any(|out| file.starts_with(out));
    Ok(tree(root)?.into_iter().filter(kept).collect())
}

/// Make `to` what [`workspace`] would make it, touching only what differs, so that a build there has
/// little to do. What is in `to` only is removed, except the files in `keep`, which are left alone.
pub fn refresh(from: &Path, to: &Path, keep: &BTreeSet<PathBuf>) -> Result<()> {
    let files: BTreeSet<PathBuf> = source_files(from)?.into_iter().collect();
    for file in files.difference(keep) {
        let path = from.join(file);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        write_if_new(&to.join(file), &bytes)?;
    }
    for file in walk(to)? {
        if !files.contains(&file) && !keep.contains(&file) {
            fs::remove_file(to.join(&file)).with_context(|| file.display().to_string())?;
        }
    }
    Ok(())
}

/// Write a file unless it has this content already.
pub fn write_if_new(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// A workspace's `Cargo.toml` with something added to the version of its crates.
///
/// Cargo tells builds of path dependencies apart by name, version and place *within* the workspace.
/// Two copies of a workspace that share a target directory (a setting some people have for all their
/// work) would take each other's test programs for their own, so every copy needs a version of its own.
pub fn set_apart(cargo_toml: &str, mark: &str) -> Result<String> {
    let version = cargo_toml
        .lines()
        .find_map(|l| l.strip_prefix("version = \"")?.strip_suffix('"'))
        .context("Cargo.toml has no line `version = ..` under [workspace.package]")?;
    let (line, marked) =
        (format!("version = \"{version}\""), format!("version = \"{version}+{mark}\""));
    Ok(cargo_toml.replacen(&line, &marked, 1))
}

/// Copy what other crates need of a crate: its library, not its tests.
pub fn reference(from: &Path, to: &Path) -> Result<()> {
    for file in walk(from)? {
        if !file.starts_with("tests") && !file.starts_with("examples") {
            copy_file(&from.join(&file), &to.join(&file))?;
        }
    }
    Ok(())
}

/// Record the hashes of everything that the gates of the crate in `dir` consist of.
pub fn hash_gates(root: &Path, dir: &Path, hashes: &mut BTreeMap<String, String>) -> Result<()> {
    for path in gate_files(dir)? {
        let name = path.strip_prefix(root).unwrap_or(&path);
        let name: Vec<_> = name.components().map(|c| c.as_os_str().to_string_lossy()).collect();
        hashes.insert(name.join("/"), hash(&path)?);
    }
    Ok(())
}

/// The SHA-256 of a file, in hexadecimal.
pub fn hash(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    Ok(Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect())
}

/// The integration tests of a crate, what they share, and unit tests that have a file of their own. A crate need not have
/// integration tests.
fn gate_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let (tests, src) = (dir.join("tests"), dir.join("src"));
    let mut files = if tests.is_dir() { rust_files(&tests)? } else { Vec::new() };
    // `tests.rs`, or a file below `tests/`.
    let is_of_tests = |file: &PathBuf| {
        file.strip_prefix(&src)
            .is_ok_and(|f| f.with_extension("").iter().any(|part| part == "tests"))
    };
    files.extend(rust_files(&src)?.into_iter().filter(is_of_tests));
    Ok(files)
}

/// The files of the source tree, relative to it: what git tracks or would track, or (in a tree
/// without git) everything but build products.
pub fn tree(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    if let (true, Ok(listed)) = (root.join(".git").exists(), shell::quiet_output(&mut git)) {
        // A file that was deleted but is still in the index is listed, too.
        let there = |f: &PathBuf| root.join(f).is_file();
        return Ok(listed.split_terminator('\0').map(PathBuf::from).filter(there).collect());
    }
    Ok(walk(root)?.into_iter().filter(|f| !NEVER.iter().any(|n| f.starts_with(n))).collect())
}

/// All files below a folder, relative to it and in order, without build products and history.
pub fn walk(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            let relative = path.strip_prefix(root).unwrap_or(&path);
            if path.is_file() {
                found.push(relative.to_path_buf());
            } else if path.is_dir() && !NEVER.iter().any(|n| relative == Path::new(n)) {
                dirs.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Copies a file, and makes the folder that it goes to.
pub fn copy_file(from: &Path, to: &Path) -> Result<()> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    fs::copy(from, to).with_context(|| format!("{} -> {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_a_version_of_its_own() {
        let toml = "[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        let expected = "[workspace.package]\nversion = \"0.1.0+mine\"\nedition = \"2024\"\n";
        assert_eq!(set_apart(toml, "mine").unwrap(), expected);
        assert!(set_apart("[workspace]\n", "mine").is_err());
    }

    #[test]
    fn gates_may_be_unit_tests_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file);
        fs::create_dir_all(at("src/router/tests")).unwrap();
        for file in
            ["src/lib.rs", "src/router/tests.rs", "src/router/tests/model.rs", "src/testing.rs"]
        {
            fs::write(at(file), "").unwrap();
        }
        let unit_tests = [at("src/router/tests/model.rs"), at("src/router/tests.rs")];
        let mut found = gate_files(dir.path()).unwrap();
        found.sort();
        assert_eq!(found, unit_tests);
        fs::create_dir(at("tests")).unwrap();
        fs::write(at("tests/whole.rs"), "").unwrap();
        assert_eq!(gate_files(dir.path()).unwrap().len(), 3);
    }

    #[test]
    fn refreshing_touches_what_differs_and_removes_what_is_gone() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let keep = BTreeSet::from([PathBuf::from("kept.rs")]);
        for (file, text) in [("same.rs", "1"), ("new.rs", "2"), ("kept.rs", "3")] {
            fs::write(from.path().join(file), text).unwrap();
        }
        for (file, text) in [("same.rs", "1"), ("gone.rs", "4"), ("kept.rs", "5")] {
            fs::write(to.path().join(file), text).unwrap();
        }
        let before = fs::metadata(to.path().join("same.rs")).unwrap().modified().unwrap();
        refresh(from.path(), to.path(), &keep).unwrap();
        let read = |file: &str| fs::read_to_string(to.path().join(file)).ok();
        assert_eq!(read("new.rs").as_deref(), Some("2"));
        assert_eq!(read("kept.rs").as_deref(), Some("5"));
        assert_eq!(read("gone.rs"), None);
        let after = fs::metadata(to.path().join("same.rs")).unwrap().modified().unwrap();
        assert_eq!(before, after);
    }
}

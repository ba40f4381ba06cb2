//! Choosing test programs by looking at the source, not by a list: a test that someone adds tomorrow
//! is among them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use course::shell::root;

/// Integration tests of all packages whose source mentions a word.
pub fn mentioning(word: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(root())? {
        let package = entry?.path();
        if package.join("Cargo.toml").is_file() {
            for path in sources(&package)? {
                if contains(&path, word)? {
                    found.insert(name(&path));
                }
            }
        }
    }
    Ok(found)
}

/// All integration tests of the package in a directory of the workspace.
pub fn of(package: &str) -> Result<BTreeSet<String>> {
    Ok(sources(&root().join(package))?.iter().map(|path| name(path)).collect())
}

/// What cargo makes test programs of: the files in `tests`, and directories with a `main.rs`.
fn sources(package: &Path) -> Result<Vec<PathBuf>> {
    let tests = package.join("tests");
    if !tests.is_dir() {
        return Ok(Vec::new());
    }
    let mut sources = Vec::new();
    for entry in fs::read_dir(tests)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file() {
            sources.push(path);
        }
    }
    Ok(sources)
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn contains(path: &Path, word: &str) -> Result<bool> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            if contains(&entry?.path(), word)? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    Ok(text.windows(word.len()).any(|w| w == word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gates_of_the_real_model_are_found_by_the_variable_they_read() {
        let gates = mentioning("STRATA_SMOLLM2").unwrap();
        assert!(gates.iter().any(|test| test.contains("smollm2")), "{gates:?}");
        assert_eq!(mentioning("no test says this").unwrap(), BTreeSet::new());
    }

    #[test]
    fn modules_that_tests_share_are_no_tests() {
        let tests = of("l1-tensor").unwrap();
        assert!(tests.contains("linear"), "{tests:?}");
        assert!(!tests.contains("support"), "{tests:?}");
        assert_eq!(of("no-such-package").unwrap(), BTreeSet::new());
    }
}

//! Which integration tests read a certain environment variable.
//!
//! Found by looking, not by a list: a gate that someone adds tomorrow is run in full from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell::root;

/// Integration tests whose source mentions `variable`, by package. Directory and package have the
/// same name in this workspace.
pub fn find(variable: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root())? {
        let package = entry?.path();
        let (tests, Some(name)) = (package.join("tests"), package.file_name()) else { continue };
        if package.join("Cargo.toml").is_file() && tests.is_dir() {
            let targets = targets_with(&tests, variable)?;
            if !targets.is_empty() {
                found.insert(name.to_string_lossy().into_owned(), targets);
            }
        }
    }
    Ok(found)
}

/// Targets of one `tests` directory: its files, and directories with a `main.rs`.
fn targets_with(tests: &Path, variable: &str) -> Result<BTreeSet<String>> {
    let mut targets = BTreeSet::new();
    for entry in fs::read_dir(tests)? {
        let path = entry?.path();
        let is_target =
            path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file();
        if let (true, Some(name)) = (is_target && mentions(&path, variable)?, path.file_stem()) {
            targets.insert(name.to_string_lossy().into_owned());
        }
    }
    Ok(targets)
}

fn mentions(path: &Path, word: &str) -> Result<bool> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            if mentions(&entry?.path(), word)? {
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
    fn gates_of_the_real_model_are_found_and_nothing_is_found_for_an_unknown_variable() {
        let gates = find("STRATA_SMOLLM2").unwrap();
        assert!(gates["l2-model"].iter().any(|test| test.contains("smollm2")), "{gates:?}");
        let nobody = ["STRATA", "NO_SUCH_THING"].join("_");
        assert_eq!(find(&nobody).unwrap(), BTreeMap::new());
    }
}

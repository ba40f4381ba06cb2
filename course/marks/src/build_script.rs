//! What a layer's `build.rs` does: refuse to build when marks and catalogue disagree.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

use crate::{CATALOGUE, LEARNER_DIR, Sources};

/// Check the marks of the crate that is being built against its catalogue; on disagreement print
/// what to change and fail the build.
///
/// In a learner's workspace this looks at nothing: there the files are theirs, marks included.
pub fn check_in_build_script() {
    let dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    if belongs_to_a_learner(&dir) {
        // An unchanging file: cargo runs this script once.
        println!("cargo::rerun-if-changed=build.rs");
        return;
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed={CATALOGUE}");
    if let Err(error) = Sources::load(&dir) {
        println!("cargo::error={error}");
        exit(1);
    }
}

fn belongs_to_a_learner(dir: &Path) -> bool {
    // The crate lies in the workspace, or (a reference copy) in the folder itself.
    dir.ancestors().any(|d| d.join(LEARNER_DIR).is_dir())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_learners_workspace_is_known_by_its_folder() {
        let root = tempfile::tempdir().unwrap();
        let member = root.path().join("l1-tensor");
        let copy = root.path().join(LEARNER_DIR).join("reference/l1-tensor");
        assert!(!belongs_to_a_learner(&member));
        fs::create_dir_all(&copy).unwrap();
        assert!(belongs_to_a_learner(&member) && belongs_to_a_learner(&copy));
    }
}

//! Links a mutant below the other layers, and removes it again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use course_marks::{LEARNER_DIR, Language, Mutant, schemata};
use serde::{Deserialize, Serialize};

use super::hunt;
use crate::link::{self, Version};
use crate::start::copy;
use crate::workspace::{Member, Workspace};

/// The environment variable that makes an installed mutant behave like the reference.
pub const OFF: (&str, &str) = ("STRATA_MUTANT", "off");

/// To be appended to the `lib.rs` of the copy: the mistake is there unless [`OFF`] is set.
const SWITCH: &str = r#"
#[doc(hidden)]
pub mod schemata {
    use std::sync::OnceLock;

    static OFF: OnceLock<bool> = OnceLock::new();

    /// Whether the mistake is there.
    pub fn on(_: &str) -> bool {
        !OFF.get_or_init(|| std::env::var_os("STRATA_MUTANT").is_some_and(|v| v == "off"))
    }
}
"#;

/// `.strata/mutant/installed.json`.
#[derive(Serialize, Deserialize)]
struct Installed {
    switch: String,
    package: String,
    /// What the layers above used before: whether it was the learner's version.
    mine_before: bool,
}

fn folder(root: &Path) -> PathBuf {
    root.join(LEARNER_DIR).join("mutant")
}

/// Where the copy with the mistake lies.
pub fn dir(root: &Path, package: &str) -> PathBuf {
    folder(root).join(package)
}

/// The switch of the mutant that is installed.
pub fn installed(root: &Path) -> Option<String> {
    read(root).map(|i| i.switch)
}

fn read(root: &Path) -> Option<Installed> {
    let text = fs::read_to_string(folder(root).join("installed.json")).ok()?;
    serde_json::from_str(&text).ok()
}

/// Install a mutant in place of any other. Returns whether it was not there before.
pub fn install(workspace: &Workspace, member: &Member, mutant: &Mutant) -> Result<bool> {
    let root = &workspace.root;
    hunt::prepare(root, member, mutant)?;
    let cargo_toml = root.join("Cargo.toml");
    let package = &member.layer.package;
    let linked = link::linked(&fs::read_to_string(&cargo_toml)?, package);
    if installed(root) == Some(mutant.switch()) && linked == Some(Version::Mutant) {
        return Ok(false);
    }
    forget(root)?;
    let dir = dir(root, package);
    copy::reference(&member.reference, &dir)?;
    link::rename_copy(&dir, package, "mutant")?;

    let file = dir.join(mutant.file_in(&member.layer));
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let text = schemata::switch_mutants(&text, Language::of(&mutant.file), &[mutant])
        .map_err(|e| anyhow!("{e}"))?;
    fs::write(&file, text)?;
    let lib = dir.join("src/lib.rs");
    let text = fs::read_to_string(&lib)?;
    fs::write(&lib, text + SWITCH)?;
    fs::create_dir_all(dir.join("tests"))?;
    fs::write(dir.join("tests/hunt.rs"), hunt::program(mutant))?;

    let text = fs::read_to_string(&cargo_toml)?;
    let note = Installed {
        switch: mutant.switch(),
        package: package.clone(),
        mine_before: link::linked(&text, package) == Some(Version::Mine),
    };
    fs::write(folder(root).join("installed.json"), serde_json::to_string(&note)? + "\n")?;
    fs::write(&cargo_toml, link::set(&text, package, Version::Mutant)?)?;
    Ok(true)
}

/// Remove the mutant that is installed, if one is, and link what was linked before.
pub fn forget(root: &Path) -> Result<()> {
    let cargo_toml = root.join("Cargo.toml");
    if let Some(note) = read(root) {
        let text = fs::read_to_string(&cargo_toml)?;
        if link::linked(&text, &note.package) == Some(Version::Mutant) {
            // A layer that was not among the learner's has one version only.
            let copied = root.join(LEARNER_DIR).join("reference").join(&note.package).is_dir();
            let back = match note.mine_before || !copied {
                true => Version::Mine,
                false => Version::Reference,
            };
            fs::write(&cargo_toml, link::set(&text, &note.package, back)?)?;
        }
    }
    let folder = folder(root);
    if folder.is_dir() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        link::settle(root);
    }
    Ok(())
}

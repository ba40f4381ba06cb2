//! `cargo x use`: chooses which version of a layer the other layers use, yours or the reference.
//!
//! Every crate names its layers by `workspace = true`, so one line of the workspace's `Cargo.toml`
//! decides. The reference copy has a package name of its own (a workspace cannot hold two packages of
//! one name) and the same library name, so no source changes.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use course_marks::LEARNER_DIR;

use super::workspace::Workspace;
use crate::shell;

/// Choose whether the layers above use your version of a layer or the reference
#[derive(Args)]
pub struct UseArgs {
    /// The layer: l1, l2, .. l6 or l0
    layer: String,
    /// Which version
    version: Version,
}

/// Which version of a layer the others use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// Yours
    Mine,
    /// The reference
    Reference,
    /// One with a mistake: see `cargo x mutant`
    #[value(skip)]
    Mutant,
}

/// Run the command.
pub fn run(args: &UseArgs) -> Result<()> {
    let workspace = Workspace::open()?;
    let member = workspace.member(&args.layer)?;
    let (id, package) = (&member.layer.id, &member.layer.package);
    let Some(manifest) = &workspace.learner else {
        bail!(
            "this is the reference workspace, which has one version of each layer; make a workspace to \
             learn in with `cargo x start DIR`"
        );
    };
    if !manifest.layers.contains(id) {
        bail!("this workspace was started without {id}: it has {package} only as the reference");
    }
    let path = workspace.root.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let before = linked(&text, package);
    fs::write(&path, set(&text, package, args.version)?)
        .with_context(|| path.display().to_string())?;
    let which = match args.version {
        Version::Mine => format!("your {package}"),
        _ => format!("the reference of {package}"),
    };
    let already = if before == Some(args.version) { " already" } else { "" };
    println!("The layers above {id} use {which}{already}.");
    if before == Some(Version::Mutant) {
        super::mutant::forget(&workspace.root)?;
        println!("The mutant that they used before is removed.");
    }
    settle(&workspace.root);
    if args.version == Version::Mine {
        println!("If they reach an exercise that is not written yet, its `todo!` names it;");
        println!("`cargo x use {id} reference` links the reference again.");
    }
    Ok(())
}

/// The version that a workspace's `Cargo.toml` links, if it has such a line.
pub fn linked(cargo_toml: &str, package: &str) -> Option<Version> {
    let line = cargo_toml.lines().find(|l| is_link(l, package))?;
    let is_in = |folder: &str| line.contains(&format!("\"{LEARNER_DIR}/{folder}/"));
    Some(match () {
        () if is_in("reference") => Version::Reference,
        () if is_in("mutant") => Version::Mutant,
        () => Version::Mine,
    })
}

/// A workspace's `Cargo.toml` with a layer linked to this version.
pub fn set(cargo_toml: &str, package: &str, version: Version) -> Result<String> {
    let copy = |kind: &str| {
        let path = format!("{LEARNER_DIR}/{kind}/{package}");
        format!("{package} = {{ path = \"{path}\", package = \"{package}-{kind}\" }}")
    };
    let link = match version {
        Version::Mine => format!("{package} = {{ path = \"{package}\" }}"),
        Version::Reference => copy("reference"),
        Version::Mutant => copy("mutant"),
    };
    let mut found = 0;
    let lines: Vec<&str> = cargo_toml
        .lines()
        .map(|line| {
            let it = is_link(line, package);
            found += usize::from(it);
            if it { link.as_str() } else { line }
        })
        .collect();
    if found != 1 {
        bail!(
            "Cargo.toml must have one line `{package} = {{ path = .. }}` under \
             [workspace.dependencies], but has {found}; the line is\n    {link}"
        );
    }
    Ok(lines.join("\n") + "\n")
}

/// Let cargo bring `Cargo.lock` in line with what is linked. If it cannot do so now, the next build
/// does.
pub fn settle(root: &Path) {
    let mut metadata = shell::cargo("metadata");
    metadata.current_dir(root).args(["--format-version", "1", "--offline", "--quiet"]);
    let _ = metadata.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Give the copy of a crate in `dir` a package name of its own: `l1-tensor-reference` for a `kind` of
/// `reference`. Its library keeps the name it had, and has no tests: those are of the crate itself.
pub fn rename_copy(dir: &Path, package: &str, kind: &str) -> Result<()> {
    let path = dir.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let is_name = |line: &&str| line.starts_with("name = \"");
    let name =
        text.lines().find(is_name).with_context(|| format!("{} has no name", path.display()))?;
    let mut text = text.replacen(name, &format!("name = \"{package}-{kind}\""), 1);
    if !text.contains("\n[lib]\n") {
        let library = package.replace('-', "_");
        text.push_str(&format!(
            "\n[lib]\nname = \"{library}\"\ntest = false\nbench = false\ndoctest = false\n"
        ));
    }
    fs::write(&path, text).with_context(|| path.display().to_string())
}

fn is_link(line: &str, package: &str) -> bool {
    let rest = line.strip_prefix(package).map(str::trim_start);
    rest.is_some_and(|r| r.starts_with('=') && r.contains("path"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = "\
[workspace]
members = [\"l1-tensor\"]

[workspace.dependencies]
l1-tensor = { path = \"l1-tensor\" }
l1-tensor-extra = \"1\"
";

    #[test]
    fn a_link_goes_there_and_back() {
        assert_eq!(linked(TOML, "l1-tensor"), Some(Version::Mine));
        let reference = set(TOML, "l1-tensor", Version::Reference).unwrap();
        assert_eq!(linked(&reference, "l1-tensor"), Some(Version::Reference));
        assert!(reference.contains("package = \"l1-tensor-reference\""), "{reference}");
        let mutant = set(&reference, "l1-tensor", Version::Mutant).unwrap();
        assert_eq!(linked(&mutant, "l1-tensor"), Some(Version::Mutant));
        assert_eq!(set(&mutant, "l1-tensor", Version::Mine).unwrap(), TOML);
    }

    #[test]
    fn a_copy_of_a_copy_has_one_name_and_one_library() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("Cargo.toml");
        fs::write(&path, "[package]\nname = \"l1-tensor\"\n\n[[bench]]\nname = \"pool\"\n")
            .unwrap();
        rename_copy(dir.path(), "l1-tensor", "reference").unwrap();
        rename_copy(dir.path(), "l1-tensor", "mutant").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let expected = "[package]\nname = \"l1-tensor-mutant\"\n\n[[bench]]\nname = \"pool\"\n\
                        \n[lib]\nname = \"l1_tensor\"\ntest = false\nbench = false\ndoctest = false\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_line_that_is_gone_is_asked_for() {
        let error = set("[workspace]\n", "l1-tensor", Version::Mine).unwrap_err().to_string();
        assert!(error.contains("l1-tensor = { path = \"l1-tensor\" }"), "{error}");
        assert_eq!(linked("[workspace]\n", "l1-tensor"), None);
    }
}

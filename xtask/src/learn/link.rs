//! `cargo x use`: which version of a layer the others use, yours or the reference.
//!
//! Every crate names its layers by `workspace = true`, so one line of the workspace's `Cargo.toml`
//! decides. The reference copy has a package name of its own (a workspace cannot hold two packages of
//! one name) and the same library name, so no source changes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use course::LEARNER_DIR;

use super::house::House;

/// Choose whether the layers above use your version of a layer or the reference
#[derive(Args)]
pub struct UseArgs {
    /// The layer: l1, l2, ..
    layer: String,
    /// Which version
    version: Version,
}

/// Which version of a layer the others use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// Yours
    Mine,
    /// The one that works
    Reference,
}

/// Run the command.
pub fn run(args: &UseArgs) -> Result<()> {
    let house = House::open()?;
    let floor = house.floor(&args.layer)?;
    let (id, package) = (&floor.layer.id, &floor.layer.package);
    let Some(manifest) = &house.learner else {
        bail!(
            "this is the reference workspace, it has one version of everything; make your own with \
             `cargo x start DIR`"
        );
    };
    if !manifest.layers.contains(id) {
        bail!("{id} was not among the layers you started with, so {package} is the reference");
    }
    let path = house.root.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let before = linked(&text, package);
    fs::write(&path, set(&text, package, args.version)?)
        .with_context(|| path.display().to_string())?;
    let which = match args.version {
        Version::Mine => format!("your {package}"),
        Version::Reference => format!("the reference of {package}"),
    };
    let already = if before == Some(args.version) { " already" } else { "" };
    println!("The layers above {id} use {which}{already}.");
    if args.version == Version::Mine {
        println!("If they run into something you have not written yet, its `todo!` says so.");
    }
    Ok(())
}

/// The version that a workspace's `Cargo.toml` links, if it says.
pub fn linked(cargo_toml: &str, package: &str) -> Option<Version> {
    let line = cargo_toml.lines().find(|l| is_link(l, package))?;
    Some(if line.contains(LEARNER_DIR) { Version::Reference } else { Version::Mine })
}

/// A workspace's `Cargo.toml` with a layer linked to this version.
pub fn set(cargo_toml: &str, package: &str, version: Version) -> Result<String> {
    let link = match version {
        Version::Mine => format!("{package} = {{ path = \"{package}\" }}"),
        Version::Reference => format!(
            "{package} = {{ path = \"{LEARNER_DIR}/reference/{package}\", package = \"{}\" }}",
            reference_name(package)
        ),
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
            "Cargo.toml should have one line `{package} = {{ path = .. }}` under \
             [workspace.dependencies], and has {found}; put back\n    {link}"
        );
    }
    Ok(lines.join("\n") + "\n")
}

/// What the package of the reference copy is called.
pub fn reference_name(package: &str) -> String {
    format!("{package}-reference")
}

/// Give the crate in `dir` the package name of a copy, and its library the name it had.
pub fn rename_copy(dir: &Path, package: &str, name: &str) -> Result<()> {
    let path = dir.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let old = format!("name = \"{package}\"");
    if text.matches(&old).count() != 1 {
        bail!("{}: expected one line `{old}`", path.display());
    }
    let library = format!("\n[lib]\nname = \"{}\"\n", package.replace('-', "_"));
    fs::write(&path, text.replace(&old, &format!("name = \"{name}\"")) + &library)
        .with_context(|| path.display().to_string())
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
        assert_eq!(set(&reference, "l1-tensor", Version::Mine).unwrap(), TOML);
    }

    #[test]
    fn a_line_that_is_gone_is_asked_for() {
        let error = set("[workspace]\n", "l1-tensor", Version::Mine).unwrap_err().to_string();
        assert!(error.contains("l1-tensor = { path = \"l1-tensor\" }"), "{error}");
        assert_eq!(linked("[workspace]\n", "l1-tensor"), None);
    }
}

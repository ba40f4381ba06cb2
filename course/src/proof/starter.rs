//! The fully blanked starter compiles, silently, and begins with a clean history.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::programs::{self, NotBuilt};
use crate::shell;
use crate::start;
use crate::workspace::{Member, Workspace};

/// A workspace made by `cargo x start DIR --all` in the target directory, which is made anew.
pub fn make(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let all: Vec<&Member> = workspace.members.iter().collect();
    make_of(workspace, name, &all)
}

/// The same with the exercises of some layers only.
pub fn make_of(workspace: &Workspace, name: &str, members: &[&Member]) -> Result<PathBuf> {
    let dir = shell::target_dir()?.join("course").join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    start::make(workspace, members, &dir)?;
    Ok(dir)
}

/// Make one and let the compiler look at all of it.
pub fn prove(workspace: &Workspace) -> Result<()> {
    let dir = make(workspace, "starter")?;
    match programs::check_everything(&dir)? {
        Ok(warnings) => {
            let all: Vec<String> = warnings.iter().map(|d| d.rendered.clone()).collect();
            super::none(&all)?;
        }
        Err(NotBuilt::Compile(errors)) => {
            let all: Vec<String> = errors.iter().map(|d| d.rendered.clone()).collect();
            super::none(&all)?;
        }
        Err(NotBuilt::Cargo(said)) => bail!("{said}"),
    }
    println!("every crate of the starter compiles without a warning");

    let commits = git(&dir, &["rev-list", "--count", "HEAD"])?;
    if commits.trim() != "1" {
        bail!("the starter's history has {} commits", commits.trim());
    }
    let changed = git(&dir, &["status", "--porcelain"])?;
    if !changed.is_empty() {
        bail!("building the starter changes files that git tracks:\n{changed}");
    }
    println!("its history has one commit, and building it changes nothing");
    Ok(())
}

fn git(dir: &Path, args: &[&str]) -> Result<String> {
    shell::quiet_output(Command::new("git").args(args).current_dir(dir))
}

//! `cargo x start`: a workspace to learn in.
//!
//! The same crates, tests, fixtures and tools as the reference; the bodies of the chosen layers'
//! exercises replaced by a `todo!`; and, in `.strata/`, the reference of those layers, which the layers
//! above use until the learner runs `cargo x use`. So no layer waits for one below it, and the whole
//! workspace compiles from the beginning.

pub mod copy;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use course_marks::marks::FAST_TRACK;
use course_marks::{LEARNER_DIR, Language, edit};
use sha2::{Digest, Sha256};

use super::link::{self, Version};
use super::workspace::{Manifest, Member, Workspace, reference_dir};
use crate::shell;

/// Make a workspace to learn in: the same crates, the exercises' bodies taken out
#[derive(Args)]
pub struct StartArgs {
    /// Where to make it: a directory that does not exist yet or is empty
    dir: PathBuf,
    /// The layers to write yourself, with commas between them
    #[arg(long, value_delimiter = ',', conflicts_with = "all")]
    layers: Vec<String>,
    /// Write all layers yourself, the fast track included: what is done without options
    #[arg(long)]
    all: bool,
    /// Write the fast track only: a small engine of your own that completes a prompt, in about ten hours
    #[arg(long, conflicts_with_all = ["layers", "all"])]
    fast: bool,
}

/// Run the command.
pub fn run(args: &StartArgs) -> Result<()> {
    let workspace = Workspace::open()?;
    if workspace.learner.is_some() {
        bail!(
            "this workspace was made by `cargo x start`; run the command in the clone of Strata, or \
             see `cargo x next` for how to go on here"
        );
    }
    let members: Vec<&Member> = if args.fast {
        vec![workspace.member(FAST_TRACK)?]
    } else if args.layers.is_empty() {
        workspace.members.iter().collect()
    } else {
        args.layers.iter().map(|name| workspace.member(name)).collect::<Result<_>>()?
    };
    make(&workspace, &members, &args.dir)?;

    let exercises: usize = members.iter().map(|f| f.layer.exercises.len()).sum();
    let names: Vec<&str> = members.iter().map(|f| f.layer.id.as_str()).collect();
    println!(
        "{} is ready: {exercises} exercises in {}.\n\nNow\n\n    cd {}\n    \
         cargo build -p xtask    # the tool of the course: two or three minutes on two cores, once\n    \
         cargo x check           # names the first exercise\n\n\
         The first check of a layer also compiles what the layer needs, and shows how far it is. Later\n\
         checks take seconds.",
        args.dir.display(),
        listed(&names),
        args.dir.display()
    );
    Ok(())
}

/// `l1, l2 and l3`.
fn listed(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Make the workspace in `dir`, or nothing at all.
pub fn make(workspace: &Workspace, members: &[&Member], dir: &Path) -> Result<()> {
    let dir = resolved(dir)?;
    refuse_occupied(&dir)?;
    let inside = |of: &Path| resolved(of).map(|of| dir.starts_with(of));
    if inside(&workspace.root)? && !inside(&shell::target_dir()?)? {
        bail!(
            "{} is inside this workspace; choose a directory outside, such as ../my-strata",
            dir.display()
        );
    }
    // Everything is made next to the place and moved there in one step, so that a full disk or
    // a mistake in the middle leaves nothing half done.
    let parent = dir.parent().context("the root of a file system cannot be the directory")?;
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let draft = parent.join(format!(".{name}.unfinished-{}", std::process::id()));
    let made = fill(workspace, members, &dir, &draft).and_then(|()| {
        if dir.is_dir() {
            fs::remove_dir(&dir)?;
        }
        fs::rename(&draft, &dir).with_context(|| dir.display().to_string())
    });
    if made.is_err() {
        // What matters is the first error, not whether the draft can be removed.
        let _ = fs::remove_dir_all(&draft);
    }
    made?;
    finish(&dir)
}

/// A path without `..` and links, of which the last parts need not exist yet.
fn resolved(path: &Path) -> Result<PathBuf> {
    let mut known = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let mut rest = Vec::new();
    loop {
        if let Ok(found) = known.canonicalize() {
            return Ok(rest.iter().rev().fold(found, |path, part| path.join(part)));
        }
        // What does not exist has a name; `..` behind it would lead to nowhere.
        let Some(name) = known.file_name().map(ToOwned::to_owned) else {
            bail!("{} has no parent that exists", path.display());
        };
        rest.push(name);
        known.pop();
    }
}

fn refuse_occupied(dir: &Path) -> Result<()> {
    if !dir.exists() && fs::symlink_metadata(dir).is_err() {
        return Ok(());
    }
    let entries = fs::read_dir(dir)
        .with_context(|| format!("{} exists and is no directory", dir.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if let Some(first) = names.first() {
        bail!(
            "{} is not empty (it holds {first}{}); nothing was touched. Choose another directory",
            dir.display(),
            if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() }
        );
    }
    Ok(())
}

/// Write all files of what is to be the workspace in `dir` into `draft`.
fn fill(workspace: &Workspace, members: &[&Member], dir: &Path, draft: &Path) -> Result<()> {
    copy::workspace(&workspace.root, draft)?;
    let mut manifest =
        Manifest { version: Manifest::VERSION, layers: Vec::new(), gates: Default::default() };
    let cargo_toml = draft.join("Cargo.toml");
    let mut root_manifest = fs::read_to_string(&cargo_toml)?;
    for member in members {
        let package = &member.layer.package;
        let copy = reference_dir(draft, package);
        copy::reference(&draft.join(package), &copy)?;
        link::rename_copy(&copy, package, "reference")?;
        root_manifest = link::set(&root_manifest, package, Version::Reference)?;
        take_out(member, &draft.join(package))?;
        manifest.layers.push(member.layer.id.clone());
        copy::hash_gates(draft, &draft.join(package), &mut manifest.gates)?;
    }
    let root_manifest = copy::set_apart(&quiet_about_unused(&root_manifest)?, &mark_of(dir))?;
    fs::write(&cargo_toml, root_manifest)?;
    fs::write(Manifest::path(draft), serde_json::to_string_pretty(&manifest)? + "\n")?;
    fs::write(draft.join("README.md"), readme(members))?;
    let mut ignored = fs::read_to_string(draft.join(".gitignore")).unwrap_or_default();
    for of_the_tools in ["progress.json*", "hunts.json", "mutant/"] {
        ignored.push_str(&format!("/{LEARNER_DIR}/{of_the_tools}\n"));
    }
    ignored.push_str("*.proptest-regressions\n");
    fs::write(draft.join(".gitignore"), ignored)?;
    Ok(())
}

/// Take the bodies of a layer's exercises out of the crate in `dir`.
fn take_out(member: &Member, dir: &Path) -> Result<()> {
    let sources = member.sources()?;
    let all: Vec<&course_marks::Exercise> = member.layer.exercises.iter().collect();
    for file in &sources.files {
        let blanked = edit::blank(&file.text, Language::of(&file.path), &all)
            .map_err(|(line, problem)| anyhow::anyhow!("{}:{}: {problem}", file.path, line + 1))?;
        fs::write(dir.join(&file.path), blanked)?;
    }
    Ok(())
}

/// A mark that no copy in another place has.
fn mark_of(dir: &Path) -> String {
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
    format!("learner.{hex}")
}

/// Turns warnings about unused code off: where bodies are missing, much of the rest is unused.
fn quiet_about_unused(cargo_toml: &str) -> Result<String> {
    let section = "[workspace.lints.rust]\n";
    if !cargo_toml.contains(section) {
        bail!("Cargo.toml has no {}", section.trim());
    }
    let quiet = "# While bodies are missing, what they would use is unused. Remove this when all is green.\n\
                 unused = { level = \"allow\", priority = -1 }\n";
    let kept: Vec<&str> =
        cargo_toml.lines().filter(|l| !l.starts_with("unused_qualifications")).collect();
    Ok((kept.join("\n") + "\n").replace(section, &format!("{section}{quiet}")))
}

/// Steps that need the final directory: the lock file's new names, the first commit.
fn finish(dir: &Path) -> Result<()> {
    link::settle(dir);
    if !shell::exists("git") {
        println!("git is not installed, so the workspace has no history; everything else works.");
        return Ok(());
    }
    git(dir, &["init", "--quiet"])?;
    git(dir, &["add", "--all"])?;
    let mut commit = Command::new("git");
    if !knows_who_commits(dir) {
        commit.args(["-c", "user.name=Strata learner", "-c", "user.email=learner@localhost"]);
    }
    commit.args(["commit", "--quiet", "--no-gpg-sign", "--no-verify"]);
    commit.args(["-m", "Start of the course"]).current_dir(dir);
    shell::quiet_output(&mut commit).map(drop)
}

fn knows_who_commits(dir: &Path) -> bool {
    let ask = |key| shell::quiet_output(Command::new("git").args(["config", key]).current_dir(dir));
    ["user.name", "user.email"].iter().all(|key| ask(key).is_ok_and(|v| !v.trim().is_empty()))
}

fn git(dir: &Path, args: &[&str]) -> Result<()> {
    shell::quiet_output(Command::new("git").args(args).current_dir(dir)).map(drop)
}

fn readme(members: &[&Member]) -> String {
    // No layer is built on the fast track.
    let first = members.iter().map(|f| f.layer.id.as_str()).find(|id| *id != FAST_TRACK);
    let others = first.map_or(String::new(), |first| {
        format!(
            "The layers above yours use the reference until you run `cargo x use {first} mine`.\n\n"
        )
    });
    let mut text = format!(
        "# Your Strata\n\n\
         A working LLM engine in which you write the missing parts.\n\n\
         ```sh\n\
         cargo x check      # the first exercise that fails, with the reason\n\
         cargo x hint       # the next hint\n\
         cargo x progress   # which exercises are done\n\
         cargo x next       # what to read and where to write\n\
         ```\n\n\
         The text is in `book/src/`; `cargo x book build` renders it. `one-token.md` is the opening\n\
         chapter, and `how-it-works.md` describes the course. `cargo x next` names the page of the\n\
         next exercise.\n\n\
         {others}| layer | exercises | about |\n|---|---|---|\n",
    );
    for member in members {
        let layer = &member.layer;
        let minutes: u32 = layer.exercises.iter().map(|e| e.minutes).sum();
        let hours = f64::from(minutes) / 60.0;
        text.push_str(&format!(
            "| `{}` {} | {} | {hours:.0} hours |\n",
            layer.package,
            layer.title,
            layer.exercises.len()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_taken_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refuse_occupied(dir.path()).is_ok(), "an empty directory is welcome");
        assert!(refuse_occupied(&dir.path().join("new")).is_ok());
        let file = dir.path().join("notes.txt");
        fs::write(&file, "mine").unwrap();
        let error = refuse_occupied(dir.path()).unwrap_err().to_string();
        assert!(error.contains("notes.txt") && error.contains("not empty"), "{error}");
        let error = format!("{:#}", refuse_occupied(&file).unwrap_err());
        assert!(error.contains("is no directory"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    }

    #[test]
    fn a_place_is_understood_before_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir(root.join("clone")).unwrap();
        let beside = root.join("clone/../mine/new");
        assert_eq!(resolved(&beside).unwrap(), root.join("mine/new"));
        assert_eq!(resolved(&root.join("clone")).unwrap(), root.join("clone"));
        assert!(resolved(&root.join("no/such/../place")).is_err());
    }

    #[test]
    fn layers_are_listed_as_in_a_sentence() {
        assert_eq!(listed(&["l1"]), "l1");
        assert_eq!(listed(&["l1", "l2"]), "l1 and l2");
        assert_eq!(listed(&["l1", "l2", "l3"]), "l1, l2 and l3");
    }

    #[test]
    fn the_workspace_stops_talking_about_what_is_unused() {
        let quiet = quiet_about_unused(
            "[workspace.lints.rust]\nmissing_docs = \"warn\"\nunused_qualifications = \"warn\"\n",
        );
        let quiet = quiet.unwrap();
        assert!(quiet.contains("[workspace.lints.rust]\n#"), "{quiet}");
        assert!(quiet.contains("unused = { level = \"allow\""));
        assert!(quiet.contains("missing_docs") && !quiet.contains("unused_qualifications"));
    }
}

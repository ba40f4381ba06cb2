//! `cargo x mutant`: the learner finds a mistake of a kind that people make.
//!
//! `mutants/` holds wrong versions of the reference. Installing one makes a copy of the
//! reference with that mistake in it and links it below the other layers; what the learner wrote is
//! not touched. The learner answers with a diagnosis (which exercise's code is wrong?) or with a test that
//! the reference passes and the mutant fails. In the copy the mistake sits behind a switch, so one
//! build serves both sides of that comparison.

mod hunt;
mod install;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use course_marks::{LEARNER_DIR, Mutant};

use super::screen::{ask, wrap};
use super::state::Blanks;
use super::workspace::{Member, Workspace};

pub use install::forget;

/// Find a mistake: install a wrong version of a layer, then name the exercise or write a test that fails
#[derive(Args)]
pub struct MutantArgs {
    /// The layer: nano, l1, l2, .. l6 or l0
    layer: String,
    /// Number of the mutant; without it, list them
    number: Option<u32>,
    /// Your diagnosis: the exercise whose code is wrong
    #[arg(long, value_name = "ID")]
    diagnosis: Option<String>,
    /// Run your test on the reference and on the mutant
    #[arg(long, conflicts_with = "diagnosis")]
    test: bool,
    /// Show the mistake
    #[arg(long, conflicts_with_all = ["diagnosis", "test"])]
    reveal: bool,
    /// Do not ask before revealing
    #[arg(long, requires = "reveal")]
    yes: bool,
    /// Remove the mutant; your test stays
    #[arg(long, conflicts_with_all = ["diagnosis", "test", "reveal"])]
    remove: bool,
}

/// Run the command.
pub fn run(args: &MutantArgs) -> Result<()> {
    let workspace = Workspace::open()?;
    let member = workspace.member(&args.layer)?;
    let mutants = Mutant::load_all(&workspace.root, &member.layer, &member.reference)?;
    let layer = &member.layer.id;
    if mutants.is_empty() {
        bail!("there are no mutants of {layer} yet");
    }
    if args.remove {
        return remove(&workspace);
    }
    let Some(number) = args.number else {
        return list(&workspace, member, &mutants);
    };
    let mutant = mutants.iter().find(|m| m.number == number).with_context(|| {
        format!("there is no mutant {number} of {layer}; they are numbered 1 to {}", mutants.len())
    })?;
    if workspace.learner.is_none() {
        bail!(
            "a mutant would change this workspace, which is the reference; make one to learn in \
             with `cargo x start DIR` and hunt there"
        );
    }
    if let Some(id) = &args.diagnosis {
        return diagnose(&workspace, mutant, id);
    }
    if args.reveal {
        return reveal(&workspace, mutant, args.yes);
    }
    let fresh = install::install(&workspace, member, mutant)?;
    if args.test {
        return hunt::run(&workspace, member, mutant);
    }
    introduce(&workspace, member, mutant, fresh)?;
    match ask("Your diagnosis (an id; nothing to write a test first): ")? {
        Some(id) if !id.is_empty() => diagnose(&workspace, mutant, &id),
        _ => Ok(()),
    }
}

fn remove(workspace: &Workspace) -> Result<()> {
    match install::installed(&workspace.root) {
        Some(switch) => {
            forget(&workspace.root)?;
            let (layer, number) = switch.split_once('#').unwrap_or((&switch, ""));
            println!(
                "Mutant {number} of {layer} is removed; the layers above use what they used before."
            );
        }
        None => println!("No mutant is installed."),
    }
    Ok(())
}

fn list(workspace: &Workspace, member: &Member, mutants: &[Mutant]) -> Result<()> {
    let found = Found::read(&workspace.root);
    let installed = install::installed(&workspace.root);
    println!("Mutants of {} ({}):\n", member.layer.id, member.layer.title);
    for mutant in mutants {
        let state = match () {
            () if found.0.contains(&mutant.switch()) => format!("found: {}", mutant.title),
            () if installed.as_ref() == Some(&mutant.switch()) => "installed".into(),
            () => "not found yet".into(),
        };
        println!("  {:>2}  {state}", mutant.number);
    }
    println!("\nInstall one with `cargo x mutant {} 1`.", member.layer.id);
    Ok(())
}

fn introduce(workspace: &Workspace, member: &Member, mutant: &Mutant, fresh: bool) -> Result<()> {
    let (layer, number) = (&member.layer.id, mutant.number);
    let command = format!("cargo x mutant {layer} {number}");
    let is = if fresh { "is" } else { "is still" };
    let package = &member.layer.package;
    println!(
        "Mutant {number} of {layer} {is} installed: the layers above use a copy of {package} that"
    );
    println!("is wrong in one place. Your own sources are as they were.\n");
    if Blanks::of(member)?.has(&workspace.task(&mutant.exercise)?) {
        println!(
            "The mistake is in code that you have not written yet; the solution will show a part of it.\n"
        );
    }
    println!("{}\n", wrapped(&mutant.symptom));
    println!("In which exercise is the mistake?\n");
    for id in &mutant.choices {
        let exercise = member.layer.exercise(id);
        println!("  {id:<18} {}", exercise.map_or("", |e| e.title.as_str()));
    }
    println!();
    for (option, about) in [
        ("--diagnosis ID", "name the exercise".to_string()),
        (
            "--test",
            format!("run your test, {}, on the reference and the mutant", hunt::file(mutant)),
        ),
        ("--reveal", "show the mistake".into()),
        ("--remove", "remove the mutant".into()),
    ] {
        println!("  {command} {option:<15} {about}");
    }
    println!();
    Ok(())
}

fn diagnose(workspace: &Workspace, mutant: &Mutant, id: &str) -> Result<()> {
    let id = id.trim();
    if id == mutant.exercise {
        println!("Yes: {id}.\n");
        return found(workspace, mutant);
    }
    workspace.task(id)?;
    let layer = mutant.layer();
    println!("No, the mistake is not in {id}. A test of it would pass.");
    println!("It is in one of {}.", mutant.choices.join(", "));
    println!("Try again with `cargo x mutant {layer} {} --diagnosis ID`.", mutant.number);
    bail!("the diagnosis of mutant {} of {layer} is wrong", mutant.number)
}

/// Ends a hunt: explains the mistake and links what was linked before.
fn found(workspace: &Workspace, mutant: &Mutant) -> Result<()> {
    explain(mutant);
    let mut found = Found::read(&workspace.root);
    found.0.insert(mutant.switch());
    found.write(&workspace.root)?;
    forget(&workspace.root)
}

fn explain(mutant: &Mutant) {
    println!("{}\n", mutant.title);
    println!("  in {}", mutant.file);
    for (name, text) in [("should be", &mutant.original), ("was", &mutant.mutant)] {
        println!("  {name}");
        for line in unindented(text) {
            println!("      {line}");
        }
    }
    println!("\n{}", wrapped(&mutant.story));
    println!("\nThe layers above use again what they used before.");
}

/// A story or a symptom, in lines.
fn wrapped(text: &str) -> String {
    wrap(text, 90).join("\n")
}

fn reveal(workspace: &Workspace, mutant: &Mutant, yes: bool) -> Result<()> {
    let (layer, number) = (mutant.layer(), mutant.number);
    if !yes {
        let question = format!("Show what is wrong with mutant {number} of {layer}? [y/N] ");
        match ask(&question)?.as_deref() {
            Some("y" | "Y" | "yes") => {}
            Some(_) => return Ok(()),
            None => bail!(
                "there is no terminal to confirm on; `cargo x mutant {layer} {number} --reveal --yes` shows it"
            ),
        }
    }
    explain(mutant);
    forget(&workspace.root)
}

/// The mutants that were found, by their switches. Losing this list costs nothing but the list, so
/// what cannot be read is an empty one.
struct Found(BTreeSet<String>);

impl Found {
    fn path(root: &Path) -> PathBuf {
        root.join(LEARNER_DIR).join("hunts.json")
    }

    fn read(root: &Path) -> Self {
        let text = fs::read_to_string(Self::path(root)).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    fn write(&self, root: &Path) -> Result<()> {
        let path = Self::path(root);
        fs::write(&path, serde_json::to_string(&self.0)? + "\n")
            .with_context(|| path.display().to_string())
    }
}

/// The lines of a piece of source without the white space that all but its first begin with.
fn unindented(text: &str) -> Vec<&str> {
    let depth = |l: &&str| l.len() - l.trim_start().len();
    let common = text.lines().skip(1).filter(|l| !l.trim().is_empty()).map(|l| depth(&l)).min();
    let cut = common.unwrap_or(0);
    text.lines()
        .enumerate()
        .map(|(i, l)| if i == 0 { l.trim() } else { &l[cut.min(l.len())..] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_is_numbered_and_has_its_one_place_in_the_source() {
        let workspace = Workspace::open().unwrap();
        for member in &workspace.members {
            let mutants = Mutant::load_all(&workspace.root, &member.layer, &member.reference);
            assert!(!mutants.unwrap().is_empty(), "{} has no mutants", member.layer.id);
        }
    }

    #[test]
    fn a_piece_of_source_is_shown_from_its_own_margin() {
        assert_eq!(unindented("if a {\n            b\n        }"), ["if a {", "    b", "}"]);
        assert_eq!(unindented("    x + 1"), ["x + 1"]);
    }

    #[test]
    fn a_damaged_list_of_finds_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(LEARNER_DIR)).unwrap();
        let mut found = Found::read(dir.path());
        found.0.insert("l1#3".into());
        found.write(dir.path()).unwrap();
        assert!(Found::read(dir.path()).0.contains("l1#3"));
        fs::write(Found::path(dir.path()), "{oops").unwrap();
        assert!(Found::read(dir.path()).0.is_empty());
    }
}

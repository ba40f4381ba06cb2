//! `cargo x mutant`: hunting a mistake of the kind that people really make.
//!
//! The zoo in `mutants/` holds wrong versions of the reference. Installing one makes a copy of the
//! reference with that mistake in it and links it below the other layers; what the learner wrote is
//! not touched. They answer with a diagnosis (which exercise's code is wrong?) or with a test that
//! the reference passes and the mutant fails. In the copy the mistake sits behind a switch, so one
//! build serves both sides of that comparison.

mod hunt;
mod install;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use course::{LEARNER_DIR, Mutant};

use super::house::{Floor, House};
use super::screen::{ask, wrap};
use super::state::Blanks;

pub use install::forget;

/// Hunt a mistake: install a wrong version of a layer, then name it or write a test that catches it
#[derive(Args)]
pub struct MutantArgs {
    /// The layer: l1, l2, ..
    layer: String,
    /// Which mutant; without it, list them
    number: Option<u32>,
    /// Your diagnosis: the exercise whose code is wrong
    #[arg(long, value_name = "ID")]
    diagnosis: Option<String>,
    /// Run your test on the reference and on the mutant
    #[arg(long, conflicts_with = "diagnosis")]
    test: bool,
    /// Give up: show what is wrong
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
    let house = House::open()?;
    let floor = house.floor(&args.layer)?;
    let mutants = Mutant::load_all(&house.root, &floor.layer, &floor.reference)?;
    let layer = &floor.layer.id;
    if mutants.is_empty() {
        bail!("there are no mutants of {layer} yet");
    }
    if args.remove {
        return remove(&house);
    }
    let Some(number) = args.number else {
        return list(&house, floor, &mutants);
    };
    let mutant = mutants.iter().find(|m| m.number == number).with_context(|| {
        format!("there is no mutant {number} of {layer}; they are numbered 1 to {}", mutants.len())
    })?;
    if house.learner.is_none() {
        bail!(
            "a mutant would change this workspace, which is the reference; make one to learn in \
             with `cargo x start DIR` and hunt there"
        );
    }
    if let Some(id) = &args.diagnosis {
        return diagnose(&house, mutant, id);
    }
    if args.reveal {
        return reveal(&house, mutant, args.yes);
    }
    let fresh = install::install(&house, floor, mutant)?;
    if args.test {
        return hunt::run(&house, floor, mutant);
    }
    introduce(&house, floor, mutant, fresh)?;
    match ask("Your diagnosis (an id; nothing to write a test first): ")? {
        Some(id) if !id.is_empty() => diagnose(&house, mutant, &id),
        _ => Ok(()),
    }
}

fn remove(house: &House) -> Result<()> {
    match install::installed(&house.root) {
        Some(switch) => {
            forget(&house.root)?;
            let (layer, number) = switch.split_once('#').unwrap_or((&switch, ""));
            println!(
                "Mutant {number} of {layer} is gone; the layers above use what they used before."
            );
        }
        None => println!("No mutant is installed."),
    }
    Ok(())
}

fn list(house: &House, floor: &Floor, mutants: &[Mutant]) -> Result<()> {
    let found = Found::read(&house.root);
    let installed = install::installed(&house.root);
    println!("Mutants of {} ({}):\n", floor.layer.id, floor.layer.title);
    for mutant in mutants {
        let state = match () {
            () if found.0.contains(&mutant.switch()) => format!("found: {}", mutant.title),
            () if installed.as_ref() == Some(&mutant.switch()) => "installed".into(),
            () => "not found yet".into(),
        };
        println!("  {:>2}  {state}", mutant.number);
    }
    println!("\nInstall one with `cargo x mutant {} 1`.", floor.layer.id);
    Ok(())
}

fn introduce(house: &House, floor: &Floor, mutant: &Mutant, fresh: bool) -> Result<()> {
    let (layer, number) = (&floor.layer.id, mutant.number);
    let command = format!("cargo x mutant {layer} {number}");
    let is = if fresh { "is" } else { "is still" };
    let package = &floor.layer.package;
    println!(
        "Mutant {number} of {layer} {is} installed: the layers above use a copy of {package} that"
    );
    println!("is wrong in one place. Your own sources are as they were.\n");
    if Blanks::of(floor)?.has(&house.task(&mutant.exercise)?) {
        println!(
            "The place is in code you have not written yet; in the end you will see a little of it.\n"
        );
    }
    println!("{}\n", wrapped(&mutant.symptom));
    println!("Whose code is wrong?\n");
    for id in &mutant.choices {
        let exercise = floor.layer.exercise(id);
        println!("  {id:<18} {}", exercise.map_or("", |e| e.title.as_str()));
    }
    println!();
    for (option, about) in [
        ("--diagnosis ID", "say which".to_string()),
        ("--test", format!("run your test, {}, on both", hunt::file(mutant))),
        ("--reveal", "give up".into()),
        ("--remove", "put back what was there".into()),
    ] {
        println!("  {command} {option:<15} {about}");
    }
    println!();
    Ok(())
}

fn diagnose(house: &House, mutant: &Mutant, id: &str) -> Result<()> {
    let id = id.trim();
    if id == mutant.exercise {
        println!("Yes: {id}.\n");
        return found(house, mutant);
    }
    house.task(id)?;
    let layer = mutant.layer();
    println!("No, {id} is right. What would a test of it show?");
    println!("Try again with `cargo x mutant {layer} {} --diagnosis ID`.", mutant.number);
    bail!("mutant {} of {layer} is still alive", mutant.number)
}

/// The end of a hunt: what it was, and everything back in its place.
fn found(house: &House, mutant: &Mutant) -> Result<()> {
    explain(mutant);
    let mut found = Found::read(&house.root);
    found.0.insert(mutant.switch());
    found.write(&house.root)?;
    forget(&house.root)
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

fn reveal(house: &House, mutant: &Mutant, yes: bool) -> Result<()> {
    let (layer, number) = (mutant.layer(), mutant.number);
    if !yes {
        let question = format!("Show what is wrong with mutant {number} of {layer}? [y/N] ");
        match ask(&question)?.as_deref() {
            Some("y" | "Y" | "yes") => {}
            Some(_) => return Ok(()),
            None => bail!("to be sure, say `cargo x mutant {layer} {number} --reveal --yes`"),
        }
    }
    explain(mutant);
    forget(&house.root)
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

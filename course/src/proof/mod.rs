//! `cargo x proof`: proves the exercises, gates and mutants of the course. CI runs it.
//!
//! * `splice`: what is taken out of the source and put back is the source again, for every exercise;
//! * `starter`: what `cargo x start` makes compiles without a warning, and its history is clean.
//! * `schemata`: every blank makes its gate fail because of that blank, and no gate needs a later
//!   exercise; every mutant is killed by the gate of its exercise.
//! * `map`: with the same build, which exercises an exercise needs.
//! * `walk`: in a real learner's workspace, `cargo x check` names each exercise in turn while the reference's
//!   bodies are put back one by one, and passes at the end.
//!
//! Gates take minutes for each layer, so they are run for the layers that the [`receipt`] does not cover, and for one
//! more.

mod map;
pub mod receipt;
mod schemata;
mod splice;
mod starter;
mod walk;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;

use super::needs::{self, Needs};
use super::workspace::{Member, Workspace};
use receipt::{Due, Inputs, Receipt};

/// Prove that each exercise's tests fail without it and kill its mutants
///
/// Without options: the starter, the gates of every layer that course/proven.toml does not cover, and gates and a short
/// walk of one layer more, which the commit's hash draws. What was proven is written to course/proven.toml, and which
/// exercises need which to course/needs.toml; with STRATA_CI=1 in the environment nothing is written.
#[derive(Args)]
pub struct ProofArgs {
    /// What to prove, of all layers
    parts: Vec<Part>,
    /// Prove everything, whatever course/proven.toml covers
    #[arg(long, conflicts_with_all = ["parts", "layer"])]
    all: bool,
    /// Only the gates of this layer: l1, l2, ..
    #[arg(long, conflicts_with = "parts")]
    layer: Option<String>,
    /// Of a walk over all layers: check before every N-th exercise of a layer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    stride: u16,
    /// Leave course/proven.toml as it is
    #[arg(long)]
    keep_receipt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The starter compiles without a warning
    Starter,
    /// Every blank and every mutant is noticed by its gate
    Gates,
    /// Solving the exercises in order makes `check` pass
    Walk,
    /// The fast track, solved with the reference's bodies, ends with text of a real model
    FastTrack,
}

/// Run the command.
///
/// # Errors
/// Everything that does not hold.
pub fn run(args: &ProofArgs) -> Result<()> {
    let workspace = Workspace::open()?;
    if workspace.learner.is_some() {
        bail!(
            "`cargo x proof` proves the reference; run it in the clone of Strata, not in a learner's workspace"
        );
    }
    let everything = || workspace.members.iter().collect::<Vec<&Member>>();
    let due = Due::of(&workspace)?;
    let mut proof = Proof::default();
    if let Some(layer) = &args.layer {
        return proof.gates(&workspace, &[workspace.member(layer)?], args);
    }
    if !args.parts.is_empty() {
        for part in &args.parts {
            match part {
                Part::Starter => proof.time("starter", || starter::prove(&workspace))?,
                Part::Gates => proof.gates(&workspace, &everything(), args)?,
                Part::Walk => proof.time("walk", || walk::prove(&workspace, args.stride.into()))?,
                Part::FastTrack => {
                    proof.time("fast track", || walk::prove_fast_track(&workspace))?;
                }
            }
        }
        proof.report();
        return Ok(());
    }
    println!("{}", due.explain());
    proof.time("put back", || {
        println!(
            "{} exercises, taken out and put back, are the source again",
            splice::prove(&workspace)?
        );
        Ok(())
    })?;
    proof.time("starter", || starter::prove(&workspace))?;
    if args.all {
        proof.gates(&workspace, &everything(), args)?;
        proof.time("walk", || walk::prove(&workspace, args.stride.into()))?;
    } else {
        proof.gates(&workspace, &due.layers(&workspace), args)?;
        proof.time("walk", || walk::prove_layer(&workspace, due.drawn))?;
    }
    proof.report();
    Ok(())
}

/// What was proven, and how long it took.
#[derive(Default)]
struct Proof {
    took: Vec<(&'static str, Duration)>,
}

impl Proof {
    fn time(&mut self, name: &'static str, part: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        let start = Instant::now();
        part()?;
        self.took.push((name, start.elapsed()));
        Ok(())
    }

    /// Proves the gates of some layers, and writes that into the receipt.
    fn gates(
        &mut self,
        workspace: &Workspace,
        members: &[&Member],
        args: &ProofArgs,
    ) -> Result<()> {
        // Before: what is edited meanwhile is not what was proven.
        let inputs = Inputs::read(workspace)?;
        let mut measured = Needs::default();
        self.time("gates", || {
            measured = schemata::prove(workspace, members)?;
            Ok(())
        })?;
        if std::env::var_os("STRATA_CI").is_some() {
            return as_measured(&Needs::read(&workspace.root)?, &measured, members);
        }
        if args.keep_receipt {
            return Ok(());
        }
        let mut receipt = Receipt::read(&workspace.root)?;
        let mut needs = Needs::read(&workspace.root)?;
        for member in members {
            receipt.add(&member.layer.id, inputs.hash(member));
            needs.take(&measured, &member.layer);
        }
        receipt.write(&workspace.root)?;
        needs.write(&workspace.root, workspace.members.iter().map(|member| &member.layer))?;
        println!("         written to {} and {}", receipt::PATH, needs::PATH);
        Ok(())
    }

    fn report(&self) {
        println!();
        for (name, time) in &self.took {
            println!("{:>7}  {name}", seconds(*time));
        }
    }
}

/// Reads a file that the proof writes; the default if there is none.
///
/// # Errors
/// A file that cannot be read, or has another format.
pub(crate) fn read<T: DeserializeOwned + Default>(root: &Path, name: &str) -> Result<T> {
    let path = root.join(name);
    if !path.is_file() {
        return Ok(T::default());
    }
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| {
        format!("{name} cannot be read: delete it, and `cargo x proof --all` writes it anew")
    })
}

/// An error if the file of needs says something else of these layers.
fn as_measured(file: &Needs, measured: &Needs, members: &[&Member]) -> Result<()> {
    for member in members {
        let (layer, path) = (&member.layer, needs::PATH);
        if !measured.agree(file, layer) {
            bail!(
                "{path} is not what was measured of {}; write it anew with `cargo x proof --layer {0}`, and the map with \
                 `cargo x book map`",
                layer.id
            );
        }
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// An error that lists all problems, if there are any.
fn none(problems: &[String]) -> Result<()> {
    match problems {
        [] => Ok(()),
        some => bail!("{} problems:\n  {}", some.len(), some.join("\n  ")),
    }
}

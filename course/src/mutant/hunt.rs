//! The learner's test for a mutant: it must pass on the reference and fail on the mutant.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use course_marks::Mutant;

use super::{found, install};
use crate::check;
use crate::programs::{NotBuilt, Outcome, Programs};
use crate::workspace::{Member, Workspace};

/// How long the learner's tests may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The file of the learner's test, relative to the workspace.
pub fn file(mutant: &Mutant) -> String {
    format!("hunts/{}_{:02}.rs", mutant.layer(), mutant.number)
}

/// Make the file for the test, unless there is one.
pub fn prepare(root: &Path, member: &Member, mutant: &Mutant) -> Result<()> {
    let path = root.join(file(mutant));
    if path.exists() {
        return Ok(());
    }
    let (layer, number) = (mutant.layer(), mutant.number);
    let library = member.layer.package.replace('-', "_");
    let text = format!(
        "//! The hunt for mutant {number} of {layer}: a test that the reference passes and the mutant \
         fails.\n//!\n//! Run it with `cargo x mutant {layer} {number} --test`. It can use all that is \
         public in `{library}`,\n//! and what the layer's own tests use.\n\n\
         #[test]\nfn the_mutant_is_caught() {{\n    // \
         Call something public of `{library}` with numbers you know the answer for.\n}}\n"
    );
    fs::create_dir_all(root.join("hunts"))?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// The test program of the copy: it includes the learner's file.
pub fn program(mutant: &Mutant) -> String {
    format!("//! The hunt.\n\n#[path = \"../../../../{}\"]\nmod hunt;\n", file(mutant))
}

/// Runs the learner's test on the reference and on the mutant, and reports the result.
pub fn run(workspace: &Workspace, member: &Member, mutant: &Mutant) -> Result<()> {
    let dir = install::dir(&workspace.root, &member.layer.package);
    let package = format!("{}-mutant", member.layer.package);
    eprintln!("building your test ..");
    let built = check::with_progress(|building| {
        building.during("your test", false, |tell| {
            Programs::build(&workspace.root, &package, &dir, &["hunt"], tell)
        })
    })?;
    let programs = match built {
        Ok(programs) => programs,
        Err(NotBuilt::Compile(errors)) => {
            bail!("your test does not compile:\n{}", errors[0].rendered)
        }
        Err(NotBuilt::Cargo(said)) => bail!("{said}"),
    };
    let reference = programs.run_all("hunt", &[install::OFF], PATIENCE)?;
    let wrong = programs.run_all("hunt", &[], PATIENCE)?;
    match judge(&reference, &wrong) {
        Verdict::NoTest => bail!("there is no test in {} yet: write one", file(mutant)),
        Verdict::TooStrict(output) => bail!(
            "your test fails on the reference, so it asserts something that is not true:\n{output}"
        ),
        Verdict::Alive => bail!(
            "your test passes on the reference and on mutant {} of {}: it does not find the mistake",
            mutant.number,
            mutant.layer()
        ),
        Verdict::Caught(test) => {
            println!("Caught: {test} passes on the reference and fails on the mutant.\n");
            found(workspace, mutant)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    NoTest,
    TooStrict(String),
    Alive,
    Caught(String),
}

fn judge(reference: &Outcome, mutant: &Outcome) -> Verdict {
    match (reference.failed.first(), mutant.failed.first()) {
        _ if reference.passed + reference.failed.len() == 0 => Verdict::NoTest,
        (Some(failure), _) => Verdict::TooStrict(failure.output.clone()),
        (None, None) => Verdict::Alive,
        (None, Some(failure)) => {
            Verdict::Caught(failure.test.trim_start_matches("hunt::").to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::report::Failure;

    fn outcome(passed: usize, failed: &[&str]) -> Outcome {
        let failure = |t: &&str| Failure { test: (*t).into(), output: "left is not right".into() };
        Outcome { passed, failed: failed.iter().map(failure).collect() }
    }

    #[test]
    fn a_test_counts_when_only_the_mutant_fails_it() {
        assert_eq!(judge(&outcome(0, &[]), &outcome(0, &[])), Verdict::NoTest);
        assert_eq!(judge(&outcome(1, &[]), &outcome(1, &[])), Verdict::Alive);
        let strict = judge(&outcome(0, &["hunt::t"]), &outcome(0, &["hunt::t"]));
        assert_eq!(strict, Verdict::TooStrict("left is not right".into()));
        assert_eq!(judge(&outcome(1, &[]), &outcome(0, &["hunt::t"])), Verdict::Caught("t".into()));
    }
}

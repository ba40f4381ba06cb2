//! Every blank is noticed by its gate, every mutant is killed by one, and no gate looks ahead.
//!
//! One copy of the layers is made with everything behind switches ([`course::schemata`]) and built
//! once. What remains is running gates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use course::{Exercise, Gate, Mutant, edit, schemata};

use super::{none, seconds};
use crate::learn::house::{Floor, House};
use crate::learn::programs::{NotBuilt, Outcome, Programs};
use crate::learn::start::copy;
use crate::shell;

/// A layer whose test programs are built, with everything behind switches.
struct Instrumented<'a> {
    floor: &'a Floor,
    mutants: Vec<Mutant>,
    programs: Programs,
}

/// Build the copy and run everything.
pub fn prove(house: &House) -> Result<()> {
    let start = Instant::now();
    let root = shell::target_dir()?.join("course").join("schemata");
    let mut layers = Vec::new();
    let mut changed = BTreeMap::new();
    for floor in &house.floors {
        let mutants = Mutant::load_all(&house.root, &floor.layer, &floor.reference)?;
        changed.extend(instrument(house, floor, &mutants)?);
        layers.push((floor, mutants));
    }
    let cargo_toml = fs::read_to_string(house.root.join("Cargo.toml"))?;
    changed.insert("Cargo.toml".into(), copy::set_apart(&cargo_toml, "schemata")?);
    copy::refresh(&house.root, &root, &changed.keys().cloned().collect())?;
    for (file, text) in changed {
        copy::write_if_new(&root.join(file), text.as_bytes())?;
    }
    let mut built = Vec::new();
    for (floor, mutants) in layers {
        built.push(Instrumented { floor, mutants, programs: build(floor, &root)? });
    }
    println!("{:>7}  one build with every blank and every mutant in it", seconds(start.elapsed()));

    let mut problems = Vec::new();
    for layer in &built {
        problems.extend(prove_layer(layer)?);
    }
    none(&problems)
}

/// The files of a layer that differ in the copy, with their text.
fn instrument(
    house: &House,
    floor: &Floor,
    mutants: &[Mutant],
) -> Result<BTreeMap<PathBuf, String>> {
    let package = &floor.layer.package;
    for mutant in mutants {
        for choice in &mutant.choices {
            house.exercise(choice).with_context(|| format!("mutant {}", mutant.switch()))?;
        }
    }
    let marked = floor.sources()?.files.into_iter().map(|f| format!("{package}/{}", f.path));
    let files: BTreeSet<String> = marked.chain(mutants.iter().map(|m| m.file.clone())).collect();
    let mut changed = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(house.root.join(&file)).with_context(|| file.clone())?;
        let here: Vec<&Mutant> = mutants.iter().filter(|m| m.file == file).collect();
        let text =
            schemata::instrument(&text, &floor.layer, &here).map_err(|e| anyhow!("{file}: {e}"))?;
        changed.insert(PathBuf::from(file), text);
    }
    let lib = PathBuf::from(package).join("src/lib.rs");
    if !changed.contains_key(&lib) {
        changed.insert(lib.clone(), fs::read_to_string(house.root.join(&lib))?);
    }
    changed.entry(lib).or_default().push_str(schemata::MODULE);
    Ok(changed)
}

fn build(floor: &Floor, root: &Path) -> Result<Programs> {
    let gates = floor.layer.exercises.iter().flat_map(|e| &e.gates);
    let targets: BTreeSet<&str> = gates.map(|g| g.target.as_str()).collect();
    let targets: Vec<&str> = targets.into_iter().collect();
    let package = &floor.layer.package;
    match Programs::build(root, package, &root.join(package), &targets)? {
        Ok(programs) => Ok(programs),
        Err(NotBuilt::Compile(errors)) => bail!(
            "with all blanks and mutants behind switches, {package} does not compile:\n{}",
            errors[0].rendered
        ),
        Err(NotBuilt::Cargo(said)) => bail!("{said}"),
    }
}

/// One thing to try: what is switched on, which gate runs, and what must come out.
struct Trial<'a> {
    on: String,
    exercise: &'a Exercise,
    expect: Expect,
}

enum Expect {
    /// All tests pass; the words say in which situation.
    Green(&'static str),
    /// Some fail, every one of them because it ran into this exercise's blank.
    Blank,
    /// Some fail, none of them because of a blank.
    Killed(String),
}

fn prove_layer(layer: &Instrumented) -> Result<Vec<String>> {
    let exercises = &layer.floor.layer.exercises;
    let mut trials = Vec::new();
    for (k, exercise) in exercises.iter().enumerate() {
        let trial = |on, expect| Trial { on, exercise, expect };
        let later: Vec<&str> = exercises[k + 1..].iter().map(|e| e.id.as_str()).collect();
        trials.push(trial(String::new(), Expect::Green("with everything written")));
        trials.push(trial(exercise.id.clone(), Expect::Blank));
        trials.push(trial(later.join(","), Expect::Green("with all later exercises blank")));
    }
    for mutant in &layer.mutants {
        let exercise = layer.floor.layer.exercise(&mutant.exercise).context("checked before")?;
        let expect = Expect::Killed(mutant.title.clone());
        trials.push(Trial { on: mutant.switch(), exercise, expect });
    }

    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let result = attempt(layer, trial);
                    let result = (trial, result, start.elapsed());
                    results.lock().unwrap_or_else(|e| e.into_inner()).push(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(|e| e.into_inner());

    let mut problems = Vec::new();
    let sources = layer.floor.sources()?;
    for exercise in exercises {
        let of_it = results.iter().filter(|(t, ..)| t.exercise.id == exercise.id);
        let longest = of_it.map(|(.., time)| *time).max().unwrap_or_default();
        println!(
            "  {:<18} {:>3} lines, {:>2} tests, at most {}",
            exercise.id,
            sources.code_lines(&exercise.id),
            exercise.gates.len(),
            seconds(longest)
        );
    }
    for (trial, result, _) in &results {
        match result {
            Ok(None) => {}
            Ok(Some(problem)) => problems.push(format!("{}: {problem}", trial.exercise.id)),
            Err(error) => problems.push(format!("{}: {error:#}", trial.exercise.id)),
        }
    }
    println!(
        "{:>7}  {}: {} exercises, {} mutants, {} runs of gates",
        seconds(start.elapsed()),
        layer.floor.layer.id,
        exercises.len(),
        layer.mutants.len(),
        trials.len()
    );
    Ok(problems)
}

/// Run a gate; what is wrong with the outcome, if anything.
fn attempt(layer: &Instrumented, trial: &Trial) -> Result<Option<String>> {
    let gates: Vec<&Gate> = trial.exercise.gates.iter().collect();
    let outcome = layer.programs.run(&gates, &[(schemata::VARIABLE, &trial.on)])?;
    Ok(verdict(&trial.expect, trial.exercise, &trial.on, &outcome))
}

fn verdict(expect: &Expect, exercise: &Exercise, on: &str, outcome: &Outcome) -> Option<String> {
    match expect {
        Expect::Green(situation) => outcome
            .failed
            .first()
            .map(|f| format!("{situation}, {} fails:\n{}", f.test, indented(&f.output))),
        Expect::Blank if outcome.failed.is_empty() => {
            Some("its gate passes although it is blank".into())
        }
        Expect::Blank => {
            outcome.failed.iter().find(|f| edit::blamed(&f.output) != [exercise.id.as_str()]).map(
                |f| format!("blank, {} fails for another reason:\n{}", f.test, indented(&f.output)),
            )
        }
        Expect::Killed(title) if outcome.failed.is_empty() => {
            Some(format!("its gate lets mutant {on} live ({title})"))
        }
        Expect::Killed(_) => outcome
            .failed
            .iter()
            .find(|f| !edit::blamed(&f.output).is_empty())
            .map(|f| format!("mutant {on}: {} runs into a blank", f.test)),
    }
}

fn indented(output: &str) -> String {
    output.lines().take(12).map(|l| format!("      {l}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::programs::Failure;

    fn exercise() -> Exercise {
        Exercise {
            id: "l1.a".into(),
            title: "A".into(),
            chapter: "c.md".into(),
            minutes: 1,
            hints: vec![],
            gates: vec![],
        }
    }

    fn said(expect: &Expect, failures: &[&str]) -> Option<String> {
        let failed = failures.iter().map(|o| Failure { test: "t".into(), output: (*o).into() });
        let outcome = Outcome { passed: 1, failed: failed.collect() };
        verdict(expect, &exercise(), "l1#3", &outcome)
    }

    #[test]
    fn a_blank_must_be_the_only_reason_for_a_failure() {
        let own = "not yet implemented: exercise l1.a, chapter c.md";
        let other = "not yet implemented: exercise l1.b, chapter c.md";
        assert_eq!(said(&Expect::Blank, &[own]), None);
        assert!(said(&Expect::Blank, &[]).unwrap().contains("although it is blank"));
        assert!(said(&Expect::Blank, &[own, other]).unwrap().contains("another reason"));
        assert!(said(&Expect::Blank, &["element 3 is 7"]).unwrap().contains("another reason"));
    }

    #[test]
    fn a_mutant_must_be_killed_by_what_it_does() {
        let killed = Expect::Killed("eps outside".into());
        assert_eq!(said(&killed, &["element 3 is 7"]), None);
        assert!(said(&killed, &[]).unwrap().contains("lets mutant l1#3 live (eps outside)"));
        let blank = "not yet implemented: exercise l1.b, chapter c.md";
        assert!(said(&killed, &[blank]).unwrap().contains("runs into a blank"));
    }
}

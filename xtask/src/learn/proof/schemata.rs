//! Every blank is noticed by its gate, every mutant is killed by one, and no gate looks ahead.
//!
//! One copy of the layers is made with everything behind switches ([`course::schemata`]) and built
//! once. What remains is running gates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use course::{Exercise, Gate, Language, Mutant, edit, schemata};

use super::{none, seconds};
use crate::learn::house::{Floor, House};
use crate::learn::programs::{NotBuilt, Programs, Verdict};
use crate::learn::start::copy;
use crate::shell;

/// How long a gate may take before it counts as one that never ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// A layer whose test programs are built, with everything behind switches.
struct Instrumented<'a> {
    floor: &'a Floor,
    mutants: Vec<Mutant>,
    programs: Programs,
}

/// Build the copy and run everything, or what there is of one layer.
pub fn prove(house: &House, layer: Option<&str>) -> Result<()> {
    let only = layer.map(|name| house.floor(name)).transpose()?.map(|floor| &floor.layer.id);
    let start = Instant::now();
    let root = shell::target_dir()?.join("course").join("schemata");
    let mut layers = Vec::new();
    let mut changed = BTreeMap::new();
    for floor in house.floors.iter().filter(|f| only.is_none_or(|id| f.layer.id == *id)) {
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
            house.task(choice).with_context(|| format!("mutant {}", mutant.switch()))?;
        }
    }
    let marked = floor.sources()?.files.into_iter().map(|f| format!("{package}/{}", f.path));
    let files: BTreeSet<String> = marked.chain(mutants.iter().map(|m| m.file.clone())).collect();
    let mut changed = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(house.root.join(&file)).with_context(|| file.clone())?;
        let here: Vec<&Mutant> = mutants.iter().filter(|m| m.file == file).collect();
        let text = schemata::instrument(&text, Language::of(&file), &floor.layer, &here)
            .map_err(|e| anyhow!("{file}: {e}"))?;
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
    let on = (schemata::VARIABLE, trial.on.as_str());
    let verdicts = layer.programs.judge(&gates, &[on], PATIENCE)?;
    let ended: Vec<(&str, &Verdict)> =
        gates.iter().map(|g| g.test.as_str()).zip(&verdicts).collect();
    Ok(wrong_with(&trial.expect, trial.exercise, &trial.on, &ended))
}

fn wrong_with(
    expect: &Expect,
    exercise: &Exercise,
    on: &str,
    ended: &[(&str, &Verdict)],
) -> Option<String> {
    if let Some((test, _)) = ended.iter().find(|(_, v)| **v == Verdict::Missing) {
        return Some(format!("its gate names {test}, which is no test"));
    }
    let red: Vec<&(&str, &Verdict)> =
        ended.iter().filter(|(_, v)| **v != Verdict::Passed).collect();
    match expect {
        Expect::Green(situation) => {
            red.first().map(|(test, v)| format!("{situation}, {test} {}", said(v)))
        }
        Expect::Blank if red.is_empty() => Some("its gate passes although it is blank".into()),
        Expect::Blank => red
            .iter()
            .find(|(_, v)| blamed(v) != [exercise.id.as_str()])
            .map(|(test, v)| format!("blank, but for another reason {test} {}", said(v))),
        Expect::Killed(title) if red.is_empty() => {
            Some(format!("its gate lets mutant {on} live ({title})"))
        }
        Expect::Killed(_) => red
            .iter()
            .find(|(_, v)| !blamed(v).is_empty())
            .map(|(test, _)| format!("mutant {on}: {test} runs into a blank")),
    }
}

/// The blanks that a test ran into.
fn blamed(verdict: &Verdict) -> Vec<String> {
    match verdict {
        Verdict::Failed(output) | Verdict::Died { output, .. } => edit::blamed(output),
        _ => Vec::new(),
    }
}

fn said(verdict: &Verdict) -> String {
    let indented =
        |output: &str| output.lines().take(12).map(|l| format!("\n      {l}")).collect::<String>();
    match verdict {
        Verdict::Failed(output) => format!("fails:{}", indented(output)),
        Verdict::Died { how, output } => format!("dies ({how}):{}", indented(output)),
        Verdict::Hung => "never ends".into(),
        Verdict::Passed | Verdict::Missing => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn problem(expect: &Expect, verdicts: &[Verdict]) -> Option<String> {
        let ended: Vec<(&str, &Verdict)> = verdicts.iter().map(|v| ("t", v)).collect();
        wrong_with(expect, &exercise(), "l1#3", &ended)
    }

    fn failed(output: &str) -> Verdict {
        Verdict::Failed(output.into())
    }

    const OWN: &str = "not yet implemented: exercise l1.a, chapter c.md";
    const OTHER: &str = "not yet implemented: exercise l1.b, chapter c.md";

    #[test]
    fn a_blank_must_be_the_only_reason_for_a_failure() {
        let blank = Expect::Blank;
        assert_eq!(problem(&blank, &[Verdict::Passed, failed(OWN)]), None);
        assert!(problem(&blank, &[Verdict::Passed]).unwrap().contains("although it is blank"));
        for other in [failed(OTHER), failed("element 3 is 7"), Verdict::Hung] {
            let said = problem(&blank, &[failed(OWN), other]).unwrap();
            assert!(said.contains("another reason"), "{said}");
        }
    }

    #[test]
    fn a_mutant_must_be_killed_by_what_it_does() {
        let killed = Expect::Killed("eps outside".into());
        assert_eq!(problem(&killed, &[failed("element 3 is 7"), Verdict::Passed]), None);
        let said = problem(&killed, &[Verdict::Passed]).unwrap();
        assert!(said.contains("lets mutant l1#3 live (eps outside)"), "{said}");
        assert!(problem(&killed, &[failed(OTHER)]).unwrap().contains("runs into a blank"));
    }

    #[test]
    fn a_gate_that_is_no_test_is_always_wrong() {
        for expect in [Expect::Green(""), Expect::Blank, Expect::Killed(String::new())] {
            let said = problem(&expect, &[failed(OWN), Verdict::Missing]).unwrap();
            assert!(said.contains("no test"), "{said}");
        }
    }
}

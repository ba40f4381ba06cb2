//! Every blank is noticed by its gate, every mutant is killed by one, and no gate looks ahead.
//!
//! One copy of the layers is made with everything behind switches ([`course_marks::schemata`]) and built
//! once. What remains is running gates.
//!
//! The build is one call of cargo for all layers, in the target directory of this program and over the
//! whole workspace: the features of a dependency are those that the chosen packages ask for, so what
//! `cargo x test` has built need not be built again. Packages that no layer needs are there by their
//! manifests alone, for their choice of features.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use course_marks::{Exercise, Gate, Language, Mutant, edit, schemata};

use super::{map, none, seconds};
use crate::needs::Needs;
use crate::programs::{NotBuilt, Programs, Verdict};
use crate::shell;
use crate::start::copy;
use crate::workspace::{Member, Workspace};

/// How long a gate may take before it counts as one that never ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// A layer whose test programs are built, with everything behind switches.
struct Instrumented<'a> {
    member: &'a Member,
    mutants: Vec<Mutant>,
    programs: Programs,
}

/// Build the copy and run everything that there is of these layers. Returns what their exercises need.
pub fn prove(workspace: &Workspace, members: &[&Member]) -> Result<Needs> {
    let start = Instant::now();
    let root = shell::target_dir()?.join("course").join("schemata");
    let mut layers = Vec::new();
    let mut changed = BTreeMap::new();
    for &member in members {
        let mutants = Mutant::load_all(&workspace.root, &member.layer, &member.reference)?;
        changed.extend(instrument(workspace, member, &mutants)?);
        layers.push((member, mutants));
    }
    let cargo_toml = fs::read_to_string(workspace.root.join("Cargo.toml"))?;
    let left_out = left_out(workspace, &cargo_toml)?;
    changed.insert("Cargo.toml".into(), copy::set_apart(&cargo_toml, "schemata")?);
    for file in &left_out {
        changed.insert(file.clone(), STUB.into());
    }
    copy::refresh(&workspace.root, &root, &changed.keys().cloned().collect())?;
    for (file, text) in changed {
        if left_out.contains(&file) && !is_root(&file) {
            remove_if_there(&root.join(file))?;
        } else {
            copy::write_if_new(&root.join(file), text.as_bytes())?;
        }
    }
    let mut programs = build(members, &root)?;
    let mut built = Vec::new();
    for (member, mutants) in layers {
        let package = &member.layer.package;
        let programs =
            programs.remove(package).with_context(|| format!("{package} has no test program"))?;
        built.push(Instrumented { member, mutants, programs });
    }
    println!("{:>7}  one build with every blank and every mutant in it", seconds(start.elapsed()));

    let mut problems = Vec::new();
    for layer in &built {
        problems.extend(prove_layer(layer)?);
    }
    none(&problems)?;
    let mut needs = Needs::default();
    for Instrumented { member, programs, .. } in &built {
        let layer = &member.layer;
        println!("  {}", layer.id);
        needs.set(layer, &map::measure(programs, &layer.exercises)?);
    }
    Ok(needs)
}

/// The files of a layer that differ in the copy, with their text.
fn instrument(
    workspace: &Workspace,
    member: &Member,
    mutants: &[Mutant],
) -> Result<BTreeMap<PathBuf, String>> {
    let package = &member.layer.package;
    for mutant in mutants {
        for choice in &mutant.choices {
            workspace.task(choice).with_context(|| format!("mutant {}", mutant.switch()))?;
        }
    }
    let marked = member.sources()?.files.into_iter().map(|f| format!("{package}/{}", f.path));
    let files: BTreeSet<String> = marked.chain(mutants.iter().map(|m| m.file.clone())).collect();
    let mut changed = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(workspace.root.join(&file)).with_context(|| file.clone())?;
        let here: Vec<&Mutant> = mutants.iter().filter(|m| m.file == file).collect();
        let text = schemata::instrument(&text, Language::of(&file), &member.layer, &here)
            .map_err(|e| anyhow!("{file}: {e}"))?;
        changed.insert(PathBuf::from(file), text);
    }
    let lib = PathBuf::from(package).join("src/lib.rs");
    if !changed.contains_key(&lib) {
        changed.insert(lib.clone(), fs::read_to_string(workspace.root.join(&lib))?);
    }
    changed.entry(lib).or_default().push_str(schemata::MODULE);
    if targets(member).contains(LIB) {
        let path = PathBuf::from(package).join("Cargo.toml");
        let manifest = fs::read_to_string(workspace.root.join(&path))?;
        let name = unit_tests(member);
        changed.insert(
            path,
            format!("{manifest}\n[[test]]\nname = \"{name}\"\npath = \"src/lib.rs\"\n"),
        );
    }
    Ok(changed)
}

/// What a gate calls the program of unit tests.
const LIB: &str = "lib";

/// Of a package that no layer needs: the root of a library or a program.
const STUB: &str = "fn main() {}\n";

/// The name, in the copy, of the program of a layer's unit tests. `--lib` would build those of every package.
fn unit_tests(member: &Member) -> String {
    format!("unit-tests-of-{}", member.layer.id)
}

/// The programs that hold a layer's gates.
fn targets(member: &Member) -> BTreeSet<&str> {
    member.layer.exercises.iter().flat_map(|e| &e.gates).map(|gate| gate.target.as_str()).collect()
}

/// The Rust files of packages that no layer needs. What layers share is below `course/marks`.
fn left_out(workspace: &Workspace, cargo_toml: &str) -> Result<BTreeSet<PathBuf>> {
    let manifest: toml::Value = toml::from_str(cargo_toml)?;
    let members =
        manifest.get("workspace").and_then(|w| w.get("members")).and_then(toml::Value::as_array);
    let members = members.context("Cargo.toml has no list of members")?;
    let members: Vec<&str> = members.iter().filter_map(toml::Value::as_str).collect();
    let needed = |member: &str| {
        member == "course/marks" || workspace.members.iter().any(|f| f.layer.package == member)
    };
    let files = copy::tree(&workspace.root)?.into_iter().filter(|file| {
        // `course/marks` is a package within another.
        let owner = members.iter().filter(|m| file.starts_with(m)).max_by_key(|m| m.len());
        file.extension().is_some_and(|e| e == "rs") && owner.is_some_and(|m| !needed(m))
    });
    Ok(files.collect())
}

/// Whether cargo wants this file of a package: that of its library or its program, or a benchmark, which the manifest
/// names. Tests, examples and build scripts it finds by their files, and does without.
fn is_root(file: &Path) -> bool {
    let names: Vec<_> = file.iter().filter_map(|name| name.to_str()).collect();
    matches!(names[..], [_, "src", "lib.rs" | "main.rs"] | [_, "doctests.rs"] | [_, "benches", _])
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Build the programs that hold gates, of all these layers at once; by package.
fn build(members: &[&Member], root: &Path) -> Result<BTreeMap<String, Programs>> {
    let mut names = BTreeSet::new();
    for member in members {
        names.extend(targets(member).into_iter().map(|target| match target {
            LIB => unit_tests(member),
            name => name.to_string(),
        }));
    }
    let mut command = shell::cargo("test");
    command.current_dir(root).args(["--workspace", "--no-run", "--message-format=json"]);
    command.args(names.iter().flat_map(|name| ["--test", name]));
    command.env("CARGO_TARGET_DIR", shell::target_dir()?);
    match Programs::of_packages(command)? {
        Ok(mut programs) => {
            for member in members {
                if let Some(programs) = programs.get_mut(&member.layer.package) {
                    programs.rename(&unit_tests(member), LIB);
                }
            }
            Ok(programs)
        }
        Err(NotBuilt::Compile(errors)) => bail!(
            "with all blanks and mutants behind switches, this does not compile:\n{}",
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
    let exercises = &layer.member.layer.exercises;
    let mut trials = Vec::new();
    for (k, exercise) in exercises.iter().enumerate() {
        let trial = |on, expect| Trial { on, exercise, expect };
        let later: Vec<&str> = exercises[k + 1..].iter().map(|e| e.id.as_str()).collect();
        trials.push(trial(String::new(), Expect::Green("with everything written")));
        trials.push(trial(exercise.id.clone(), Expect::Blank));
        trials.push(trial(later.join(","), Expect::Green("with all later exercises blank")));
    }
    for mutant in &layer.mutants {
        let exercise = layer.member.layer.exercise(&mutant.exercise).context("checked before")?;
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
    let sources = layer.member.sources()?;
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
        layer.member.layer.id,
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
            track: None,
            nudges: vec![],
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

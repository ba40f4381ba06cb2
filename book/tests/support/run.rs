//! Running the commands of a page where a reader would, and writing down what came.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use course_marks::{LEARNER_DIR, Mutant, Sources, edit};

use crate::built::Built;
use crate::fences::{Fence, Step, shows};
use crate::normal;
use crate::pages::root;
use crate::servers::{BEHIND, Servers};

/// What the book calls a learner's workspace. The tests make it elsewhere.
const MINE: &str = "../my-strata";
/// How the book makes one.
const START: &str = "cargo x start ../my-strata --all";

/// What a command printed, normalised, and how it ended.
#[derive(Clone)]
pub struct Said {
    lines: Vec<String>,
    /// `None`: killed.
    status: Option<i32>,
}

/// Runs fences. The same command in the same state is run once, however many pages have it.
#[derive(Default)]
pub struct Workshop {
    reference: HashMap<(PathBuf, String), Said>,
    /// By what was solved and the fence's commands.
    learner: HashMap<(Option<String>, Vec<String>), Vec<Said>>,
    /// What `cargo x start` said when it made the learner's workspace.
    started: Option<Said>,
}

impl Workshop {
    /// Run a fence. Returns its transcript, and what is wrong with it, if anything.
    pub fn run(&mut self, fence: &Fence) -> (String, Vec<String>) {
        let said = if fence.learner || fence.steps.iter().any(|s| s.command.contains(MINE)) {
            let commands: Vec<String> = fence.steps.iter().map(|s| s.command.clone()).collect();
            let key = (fence.solved.clone(), commands);
            if !self.learner.contains_key(&key) {
                let said = self.in_learners_workspace(fence);
                self.learner.insert(key.clone(), said);
            }
            self.learner[&key].clone()
        } else {
            self.in_reference(fence)
        };
        let mut transcript = match (&fence.solved, fence.learner) {
            (Some(solved), _) => format!("[a learner's workspace, solved: {solved}]\n"),
            (None, true) => "[a learner's workspace]\n".into(),
            (None, false) => String::new(),
        };
        let mut problems = Vec::new();
        let last = fence.steps.len() - 1;
        for (i, (step, said)) in fence.steps.iter().zip(&said).enumerate() {
            transcript.push_str(&said.transcript(&step.command));
            problems.extend(judge(step, said, fence.fails && i == last));
        }
        (transcript, problems)
    }

    fn in_reference(&mut self, fence: &Fence) -> Vec<Said> {
        let mut dir = root();
        // What is asked of a server is asked of this one, and not of another page's.
        if fence.steps.iter().any(|step| step.command.ends_with(BEHIND)) {
            let mut servers = Servers::default();
            return fence.steps.iter().map(|step| servers.run(&step.command)).collect();
        }
        let run = |step: &Step| {
            if let Some(to) = step.command.strip_prefix("cd ") {
                dir = dir.join(to);
                return Said::nothing();
            }
            let key = (dir.clone(), step.command.clone());
            self.reference.entry(key).or_insert_with(|| execute(&step.command, &dir)).clone()
        };
        fence.steps.iter().map(run).collect()
    }

    fn in_learners_workspace(&mut self, fence: &Fence) -> Vec<Said> {
        let started = self.started.get_or_insert_with(start).clone();
        reset(fence.solved.as_deref());
        let mut dir = if fence.learner { learners_dir() } else { root() };
        let run = |step: &Step| {
            if step.command == START {
                return started.clone();
            }
            match step.command.strip_prefix("cd ") {
                Some(to) if to == MINE => dir = learners_dir(),
                Some(to) => dir = dir.join(to),
                None => return execute(&step.command, &dir),
            }
            Said::nothing()
        };
        fence.steps.iter().map(run).collect()
    }
}

/// Hold one command against what the page says of it.
fn judge(step: &Step, said: &Said, must_fail: bool) -> Option<String> {
    let ended_as_expected = match said.status {
        Some(0) => !must_fail,
        Some(_) => must_fail,
        None => false,
    };
    if !ended_as_expected {
        let wanted = if must_fail { "should have failed" } else { "failed" };
        let came = said.transcript(&step.command);
        return Some(format!("{}: this command {wanted}:\n{came}", step.line));
    }
    let shown: Vec<String> = step.shown.iter().map(|l| normal::line(l)).collect();
    if shown.is_empty() || shows(&shown, &said.lines) {
        return None;
    }
    let come = said.transcript(&step.command);
    Some(format!("{}: the page shows\n{}\nand what came is\n{come}", step.line, shown.join("\n")))
}

impl Said {
    fn nothing() -> Self {
        Self { lines: Vec::new(), status: Some(0) }
    }

    fn transcript(&self, command: &str) -> String {
        let mut text = format!("$ {command}\n");
        for line in &self.lines {
            text.push_str(&format!("{line}\n"));
        }
        match self.status {
            Some(0) => {}
            Some(code) => text.push_str(&format!("[exit status {code}]\n")),
            None => text.push_str("[killed]\n"),
        }
        text
    }
}

/// The build products: those that this very test is one of, so that there is little to build.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this test");
    let dir = exe.ancestors().find(|d| d.ends_with("debug") || d.ends_with("release"));
    dir.and_then(Path::parent).expect("tests are built in target/<profile>/deps").into()
}

/// Always the same place: cargo knows a crate by its path, and would build another one each time.
fn learners_dir() -> PathBuf {
    target_dir().join("tmp").join("my-strata")
}

/// Run a command of a page in `dir`.
pub fn execute(command: &str, dir: &Path) -> Said {
    eprintln!("$ {command}");
    let started = Instant::now();
    let built = Built::parse(command).filter(|_| dir == root());
    let (text, status) = match built {
        Some(built) => built.run(as_if_typed),
        None => in_a_shell(command, dir),
    };
    eprintln!("  {:.1} s", started.elapsed().as_secs_f64());
    said(command, &text, status)
}

/// What a command printed, as it is compared.
pub fn said(command: &str, text: &str, status: Option<i32>) -> Said {
    let (root, target) = (root(), target_dir());
    let shown = |path: &Path| path.to_str().expect("a path in UTF-8").to_string();
    let paths = [
        (shown(&learners_dir()), MINE),
        (shown(&target), "target"),
        (format!("{}/", shown(&root)), ""),
        (shown(&root), "."),
    ];
    let lines = normal::output(text, &paths);
    let lines = if is_cargo_test(command) { normal::tests(lines) } else { lines };
    Said { lines, status }
}

fn in_a_shell(command: &str, dir: &Path) -> (String, Option<i32>) {
    let mine = learners_dir();
    let command = command.replace(MINE, mine.to_str().expect("a path in UTF-8"));
    let mut shell = Command::new("sh");
    // Both streams into one pipe, in the order in which a terminal would show them.
    shell.arg("-c").arg(format!("exec 2>&1\n{command}"));
    shell.current_dir(dir).stdin(Stdio::null());
    as_if_typed(&mut shell);
    let out = shell.output().unwrap_or_else(|e| panic!("cannot start sh: {e}"));
    (String::from_utf8_lossy(&out.stdout).into_owned(), out.status.code())
}

/// Take from a command what cargo says to this test, and a person at the keyboard to all tests. What
/// changes how things are built must stay, or all would be built again.
pub fn as_if_typed(command: &mut Command) {
    const OURS: [&str; 8] = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
        "RUST_",
        "INSTA_",
        "PROPTEST_",
        "STRATA_",
    ];
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name != "STRATA_CACHE" && OURS.iter().any(|p| name.starts_with(p)) {
            command.env_remove(&*name);
        }
    }
    command.env("CARGO_TARGET_DIR", target_dir()).env("CARGO_TERM_COLOR", "never");
    // All that is needed is there: it was needed to build this.
    command.env("CARGO_NET_OFFLINE", "true");
}

fn is_cargo_test(command: &str) -> bool {
    let mut words = command.split_whitespace().skip_while(|w| w.contains('='));
    words.next() == Some("cargo") && words.next() == Some("test")
}

/// Make the learner's workspace with the tool, as the book says.
fn start() -> Said {
    let dir = learners_dir();
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    }
    let said = execute(START, &root());
    assert_eq!(said.status, Some(0), "{}", said.transcript(START));
    said
}

/// The learner's workspace as it was made, with the bodies of some exercises in it.
fn reset(solved: Option<&str>) {
    let dir = learners_dir();
    for args in [&["checkout", "--quiet", "--", "."][..], &["clean", "-fdxq"]] {
        let status = Command::new("git").args(args).current_dir(&dir).status();
        assert!(status.is_ok_and(|s| s.success()), "git {args:?} in {}", dir.display());
    }
    let Some(solved) = solved else { return };
    let layers = layers();
    let (ids, wrong) = match solved.split_once(", with mutant ") {
        Some((ids, mutant)) => (ids, Some(mutant)),
        None => (solved, None),
    };
    let wanted: Vec<&str> = ids.split_whitespace().collect();
    let all = || layers.iter().flat_map(|s| s.layer.exercises.iter().map(|e| e.id.as_str()));
    let ids: Vec<&str> = match wanted[..] {
        ["before", id] => all().take_while(|e| *e != id).collect(),
        _ => wanted,
    };
    for id in ids {
        let sources = layers.iter().find(|s| s.layer.exercise(id).is_some());
        put_back(sources.unwrap_or_else(|| panic!("there is no exercise {id} to solve")), id);
    }
    if let Some((number, layer)) = wrong.and_then(|w| w.split_once(" of ")) {
        let sources = layers.iter().find(|s| s.layer.id == layer);
        make_wrong(sources.unwrap_or_else(|| panic!("there is no layer {layer}")), number);
    }
}

/// Put the reference's bodies of an exercise into the learner's files.
fn put_back(sources: &Sources, id: &str) {
    for file in sources.files.iter().filter(|f| f.regions.iter().any(|r| r.id == id)) {
        let path = learners_dir().join(&sources.layer.package).join(&file.path);
        let bodies = edit::bodies(&file.text, id).expect("the reference's marks");
        let text = fs::read_to_string(&path).expect("the learner's file");
        let text = edit::splice(&text, id, &bodies).expect("the learner's marks");
        fs::write(&path, text.expect("as many regions as the reference has")).unwrap();
    }
}

/// Make the mistake of a mutant in the learner's files.
fn make_wrong(sources: &Sources, number: &str) {
    let crate_dir = root().join(&sources.layer.package);
    let all =
        Mutant::load_all(&root(), &sources.layer, &crate_dir).unwrap_or_else(|e| panic!("{e}"));
    let mutant = all.iter().find(|m| m.number.to_string() == number);
    let mutant = mutant.unwrap_or_else(|| panic!("{} has no mutant {number}", sources.layer.id));
    let path = learners_dir().join(&mutant.file);
    let text = fs::read_to_string(&path).expect("the learner's file");
    fs::write(&path, mutant.apply(&text).expect("a body to make the mistake in")).unwrap();
}

/// The layers of the reference, the lowest first.
pub fn layers() -> Vec<Sources> {
    let mut layers = Vec::new();
    for entry in fs::read_dir(root()).unwrap() {
        let dir = entry.unwrap().path();
        if dir.join(course_marks::CATALOGUE).is_file() {
            layers.push(Sources::load(&dir).unwrap_or_else(|e| panic!("{e}")));
        }
    }
    layers.sort_by_key(|s| s.layer.number());
    layers
}

/// Whether this is somebody's copy with holes in it, where outputs are not those of the book.
pub fn is_a_learners() -> bool {
    root().join(LEARNER_DIR).is_dir()
}

//! `cargo test -p l1-tensor --test ops_rope` and `cargo run`, without building anything once more.
//!
//! The features of a dependency are those that the chosen packages ask for. So cargo would build most
//! of the tree again for `-p l1-tensor`, and again for `-p l2-model`, though all of their programs are
//! there: `cargo x test`, which runs this, builds the whole workspace. Cargo is asked once where they
//! are, and then that is done with them what a command says: which programs, which filter, in which
//! order, and no further than the first that fails. (Programs are built as tests are then, which is
//! faster than the `cargo run` of a reader, and computes the same.)

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::pages::root;

/// A command that was understood.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Built {
    /// Variables that stand before it.
    pub environment: Vec<(String, String)>,
    pub package: String,
    pub targets: Targets,
    /// For the programs: of tests a filter, and what stands behind `--`.
    pub arguments: Vec<String>,
    /// A file that takes what would be printed: `> FILE` at the end.
    pub into: Option<String>,
}

/// Which programs of a package.
#[derive(Debug, PartialEq, Eq)]
pub enum Targets {
    /// Those of its tests that are named here (`lib` for unit tests); none means all.
    Tests(Vec<String>),
    /// This example.
    Example(String),
    /// The program that the package is there for.
    Main,
}

impl Default for Targets {
    fn default() -> Self {
        Self::Tests(Vec::new())
    }
}

impl Built {
    /// Understand a command. `None`: it is another, or it says more than this knows.
    pub fn parse(command: &str) -> Option<Self> {
        let (command, into) = match command.split_once(" > ") {
            Some((command, file)) => (command, Some(file.to_string())),
            None => (command, None),
        };
        let words = words(command)?;
        let mut words = words.iter().map(String::as_str).peekable();
        let mut it = Self { into, ..Self::default() };
        while let Some((name, value)) = words.peek().and_then(|w| w.split_once('=')) {
            it.environment.push((name.into(), value.into()));
            words.next();
        }
        match (words.next(), words.next()) {
            (Some("cargo"), Some("test")) => it.tests(words)?,
            (Some("cargo"), Some("run")) => it.program(words)?,
            _ => return None,
        }
        (!it.package.is_empty()).then_some(it)
    }

    fn tests<'a>(&mut self, mut words: impl Iterator<Item = &'a str>) -> Option<()> {
        let mut targets = Vec::new();
        while let Some(word) = words.next() {
            match word {
                "-p" | "--package" => self.package = words.next()?.into(),
                "--test" => targets.push(words.next()?.into()),
                "--lib" => targets.push("lib".into()),
                "--" => self.arguments.extend(words.by_ref().map(str::to_string)),
                flag if flag.starts_with('-') => return None,
                filter => self.arguments.push(filter.into()),
            }
        }
        self.targets = Targets::Tests(targets);
        Some(())
    }

    fn program<'a>(&mut self, mut words: impl Iterator<Item = &'a str>) -> Option<()> {
        // The default member of the workspace.
        self.package = "strata".into();
        self.targets = Targets::Main;
        while let Some(word) = words.next() {
            match word {
                "-p" | "--package" => self.package = words.next()?.into(),
                "--example" => self.targets = Targets::Example(words.next()?.into()),
                "-q" | "--quiet" => {}
                "--" => self.arguments.extend(words.by_ref().map(str::to_string)),
                _ => return None,
            }
        }
        Some(())
    }

    /// Run the programs. What they print, tests on stdout only, and the status of the last.
    pub fn run(&self, prepare: impl Fn(&mut Command)) -> (String, Option<i32>) {
        let mut said = String::new();
        let mut status = None;
        for program in programs().iter().filter(|p| self.means(p)) {
            let mut command = Command::new(&program.path);
            prepare(&mut command);
            command.args(&self.arguments).envs(self.environment.iter().cloned());
            // Tests run in their package, other programs where one stands.
            let is_test = matches!(self.targets, Targets::Tests(_));
            let dir = if is_test { program.dir.clone() } else { root() };
            let out = command.current_dir(dir).stdin(Stdio::null()).output();
            let out = out.unwrap_or_else(|e| panic!("{}: {e}", program.path.display()));
            said.push_str(&String::from_utf8_lossy(&out.stdout));
            if !is_test {
                said.push_str(&String::from_utf8_lossy(&out.stderr));
            }
            status = out.status.code();
            if status != Some(0) {
                break;
            }
        }
        if let Some(file) = &self.into {
            let path = root().join(file);
            // Built things may be elsewhere, and then nothing has made this directory.
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(&path, said))
                .unwrap_or_else(|e| panic!("{file}: {e}"));
            return (String::new(), status);
        }
        (said, status)
    }

    /// The package's own program, ready to be started where a reader stands. `None` for tests.
    pub fn program_alone(&self, prepare: impl Fn(&mut Command)) -> Option<Command> {
        if matches!(self.targets, Targets::Tests(_)) {
            return None;
        }
        let program = programs().iter().find(|p| self.means(p))?;
        let mut command = Command::new(&program.path);
        prepare(&mut command);
        command.args(&self.arguments).envs(self.environment.iter().cloned());
        command.current_dir(root()).stdin(Stdio::null());
        Some(command)
    }

    fn means(&self, program: &Program) -> bool {
        let by_name = match &self.targets {
            Targets::Tests(names) => {
                let is_test = ["lib", "test"].contains(&program.kind.as_str());
                is_test && (names.is_empty() || names.contains(&program.target))
            }
            Targets::Example(name) => program.kind == "example" && program.target == *name,
            Targets::Main => program.kind == "bin",
        };
        by_name && program.dir.ends_with(&self.package)
    }
}

/// The words of a command, as a shell would read them. `None` where only a shell can.
fn words(command: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = command.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => {
                let (quoted, behind) = rest.as_str().split_once('"')?;
                if quoted.contains(['$', '`', '\\']) {
                    return None;
                }
                word.get_or_insert_default().push_str(quoted);
                rest = behind.chars();
            }
            '#' if word.is_none() => break,
            '|' | '&' | ';' | '<' | '>' | '\'' | '$' | '`' | '*' | '\\' => return None,
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// A program of the workspace.
struct Program {
    /// The directory of its package.
    dir: PathBuf,
    /// `lib` (unit tests), `test`, `example` or `bin`.
    kind: String,
    /// `lib`, or the name of the integration test, the example, the program.
    target: String,
    path: PathBuf,
}

/// What `cargo test --workspace` builds, in cargo's order: unit tests first, then by name.
fn programs() -> &'static [Program] {
    static PROGRAMS: OnceLock<Vec<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["test", "--workspace", "--no-run", "--message-format=json"]);
        build.current_dir(root()).stdin(Stdio::null()).stderr(Stdio::inherit());
        crate::run::as_if_typed(&mut build);
        let out = build.output().expect("cargo can be started");
        assert!(out.status.success(), "the tests of the workspace do not build");
        let messages = String::from_utf8(out.stdout).expect("cargo's messages");
        let mut programs: Vec<Program> = messages
            .lines()
            .filter_map(|line| program(&serde_json::from_str(line).ok()?))
            .collect();
        assert!(programs.len() > 20, "only {} programs found", programs.len());
        programs.sort_by_key(|p| (p.target != "lib", p.target.clone()));
        programs
    })
}

fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let path = message["executable"].as_str()?;
    let kind = message["target"]["kind"].as_array()?.first()?.as_str()?;
    let is_test = message["profile"]["test"] == true;
    let target = match (kind, is_test) {
        ("lib", true) => "lib",
        ("test", true) | ("bin", false) | ("example", _) => message["target"]["name"].as_str()?,
        _ => return None,
    };
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Program { dir: dir.into(), kind: kind.into(), target: target.into(), path: path.into() })
}

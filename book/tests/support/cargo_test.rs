//! `cargo test -p l1-tensor --test ops_rope`, without building anything once more.
//!
//! The features of a dependency are those that the chosen packages ask for. So cargo would build most
//! of the tree again for `-p l1-tensor`, and again for `-p l2-model`, though all of their test programs
//! are there: `cargo x test`, which runs this, builds the whole workspace. Cargo is asked once where
//! those are, and then does what a command says with them: which programs, which filter, in which
//! order, and no further than the first that fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::pages::root;

/// A command that was understood.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestCommand {
    /// Variables that stand before it.
    pub environment: Vec<(String, String)>,
    pub package: String,
    /// `lib` and names of integration tests; none means all.
    pub targets: Vec<String>,
    /// For the programs: a filter, and what stands behind `--`.
    pub arguments: Vec<String>,
}

impl TestCommand {
    /// Understand a command. `None`: it is another, or it says more than this knows.
    pub fn parse(command: &str) -> Option<Self> {
        if command.contains(['|', '&', ';', '<', '>', '"', '\'', '$', '`', '*']) {
            return None;
        }
        let command = command.split(" #").next().unwrap_or_default();
        let mut words = command.split_whitespace().peekable();
        let mut it = Self::default();
        while let Some((name, value)) = words.peek().and_then(|w| w.split_once('=')) {
            it.environment.push((name.into(), value.into()));
            words.next();
        }
        if (words.next(), words.next()) != (Some("cargo"), Some("test")) {
            return None;
        }
        while let Some(word) = words.next() {
            match word {
                "-p" | "--package" => it.package = words.next()?.into(),
                "--test" => it.targets.push(words.next()?.into()),
                "--lib" => it.targets.push("lib".into()),
                "--" => it.arguments.extend(words.by_ref().map(str::to_string)),
                flag if flag.starts_with('-') => return None,
                filter => it.arguments.push(filter.into()),
            }
        }
        (!it.package.is_empty()).then_some(it)
    }

    /// Run the programs. What they print on stdout, and the status of the last.
    pub fn run(&self, prepare: impl Fn(&mut Command)) -> (String, Option<i32>) {
        let mut said = String::new();
        let mut status = Some(0);
        let of_it = programs().iter().filter(|p| {
            p.dir.ends_with(&self.package)
                && (self.targets.is_empty() || self.targets.contains(&p.target))
        });
        for program in of_it {
            let mut command = Command::new(&program.path);
            prepare(&mut command);
            command.args(&self.arguments).envs(self.environment.iter().cloned());
            command.current_dir(&program.dir).stdin(Stdio::null());
            let out =
                command.output().unwrap_or_else(|e| panic!("{}: {e}", program.path.display()));
            said.push_str(&String::from_utf8_lossy(&out.stdout));
            status = out.status.code();
            if status != Some(0) {
                break;
            }
        }
        (said, status)
    }
}

/// A test program.
struct Program {
    /// The directory of its package: tests run there.
    dir: PathBuf,
    /// `lib`, or the name of the integration test.
    target: String,
    path: PathBuf,
}

/// The test programs of the workspace, as cargo orders them: unit tests first, then by name.
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
        assert!(programs.len() > 20, "only {} test programs found", programs.len());
        programs.sort_by_key(|p| (p.target != "lib", p.target.clone()));
        programs
    })
}

fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    let kind = target["kind"].as_array()?.first()?.as_str()?;
    let target = match kind {
        "lib" => "lib",
        "test" => target["name"].as_str()?,
        // Examples and programs are built too, and have no tests that a page would name.
        _ => return None,
    };
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
    let path = message["executable"].as_str()?;
    Some(Program { dir: dir.into(), target: target.into(), path: path.into() })
}

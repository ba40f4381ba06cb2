//! Commands, in fences and in prose: what they name exists.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::none;
use crate::pages::{Page, all, files_below, lines, root, spans};

/// The names of all test functions, with the module of the file in front, as a filter sees them.
fn test_names(member: &str) -> Vec<String> {
    let mut names = Vec::new();
    for file in files_below(&root().join(member), "rs") {
        let text = fs::read_to_string(&file).unwrap();
        let module: Vec<_> = file
            .with_extension("")
            .strip_prefix(root().join(member))
            .unwrap()
            .components()
            .map(|c| c.as_os_str().to_string_lossy().into_owned())
            .filter(|c| c != "src" && c != "tests" && c != "mod")
            .collect();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
                let end = rest.find(['(', '<']).unwrap_or(rest.len());
                names.push(format!("{}::tests::{}", module.join("::"), &rest[..end]));
                is_test = false;
            }
        }
    }
    names
}

/// Every `cargo ...` of a page, in spans and in fences.
fn cargo_commands(page: &Page) -> Vec<(usize, String)> {
    let in_spans = spans(&page.text).into_iter().map(|(n, s)| (n, s.to_string()));
    let in_fences = lines(&page.text)
        .filter(|(_, fenced, _)| *fenced)
        .map(|(n, _, l)| (n, l.trim().trim_start_matches("$ ").to_string()));
    let from_cargo = |(n, s): (usize, String)| {
        let at = s.find("cargo ")?;
        // Variables may stand before, nothing else: prose inside of a fence is no command.
        s[..at].split_whitespace().all(|w| w.contains('=')).then(|| (n, s[at..].to_string()))
    };
    in_spans.chain(in_fences).filter_map(from_cargo).collect()
}

#[test]
fn every_test_that_a_command_names_exists() {
    let root = root();
    let mut problems = Vec::new();
    let mut seen = 0;
    for page in all() {
        for (line, command) in cargo_commands(&page) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let mut bad = |why: String| {
                problems.push(format!("{}:{line}: `{command}`: {why}", page.name));
            };
            let after = |flag: &str| {
                let at = words.iter().position(|w| *w == flag)?;
                words.get(at + 1).copied()
            };
            let Some(package) = after("-p") else { continue };
            let member = if package == "strata-book" { "book" } else { package };
            if !root.join(member).join("Cargo.toml").is_file() {
                bad(format!("no package {package}"));
                continue;
            }
            for (flag, folder) in
                [("--test", "tests"), ("--example", "examples"), ("--bench", "benches")]
            {
                let Some(name) = after(flag) else { continue };
                let dir = root.join(member).join(folder);
                if !dir.join(format!("{name}.rs")).is_file() && !dir.join(name).is_dir() {
                    bad(format!("no {name} in {member}/{folder}"));
                }
            }
            if words.get(1) != Some(&"test") {
                continue;
            }
            seen += 1;
            // What is neither a flag nor a flag's value filters tests by name.
            let mut filter = None;
            let mut i = 2;
            while i < words.len() {
                match words[i] {
                    "-p" | "--test" | "--example" => i += 1,
                    "--" | "#" | "|" => break,
                    w if w.starts_with('-') => {}
                    w => filter = Some(w),
                }
                i += 1;
            }
            if let Some(filter) = filter.filter(|f| *f != "NAME")
                && !test_names(member).iter().any(|name| name.contains(filter))
            {
                bad(format!("no test of {member} has `{filter}` in its name"));
            }
        }
    }
    assert!(seen > 30, "only {seen} commands found: is this test reading them?");
    none(&problems);
}

/// The subcommands of `cargo x`, as the tool itself lists them.
fn subcommands() -> BTreeSet<String> {
    let mut help = Command::new(env!("CARGO"));
    help.args(["x", "--help"]).current_dir(root());
    crate::run::as_if_typed(&mut help);
    let out = help.output().expect("cargo can be started");
    assert!(out.status.success(), "cargo x --help: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let commands = text.lines().skip_while(|l| *l != "Commands:").skip(1);
    let found: BTreeSet<String> = commands
        .take_while(|l| !l.is_empty())
        .filter_map(|l| l.split_whitespace().next().map(str::to_string))
        .collect();
    assert!(found.contains("book"), "is this the help?\n{text}");
    found
}

#[test]
fn every_subcommand_of_the_tool_exists() {
    let known = subcommands();
    let mut problems = Vec::new();
    let mut seen = 0;
    for page in all() {
        for (line, command) in cargo_commands(&page) {
            let Some(rest) = command.strip_prefix("cargo x ") else { continue };
            let word = rest.split_whitespace().next().unwrap_or_default();
            if word.starts_with('-') || word == ".." {
                continue;
            }
            seen += 1;
            if !known.contains(word) {
                problems.push(format!("{}:{line}: there is no `cargo x {word}`", page.name));
            }
        }
    }
    assert!(seen > 10, "only {seen} commands found: is this test reading them?");
    none(&problems);
}

//! A simple command: what it is, by its first words.

use l4_sampler::output::{COMMAND_PREFIXES, is_assignment};

/// Kind of a command. How long commands of a kind take differs by orders of magnitude, but less than between kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Looks at a file or two, or changes them.
    Fast,
    /// Searches files.
    Search,
    /// Runs a program in an interpreted language.
    Interpreter,
    /// Talks with another machine.
    Network,
    /// Builds, tests or installs something, or goes on until it is stopped.
    Slow,
    /// `sleep`.
    Sleep,
    /// Anything else.
    Other,
}

const FAST: &[&str] = &[
    "ls", "dir", "pwd", "echo", "printf", "cd", "cat", "head", "tail", "wc", "stat", "file",
    "which", "type", "whoami", "id", "date", "uname", "hostname", "true", "false", "test", "[",
    "basename", "dirname", "realpath", "readlink", "mkdir", "rmdir", "touch", "cp", "mv", "rm",
    "ln", "chmod", "export", "set", "unset", "alias", "source", ".", "printenv", "nl",
];

const SEARCH: &[&str] = &["grep", "egrep", "fgrep", "rg", "ag", "find", "fd", "du", "tree"];

const INTERPRETERS: &[&str] = &[
    "python", "ipython", "node", "deno", "ruby", "perl", "php", "lua", "Rscript", "java", "bash",
    "sh", "zsh",
];

const NETWORK: &[&str] = &["curl", "wget", "ssh", "scp", "rsync", "ping", "dig"];

const SLOW: &[&str] = &[
    "pytest",
    "tox",
    "nox",
    "nosetests",
    "make",
    "ninja",
    "bazel",
    "mvn",
    "gradle",
    "gradlew",
    "jest",
    "vitest",
    "docker-compose",
    "terraform",
];

/// Commands that are slow with a word of [`MANAGER_WORK`].
const MANAGERS: &[&str] = &[
    "cargo", "go", "npm", "npx", "yarn", "pnpm", "pip", "pipx", "uv", "poetry", "conda", "mamba",
    "apt", "apt-get", "dnf", "yum", "brew", "docker", "podman", "dotnet", "swift", "bundle", "gem",
    "composer",
];

const MANAGER_WORK: &[&str] = &[
    "build", "test", "install", "run", "check", "clippy", "bench", "compile", "ci", "update",
    "upgrade", "sync", "doc", "pull", "push", "publish", "package", "deploy", "up", "create",
];

const GIT_FAST: &[&str] = &[
    "status",
    "log",
    "diff",
    "add",
    "commit",
    "branch",
    "show",
    "rev-parse",
    "stash",
    "checkout",
    "switch",
    "restore",
    "reset",
    "tag",
    "init",
    "config",
    "blame",
    "remote",
    "ls-files",
    "grep",
];

const GIT_NETWORK: &[&str] = &["clone", "fetch", "pull", "push", "submodule"];

/// Words of the shell's grammar, and a prompt.
const GRAMMAR: &[&str] = &[
    "if", "elif", "while", "until", "then", "else", "do", "!", "{", "}", "done", "fi", "esac", "$",
];

/// The words of a command from its verb on. Nothing is left of a command that is all preparation, such as `A=1`, nor of
/// `for` and `case`, which words follow and no command.
pub(super) fn essence(mut words: &[String]) -> &[String] {
    while let Some((first, rest)) = words.split_first() {
        let prefix = COMMAND_PREFIXES.contains(&first.as_str());
        if matches!(first.as_str(), "for" | "case") {
            return &[];
        }
        if !prefix && !GRAMMAR.contains(&first.as_str()) && !is_assignment(first) {
            break;
        }
        words = rest;
        // `timeout -k 5 10s`, `nice -n 5`.
        let operand = matches!(first.as_str(), "timeout" | "nice");
        let skips = |word: &String| {
            word.starts_with('-') || operand && word.starts_with(|c: char| c.is_ascii_digit())
        };
        while prefix && words.first().is_some_and(skips) {
            words = &words[1..];
        }
    }
    words
}

/// Name of a command without its path, and without the version of an interpreter.
fn verb(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if plain == "pip" || INTERPRETERS.contains(&plain) { plain } else { name }
}

/// Kind of a command, by its words from the verb on.
pub(super) fn kind(words: &[String]) -> Kind {
    let Some((first, rest)) = words.split_first() else { return Kind::Other };
    let (name, rest): (&str, Vec<&str>) = (verb(first), rest.iter().map(String::as_str).collect());
    let subcommand = rest.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default();
    let subcommand_in = |names: &[&str]| names.contains(&subcommand);
    match name {
        _ if matches!(rest.last(), Some(&("--version" | "--help"))) => Kind::Fast,
        _ if INTERPRETERS.contains(&name) => match rest[..] {
            ["-m", "unittest", ..] => Kind::Slow,
            ["-m", module, ..] if SLOW.contains(&module) || MANAGERS.contains(&module) => {
                kind(&words[2..])
            }
            _ => Kind::Interpreter,
        },
        "tail" if rest.iter().any(|word| matches!(*word, "-f" | "-F" | "--follow")) => Kind::Slow,
        "git" if subcommand_in(GIT_FAST) => Kind::Fast,
        "git" if subcommand_in(GIT_NETWORK) => Kind::Network,
        _ if MANAGERS.contains(&name) && subcommand_in(MANAGER_WORK) => Kind::Slow,
        _ if FAST.contains(&name) => Kind::Fast,
        _ if SEARCH.contains(&name) => Kind::Search,
        _ if NETWORK.contains(&name) => Kind::Network,
        _ if SLOW.contains(&name) => Kind::Slow,
        "sleep" => Kind::Sleep,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_known_by_its_first_words() {
        for (command, expected) in [
            ("ls -la", Kind::Fast),
            ("sudo -E /usr/bin/cat f", Kind::Fast),
            ("timeout -k 5 10s python3.11 x.py", Kind::Interpreter),
            ("A=1 B+=2 make", Kind::Slow),
            ("python -m pytest -q", Kind::Slow),
            ("python3 -m pip list", Kind::Other),
            ("pip3 install x", Kind::Slow),
            ("cargo --version", Kind::Fast),
            ("cargo -q build", Kind::Slow),
            ("git -q log", Kind::Fast),
            ("git clone u", Kind::Network),
            ("git bisect run x", Kind::Other),
            ("tail -f log", Kind::Slow),
            ("tail -5 log", Kind::Fast),
            ("do grep x", Kind::Search),
            ("sleep 4", Kind::Sleep),
            ("for f in ls", Kind::Other),
            ("get_weather", Kind::Other),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(kind(essence(&words)), expected, "{command}");
        }
        assert!(essence(&["for".to_owned(), "f".to_owned()]).is_empty());
        assert!(essence(&["A=1".to_owned()]).is_empty());
    }
}

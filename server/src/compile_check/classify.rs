//! Turns what a compiler printed into a verdict.
//!
//! A compiler ends with status 1 also when it runs out of memory, when the kernel kills it, or when a header is missing.
//! So a [`Verdict::Fail`] needs a line `POSITION: error: MESSAGE`, and a message that is about the code. The position
//! comes first in such a line, so the code cannot pass a text of its own (`#error`) for another kind of message.

use super::sandbox::{End, Run};
use super::verdict::{Inconclusive, Verdict};

/// Maximum length of an error in a verdict, in characters.
const MAX_ERROR_CHARS: usize = 160;

/// Marks of messages, as they follow a position or the name of a program.
const KINDS: [(&str, Kind); 4] = [
    (": internal compiler error: ", Kind::Crash),
    (": fatal error: ", Kind::Error),
    (": error: ", Kind::Error),
    (": out of memory", Kind::Memory),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Error,
    Crash,
    Memory,
}

/// Messages of g++ and clang++ about limits that the checker sets.
const TOO_DEEP: [&str; 9] = [
    "template instantiation depth exceeds",
    "recursive template instantiation exceeded",
    "evaluation depth exceeds",
    "evaluation exceeded maximum depth",
    "evaluation operation count exceeds",
    "loop iteration count exceeds",
    "hit maximum step limit",
    "nested depth",
    "nested too deeply",
];

/// Messages about a name that the rest of a program may declare.
const MISSING_NAME: [&str; 10] = [
    "was not declared in this scope",
    "has not been declared",
    "does not name a type",
    "is not a member of",
    "is not a namespace-name",
    "declared void",
    "undeclared identifier",
    "unknown type name",
    "no type named",
    "expected class",
];

/// The verdict of one run. `fragment`: names may be missing. `quote`: the verdict may quote the compiler.
pub fn verdict(run: &Run, fragment: bool, quote: bool) -> Verdict {
    match run.end {
        End::TimedOut => return Inconclusive::TimedOut.into(),
        End::Stopped => return Inconclusive::Stopped.into(),
        End::Signalled(libc::SIGXCPU) => return Inconclusive::TimedOut.into(),
        End::Signalled(_) => return Inconclusive::CompilerFailed.into(),
        // A compiler that has not read the code says nothing about it.
        End::Exited(0) if run.input_written => return Verdict::Pass,
        End::Exited(0) => return Inconclusive::CompilerFailed.into(),
        End::Exited(_) => {}
    }
    let output = String::from_utf8_lossy(&run.output);
    let first = output.lines().find_map(message);
    let Some((position, kind, text)) = first else { return crash(&output).into() };
    let why = match kind {
        Kind::Crash => crash(&output),
        Kind::Memory => Inconclusive::OutOfMemory,
        Kind::Error => match about_the_code(text, &output, fragment) {
            Some(why) => why,
            None if line_number(position).is_none() && !position.contains(':') => crash(&output),
            None => return Verdict::Fail { error: error(position, text, quote) },
        },
    };
    why.into()
}

/// The position or program, kind and text of a line that reports a problem.
fn message(line: &str) -> Option<(&str, Kind, &str)> {
    let marks =
        KINDS.iter().filter_map(|(mark, kind)| line.find(mark).map(|at| (at, *mark, *kind)));
    let (at, mark, kind) = marks.min_by_key(|(at, ..)| *at)?;
    Some((&line[..at], kind, &line[at + mark.len()..]))
}

/// Why an error says nothing about the code, or `None` if it does.
fn about_the_code(text: &str, output: &str, fragment: bool) -> Option<Inconclusive> {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if text.contains("terminated program") {
        return Some(crash(output));
    }
    if text.ends_with(": No such file or directory") || text.ends_with("file not found") {
        return Some(Inconclusive::MissingHeader);
    }
    if text.ends_with(": Permission denied") || text.contains("Operation not permitted") {
        return Some(Inconclusive::Refused("the sandbox denied a file".to_owned()));
    }
    // clang++ reports some of its limits in notes.
    let notes = || output.lines().filter_map(|line| line.split_once(": note: "));
    let deep = |note: &str| TOO_DEEP.iter().any(|word| note.contains(word));
    if has(&TOO_DEEP) || notes().any(|(_, note)| deep(note)) {
        return Some(Inconclusive::TooDeep);
    }
    (fragment && has(&MISSING_NAME)).then_some(Inconclusive::MissingContext)
}

/// Why a compiler ended that reports no error of the code.
fn crash(output: &str) -> Inconclusive {
    let has = |text: &str| output.contains(text);
    if has("CPU time limit exceeded") {
        Inconclusive::TimedOut
    } else if has("out of memory") || has("memory exhausted") || has("bad_alloc") {
        Inconclusive::OutOfMemory
    } else {
        Inconclusive::CompilerFailed
    }
}

/// The number of the line in the code, if a position is in the code.
fn line_number(position: &str) -> Option<u32> {
    position.strip_prefix("<stdin>:")?.split(':').next()?.parse().ok()
}

/// An error for a verdict.
fn error(position: &str, text: &str, quote: bool) -> String {
    let place = match line_number(position) {
        Some(line) => format!("line {line}"),
        None => "in a header".to_owned(),
    };
    if !quote {
        return place;
    }
    let text: Vec<char> = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let short: String = text.iter().take(MAX_ERROR_CHARS).collect();
    let dots = if text.len() > MAX_ERROR_CHARS { "..." } else { "" };
    format!("{place}: {}{dots}", short.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(output: &str, fragment: bool) -> Verdict {
        let run =
            Run { end: End::Exited(1), output: output.as_bytes().to_vec(), input_written: true };
        verdict(&run, fragment, true)
    }

    fn why(output: &str) -> Inconclusive {
        match of(output, false) {
            Verdict::Inconclusive { why } => why,
            verdict => panic!("{output}: {verdict}"),
        }
    }

    #[test]
    fn an_error_in_the_code_fails_with_its_line_and_text() {
        let output =
            "<stdin>: In function 'int f()':\n<stdin>:7:17: error: expected ';' before '}' token\n";
        assert_eq!(
            of(output, false),
            Verdict::Fail { error: "line 7: expected ';' before '}' token".into() }
        );
        let output = "In file included from <stdin>:1:\n/usr/include/c++/12/vector:5:1: error: static assertion failed\n";
        assert_eq!(
            of(output, false),
            Verdict::Fail { error: "in a header: static assertion failed".into() }
        );
    }

    #[test]
    fn a_failure_of_the_compiler_is_not_one_of_the_code() {
        for (output, expected) in [
            (
                "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes\n",
                Inconclusive::OutOfMemory,
            ),
            (
                "g++: fatal error: Killed signal terminated program cc1plus\n",
                Inconclusive::CompilerFailed,
            ),
            (
                "g++: fatal error: CPU time limit exceeded signal terminated program cc1plus\n",
                Inconclusive::TimedOut,
            ),
            (
                "<stdin>:1:1: internal compiler error: Segmentation fault\n",
                Inconclusive::CompilerFailed,
            ),
            ("g++: error: unrecognized command-line option '-x'\n", Inconclusive::CompilerFailed),
            ("", Inconclusive::CompilerFailed),
            (
                "<stdin>:1:10: fatal error: boost/a.hpp: No such file or directory\n",
                Inconclusive::MissingHeader,
            ),
            (
                "<stdin>:1:10: fatal error: 'boost/a.hpp' file not found\n",
                Inconclusive::MissingHeader,
            ),
            (
                "<stdin>:1:10: fatal error: /etc/passwd: Permission denied\n",
                Inconclusive::Refused("the sandbox denied a file".into()),
            ),
            (
                "<stdin>:1:54: fatal error: template instantiation depth exceeds maximum of 256 (use x)\n",
                Inconclusive::TooDeep,
            ),
            (
                "<stdin>:1:5: error: constexpr variable 'x' must be initialized by a constant expression\n\
                 <stdin>:1:9: note: constexpr evaluation hit maximum step limit; possible infinite loop?\n",
                Inconclusive::TooDeep,
            ),
        ] {
            assert_eq!(why(output), expected, "{output}");
        }
    }

    #[test]
    fn the_code_cannot_write_its_own_kind_of_message() {
        for text in [": internal compiler error: x", ": out of memory", "g++: fatal error: x"] {
            let verdict = of(&format!("<stdin>:1:2: error: #error a{text}\n"), false);
            assert!(matches!(verdict, Verdict::Fail { .. }), "{text}: {verdict}");
        }
    }

    #[test]
    fn a_missing_name_is_a_failure_of_a_program_and_not_of_a_fragment() {
        for output in [
            "<stdin>:1:1: error: 'Foo' does not name a type\n",
            "<stdin>:1:1: error: unknown type name 'Foo'\n",
        ] {
            assert!(matches!(of(output, false), Verdict::Fail { .. }), "{output}");
            assert_eq!(of(output, true), Inconclusive::MissingContext.into(), "{output}");
        }
        let output = "<stdin>:1:1: error: expected ';'\n";
        assert!(matches!(of(output, true), Verdict::Fail { .. }));
    }

    #[test]
    fn an_error_is_short_and_has_no_control_characters() {
        let Verdict::Fail { error } =
            of(&format!("<stdin>:1:2: error: #error \x1b[2J\t{}\n", "x".repeat(1000)), false)
        else {
            panic!();
        };
        assert!(
            error.chars().count() < MAX_ERROR_CHARS + 20 && !error.contains(char::is_control),
            "{error:?}"
        );
    }

    #[test]
    fn without_leave_to_quote_only_the_line_is_told() {
        let output = b"<stdin>:3:1: error: 'root' does not name a type\n".to_vec();
        let run = Run { end: End::Exited(1), output, input_written: true };
        assert_eq!(verdict(&run, false, false), Verdict::Fail { error: "line 3".into() });
    }

    #[test]
    fn success_counts_only_if_the_code_was_read() {
        let run = |end, input_written| Run { end, output: Vec::new(), input_written };
        assert_eq!(verdict(&run(End::Exited(0), true), false, true), Verdict::Pass);
        for (run, why) in [
            (run(End::Exited(0), false), Inconclusive::CompilerFailed),
            (run(End::Signalled(libc::SIGXCPU), true), Inconclusive::TimedOut),
            (run(End::Signalled(libc::SIGSEGV), true), Inconclusive::CompilerFailed),
            (run(End::TimedOut, true), Inconclusive::TimedOut),
            (run(End::Stopped, true), Inconclusive::Stopped),
        ] {
            assert_eq!(verdict(&run, false, true), why.into());
        }
    }
}

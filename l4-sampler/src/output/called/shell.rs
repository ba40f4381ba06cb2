//! The command that a line of shell commands runs.

/// Commands that run the command behind them.
pub const COMMAND_PREFIXES: [&str; 10] =
    ["sudo", "env", "time", "nohup", "exec", "command", "builtin", "nice", "stdbuf", "timeout"];

/// Words of the shell's grammar that come before a command, and a prompt.
const GRAMMAR: [&str; 9] = ["if", "while", "until", "then", "else", "do", "!", "{", "$"];

/// Commands that prepare for the next one, and take no time. `for` and `case` are followed by words, not by a command.
const PREPARATIONS: [&str; 14] = [
    "cd", "pushd", "popd", "export", "set", "unset", "source", ".", "alias", "umask", "for",
    "case", "true", ":",
];

/// Name of the command that a line of shell commands runs, without its path: how long the line takes depends on it.
///
/// The rule: the first command counts, after what agents write before it: changes of directory and settings (`cd`,
/// `export`, `source` and the like), assignments (`NAME=value`), prefixes (`sudo`, `env`, `time`, `timeout 10`), words
/// of the grammar (`if`, `do`), and a prompt (`$`). A line of nothing else, or a comment, has no command.
///
/// ```
/// use l4_sampler::output::command_name;
///
/// assert_eq!(command_name("cd src && ls -la"), Some("ls"));
/// assert_eq!(command_name("PYTHONPATH=. timeout 60 python3 -m pytest"), Some("python3"));
/// assert_eq!(command_name("# List files."), None);
/// ```
pub fn command_name(line: &str) -> Option<&str> {
    let mut words = Words { rest: line };
    while let Some(first) = words.next() {
        let word = match first {
            Word::Separator => continue,
            Word::Text(word) => word,
        };
        if is_assignment(word) || is_continuation(word) {
            continue;
        }
        if PREPARATIONS.contains(&word) {
            words.skip_command();
            continue;
        }
        if COMMAND_PREFIXES.contains(&word) || GRAMMAR.contains(&word) {
            words.skip_options(word);
            continue;
        }
        let unquoted = word.trim_matches(['"', '\'', '\\']);
        let name = unquoted.rsplit('/').next().unwrap_or(unquoted);
        return (!name.is_empty()).then_some(name);
    }
    None
}

/// A backslash at the end of a line.
fn is_continuation(word: &str) -> bool {
    word == "\\"
}

/// Whether a word of a command is an assignment: `NAME=value` or `NAME+=value`.
pub fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Words of a line, as the shell would divide it.
#[derive(Clone, Copy)]
struct Words<'a> {
    rest: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Word<'a> {
    /// What ends a command: `;`, `|`, `&` and parentheses.
    Separator,
    /// A word, with its quotes.
    Text(&'a str),
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let text = self.rest.trim_start();
        let first = text.chars().next()?;
        if is_separator(first) {
            self.rest = &text[first.len_utf8()..];
            return Some(Word::Separator);
        }
        if first == '#' {
            self.rest = "";
            return None;
        }
        let (word, rest) = text.split_at(word_end(text));
        self.rest = rest;
        Some(Word::Text(word))
    }
}

impl Words<'_> {
    /// Skips the arguments of a command.
    fn skip_command(&mut self) {
        while let Some(Word::Text(_)) = self.next() {}
    }

    /// Skips options of a prefix, and the duration of `timeout`.
    fn skip_options(&mut self, prefix: &str) {
        let is_operand = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
        loop {
            let mut ahead = *self;
            match ahead.next() {
                Some(Word::Text(word)) if word.starts_with('-') => *self = ahead,
                // `timeout 10`, `nice -n 5`.
                Some(Word::Text(word))
                    if matches!(prefix, "timeout" | "nice") && is_operand(word) =>
                {
                    *self = ahead;
                }
                _ => return,
            }
        }
    }
}

fn is_separator(c: char) -> bool {
    matches!(c, ';' | '|' | '&' | '(' | ')')
}

/// Number of bytes of the word that `text` begins with. Quotes and substitutions, `$(...)`, hold separators.
fn word_end(text: &str) -> usize {
    let (mut quote, mut depth, mut before) = (None, 0_usize, ' ');
    for (at, c) in text.char_indices() {
        let escaped = before == '\\' && quote != Some('\'');
        match (quote, c) {
            _ if escaped => {}
            (Some(open), c) => quote = quote.filter(|_| c != open),
            (None, '"' | '\'' | '`') => quote = Some(c),
            (None, '(') if before == '$' || depth > 0 => depth += 1,
            (None, ')') if depth > 0 => depth -= 1,
            (None, c) if depth == 0 && (c.is_whitespace() || is_separator(c)) => return at,
            (None, _) => {}
        }
        // An escaped backslash escapes nothing.
        before = if escaped { ' ' } else { c };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_command_counts_after_what_prepares_for_it() {
        for (line, name) in [
            ("ls", "ls"),
            ("ls -la | grep x", "ls"),
            ("cd /testbed && ls -la", "ls"),
            ("cd /testbed; git diff", "git"),
            ("cd 'my (dir); x' && cat f", "cat"),
            ("sudo -E apt-get update", "apt-get"),
            ("FOO=1 BAR=\"a; b\" make -j2", "make"),
            ("X=$(cat f | head -1) python run.py", "python"),
            ("export A=1 && source env/bin/activate && pytest -q", "pytest"),
            ("timeout 10 python3 x.py", "python3"),
            ("timeout -k 5 10s ./run.sh --fast", "run.sh"),
            ("nice -n 5 cargo build", "cargo"),
            ("/usr/bin/python3.11 -c 'print(1)'", "python3.11"),
            ("$ git status", "git"),
            ("(cd src; wc -l *.rs)", "wc"),
            ("for f in *.py; do grep foo $f; done", "grep"),
            ("if ! grep -q x f; then echo no; fi", "grep"),
            ("while true; do sleep 1; done", "sleep"),
            ("env -i PATH=/bin sh -c ls", "sh"),
            ("\"./my tool\" x", "my tool"),
            ("find . -name '*.py' -exec grep x {} \\;", "find"),
            ("echo $((1 + 2))", "echo"),
            ("cd src && \\", "none"),
            ("cd src", "none"),
            ("# ls", "none"),
            ("A=1", "none"),
            ("&& ||", "none"),
            ("", "none"),
        ] {
            assert_eq!(command_name(line).unwrap_or("none"), name, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_line_has_a_name_that_is_part_of_it_or_none(line in r#"([a-c=/ ;|&()'"`$\\#é-]|cd |timeout |for ){0,24}"#) {
            if let Some(name) = command_name(&line) {
                prop_assert!(!name.is_empty() && line.contains(name), "{}: {}", line, name);
            }
        }
    }
}

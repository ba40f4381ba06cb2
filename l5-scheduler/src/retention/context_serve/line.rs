//! A text of shell commands, as the shell would divide it.

use std::str::Chars;

use l4_sampler::output::MAX_COMMAND_BYTES;

/// Parts of a text of shell commands. The text may be anything: what is no shell command is divided, too.
#[derive(Debug, Default)]
pub(super) struct Line<'a> {
    /// The text, at most [`MAX_COMMAND_BYTES`] of it.
    pub text: &'a str,
    /// Words of each simple command, without quotes and without redirections.
    pub commands: Vec<Vec<String>>,
    /// Number of `|`.
    pub pipes: usize,
    /// Number of `&&` and `||`.
    pub and_or: usize,
    /// Number of `<`, `>` and their kin.
    pub redirects: usize,
    /// Number of `&` that start a command in the background.
    pub background: usize,
    /// Number of `$(...)` and of pairs of backticks.
    pub substitutions: usize,
    /// Number of lines of here-documents.
    pub heredoc_lines: usize,
}

impl<'a> Line<'a> {
    /// Divides a text.
    pub(super) fn new(text: &'a str) -> Self {
        let text = &text[..text.floor_char_boundary(MAX_COMMAND_BYTES)];
        let line = Self { text, ..Self::default() };
        Scanner {
            line,
            rest: text.chars(),
            words: Vec::new(),
            word: None,
            next: Next::Word,
            heredocs: Vec::new(),
        }
        .scan()
    }
}

/// What the next word is.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    /// A word of the command.
    Word,
    /// The file of a redirection.
    File,
    /// The line that will end a here-document.
    Delimiter,
}

struct Scanner<'a> {
    line: Line<'a>,
    rest: Chars<'a>,
    /// Words of the current command.
    words: Vec<String>,
    word: Option<String>,
    next: Next,
    /// Ends of the here-documents that begin with the next line of the text.
    heredocs: Vec<String>,
}

impl<'a> Scanner<'a> {
    fn scan(mut self) -> Line<'a> {
        let (mut quote, mut backticks) = (None, 0_usize);
        while let Some(c) = self.rest.next() {
            match (quote, c) {
                (Some('"') | None, '\\') => match self.rest.next() {
                    None | Some('\n') => {}
                    Some(escaped) => self.push(escaped),
                },
                (Some(open), c) if c == open => quote = None,
                (Some(_), c) => self.push(c),
                (None, '\'' | '"') => {
                    quote = Some(c);
                    self.word.get_or_insert_default();
                }
                (None, ' ' | '\t' | '\r') => self.end_word(),
                (None, '\n') => {
                    self.end_command();
                    self.skip_heredocs();
                }
                (None, '#') if self.word.is_none() => {
                    let text = self.rest.as_str();
                    self.rest = text[text.find('\n').unwrap_or(text.len())..].chars();
                }
                (None, '|') => {
                    *(if self.take('|') { &mut self.line.and_or } else { &mut self.line.pipes }) +=
                        1;
                    self.end_command();
                }
                (None, '&') if self.rest.as_str().starts_with('>') => self.end_word(),
                (None, '&') => {
                    *(if self.take('&') {
                        &mut self.line.and_or
                    } else {
                        &mut self.line.background
                    }) += 1;
                    self.end_command();
                }
                (None, '<' | '>') => self.redirect(c),
                (None, '$') if self.take('(') => {
                    self.line.substitutions += 1;
                    self.end_command();
                }
                (None, '`') => {
                    backticks += 1;
                    self.end_command();
                }
                (None, ';' | '(' | ')') => self.end_command(),
                (None, c) => self.push(c),
            }
        }
        self.end_command();
        self.line.substitutions += backticks.div_ceil(2);
        self.line
    }

    /// Skips a character, if it is the next one.
    fn take(&mut self, c: char) -> bool {
        let rest = self.rest.as_str().strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest.as_str()).chars();
        rest.is_some()
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match std::mem::replace(&mut self.next, Next::Word) {
            Next::Word => self.words.push(word),
            Next::File => {}
            Next::Delimiter => self.heredocs.push(word),
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.next = Next::Word;
        if !self.words.is_empty() {
            self.line.commands.push(std::mem::take(&mut self.words));
        }
    }

    /// A redirection that begins with `<` or `>`: `2>&1`, `>> f`, `<<EOF`, `<<< text`.
    fn redirect(&mut self, first: char) {
        let is_number =
            |word: &String| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        self.word.take_if(|word| is_number(word));
        self.end_word();
        self.line.redirects += 1;
        let rest = self.rest.as_str();
        if first == '<' && rest.starts_with('<') && !rest.starts_with("<<") {
            self.take('<');
            self.take('-');
            self.next = Next::Delimiter;
        } else {
            self.rest = rest.trim_start_matches(['<', '>', '&', '|']).chars();
            self.next = Next::File;
        }
    }

    fn skip_heredocs(&mut self) {
        for end in std::mem::take(&mut self.heredocs) {
            while !self.rest.as_str().is_empty() {
                let text = self.rest.as_str();
                let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
                self.rest = rest.chars();
                if line.trim_matches([' ', '\t', '\r']) == end {
                    break;
                }
                self.line.heredoc_lines += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_is_divided_as_the_shell_would() {
        for (text, commands) in [
            ("ls -la | wc -l", vec![vec!["ls", "-la"], vec!["wc", "-l"]]),
            ("cd 'a b' && make 2>&1 >log", vec![vec!["cd", "a b"], vec!["make"]]),
            ("echo \"a; \\\"b\" \\; c # d", vec![vec!["echo", "a; \"b", ";", "c"]]),
            ("cat <<EOF > f\nls | x\n EOF\npwd", vec![vec!["cat"], vec!["pwd"]]),
            ("cat <<< \"$x\" & wait", vec![vec!["cat"], vec!["wait"]]),
            ("ls $(dirname `which gcc`)", vec![vec!["ls"], vec!["dirname"], vec!["which", "gcc"]]),
            ("echo '' \\\n b &> log", vec![vec!["echo", "", "b"]]),
            ("", vec![]),
        ] {
            assert_eq!(Line::new(text).commands, commands, "{text}");
        }
        let line = Line::new("a && b || c | d & e > f; cat <<A <<B\n1\nA\n2\n3\nB\n`g` $(h)");
        let counts = [line.pipes, line.and_or, line.redirects, line.background];
        assert_eq!(counts, [1, 2, 3, 1]);
        assert_eq!([line.substitutions, line.heredoc_lines], [2, 3]);
    }

    proptest! {
        #[test]
        fn any_text_is_divided(text in r#"([ab é\\'"`$()<>|&;#\n-]|<<a|a\n){0,40}"#) {
            let line = Line::new(&text);
            prop_assert!(line.commands.iter().all(|command| !command.is_empty()));
            let bytes: usize = line.commands.iter().flatten().map(String::len).sum();
            prop_assert!(bytes <= text.len());
        }
    }
}

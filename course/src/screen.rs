//! What is printed: few lines, none too long, colours only where they are wanted.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;

/// A line is never longer. What is longer is wrapped or cut.
pub const WIDTH: usize = 100;
/// A terminal has 24 lines at least; one is left for the prompt.
pub const HEIGHT: usize = 23;

/// Kind of a line, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Normal text.
    Plain,
    /// What to read first.
    Strong,
    /// Success.
    Good,
    /// Failure.
    Bad,
    /// Less important.
    Faint,
}

/// Lines to be printed together.
#[derive(Clone, Debug, Default)]
pub struct Screen {
    lines: Vec<(Tone, String)>,
}

impl Screen {
    /// Add a line; one that is too long is cut.
    pub fn line(&mut self, tone: Tone, text: impl AsRef<str>) -> &mut Self {
        self.lines.push((tone, cut(text.as_ref().trim_end(), WIDTH)));
        self
    }

    /// Add an empty line.
    pub fn blank(&mut self) -> &mut Self {
        self.lines.push((Tone::Plain, String::new()));
        self
    }

    /// Add text wrapped at words: `head` before its first line, as much space before the others.
    pub fn wrapped(&mut self, tone: Tone, head: &str, text: &str) -> &mut Self {
        for (n, line) in wrap(text, WIDTH - head.chars().count()).iter().enumerate() {
            let space = " ".repeat(head.chars().count());
            self.line(tone, format!("{}{line}", if n == 0 { head } else { &space }));
        }
        self
    }

    /// Add all lines of another.
    pub fn append(&mut self, other: Self) -> &mut Self {
        self.lines.extend(other.lines);
        self
    }

    /// How many lines there are.
    pub fn height(&self) -> usize {
        self.lines.len()
    }

    /// Keep the first `n` lines; the last of them becomes `instead` if any had to go.
    pub fn keep(&mut self, n: usize, instead: &str) {
        if self.lines.len() > n {
            self.lines.truncate(n.saturating_sub(1));
            self.line(Tone::Faint, instead);
        }
    }

    /// The text without colours.
    pub fn text(&self) -> String {
        self.lines.iter().map(|(_, line)| format!("{line}\n")).collect()
    }

    /// Print it.
    pub fn print(&self) {
        if !wants_colours() {
            return print(&self.text());
        }
        let paint = |(tone, line): &(Tone, String)| match code(*tone) {
            Some(code) if !line.is_empty() => format!("\x1b[{code}m{line}\x1b[0m\n"),
            _ => format!("{line}\n"),
        };
        print(&self.lines.iter().map(paint).collect::<String>());
    }
}

/// Prints, and ignores a closed pipe (`cargo x check | head -1`).
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Ask on the terminal; `None` where there is none.
pub fn ask(question: &str) -> Result<Option<String>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut out = io::stdout().lock();
    out.write_all(question.as_bytes())?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(Some(answer.trim().to_string()))
}

fn wants_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    !refused && io::stdout().is_terminal()
}

fn code(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Plain => None,
        Tone::Strong => Some("1"),
        Tone::Good => Some("32"),
        Tone::Bad => Some("31"),
        Tone::Faint => Some("2"),
    }
}

/// `####.......`: how many of all.
pub fn bar(done: usize, all: usize) -> String {
    "#".repeat(done) + &".".repeat(all.saturating_sub(done))
}

/// `1 hint`, `2 hints`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// At most `width` characters of a line, the last ones `..` if there were more. A tab is wider than
/// one character, and other invisible ones would disturb the terminal.
pub fn cut(text: &str, width: usize) -> String {
    let text: String = text
        .replace('\t', "    ")
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(2)).collect();
    kept + ".."
}

/// Lines of at most `width` characters, broken at spaces where there are any.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word = word.to_string();
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        while word.chars().count() > width {
            let rest = word.chars().skip(width).collect();
            lines.push(word.chars().take(width).collect());
            word = rest;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_words_and_words_that_are_too_long_anywhere() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("a abcdefgh b", 3), ["a", "abc", "def", "gh", "b"]);
        assert_eq!(wrap("", 3), Vec::<String>::new());
        let lines = wrap(&"word ".repeat(40), 90);
        assert!(lines.iter().all(|l| l.starts_with("word") && l.len() <= 90), "{lines:?}");
        assert_eq!(lines.join(" ").split_whitespace().count(), 40);
    }

    #[test]
    fn a_line_is_cut_by_characters_and_carries_nothing_invisible() {
        assert_eq!(cut("äöüß", 4), "äöüß");
        assert_eq!(cut("äöüßé", 4), "äö..");
        assert_eq!(cut("a\tb\x1b[2J", 20), "a    b\u{fffd}[2J");
    }

    #[test]
    fn what_does_not_fit_is_replaced_by_a_word_about_it() {
        let mut screen = Screen::default();
        screen.wrapped(Tone::Plain, "  1. ", &"word ".repeat(60)).line(Tone::Plain, "end");
        assert!(screen.text().lines().all(|l| l.chars().count() <= WIDTH));
        assert!(screen.text().lines().nth(1).unwrap().starts_with("     word"));
        screen.keep(2, "more");
        assert_eq!((screen.height(), screen.text().lines().last()), (2, Some("more")));
    }
}

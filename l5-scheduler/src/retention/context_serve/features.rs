//! Features of a tool call's command: 25 numbers that say how long it may take.

use super::command::{Kind, essence, kind};
use super::line::Line;

/// A feature. All are counts, but for [`Feature::SleepSeconds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Bytes of the text.
    Bytes,
    /// Words of all commands, without prefixes and assignments.
    Words,
    /// Simple commands.
    Commands,
    /// `|`: the commands of a pipe run beside each other.
    Pipes,
    /// `&&` and `||`: commands run behind each other.
    AndOr,
    /// `>`, `<` and their kin.
    Redirects,
    /// `&`: commands for which the call does not wait.
    Background,
    /// `$(...)` and backticks.
    Substitutions,
    /// Lines of here-documents: text that is written to a file, or a program.
    HeredocLines,
    /// `for`, `while` and `until`: commands that run more than once.
    Loops,
    /// Words with a slash.
    Paths,
    /// Words that begin with a slash or a tilde: a search from there may be one of the whole disk.
    AbsolutePaths,
    /// Arguments with `*`, `?` or `[`.
    Globs,
    /// Arguments that begin with a minus sign.
    Flags,
    /// Flags of single letters with an `r` or `R` among them, as `-rn`, and `--recursive`.
    Recursive,
    /// Commands that look at a file or two, or change them.
    Fast,
    /// Commands that search files.
    Search,
    /// Commands that run a program in an interpreted language.
    Interpreter,
    /// Commands that talk with another machine.
    Network,
    /// Commands that build, test or install.
    Slow,
    /// Commands that are none of these.
    Other,
    /// Words such as `test`, `build` and `install`, also as parts of paths and names.
    WorkWords,
    /// Interpreters with a program on the command line, `-c` or `-e`.
    InlineCode,
    /// Seconds of `sleep`, and of calls of a function of that name.
    SleepSeconds,
    /// Digits of the longest number: the size of what is done, in powers of ten.
    LongestNumber,
}

/// Number of features.
pub(super) const NUM_FEATURES: usize = 25;

/// Names of the features in a file of trees, in the order of [`Feature`].
pub(super) const NAMES: [&str; NUM_FEATURES] = [
    "bytes",
    "words",
    "commands",
    "pipes",
    "and_or",
    "redirects",
    "background",
    "substitutions",
    "heredoc_lines",
    "loops",
    "paths",
    "absolute_paths",
    "globs",
    "flags",
    "recursive",
    "fast",
    "search",
    "interpreter",
    "network",
    "slow",
    "other",
    "work_words",
    "inline_code",
    "sleep_seconds",
    "longest_number",
];

const WORK_WORDS: [&str; 16] = [
    "test",
    "tests",
    "testing",
    "unittest",
    "pytest",
    "build",
    "compile",
    "install",
    "train",
    "training",
    "bench",
    "benchmark",
    "coverage",
    "download",
    "deploy",
    "migrate",
];

/// Maximum of a number in a command.
const MAX_NUMBER: f64 = 1e6;

/// Features of a text of commands, by [`Feature`]. In f32, in which scikit-learn compares them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Features(pub [f32; NUM_FEATURES]);

impl Features {
    /// Features of a text: a command, or the name of a tool if nothing else is known.
    pub(super) fn of(text: &str) -> Self {
        let line = Line::new(text);
        let commands: Vec<&[String]> = line.commands.iter().map(|words| essence(words)).collect();
        let mut features = Self([0.0; NUM_FEATURES]);
        let mut set = |feature: Feature, value: usize| features.0[feature as usize] = value as f32;
        set(Feature::Bytes, line.text.len());
        set(Feature::Pipes, line.pipes);
        set(Feature::AndOr, line.and_or);
        set(Feature::Redirects, line.redirects);
        set(Feature::Background, line.background);
        set(Feature::Substitutions, line.substitutions);
        set(Feature::HeredocLines, line.heredoc_lines);
        let loops = |words: &&Vec<String>| matches!(words[0].as_str(), "for" | "while" | "until");
        set(Feature::Loops, line.commands.iter().filter(loops).count());
        set(Feature::LongestNumber, longest_number(line.text));
        let mut sleep: f64 = 0.0;
        for words in commands.iter().filter(|words| !words.is_empty()) {
            sleep += features.add_command(words);
        }
        sleep += line.text.split("sleep(").skip(1).map(|text| number(text).0).sum::<f64>();
        features.0[Feature::SleepSeconds as usize] = sleep as f32;
        features
    }

    /// Adds a command. Returns the seconds that it sleeps.
    fn add_command(&mut self, words: &[String]) -> f64 {
        let mut add = |feature: Feature, count: usize| self.0[feature as usize] += count as f32;
        let (all, args) = (words.iter(), words[1..].iter());
        let kind = kind(words);
        add(Feature::Commands, 1);
        add(Feature::Words, words.len());
        add(Feature::Paths, all.clone().filter(|word| word.contains('/')).count());
        add(
            Feature::AbsolutePaths,
            all.clone().filter(|word| word.starts_with(['/', '~'])).count(),
        );
        add(Feature::Globs, args.clone().filter(|word| word.contains(['*', '?', '['])).count());
        add(Feature::Flags, args.clone().filter(|word| is_flag(word)).count());
        add(Feature::Recursive, args.clone().filter(|word| is_recursive(word)).count());
        let parts = all.clone().flat_map(|word| word.split(|c: char| !c.is_ascii_alphanumeric()));
        let is_work = |part: &&str| WORK_WORDS.iter().any(|word| word.eq_ignore_ascii_case(part));
        add(Feature::WorkWords, parts.filter(is_work).count());
        let inline =
            kind == Kind::Interpreter && args.clone().any(|word| word == "-c" || word == "-e");
        add(Feature::InlineCode, usize::from(inline));
        match kind {
            Kind::Fast => add(Feature::Fast, 1),
            Kind::Search => add(Feature::Search, 1),
            Kind::Interpreter => add(Feature::Interpreter, 1),
            Kind::Network => add(Feature::Network, 1),
            Kind::Slow => add(Feature::Slow, 1),
            Kind::Other => add(Feature::Other, 1),
            Kind::Sleep => return args.map(|word| duration(word)).sum(),
        }
        0.0
    }

    pub(super) fn get(&self, feature: Feature) -> f32 {
        self.0[feature as usize]
    }
}

fn is_flag(word: &str) -> bool {
    word.starts_with('-') && word.len() > 1
}

fn is_recursive(word: &str) -> bool {
    let letters = is_flag(word) && !word.starts_with("--");
    word == "--recursive" || letters && word.contains(['r', 'R'])
}

fn longest_number(text: &str) -> usize {
    text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0)
}

/// The decimal number that a text begins with, and what follows it; 0 without one.
fn number(text: &str) -> (f64, &str) {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    let end = match text[whole..].strip_prefix('.') {
        Some(fraction) => whole + 1 + digits(fraction),
        None => whole,
    };
    match text[..end].parse::<f64>() {
        Ok(number) => (number.min(MAX_NUMBER), &text[end..]),
        Err(_) => (0.0, text),
    }
}

/// Seconds of an argument of `sleep`; 0 for one that is no duration.
fn duration(word: &str) -> f64 {
    let (number, unit) = number(word);
    number
        * match unit {
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => 0.0,
        }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sleeps_are_seconds() {
        for (text, seconds) in [
            ("sleep 60", 60.0),
            ("sleep 1m 0.5s; sleep .25", 60.75),
            ("sleep 1x", 0.0),
            ("sleep", 0.0),
            ("python3 -c 'import time; time.sleep(2.5)'", 2.5),
            ("echo sleep 5", 0.0),
            ("sleep 99999999999", 1e6),
        ] {
            assert_eq!(Features::of(text).get(Feature::SleepSeconds), seconds, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_finite_features(text in r#"(sleep |sleep\(|python -c |[ab0-9.é\\'"`$()<>|&;#/*\n -]){0,40}"#) {
            let features = Features::of(&text);
            prop_assert!(features.0.iter().all(|value| value.is_finite() && *value >= 0.0), "{features:?}");
        }
    }
}

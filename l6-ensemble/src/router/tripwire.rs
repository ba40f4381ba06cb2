//! Tripwires: readable detectors of what a request is about, with measured evidence.
//!
//! One pass over the words of the current turn (the latest user message, tool outputs and snippets) counts the patterns
//! of every tripwire ([`lexicon`](super::lexicon)). Two kinds follow from the counts:
//!
//! * A **report** is the output of a tool. It fires when the weights of its patterns sum to `min_hits`. Reports contain
//!   each other: a template error is a compiler error, a failed link ends with make's error. So their order decides,
//!   which is that of [`Tripwire`]: the first that fires.
//! * A **density** is the share of the words that belong to a subject. It fires when the weights sum to `min_hits`, at
//!   least two different patterns occur, and the density is at least `min_density`. Its strength is its density over
//!   `min_density`. The strongest wins, if it is stronger, and at least `margin` times as strong, as every other of
//!   another lane; otherwise no tripwire decides.
//!
//! ```text
//! hits    = sum over patterns of weight * min(count, 3)
//! density = hits / (words + 30)
//! ```
//!
//! A pattern counts three times at most, so that one repeated word is no subject, and 30 words more than there are,
//! so that two words of a short question are none either.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::input::View;
use super::lexicon::{LEXICON, Lexicon};
use super::scan::{Token, tokens};

/// Times that one pattern counts.
const MAX_COUNT: u8 = 3;

/// Words that are added to those of the request.
const SMOOTHING: f32 = 30.0;

/// Patterns that are kept as evidence of a finding.
const MAX_EVIDENCE: usize = 6;

/// A tripwire. Reports come first, in the order in which they decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Tripwire {
    /// Report of AddressSanitizer, ThreadSanitizer or one of their relatives.
    SanitizerReport,
    /// Stack trace, signal, core dump, uncaught exception, report of valgrind, session of gdb.
    StackTrace,
    /// Failed assertion or expectation of a test.
    AssertionFailure,
    /// Compiler error with a backtrace of instantiations, failed deduction or unsatisfied constraints.
    TemplateBacktrace,
    /// Error of the linker.
    LinkerError,
    /// Error of CMake, make, ninja, Bazel, Meson, a package manager; a header that is not found.
    BuildError,
    /// Any other error of a compiler.
    CompilerError,
    /// Build files and their vocabulary.
    BuildFile,
    /// Templates, type traits, concepts.
    TemplateCode,
    /// Threads, locks, atomics, coroutines.
    ConcurrencyCode,
    /// Allocators, smart pointers, ownership.
    MemoryCode,
    /// System calls, sockets, signals, files.
    SystemsCode,
    /// Containers, iterators, algorithms and ranges of the standard library.
    StlCode,
    /// Graphs, dynamic programming, geometry, complexity.
    AlgoCode,
}

impl Tripwire {
    /// All tripwires, in the order of the enum.
    pub const ALL: [Self; 14] = [
        Self::SanitizerReport,
        Self::StackTrace,
        Self::AssertionFailure,
        Self::TemplateBacktrace,
        Self::LinkerError,
        Self::BuildError,
        Self::CompilerError,
        Self::BuildFile,
        Self::TemplateCode,
        Self::ConcurrencyCode,
        Self::MemoryCode,
        Self::SystemsCode,
        Self::StlCode,
        Self::AlgoCode,
    ];

    /// Whether the tripwire looks for a report, as opposed to a density.
    pub fn is_report(self) -> bool {
        self <= Self::CompilerError
    }

    /// Name, as in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::SanitizerReport => "sanitizer_report",
            Self::StackTrace => "stack_trace",
            Self::AssertionFailure => "assertion_failure",
            Self::TemplateBacktrace => "template_backtrace",
            Self::LinkerError => "linker_error",
            Self::BuildError => "build_error",
            Self::CompilerError => "compiler_error",
            Self::BuildFile => "build_file",
            Self::TemplateCode => "template_code",
            Self::ConcurrencyCode => "concurrency_code",
            Self::MemoryCode => "memory_code",
            Self::SystemsCode => "systems_code",
            Self::StlCode => "stl_code",
            Self::AlgoCode => "algo_code",
        }
    }

    /// Threshold and class, unless a configuration says otherwise.
    pub fn default_threshold(self) -> Threshold {
        let (class, min_hits, min_density) = match self {
            Self::SanitizerReport | Self::StackTrace | Self::AssertionFailure => {
                ("debug", 2.0, 0.0)
            }
            Self::TemplateBacktrace => ("template", 2.0, 0.0),
            Self::LinkerError | Self::BuildError => ("build", 2.0, 0.0),
            Self::CompilerError => ("debug", 2.0, 0.0),
            Self::BuildFile => ("build", 3.0, 0.05),
            Self::TemplateCode => ("template", 4.0, 0.1),
            Self::ConcurrencyCode => ("concurrency", 3.0, 0.05),
            Self::MemoryCode => ("memory", 3.0, 0.05),
            Self::SystemsCode => ("systems", 3.0, 0.05),
            Self::StlCode => ("stl", 4.0, 0.07),
            Self::AlgoCode => ("algo", 3.0, 0.05),
        };
        Threshold { class: class.to_owned(), min_hits, min_density, enabled: true }
    }
}

impl fmt::Display for Tripwire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a tripwire fires, and for which class.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// Class that it decides for.
    pub class: String,
    /// Least sum of weights.
    pub min_hits: f32,
    /// Least density, in [0, 1]; not used by reports.
    pub min_density: f32,
    /// Whether it is used at all.
    pub enabled: bool,
}

/// What a tripwire found. It need not have fired.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The tripwire.
    pub tripwire: Tripwire,
    /// Sum of the weights of its patterns.
    pub hits: f32,
    /// `hits / (words + 30)`.
    pub density: f32,
    /// Strength, relative to the threshold: 1 or more if it fired, else 0.
    pub strength: f32,
    /// The first patterns that occurred, with their counts (at most 3).
    pub evidence: Vec<(String, u8)>,
}

impl Finding {
    /// The evidence in one line.
    pub fn summary(&self) -> String {
        let names = self.evidence.iter().map(|(name, count)| match count {
            1 => name.clone(),
            _ => format!("{name} x{count}"),
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

/// What the current turn of a request contains.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Tripwires with at least one hit, in the order of [`Tripwire`].
    pub findings: Vec<Finding>,
    /// Whether there is a unified diff. It marks a review, and no class.
    pub diff: bool,
}

impl Findings {
    /// Looks at the current turn of a request.
    pub fn of(views: &[View<'_>], threshold: impl Fn(Tripwire) -> Threshold) -> Self {
        let lexicon = &*LEXICON;
        let mut counter =
            Counter { lexicon, counts: vec![0; lexicon.len()], words: 0, diff: false };
        let mut build_file = None;
        for view in views.iter().filter(|view| view.current) {
            counter.text(view.head);
            counter.text(view.tail);
            build_file = build_file.or(view.part.name.and_then(build_file_name));
        }
        let mut found: Vec<Finding> = Vec::new();
        for tripwire in Tripwire::ALL {
            let mut finding = counter.finding(tripwire);
            if let (Tripwire::BuildFile, Some(name)) = (tripwire, build_file) {
                let share = threshold(tripwire).min_density;
                finding.hits += BUILD_FILE_HITS;
                finding.density = finding.hits / (counter.words as f32 + SMOOTHING);
                // A build file is about the build however much of it is comments.
                finding.density = finding.density.max(2.0 * share);
                finding.evidence.insert(0, (name.to_owned(), 2));
            }
            if finding.hits > 0.0 {
                finding.strength = strength(&finding, &threshold(tripwire));
                found.push(finding);
            }
        }
        Self { findings: found, diff: counter.diff }
    }

    /// Returns the finding that decides, by the rules at the top of the file. `lane` is the lane of a tripwire's class,
    /// `None` if no lane serves it.
    pub fn decide(
        &self,
        margin: f32,
        lane: impl Fn(Tripwire) -> Option<usize>,
    ) -> Option<&Finding> {
        let fired = || {
            let fired = self.findings.iter().filter(|f| f.strength >= 1.0);
            fired.filter_map(|f| lane(f.tripwire).map(|lane| (f, lane)))
        };
        // exercise l6.tripwire
        if let Some((report, _)) = fired().find(|(f, _)| f.tripwire.is_report()) {
            return Some(report);
        }
        let (best, best_lane) = fired().max_by(|a, b| a.0.strength.total_cmp(&b.0.strength))?;
        let close = |(f, lane): (&Finding, usize)| {
            lane != best_lane
                && (f.strength * margin > best.strength || f.strength == best.strength)
        };
        if fired().any(close) { None } else { Some(best) }
        // end of exercise
    }
}

/// Hits of a snippet that is a build file by its name.
const BUILD_FILE_HITS: f32 = 4.0;

/// 1 or more if the finding is over the threshold.
fn strength(finding: &Finding, threshold: &Threshold) -> f32 {
    if !threshold.enabled || finding.hits < threshold.min_hits {
        return 0.0;
    }
    if finding.tripwire.is_report() {
        return finding.hits / threshold.min_hits.max(f32::MIN_POSITIVE);
    }
    let kinds = finding.evidence.len() >= 2 || finding.tripwire == Tripwire::BuildFile;
    let strength = finding.density / threshold.min_density.max(f32::MIN_POSITIVE);
    if kinds && strength >= 1.0 { strength } else { 0.0 }
}

/// Counts of all patterns.
struct Counter<'a> {
    lexicon: &'a Lexicon,
    counts: Vec<u8>,
    words: usize,
    diff: bool,
}

impl Counter<'_> {
    fn text(&mut self, text: &str) {
        let mut before = [Token::Line; 2];
        let mut tokens = tokens(text);
        while let Some(token) = tokens.next() {
            match (before, token) {
                (_, Token::Word { at, text: word }) => {
                    self.words += 1;
                    self.word(text, at, word);
                }
                ([Token::Line, Token::Punct(b'#')], Token::Number) if is_frame(tokens.rest()) => {
                    self.count(self.lexicon.frame());
                }
                ([Token::Line, Token::Punct(b'@')], Token::Punct(b'@')) => self.diff = true,
                _ => {}
            }
            before = [before[1], token];
        }
    }

    fn word(&mut self, text: &str, at: usize, word: &str) {
        if word == "diff" && text[at + word.len()..].starts_with(" --git ") {
            self.diff = true;
        }
        let lexicon = self.lexicon;
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        for i in lexicon.candidates(word) {
            if lexicon.matches(*i, before, after) {
                self.count(*i);
            }
        }
    }

    fn count(&mut self, pattern: usize) {
        let count = &mut self.counts[pattern];
        *count = (*count + 1).min(MAX_COUNT);
    }

    fn finding(&self, tripwire: Tripwire) -> Finding {
        let (mut hits, mut evidence) = (0.0, Vec::new());
        for i in self.lexicon.of(tripwire) {
            let count = self.counts[i];
            if count > 0 {
                hits += self.lexicon.weight(i) * f32::from(count);
                if evidence.len() < MAX_EVIDENCE {
                    evidence.push((self.lexicon.name(i).to_owned(), count));
                }
            }
        }
        let density = hits / (self.words as f32 + SMOOTHING);
        Finding { tripwire, hits, density, strength: 0.0, evidence }
    }
}

/// Whether the text after `#0` at the begin of a line is a frame: `#0  f () at a.cpp:1` or `#0 0x4f in f`.
fn is_frame(after: &str) -> bool {
    after.starts_with("  ") || after.starts_with(" 0x")
}

/// The file name of a path, if it is one of a build system.
fn build_file_name(path: &str) -> Option<&str> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    const NAMES: [&str; 16] = [
        "CMakeLists.txt",
        "CMakePresets.json",
        "Makefile",
        "GNUmakefile",
        "makefile",
        "Makefile.am",
        "configure.ac",
        "meson.build",
        "meson_options.txt",
        "BUILD",
        "BUILD.bazel",
        "WORKSPACE",
        "MODULE.bazel",
        "conanfile.py",
        "conanfile.txt",
        "vcpkg.json",
    ];
    const ENDS: [&str; 5] = [".cmake", ".mk", ".bzl", ".pc.in", ".ninja"];
    (NAMES.contains(&name) || ENDS.iter().any(|end| name.ends_with(end))).then_some(name)
}

//! What a kind of question is. Each kind is one file: `l1/rope_angle.rs`, say.

pub mod sections;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::answer::{Answer, Given};
use super::draw::{Draw, rank};
use crate::state::{Record, State};
use crate::workspace::Workspace;

/// The kinds of questions about one layer.
pub struct Layer {
    /// `l1`.
    pub name: &'static str,
    /// In the order of the chapters.
    pub kinds: &'static [Kind],
}

impl Layer {
    /// The kind that a seed asks.
    pub fn kind_for(&self, seed: u64) -> Option<&Kind> {
        self.kinds.iter().max_by_key(|kind| rank(kind.name, seed))
    }

    /// A seed for a learner who named none: the first one from `random` on, all of them below `seeds`, that asks about
    /// a page on which they work or worked. `random` itself if no page of the layer is known to be one.
    pub fn seed_for_learner(&self, random: u64, seeds: u64) -> u64 {
        let Ok(workspace) = Workspace::open() else { return random };
        let read = pages_read(&workspace, &State::load(&workspace), self.name);
        self.seed_among(&read, random, seeds)
    }

    fn seed_among(&self, pages: &BTreeSet<String>, random: u64, seeds: u64) -> u64 {
        let is_read = |kind: &Kind| pages.contains(kind.page());
        if !self.kinds.iter().any(is_read) {
            return random;
        }
        let asks = |seed: &u64| self.kind_for(*seed).is_some_and(is_read);
        (random..seeds).chain(0..random.min(seeds)).find(asks).unwrap_or(random)
    }
}

/// Pages of a layer's exercises that are done, were tried, or are next. Empty where all pages may be asked about: in
/// the reference workspace, in a layer that is given, and when every exercise of the layer is done.
fn pages_read(workspace: &Workspace, state: &State, layer: &str) -> BTreeSet<String> {
    if workspace.learner.is_none() {
        return BTreeSet::new();
    }
    let member = workspace.taught().find(|m| m.layer.id == layer);
    let tasks: Vec<_> = member.iter().flat_map(|m| m.tasks()).collect();
    if tasks.iter().all(|t| state.of(&t.exercise.id).holds) {
        return BTreeSet::new();
    }
    // Sources that cannot be read are the compiler's subject.
    let next = state.first_open(workspace).ok().flatten();
    let is_next = |id: &str| next.is_some_and(|t| t.exercise.id == id);
    let is_known = |id: &str| state.of(id) != Record::default() || is_next(id);
    let known = tasks.iter().filter(|t| is_known(&t.exercise.id));
    known.map(|t| t.exercise.chapter.clone()).collect()
}

/// A kind of question.
pub struct Kind {
    /// `rope-angle`: what `--kind` takes.
    pub name: &'static str,
    /// What is asked, in a few words.
    pub about: &'static str,
    /// Where the book explains it, below `book/src/`: a page, and a section of it perhaps (`page.md#anchor`).
    pub chapter: &'static str,
    /// Make up an instance.
    pub draw: fn(&mut Draw) -> Question,
}

impl Kind {
    /// The page that explains it, without the section.
    fn page(&self) -> &'static str {
        self.chapter.split('#').next().unwrap_or(self.chapter)
    }

    /// The instance of a seed.
    pub fn question(&self, seed: u64) -> Question {
        (self.draw)(&mut Draw::new(self.name, seed))
    }
}

/// One instance of a kind.
pub struct Question {
    /// The state, and what is asked about it.
    pub text: String,
    /// What is right.
    pub answer: Answer,
    /// Answers that known mistakes lead to.
    pub mistakes: Vec<Mistake>,
    /// The computation with the numbers of this instance.
    pub explanation: String,
    /// The parameters that were drawn, for a test that asks the engine the same question.
    pub facts: Value,
}

/// A known mistake.
pub struct Mistake {
    /// The answer that it leads to.
    pub answer: Answer,
    /// The mistake, in one line.
    pub why: String,
}

impl Question {
    /// A question without known mistakes.
    pub fn new(text: String, answer: Answer, explanation: String, facts: Value) -> Self {
        Self { text, answer, mistakes: Vec::new(), explanation, facts }
    }

    /// Adds a known mistake. It is left out if, for these numbers, it leads to the right answer or to that of
    /// another mistake.
    pub fn mistake(mut self, answer: Answer, why: impl Into<String>) -> Self {
        let given = answer.given();
        let known = self.mistakes.iter().any(|m| m.answer.is(&given));
        if !known && !self.answer.is(&given) {
            self.mistakes.push(Mistake { answer, why: why.into() });
        }
        self
    }

    /// The number from which the question counts, if it says so.
    pub fn counts_from(&self) -> Option<u32> {
        let text = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        [0, 1].into_iter().find(|n| {
            let first =
                |s: &str| s.trim().starts_with("The first ") && s.ends_with(&format!(" is {n}"));
            text.contains(&format!("counted from {n}")) || text.split(['.', '?']).any(first)
        })
    }

    /// What kind of mistake a wrong answer looks like.
    pub fn diagnose(&self, given: &Given) -> Option<&str> {
        if let Some(known) = self.mistakes.iter().find(|m| m.answer.is(given)) {
            return Some(&known.why);
        }
        match (&self.answer, given) {
            (Answer::Whole(right), Given::Number(n)) if (n - *right as f64).abs() == 1.0 => {
                Some("off by one: is the first one 0 or 1, and is the last one included?")
            }
            (Answer::Bytes(right), Given::Number(n)) if *n == 8.0 * *right as f64 => {
                Some("eight times too much: those are bits")
            }
            (Answer::Real(right), Given::Number(n))
                if Answer::Real(-right).is(&Given::Number(*n)) =>
            {
                Some("the size is right, the sign is not")
            }
            (Answer::Real(right), Given::Number(n)) if (n - right).abs() < 0.01 * right.abs() => {
                Some("close: three significant digits are asked for")
            }
            _ => None,
        }
    }

    /// Everything, answers included.
    pub fn to_json(&self, layer: &Layer, kind: &Kind, seed: u64) -> Value {
        let mistakes: Vec<Value> = self
            .mistakes
            .iter()
            .map(|m| json!({ "answer": m.answer.to_json(), "why": m.why }))
            .collect();
        json!({
            "layer": layer.name,
            "kind": kind.name,
            "chapter": kind.chapter,
            "seed": seed,
            "text": self.text,
            "form": self.answer.form(),
            "answer": self.answer.to_json(),
            "mistakes": mistakes,
            "explanation": self.explanation,
            "facts": self.facts,
        })
    }
}

#[cfg(test)]
mod tests;

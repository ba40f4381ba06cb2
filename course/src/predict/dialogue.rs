//! Asking, grading, explaining: two tries, then the computation.

use std::io::{self, BufRead, Write};

use super::answer::Given;
use super::kind::sections::{self, Rule};
use super::kind::{Kind, Layer, Question};
use super::show::wrapped;
use crate::shell;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Right, at the first or the second try.
    Right,
    /// Wrong, or given up.
    Wrong,
    /// The input ended without an answer.
    Unanswered,
}

/// A question, and how to come back to it.
pub struct Asked<'a> {
    /// Layer that the question is about.
    pub layer: &'a Layer,
    /// Kind of the question.
    pub kind: &'a Kind,
    /// Seed that the question was drawn from.
    pub seed: u64,
    /// Whether the kind was chosen by name, and not by the seed.
    pub by_name: bool,
    /// The question.
    pub question: Question,
}

impl Asked<'_> {
    /// The command that asks the same question again.
    pub fn command(&self) -> String {
        let kind = if self.by_name { format!(" --kind {}", self.kind.name) } else { String::new() };
        format!("cargo x predict {}{kind} --seed {}", self.layer.name, self.seed)
    }

    /// Show the state and what is asked.
    pub fn show(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} {} (again: {})\n", self.layer.name, self.kind.name, self.command())?;
        indented(out, &self.question.text)?;
        writeln!(out, "\nAnswer with {}.", self.question.answer.form())
    }

    /// Shows the command that answers without a dialogue.
    pub fn say_how(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "  {} --answer ...", self.command())
    }

    /// Show the question, read answers, grade them.
    pub fn converse(&self, input: &mut impl BufRead, out: &mut impl Write) -> io::Result<Outcome> {
        self.show(out)?;
        for tries_left in [1, 0] {
            let Some(given) = self.read("explain", input, out)? else {
                writeln!(out, "\nNo answer. When you have one:")?;
                self.say_how(out)?;
                return Ok(Outcome::Unanswered);
            };
            let Some(given) = given else {
                self.explain(out)?;
                return Ok(Outcome::Wrong);
            };
            if self.verdict(&given, out)? {
                self.work_out(out)?;
                return Ok(Outcome::Right);
            }
            if tries_left > 0 {
                writeln!(out, "One more try.")?;
            }
        }
        self.explain(out)?;
        Ok(Outcome::Wrong)
    }

    /// The next answer that can be one; `Some(None)` for an empty line, which does what `empty` says, `None` at the end of
    /// input.
    pub fn read(
        &self,
        empty: &str,
        input: &mut impl BufRead,
        out: &mut impl Write,
    ) -> io::Result<Option<Option<Given>>> {
        loop {
            write!(out, "\n(enter alone: {empty}) > ")?;
            out.flush()?;
            let mut line = Vec::new();
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            let line = String::from_utf8_lossy(&line);
            if line.trim().is_empty() {
                return Ok(Some(None));
            }
            match self.question.answer.read(&line) {
                Ok(given) => return Ok(Some(Some(given))),
                // A slip of the fingers costs no try.
                Err(why) => writeln!(out, "Cannot read that: {why}.")?,
            }
        }
    }

    /// Say whether an answer is right, and if not, what it looks like.
    pub fn verdict(&self, given: &Given, out: &mut impl Write) -> io::Result<bool> {
        if self.question.answer.is(given) {
            writeln!(out, "Right.")?;
            return Ok(true);
        }
        let verdict = match self.question.diagnose(given) {
            Some(why) if why.ends_with('?') => format!("Not quite. {}", capital(why)),
            Some(why) => format!("Not quite. {}.", capital(why)),
            None => format!("Not quite. {}", self.reminder()),
        };
        writeln!(out, "{}", wrapped(&verdict))?;
        Ok(false)
    }

    /// What to look at again after an answer that no known mistake leads to.
    fn reminder(&self) -> String {
        let Rule { page, section } =
            sections::rule(&shell::root().join("book/src"), self.kind.name, self.kind.chapter);
        let section = section.map(|s| format!(", section \"{s}\"")).unwrap_or_default();
        let counts = match self.question.counts_from() {
            Some(n) => format!(" It counts from {n}."),
            None => String::new(),
        };
        let form = self.question.answer.form();
        format!("The rule is in book/src/{page}{section}. The question asks for {form}.{counts}")
    }

    /// The answer and how to come to it.
    pub fn explain(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\nThe answer is {}.", self.question.answer)?;
        self.work_out(out)
    }

    /// The computation, and where the book has more.
    pub fn work_out(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out)?;
        indented(out, &self.question.explanation)?;
        writeln!(out, "\nMore in book/src/{}.", self.kind.chapter)
    }
}

fn indented(out: &mut impl Write, text: &str) -> io::Result<()> {
    for line in text.lines() {
        if line.is_empty() {
            writeln!(out)?;
        } else {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    first + chars.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::answer::Answer;
    use super::super::draw::Draw;
    use super::*;

    fn seven(_: &mut Draw) -> Question {
        Question::new("3 + 4?".into(), Answer::Whole(7), "3 + 4 = 7".into(), Value::Null)
            .mistake(Answer::Whole(12), "that is the product")
    }

    static KINDS: [Kind; 1] =
        [Kind { name: "sum", about: "a sum", chapter: "sums.md", draw: seven }];

    fn talk(typed: &str) -> (Outcome, String) {
        let layer = Layer { name: "l0", kinds: &KINDS };
        let question = KINDS[0].question(5);
        let asked = Asked { layer: &layer, kind: &KINDS[0], seed: 5, by_name: false, question };
        let mut out = Vec::new();
        let outcome = asked.converse(&mut typed.as_bytes(), &mut out).unwrap();
        (outcome, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_right_answer_is_explained_at_once() {
        let (outcome, said) = talk("7\n");
        assert_eq!(outcome, Outcome::Right);
        assert!(said.contains("Right.\n\n  3 + 4 = 7\n"), "{said}");
        assert!(said.ends_with("More in book/src/sums.md.\n"));
        assert!(!said.contains("One more try"));
    }

    #[test]
    fn a_wrong_answer_gets_its_diagnosis_and_one_more_try() {
        let (outcome, said) = talk("12\n7\n");
        assert_eq!(outcome, Outcome::Right);
        let (before, after) =
            said.split_once("Not quite. That is the product.\nOne more try.\n").unwrap();
        assert!(!before.contains("3 + 4 = 7"), "explained too early");
        assert!(after.contains("Right."));
    }

    #[test]
    fn after_two_wrong_answers_it_is_explained() {
        let (outcome, said) = talk("12\n8\n7\n");
        assert_eq!(outcome, Outcome::Wrong);
        assert_eq!(said.matches("Not quite.").count(), 2);
        assert!(said.contains("included?\n") && said.contains("3 + 4 = 7"));
        assert!(!said.contains("Right."));
    }

    #[test]
    fn an_answer_that_no_known_mistake_leads_to_is_sent_to_the_rule() {
        let (_, said) = talk("30\n7\n");
        let said = said.replace('\n', " ");
        let reminder =
            "Not quite. The rule is in book/src/sums.md. The question asks for a whole number. ";
        assert!(said.contains(reminder), "{said}");
    }

    #[test]
    fn the_rule_is_a_section_and_the_question_may_count_from_0() {
        let layer = super::super::LAYERS.iter().find(|l| l.name == "l1").unwrap();
        let kind = layer.kinds.iter().find(|k| k.name == "lane-of").unwrap();
        let asked = Asked { layer, kind, seed: 1, by_name: true, question: kind.question(1) };
        let mut out = Vec::new();
        assert!(!asked.verdict(&Given::Number(999.0), &mut out).unwrap());
        let said = String::from_utf8(out).unwrap().replace('\n', " ");
        let expected = "Not quite. The rule is in book/src/l1-tensors/lanes.md, section \"Sixteen lanes, \
            always\". The question asks for a whole number. It counts from 0. ";
        assert_eq!(said, expected);
    }

    #[test]
    fn what_cannot_be_read_costs_no_try() {
        let (outcome, said) = talk("seven\n12\n7\n");
        assert_eq!(outcome, Outcome::Right);
        assert!(said.contains("Cannot read that: a number is expected where `seven` stands."));
    }

    #[test]
    fn giving_up_explains_and_the_end_of_input_does_not() {
        let (outcome, said) = talk("\n");
        assert_eq!(outcome, Outcome::Wrong);
        assert!(said.contains("3 + 4 = 7"));
        for typed in ["", "12\n"] {
            let (outcome, said) = talk(typed);
            assert_eq!(outcome, Outcome::Unanswered);
            assert!(said.ends_with("  cargo x predict l0 --seed 5 --answer ...\n"), "{said}");
            assert!(!said.contains("3 + 4 = 7"));
        }
    }
}

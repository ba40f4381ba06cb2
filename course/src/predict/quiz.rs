//! `cargo x predict nano --quiz`: one question of each kind of a layer, one try each, and a score.

use std::io::{self, BufRead, Write};

use super::answer::Given;
use super::dialogue::Asked;
use super::kind::Layer;

/// Questions of all kinds of a layer, in the order of its chapters, all from one seed.
pub struct Quiz<'a> {
    layer: &'a Layer,
    seed: u64,
    questions: Vec<Asked<'a>>,
}

/// How a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Right,
    Wrong,
    Skipped,
}

impl<'a> Quiz<'a> {
    /// The quiz of a seed. Each question is the one that its kind asks for this seed.
    pub fn new(layer: &'a Layer, seed: u64) -> Self {
        let asked = layer.kinds.iter().map(|kind| {
            let question = kind.question(seed);
            Asked { layer, kind, seed, by_name: true, question }
        });
        Self { layer, seed, questions: asked.collect() }
    }

    /// Number of questions that must be right: eight of ten, and of other numbers as large a share.
    fn needed(&self) -> usize {
        (8 * self.questions.len()).div_ceil(10)
    }

    /// The command that asks the same questions again.
    fn command(&self) -> String {
        format!("cargo x predict {} --quiz --seed {}", self.layer.name, self.seed)
    }

    /// Prints all questions, and how to answer them without a dialogue.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let n = self.questions.len();
        writeln!(out, "{} quiz, {n} questions (again: {})", self.layer.name, self.command())?;
        for i in 0..n {
            self.show(i, out)?;
        }
        writeln!(
            out,
            "\nStandard input is not a terminal, so no answers are read from it. Answer with:\n  \
             {} --answers \"a; b; c; ...\"\n\
             {n} answers in the order of the questions; an empty one skips its question.",
            self.command()
        )
    }

    /// Asks one question after the other, reads an answer to each, and prints the score. Returns whether enough answers
    /// are right.
    pub fn converse(&self, input: &mut impl BufRead, out: &mut impl Write) -> io::Result<bool> {
        let n = self.questions.len();
        writeln!(out, "{} quiz, {n} questions (again: {})", self.layer.name, self.command())?;
        writeln!(out, "One try for each. Enter alone skips a question.")?;
        let mut marks = Vec::new();
        for (i, asked) in self.questions.iter().enumerate() {
            self.show(i, out)?;
            let Some(given) = asked.read("skip", input, out)? else {
                writeln!(out, "\n\nThe input ended here.")?;
                break;
            };
            marks.push(mark(asked, given.as_ref(), out)?);
        }
        self.score(&marks, out)
    }

    /// Reads answers with `;` between them, in the order of the questions. An empty one skips its question.
    ///
    /// # Errors
    /// Answers that cannot be read, and another number of them than there are questions.
    pub fn read(&self, text: &str) -> Result<Vec<Option<Given>>, String> {
        let texts: Vec<&str> = text.split(';').map(str::trim).collect();
        let (n, came) = (self.questions.len(), texts.len());
        if came != n {
            return Err(format!(
                "{n} answers with `;` between them are asked for, and this is {came} \
                 (an empty answer skips its question)"
            ));
        }
        let (mut answers, mut wrong) = (Vec::new(), Vec::new());
        for (i, (asked, text)) in self.questions.iter().zip(texts).enumerate() {
            if text.is_empty() {
                answers.push(None);
                continue;
            }
            let answer = &asked.question.answer;
            match answer.read(text) {
                Ok(given) => answers.push(Some(given)),
                Err(why) => {
                    let (number, kind, form) = (i + 1, asked.kind.name, answer.form());
                    wrong.push(format!(
                        "cannot read answer {number} ({kind}): {why} (answer with {form})"
                    ));
                }
            }
        }
        if wrong.is_empty() { Ok(answers) } else { Err(wrong.join("\n")) }
    }

    /// Prints what is right and what is not, and the score. Returns whether enough answers are right.
    pub fn grade(&self, answers: &[Option<Given>], out: &mut impl Write) -> io::Result<bool> {
        let mut marks = Vec::new();
        for (i, (asked, given)) in self.questions.iter().zip(answers).enumerate() {
            writeln!(out, "{}. {}", i + 1, asked.kind.name)?;
            marks.push(mark(asked, given.as_ref(), out)?);
            writeln!(out)?;
        }
        self.score(&marks, out)
    }

    /// Prints a question with its number.
    fn show(&self, i: usize, out: &mut impl Write) -> io::Result<()> {
        let Asked { kind, question, .. } = &self.questions[i];
        writeln!(out, "\n{} of {}: {}\n", i + 1, self.questions.len(), kind.name)?;
        for line in question.text.lines() {
            writeln!(out, "{}", format!("  {line}").trim_end())?;
        }
        writeln!(out, "\nAnswer with {}.", question.answer.form())
    }

    /// Prints the score, and what to read again. Questions without a mark were not asked.
    fn score(&self, marks: &[Mark], out: &mut impl Write) -> io::Result<bool> {
        let n = self.questions.len();
        let right = marks.iter().filter(|mark| **mark == Mark::Right).count();
        let passed = right >= self.needed();
        let verdict = if passed { "passed" } else { "not passed" };
        writeln!(out, "{right} of {n} right: {verdict} ({} are needed).", self.needed())?;
        if right < n {
            writeln!(out, "\nRead again:")?;
        }
        for (i, Asked { kind, .. }) in self.questions.iter().enumerate() {
            let mark = match marks.get(i) {
                Some(Mark::Right) => continue,
                Some(Mark::Wrong) => "wrong",
                Some(Mark::Skipped) => "skipped",
                None => "not asked",
            };
            writeln!(out, "{:>4}. {mark:<9} book/src/{}", i + 1, kind.chapter)?;
        }
        Ok(passed)
    }
}

/// Says whether an answer is right; if not, what it looks like, and what is right.
fn mark(asked: &Asked, given: Option<&Given>, out: &mut impl Write) -> io::Result<Mark> {
    let mark = match given {
        Some(given) if asked.verdict(given, out)? => return Ok(Mark::Right),
        Some(_) => Mark::Wrong,
        None => {
            writeln!(out, "Skipped.")?;
            Mark::Skipped
        }
    };
    asked.explain(out)?;
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use super::super::{LAYERS, layer};
    use super::*;

    fn nano() -> Quiz<'static> {
        Quiz::new(layer("nano").unwrap(), 7)
    }

    /// The right answers, as they are typed.
    fn right(quiz: &Quiz) -> Vec<String> {
        let typed = |asked: &Asked| match asked.question.answer.to_string() {
            // An empty list.
            empty if empty.is_empty() => "[]".into(),
            text => text,
        };
        quiz.questions.iter().map(typed).collect()
    }

    /// Exit status 0 or 1 as true or false, and what is printed.
    fn graded(quiz: &Quiz, answers: &[String]) -> (bool, String) {
        let answers = quiz.read(&answers.join("; ")).unwrap();
        let mut out = Vec::new();
        let passed = quiz.grade(&answers, &mut out).unwrap();
        (passed, String::from_utf8(out).unwrap())
    }

    fn talk(quiz: &Quiz, typed: &str) -> (bool, String) {
        let mut out = Vec::new();
        let passed = quiz.converse(&mut typed.as_bytes(), &mut out).unwrap();
        (passed, String::from_utf8(out).unwrap())
    }

    #[test]
    fn right_answers_pass_the_quiz_of_every_layer_and_skipped_ones_do_not() {
        for layer in &LAYERS {
            for seed in 0..5 {
                let quiz = Quiz::new(layer, seed);
                let n = quiz.questions.len();
                let all = format!("{n} of {n} right: passed");
                let answers = right(&quiz);
                let (passed, said) = graded(&quiz, &answers);
                assert!(passed && said.contains(&all), "{} {seed}: {said}", layer.name);
                let (passed, said) = talk(&quiz, &(answers.join("\n") + "\n"));
                assert!(passed && said.contains(&all), "{} {seed}: {said}", layer.name);
                let (passed, said) = graded(&quiz, &vec![String::new(); n]);
                let none = format!("0 of {n} right: not passed");
                assert!(!passed && said.contains(&none), "{} {seed}: {said}", layer.name);
            }
        }
    }

    #[test]
    fn eight_of_ten_are_enough_and_seven_are_not() {
        let quiz = nano();
        let mut answers = right(&quiz);
        answers[2] = "1".into();
        answers[7] = String::new();
        let (passed, said) = graded(&quiz, &answers);
        assert!(passed && said.contains("8 of 10 right: passed (8 are needed)."), "{said}");
        let (passed, spoken) = talk(&quiz, &(answers.join("\n") + "\n"));
        assert!(passed && spoken.contains("8 of 10 right: passed (8 are needed)."), "{spoken}");
        let read_again = |said: &str| said.split_once("Read again:\n").unwrap().1.to_string();
        assert_eq!(read_again(&said), read_again(&spoken));
        let rows = read_again(&said);
        let rows: Vec<Vec<&str>> =
            rows.lines().map(|line| line.split_whitespace().collect()).collect();
        let row = |i: usize| format!("book/src/{}", quiz.questions[i].kind.chapter);
        assert_eq!(rows, [["3.", "wrong", row(2).as_str()], ["8.", "skipped", row(7).as_str()],]);

        answers[9] = String::new();
        let (passed, said) = graded(&quiz, &answers);
        assert!(!passed && said.contains("7 of 10 right: not passed (8 are needed)."), "{said}");
        assert!(!talk(&quiz, &(answers.join("\n") + "\n")).0);
    }

    #[test]
    fn a_wrong_answer_is_explained_once_and_has_one_try() {
        let quiz = nano();
        let mut answers = right(&quiz);
        let wrong = &quiz.questions[0].question.mistakes[0];
        answers.insert(0, wrong.answer.to_string());
        // The right answer to the first question is now an answer to the second one.
        let (_, said) = talk(&quiz, &(answers[..1].join("\n") + "\n"));
        let (before, after) = said.split_once("Not quite. ").unwrap();
        let explanation = quiz.questions[0].question.explanation.lines().next().unwrap();
        assert!(!before.contains(explanation) && after.contains(explanation), "{said}");
        assert!(!said.contains("One more try"));
        assert!(after.contains("\n2 of 10: "));
    }

    #[test]
    fn what_cannot_be_read_costs_no_try_in_a_dialogue() {
        let quiz = nano();
        let (passed, said) = talk(&quiz, &format!("perhaps\n{}\n", right(&quiz).join("\n")));
        assert!(passed && said.contains("10 of 10 right"), "{said}");
        assert_eq!(said.matches("Cannot read that: ").count(), 1);
    }

    #[test]
    fn the_end_of_the_input_ends_the_quiz() {
        let quiz = nano();
        let (passed, said) = talk(&quiz, &(right(&quiz)[..9].join("\n") + "\n"));
        assert!(passed && said.contains("9 of 10 right: passed"), "{said}");
        assert!(said.contains(" not asked "));
        let (passed, said) = talk(&quiz, "");
        assert!(!passed && said.contains("0 of 10 right: not passed"), "{said}");
        assert_eq!(said.matches(" of 10: ").count(), 1, "no question behind the end");
    }

    #[test]
    fn another_number_of_answers_is_not_graded() {
        let quiz = nano();
        let mut answers = right(&quiz);
        for (answers, came) in [(&answers.clone()[..9], 9), (&[][..], 1)] {
            let why = quiz.read(&answers.join(";")).unwrap_err();
            let wanted =
                format!("10 answers with `;` between them are asked for, and this is {came}");
            assert!(why.contains(&wanted), "{why}");
        }
        answers.push("3".into());
        assert!(quiz.read(&answers.join(";")).unwrap_err().contains("this is 11"));
    }

    #[test]
    fn answers_that_cannot_be_read_are_named_by_their_numbers() {
        let quiz = nano();
        let mut answers = right(&quiz);
        answers[0] = "h / 3".into();
        answers[1] = "4 2".into();
        let why = quiz.read(&answers.join(";")).unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert_eq!(lines.len(), 2, "{why}");
        assert!(lines[0].starts_with("cannot read answer 1 (embedding-row): "), "{why}");
        assert!(lines[0].ends_with("(answer with a whole number)"), "{why}");
        assert!(
            lines[1].contains("answer 2 (qkv-numbers): 3 whole numbers are asked for"),
            "{why}"
        );
    }

    #[test]
    fn without_a_terminal_all_questions_are_printed_and_no_answer() {
        let quiz = nano();
        let mut out = Vec::new();
        quiz.print(&mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        for (i, asked) in quiz.questions.iter().enumerate() {
            assert!(said.contains(&format!("\n{} of 10: {}\n", i + 1, asked.kind.name)), "{said}");
            let last = asked.question.explanation.lines().last().unwrap();
            assert!(!said.contains(last), "{said}");
        }
        let how = "\n  cargo x predict nano --quiz --seed 7 --answers \"a; b; c; ...\"\n";
        assert!(said.contains(how), "{said}");
        assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    }
}

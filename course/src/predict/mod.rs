//! `cargo x predict l1`: a small state, and a number to work out before any code is run.
//!
//! A reader who predicted a wrong number remembers why it is wrong. So a question is drawn from a seed, small enough
//! for pen and paper. The answer is graded; for a wrong one the likely mistake is named; and in the end the computation
//! is shown with the numbers of the instance.
//!
//! A kind of question is a file in `nano/` or `l0/` to `l6/` with a function that draws an
//! instance; its `mod` and its place in the list `KINDS` are in its `mod.rs`. A new layer is a
//! directory like those and a line in `LAYERS`. Answers are computed by short formulas of their
//! own, since this crate uses no layer; `xtask/tests/predictions` compares them with the layers'
//! own code.

mod answer;
mod arithmetic;
mod dialogue;
mod draw;
mod kind;
mod l0;
mod l1;
mod l2;
mod l3;
mod l4;
mod l5;
mod l6;
mod nano;
mod quiz;
mod show;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use dialogue::{Asked, Outcome};
use kind::{Kind, Layer};
use quiz::Quiz;

/// The layers that have questions.
static LAYERS: [Layer; 8] = [
    Layer { name: "nano", kinds: nano::KINDS },
    Layer { name: "l1", kinds: l1::KINDS },
    Layer { name: "l2", kinds: l2::KINDS },
    Layer { name: "l3", kinds: l3::KINDS },
    Layer { name: "l4", kinds: l4::KINDS },
    Layer { name: "l5", kinds: l5::KINDS },
    Layer { name: "l6", kinds: l6::KINDS },
    Layer { name: "l0", kinds: l0::KINDS },
];

/// Random seeds are below this number, so that they are short to type.
const SEEDS: u64 = 100_000;

/// What `cargo x predict` takes.
#[derive(Args)]
pub struct PredictArgs {
    /// The layer: nano, l1, l2, l3, l4, l5, l6 or l0
    layer: Option<String>,
    /// Ask question N again (default: a random question, which shows its number)
    #[arg(long, value_name = "N", value_parser = parse_seed, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Ask a question of this kind (see --list)
    #[arg(long, value_name = "NAME")]
    kind: Option<String>,
    /// Grade this answer, without asking: exit status 0 is right, 1 wrong, 2 not understood
    #[arg(long, value_name = "X", requires = "seed", allow_hyphen_values = true)]
    answer: Option<String>,
    /// List the kinds of questions and their chapters
    #[arg(long, conflicts_with_all = ["seed", "kind", "answer", "json"])]
    list: bool,
    /// Print N questions from the seed on as lines of JSON, answers included (for tests and
    /// worksheets)
    #[arg(long, value_name = "N", requires = "seed", conflicts_with = "answer")]
    json: Option<u64>,
    /// Ask one question of each kind of the layer, in the order of its chapters, one try each
    #[arg(long, conflicts_with_all = ["kind", "answer", "list", "json"])]
    quiz: bool,
    /// Grade these answers to a quiz, with `;` between them, without asking: exit status 0 is at
    /// least 8 of 10 right, 1 fewer, 2 not understood
    #[arg(
        long,
        value_name = "A; B; ..",
        requires_all = ["quiz", "seed"],
        allow_hyphen_values = true
    )]
    answers: Option<String>,
}

/// Runs the command; the exit status says whether the answer was right.
pub fn run(args: &PredictArgs) -> ExitCode {
    match predict(args, &mut io::stdout().lock()) {
        Ok(status) => ExitCode::from(status),
        // The reader of the output closed the pipe.
        Err(e) if e.downcast_ref::<io::Error>().is_some_and(is_closed) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn is_closed(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::BrokenPipe
}

fn predict(args: &PredictArgs, out: &mut impl Write) -> Result<u8> {
    let layer = args.layer.as_deref().map(layer).transpose()?;
    if args.list {
        list(layer, out)?;
        return Ok(0);
    }
    let layer = layer.with_context(|| format!("name a layer: {}", commands()))?;
    let named = args.kind.as_deref().map(|name| kind(layer, name)).transpose()?;
    let random = || RandomState::new().build_hasher().finish() % SEEDS;
    let seed = args.seed.unwrap_or_else(|| match named {
        None if !args.quiz => layer.seed_for_learner(random(), SEEDS),
        _ => random(),
    });
    if args.quiz {
        return quiz(&Quiz::new(layer, seed), args.answers.as_deref(), out);
    }
    let ask = |seed: u64| -> Result<Asked<'static>> {
        let kind = named.or_else(|| layer.kind_for(seed)).context("this layer has no questions")?;
        let question = kind.question(seed);
        Ok(Asked { layer, kind, seed, by_name: named.is_some(), question })
    };

    if let Some(n) = args.json {
        for i in 0..n {
            let seed =
                seed.checked_add(i).context("the seed is too large for this many questions")?;
            let Asked { kind, question, .. } = ask(seed)?;
            writeln!(out, "{}", question.to_json(layer, kind, seed))?;
        }
        return Ok(0);
    }
    let asked = ask(seed)?;
    if let Some(text) = &args.answer {
        let given = asked.question.answer.read(text).map_err(|why| {
            let form = asked.question.answer.form();
            anyhow!("cannot read the answer: {why} (answer with {form})")
        })?;
        asked.show(out)?;
        writeln!(out, "\n> {}", text.trim())?;
        let right = asked.verdict(&given, out)?;
        if right {
            asked.work_out(out)?
        } else {
            asked.explain(out)?
        }
        return Ok(u8::from(!right));
    }
    if !io::stdin().is_terminal() {
        asked.show(out)?;
        writeln!(
            out,
            "\nStandard input is not a terminal, so the answer is not read from it. Answer with:"
        )?;
        asked.say_how(out)?;
        return Ok(0);
    }
    match asked.converse(&mut io::stdin().lock(), out)? {
        Outcome::Right | Outcome::Unanswered => Ok(0),
        Outcome::Wrong => Ok(1),
    }
}

fn quiz(quiz: &Quiz, answers: Option<&str>, out: &mut impl Write) -> Result<u8> {
    let passed = if let Some(text) = answers {
        let answers = quiz.read(text).map_err(|why| anyhow!(why))?;
        quiz.grade(&answers, out)?
    } else if io::stdin().is_terminal() {
        quiz.converse(&mut io::stdin().lock(), out)?
    } else {
        quiz.print(out)?;
        true
    };
    Ok(u8::from(!passed))
}

fn layer(name: &str) -> Result<&'static Layer> {
    let found = LAYERS.iter().find(|layer| layer.name.eq_ignore_ascii_case(name));
    found.with_context(|| format!("there are no questions for a layer `{name}`: {}", commands()))
}

/// The commands that ask questions, one for each layer.
fn commands() -> String {
    let all: Vec<String> = LAYERS.iter().map(|l| format!("cargo x predict {}", l.name)).collect();
    all.join(" or ")
}

fn kind(layer: &'static Layer, name: &str) -> Result<&'static Kind> {
    if let Some(found) = layer.kinds.iter().find(|kind| kind.name == name) {
        return Ok(found);
    }
    if let Some(other) = LAYERS.iter().find(|l| l.kinds.iter().any(|k| k.name == name)) {
        bail!("`{name}` belongs to {0}: cargo x predict {0} --kind {name}", other.name);
    }
    let known: Vec<&str> = layer.kinds.iter().map(|kind| kind.name).collect();
    bail!("{} has no questions of kind `{name}`; its kinds are {}", layer.name, known.join(", "))
}

fn list(only: Option<&Layer>, out: &mut impl Write) -> io::Result<()> {
    let shown = || LAYERS.iter().filter(|l| only.is_none_or(|o| o.name == l.name));
    let wide = shown().map(|layer| layer.name.len()).max().unwrap_or(0);
    for layer in shown() {
        for kind in layer.kinds {
            let Kind { name, about, chapter, .. } = kind;
            let page = chapter.split('#').next().unwrap_or(chapter);
            writeln!(out, "{:<wide$} {name:<18} {about:<43} {page}", layer.name)?;
        }
    }
    Ok(())
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let seed = text.replace('_', "").parse();
    seed.map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(mut check: impl FnMut(&Layer, &Kind, u64, &kind::Question)) {
        for layer in &LAYERS {
            for kind in layer.kinds {
                for seed in 0..300 {
                    check(layer, kind, seed, &kind.question(seed));
                }
            }
        }
    }

    #[test]
    fn every_chapter_named_exists_and_has_the_section() {
        let book = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../book/src");
        for kind in LAYERS.iter().flat_map(|l| l.kinds) {
            let (page, section) = kind.chapter.split_once('#').unwrap_or((kind.chapter, ""));
            let text = std::fs::read_to_string(book.join(page));
            let text = text.unwrap_or_else(|e| panic!("{}: {page}: {e}", kind.name));
            let mut sections = text.lines().filter(|l| l.starts_with("##")).map(anchor);
            let found = section.is_empty() || sections.any(|s| s == section);
            assert!(found, "{}: {}", kind.name, kind.chapter);
        }
    }

    /// The anchor that mdBook gives a heading.
    fn anchor(heading: &str) -> String {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let title = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        title.map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    #[test]
    fn each_layer_has_eight_kinds_or_more_and_no_name_twice() {
        let mut names: Vec<&str> = LAYERS.iter().flat_map(|l| l.kinds).map(|k| k.name).collect();
        assert!(LAYERS.iter().all(|l| l.kinds.len() >= 8));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn the_right_answer_as_it_is_shown_is_read_and_graded_right() {
        each(|_, kind, seed, question| {
            let shown = question.answer.to_string();
            let given = question.answer.read(&shown);
            let given = given.unwrap_or_else(|e| panic!("{} {seed}: {shown}: {e}", kind.name));
            assert!(question.answer.is(&given), "{} {seed}: {shown}", kind.name);
        });
    }

    #[test]
    fn no_known_mistake_is_graded_right_and_most_questions_know_some() {
        let (mut all, mut without) = (0, 0);
        each(|_, kind, seed, question| {
            all += 1;
            without += usize::from(question.mistakes.is_empty());
            for mistake in &question.mistakes {
                let given = mistake.answer.given();
                assert!(!question.answer.is(&given), "{} {seed}: {}", kind.name, mistake.why);
                assert_eq!(question.diagnose(&given), Some(mistake.why.as_str()));
            }
        });
        assert!(without * 50 < all, "{without} of {all} questions know no mistake");
    }

    #[test]
    fn a_kind_asks_many_different_questions_and_a_seed_always_the_same() {
        for kind in LAYERS.iter().flat_map(|l| l.kinds) {
            let texts = |seeds: std::ops::Range<u64>| -> Vec<String> {
                seeds.map(|seed| kind.question(seed).text).collect()
            };
            assert_eq!(texts(0..20), texts(0..20));
            let mut distinct = texts(0..100);
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() >= 30, "{} has {} questions", kind.name, distinct.len());
        }
    }

    #[test]
    fn every_kind_has_several_answers_so_that_none_can_be_guessed() {
        for kind in LAYERS.iter().flat_map(|l| l.kinds) {
            let mut answers: Vec<String> =
                (0..100).map(|seed| kind.question(seed).answer.to_string()).collect();
            answers.sort_unstable();
            let largest = answers.chunk_by(|a, b| a == b).map(<[String]>::len).max().unwrap_or(0);
            assert!(largest <= 66, "{}: one answer of {largest} in 100", kind.name);
        }
    }

    #[test]
    fn every_kind_is_asked_by_some_seed() {
        for layer in &LAYERS {
            for kind in layer.kinds {
                let asked =
                    (0..500).any(|s| layer.kind_for(s).is_some_and(|k| k.name == kind.name));
                assert!(asked, "{} is never asked", kind.name);
            }
        }
    }

    #[test]
    fn every_line_fits_a_narrow_terminal() {
        // One of each kind is enough to mend them.
        let mut long = std::collections::BTreeMap::new();
        each(|_, kind, seed, question| {
            for line in question.text.lines().chain(question.explanation.lines()) {
                if line.chars().count() > 78 || line.trim_end() != line {
                    long.insert(kind.name, format!("seed {seed}: {line}"));
                }
            }
            for why in question.mistakes.iter().map(|m| &m.why) {
                if why.chars().count() > 100 || why.contains('\n') || why.ends_with('.') {
                    long.insert(kind.name, format!("seed {seed}: {why}"));
                }
            }
        });
        assert!(long.is_empty(), "{long:#?}");
    }

    #[test]
    fn every_answer_is_small_enough_to_be_read_exactly() {
        each(|_, kind, seed, question| {
            if let answer::Answer::Whole(n) | answer::Answer::Bytes(n) = question.answer {
                assert!(n.unsigned_abs() < 1 << 50, "{} {seed}: {n}", kind.name);
            }
        });
    }
}

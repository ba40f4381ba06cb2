//! How much of a text may be shown while it comes.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "text-shown",
    about: "letters shown while stops may come",
    chapter: "l4-sampler/stops.md",
    draw,
};

/// How a reader goes through it.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Right,
    NothingHeld,
    HeldAnyway,
    AlwaysHeld,
    WholePiece,
    OtherEnd,
}

fn draw(draw: &mut Draw) -> Question {
    let letter = |draw: &mut Draw| char::from(b"abc"[draw.below(3)]);
    let word = |draw: &mut Draw, n: usize| (0..n).map(|_| letter(draw)).collect::<String>();
    let mut stops = vec![word(draw, 3)];
    if draw.one_in(3) {
        let n = draw.between(2, 4);
        stops.push(word(draw, n));
    }
    let include = draw.one_in(4);
    // Letters with beginnings of the stops among them, then cut anywhere: tokens know of no stops.
    let mut text = word(draw, 1);
    while text.len() < 10 {
        let stop = &stops[draw.below(stops.len())];
        let n = draw.between(1, stop.len() - 1);
        text += &stop[..n];
        if draw.one_in(2) {
            text += &word(draw, 1);
        }
    }
    if draw.one_in(3) {
        text += &stops[0];
    }
    let mut pieces = Vec::new();
    let mut rest = text.as_str();
    while pieces.len() < 5 && !rest.is_empty() {
        let (piece, behind) = rest.split_at(draw.between(1, 4).min(rest.len()));
        pieces.push(piece.to_string());
        rest = behind;
    }

    let said = Said { pieces, stops, include };
    let (shown, stop) = said.shown(Turn::Right);
    let easy = if include { stop.is_none() } else { shown == said.shown(Turn::NothingHeld).0 };
    if shown.len() < 3 || easy {
        return self::draw(draw);
    }
    // Pieces behind the end are never generated.
    let pieces = &said.pieces[..shown.len()];
    let quoted: Vec<String> = pieces.iter().map(|p| format!("\"{p}\"")).collect();
    let stops: Vec<String> = said.stops.iter().map(|s| format!("\"{s}\"")).collect();
    let inclusion = if include { ", and it is to be part of the text" } else { "" };
    let text = format!(
        "An answer stops at {}{inclusion}.\nIts text comes in these pieces:\n\n{}\n\n\
         How many letters of it have been shown after each piece, all in all?",
        separated(&stops, " or at "),
        separated(&quoted, "  ")
    );
    let mut explanation = String::new();
    let mut so_far = String::new();
    for (nth, piece) in pieces.iter().enumerate() {
        so_far += piece;
        let why = match &stop {
            Some(stop) if nth + 1 == pieces.len() => {
                let part = if include { "is shown, too" } else { "is no part of the text" };
                format!("here is \"{stop}\", which {part}")
            }
            _ if include => "stops are shown, too: nothing has to wait".into(),
            _ => match said.held(&so_far) {
                0 => "nothing at its end begins a stop".into(),
                held => {
                    let held = &so_far[so_far.len() - held..];
                    format!("\"{held}\" could become one, and waits")
                }
            },
        };
        explanation += &format!("{so_far:<20} {:>2} shown: {why}\n", shown[nth]);
    }
    let explanation = explanation.trim_end().to_string();
    let list = |shown: &[usize]| Answer::List(shown.iter().map(|n| *n as i64).collect());
    let facts = json!({ "pieces": pieces, "stops": said.stops, "include": include });
    let mut question = Question::new(text, list(&shown), explanation, facts);
    for (turn, why) in [
        (Turn::NothingHeld, "what could become a stop must wait: it cannot be taken back"),
        (Turn::HeldAnyway, "the stop is to be part of the text, so nothing needs to wait for it"),
        (Turn::AlwaysHeld, "only what begins a stop waits, and not a letter more"),
        (Turn::WholePiece, "of a piece, what is in front of a stop's beginning is shown at once"),
        (
            Turn::OtherEnd,
            match include {
                true => "the stop is to be part of the text",
                false => "no part of a stop is shown",
            },
        ),
    ] {
        let mut wrong = said.shown(turn).0;
        if wrong.len() >= shown.len() {
            wrong.truncate(shown.len());
            question = question.mistake(list(&wrong), why);
        }
    }
    question.mistake(list(&fresh(&shown)), "all letters so far are asked for, not the new ones")
}

/// The pieces of a text, and what ends it.
struct Said {
    pieces: Vec<String>,
    stops: Vec<String>,
    include: bool,
}

impl Said {
    /// How much at the end of a text is the beginning of a stop.
    fn held(&self, text: &str) -> usize {
        let begins = |held: &usize| {
            let end = &text[text.len() - held..];
            self.stops.iter().any(|stop| stop.len() > *held && stop.starts_with(end))
        };
        (1..=text.len()).rev().find(begins).unwrap_or(0)
    }

    /// Letters shown after each piece up to the end, and the stop.
    fn shown(&self, turn: Turn) -> (Vec<usize>, Option<String>) {
        let include = self.include != (turn == Turn::OtherEnd);
        let (mut text, mut shown) = (String::new(), Vec::new());
        let longest = self.stops.iter().map(String::len).max().unwrap_or(1);
        for piece in &self.pieces {
            let before = text.len();
            for letter in piece.chars() {
                text.push(letter);
                let ends: Vec<&String> =
                    self.stops.iter().filter(|stop| text.ends_with(*stop)).collect();
                if let Some(stop) = ends.into_iter().max_by_key(|stop| stop.len()) {
                    let cut = if include { text.len() } else { text.len() - stop.len() };
                    // Who holds nothing back has shown more already.
                    shown.push(match turn {
                        Turn::NothingHeld => cut.max(before),
                        _ => cut,
                    });
                    return (shown, Some(stop.clone()));
                }
            }
            shown.push(match turn {
                Turn::NothingHeld => text.len(),
                Turn::AlwaysHeld => text.len().saturating_sub(longest - 1),
                Turn::HeldAnyway => text.len() - self.held(&text),
                // Who shows the stop, too, has nothing to wait for.
                _ if self.include => text.len(),
                Turn::WholePiece if self.held(&text) > 0 => shown.last().copied().unwrap_or(0),
                _ => text.len() - self.held(&text),
            });
        }
        (shown, None)
    }
}

/// Letters that each piece adds.
fn fresh(shown: &[usize]) -> Vec<usize> {
    let before = std::iter::once(&0).chain(shown);
    shown.iter().zip(before).map(|(now, before)| now - before).collect()
}

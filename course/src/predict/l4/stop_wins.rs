//! Which of several stops ends an answer.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "stop-wins",
    about: "where two stops end an answer",
    chapter: "l4-sampler/stops.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let letter = |draw: &mut Draw| char::from(b"abcdef"[draw.below(6)]);
    let text: String = (0..draw.between(10, 12)).map(|_| letter(draw)).collect();
    let n = text.len();
    // A long stop somewhere; the other one inside of it, at its end, across it, or elsewhere.
    let long = draw.between(3, 4);
    let at = draw.between(2, n - long - 3);
    let (other, len) = match draw.below(5) {
        0 | 1 => (at + 1, long - 2),
        2 => (at + 2, long - 2),
        3 => (at + 1, long),
        _ => {
            let len = draw.between(2, 3);
            (draw.between(1, n - len), len)
        }
    };
    let mut stops = [text[at..at + long].to_string(), text[other..other + len].to_string()];
    if draw.one_in(2) {
        stops.swap(0, 1);
    }
    let include = draw.one_in(4);

    // Where each is found first: (end, beginning), by its number.
    let found = |stop: &str| text.find(stop).map(|at| (at, at + stop.len()));
    let (Some(first), Some(second)) = (found(&stops[0]), found(&stops[1])) else {
        return self::draw(draw);
    };
    let places = [first, second];
    let order = |key: &dyn Fn(usize) -> (usize, usize)| if key(1) < key(0) { 1 } else { 0 };
    let wins = order(&|i| (places[i].1, places[i].0));
    let text_of = |i: usize, include: bool| {
        let (begin, end) = places[i];
        text[..if include { end } else { begin }].to_string()
    };
    let name = |text: String| Answer::Name("", text);
    let right = text_of(wins, include);
    if right.is_empty() || stops[0] == stops[1] || text_of(wins, false).is_empty() {
        return self::draw(draw);
    }

    let inclusion = if include { " include_stop_str is set." } else { "" };
    let question = format!(
        "A model writes\n\n{text}\n\n\
         The request stops at \"{}\" and at \"{}\".{inclusion}\n\
         What is the text of the answer?",
        stops[0], stops[1]
    );
    let line = |i: usize| {
        let (begin, end) = places[i];
        format!("\"{}\" begins after {begin} letters and ends after {end}", stops[i])
    };
    let why = if places[0].1 == places[1].1 {
        "Both end with the same letter: of these the one that begins first wins."
    } else {
        "The one that ends first wins: what comes after it is never generated."
    };
    let part = if include { "part" } else { "no part" };
    let explanation = format!("{}\n{}\n{why}\nIt is {part} of the text: {right}", line(0), line(1));
    let facts = json!({ "text": text, "stops": stops, "include": include });
    let by_beginning = order(&|i| places[i]);
    let other = 1 - wins;
    let same_end = places[0].1 == places[1].1;
    Question::new(question, name(right), explanation, facts)
        .mistake(
            name(text_of(by_beginning, include)),
            "the stop that ends first wins, not the one that begins first",
        )
        .mistake(
            name(text_of(other, include)),
            if same_end {
                "of stops that end together the one that begins first wins"
            } else {
                "the stop that ends first wins, wherever it stands in the list"
            },
        )
        .mistake(
            name(text_of(wins, !include)),
            if include {
                "the stop is to be part of the text"
            } else {
                "the stop is no part of the text"
            },
        )
        .mistake(name(text.clone()), "the answer ends there")
}

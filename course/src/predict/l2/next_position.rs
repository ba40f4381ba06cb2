//! Where the next token of a sequence goes.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "next-position",
    about: "the position of a sequence's next token",
    chapter: "l2-model/state.md",
    draw,
};

/// What happens to a sequence.
#[derive(Clone, Copy)]
enum Event {
    /// A step with so many tokens.
    Feed(usize),
    /// A step that fails.
    Fail(usize),
    /// `rollback(len)`.
    Rollback(usize),
}

fn draw(draw: &mut Draw) -> Question {
    let mut events = vec![Event::Feed(draw.between(4, 12))];
    let mut len = length(&events, true, false);
    let wrong_turn = draw.between(2, 5);
    let mut feed = |events: &mut Vec<Event>, n: usize| {
        events.push(Event::Feed(n));
        len += n;
        len
    };
    let full = feed(&mut events, wrong_turn);
    let failed = draw.between(1, 4);
    if draw.one_in(2) {
        events.push(Event::Fail(failed));
    }
    events.push(Event::Rollback(full - draw.between(1, wrong_turn + 2)));
    for _ in 0..draw.between(0, 2) {
        events.push(Event::Feed(draw.between(1, 4)));
    }
    if draw.one_in(3) {
        events.push(Event::Fail(failed));
    }

    let position = length(&events, true, false);
    let mut lines = String::new();
    let mut explanation = String::new();
    for (i, event) in events.iter().enumerate() {
        let after = length(&events[..=i], true, false);
        let (did, so) = match event {
            Event::Feed(n) => (format!("a step with {n} tokens"), format!("{n} more")),
            Event::Fail(n) => {
                (format!("a step with {n} tokens that fails"), "lengths move at commit".into())
            }
            Event::Rollback(n) => (format!("rollback({n})"), format!("keeps the first {n}")),
        };
        lines += &format!("{did}\n");
        explanation += &format!("{did}: {so}, length {after}\n");
    }
    explanation +=
        &format!("{position} tokens have positions 0 to {}; the next is {position}.", position - 1);
    let text = format!(
        "A new sequence:\n\n{lines}\nAt which position (counted from 0) does its next token stand?"
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::Feed(n) => json!({ "feed": n }),
            Event::Fail(n) => json!({ "fail": n }),
            Event::Rollback(n) => json!({ "rollback": n }),
        })
        .collect();
    let fed: usize = events.iter().map(|e| if let Event::Feed(n) = e { *n } else { 0 }).sum();
    Question::new(text, whole(position), explanation, json!({ "events": facts }))
        .mistake(whole(length(&events, false, false)), "a step that fails changes nothing")
        .mistake(
            whole(length(&events, true, true)),
            "rollback(n) keeps n tokens; it does not drop n",
        )
        .mistake(whole(fed), "the rollback took some back")
        .mistake(whole(position - 1), "that is the position of the last token it has")
        .mistake(whole(position + 1), "positions are counted from 0: the next one is the length")
}

/// How long the sequence is after these events, read rightly or with a misunderstanding.
fn length(events: &[Event], failures_undone: bool, rollback_drops: bool) -> usize {
    events.iter().fold(0, |len, event| match *event {
        Event::Feed(n) => len + n,
        Event::Fail(n) => {
            if failures_undone {
                len
            } else {
                len + n
            }
        }
        Event::Rollback(n) => {
            if rollback_drops {
                len.saturating_sub(n)
            } else {
                n
            }
        }
    })
}

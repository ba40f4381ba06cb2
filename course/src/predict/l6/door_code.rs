//! Whether the door admits a request, and if not, why.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "door-code",
    about: "admitted, or refused and why",
    chapter: "l6-ensemble/door.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let seats = draw.between(2, 6);
    let running = draw.between(0, seats);
    let room = draw.between(1, 6);
    let free = seats - running;
    let waiting =
        (room + free + draw.between(0, 2)).saturating_sub(if draw.one_in(3) { 1 } else { 3 });
    let floor = if draw.one_in(2) { None } else { Some(draw.between(0, 4)) };
    let priority = draw.between(0, 5);
    // With a step of 10 ms: the prompt, and so many tokens.
    let tokens = draw.between(20, 80);
    let end = 10 * (tokens + 1);
    let left = loop {
        let left = end * draw.pick(&[80, 95, 105, 108, 120, 150, 200]) / 100;
        if left * 10 != end * 11 {
            break left;
        }
    };
    let below = floor.is_some_and(|floor| priority > floor);
    let full = waiting >= room + free;
    let late = end * 11 > left * 10;
    let code = |below: bool, full: bool, late: bool| match () {
        () if below => "priority_floor",
        () if full => "queue_full",
        () if late => "deadline_unreachable",
        () => "admitted",
    };
    let right = code(below, full, late);

    let text = wrapped(&format!(
        "A lane has {seats} seats, of which {running} are taken; {waiting} requests wait, and {room} may wait beyond those for \
         which a seat is free. {} A request of priority {priority} comes with a deadline in {left} ms. The door \
         estimates its end in {end} ms, and keeps a margin of 10%. Is it admitted, or refused with \
         priority_floor, queue_full or deadline_unreachable?",
        floor.map_or("There is no priority floor.".into(), |f| format!(
            "The priority floor is {f}."
        )),
    ));
    let mut explanation = match floor {
        Some(floor) if below => format!("{priority} > {floor}: less urgent than the floor\n"),
        Some(floor) => format!("{priority} is not above {floor}: the floor lets it pass\n"),
        None => String::new(),
    };
    if !below {
        explanation += &format!(
            "{room} may wait and {free} more have a seat: {waiting} waiting is {}\n",
            if full { "full" } else { "not full" }
        );
    }
    if !below && !full {
        explanation += &format!(
            "{end} ms and a tenth more is {} ms, of {left} ms\n",
            (end * 11) as f64 / 10.0
        );
    }
    explanation += &format!("So: {right}.");
    let name = |code: &str| Answer::Name("", code.to_owned());
    let facts = json!({
        "seats": seats, "running": running, "waiting": waiting, "room": room, "floor": floor,
        "priority": priority, "tokens": tokens, "left": left,
    });
    Question::new(text, name(right), explanation, facts)
        .mistake(
            name(code(floor.is_some_and(|floor| priority < floor), full, late)),
            "a lower number is more urgent: the floor refuses numbers above it",
        )
        .mistake(
            name(code(floor.is_some_and(|floor| priority >= floor), full, late)),
            "the floor is the largest number that is still accepted",
        )
        .mistake(
            name(code(below, waiting >= room, late)),
            "requests for which a seat is free do not count against the queue",
        )
        .mistake(name(code(below, full, end > left)), "the estimate has a margin of 10%")
        .mistake(
            name(if late { "deadline_unreachable" } else { "admitted" }),
            "the floor and the queue are asked before the deadline",
        )
        .mistake(
            name(if full { "queue_full" } else { "admitted" }),
            if below {
                "the floor is asked before the queue"
            } else {
                "it would be late, with the margin"
            },
        )
        .mistake(name("deadline_unreachable"), "with the margin it is still in time")
}

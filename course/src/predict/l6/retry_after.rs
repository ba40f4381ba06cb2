//! When a refused request should be sent again.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "retry-after",
    about: "seconds of Retry-After",
    chapter: "l6-ensemble/door.md",
    draw,
};

const MAX: usize = 120;

fn draw(draw: &mut Draw) -> Question {
    let step = draw.pick(&[10, 20]);
    let (ahead, tokens, left, jitter) = loop {
        let (ahead, tokens) = (50 * draw.between(4, 40), 10 * draw.between(3, 20));
        let alone = step * (tokens + 1);
        let late = step * ahead + alone;
        let left = if draw.one_in(5) { alone - 100 } else { alone + 100 * draw.between(1, 30) };
        let jitter = draw.pick(&[0, 0, 50, 100]);
        // Refused, and not at a whole second.
        let thousandths = |jitter: usize| late.saturating_sub(left) * (200 + jitter) / 200;
        let whole = |ms: usize| (ms + 20) % 1000 < 40;
        if late > left + 500 && !whole(thousandths(jitter)) && !whole(thousandths(0)) {
            break (ahead, tokens, left, jitter);
        }
    };
    let alone = step * (tokens + 1);
    let late = step * ahead + alone;
    let impossible = alone > left;
    let spread = |ms: usize| ms * (200 + jitter) / 200;
    let seconds = |ms: usize| ms.div_ceil(1000).clamp(1, MAX);
    let right = if impossible { MAX } else { seconds(spread(late - left)) };

    let text = wrapped(&format!(
        "A replica has one seat, and the request on it has {ahead} steps of {step} ms before it. Another one with a \
         prompt of one token and {tokens} output tokens has to be finished in {left} ms, and is refused as \
         deadline_unreachable. The estimates have no margin, and the jitter is {}. What is its Retry-After, in whole seconds?",
        jitter as f64 / 100.0
    ));
    let explanation = if impossible {
        format!(
            "even alone it takes {step} x {} = {alone} ms, and has {left} ms:\n\
             no retry helps, so the maximum is told, {MAX} s",
            tokens + 1
        )
    } else {
        let by = late - left;
        let jittered = if jitter > 0 {
            format!("and {}% more for the jitter: {} ms\n", jitter / 2, spread(by))
        } else {
            String::new()
        };
        format!(
            "its end: {step} x {ahead} + {step} x {} = {late} ms\n\
             late by {late} - {left} = {by} ms: the queue must be shorter by that\n{jittered}\
             rounded up: {right} s",
            tokens + 1
        )
    };
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "step": step, "ahead": ahead, "tokens": tokens, "left": left, "jitter": jitter,
    });
    Question::new(text, whole(right), explanation, facts)
        .mistake(
            whole(seconds(spread(late - left))),
            "not even an idle replica is fast enough: no retry helps",
        )
        .mistake(whole(seconds(late - left)), "the jitter adds up to a half")
        .mistake(
            whole(seconds((late - left) * (100 + jitter) / 100)),
            "the jitter adds up to a half, not as much again",
        )
        .mistake(
            whole(seconds(spread(step * ahead))),
            "the queue need not be empty, only shorter by what the request would be late",
        )
        .mistake(whole(seconds(spread(late))), "what is left to the deadline is not waited for")
        .mistake(whole(MAX), "alone it would be in time, so a retry can help")
}

//! How long a request waits for its first token.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{separated, wrapped};

pub const KIND: Kind = Kind {
    name: "first-token-time",
    about: "time to the first token (TTFT)",
    chapter: "l5-scheduler/loop.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let base = draw.between(4, 20);
    let per_token = draw.between(1, 3);
    let budget = draw.pick(&[16, 24, 32]);
    let writing = draw.between(1, 6);
    // It comes in the midst of a step of those who write.
    let into = draw.between(1, base - 1);
    let most = budget - writing;
    let prompt = loop {
        let prompt = draw.between(4, 3 * budget);
        // A last chunk of one token would be a row as any that writes.
        if prompt % most != 1 {
            break prompt;
        }
    };

    let steps = prompt.div_ceil(most);
    let wait = base - into;
    let chunks: Vec<usize> = (0..steps).map(|i| most.min(prompt - i * most)).collect();
    let times: Vec<usize> = chunks.iter().map(|chunk| base + per_token * chunk).collect();
    let right = wait + times.iter().sum::<usize>();
    let text = wrapped(&format!(
        "A step takes {base} ms, and {per_token} ms more for each token of a prompt in it; a step has {budget} tokens. \
         {} token by token all the time. A step of theirs began {into} ms ago when a request with a prompt of {prompt} tokens comes. \
         After how many ms does it have its first token?",
        if writing == 1 {
            "One request writes".into()
        } else {
            format!("{writing} requests write")
        },
    ));
    let explanation = format!(
        "the step that runs ends in {base} - {into} = {wait} ms\n\
         of each step {budget} - {writing} = {most} tokens are left: {} of {}\n\
         they take {} ms\n{wait} + {} = {right} ms",
        counted(steps, "step"),
        separated(&chunks, ", "),
        separated(&times, " + "),
        times.iter().sum::<usize>(),
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "base": base, "per_token": per_token, "budget": budget, "writing": writing, "into": into,
        "prompt": prompt,
    });
    let with = |steps: usize| wait + steps * base + per_token * prompt;
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(right - wait), "it comes in the midst of a step, and that one ends first")
        .mistake(
            whole(right - wait + into),
            "that much of the step has passed; the rest is to come",
        )
        .mistake(whole(right - wait + base), "of the step that runs only the rest is to come")
        .mistake(whole(with(1)), "the prompt does not fit one step")
        .mistake(
            whole(with(prompt.div_ceil(budget))),
            "those who write take their tokens of each step first",
        )
        .mistake(
            whole(right + base),
            "the step that computes the end of the prompt chooses the first token",
        )
        .mistake(whole(wait + steps * base), "the tokens of a prompt take time, too")
}

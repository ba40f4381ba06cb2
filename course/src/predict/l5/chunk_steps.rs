//! In how many steps a long prompt has its first token.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "chunk-steps",
    about: "steps until a prompt's first token",
    chapter: "l5-scheduler/budget.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let budget = draw.pick(&[32, 48, 64, 96, 128]);
    let others = if draw.one_in(3) { 0 } else { draw.between(1, 8) };
    let threshold = if draw.one_in(3) { 0 } else { draw.between(8, budget - 4) };
    let cached = if others > 0 && draw.one_in(3) { 16 * draw.between(1, 4) } else { 0 };
    let prompt = cached + draw.between(budget + 10, 6 * budget);

    let most = |others: usize, threshold: usize| {
        let left = budget - others;
        if threshold == 0 { left } else { left.min(threshold) }
    };
    let chunk = most(others, if others == 0 { 0 } else { threshold });
    let steps = |tokens: usize, chunk: usize| tokens.div_ceil(chunk);
    let right = steps(prompt - cached, chunk);

    let company = match others {
        0 => "No other request is there.".into(),
        n => format!(
            "{} beside it a token in each step, and go on and on.",
            match n {
                1 => "One request writes".into(),
                n => format!("{n} requests write"),
            }
        ),
    };
    let hit = match cached {
        0 => String::new(),
        n => format!(" It finds {n} of them in the cache."),
    };
    let limit = match threshold {
        0 => "long_prefill_token_threshold is 0".into(),
        t => format!("long_prefill_token_threshold is {t}"),
    };
    let text = wrapped(&format!(
        "A step has {budget} tokens, and {limit}. A request comes with a prompt of {prompt} tokens.{hit} {company} \
         In which step does it get its first token, if the next one is step 1?"
    ));
    let mut explanation = match others {
        0 => format!("alone it may have all of a step: {budget} tokens\n"),
        n => format!("those who write take {n}: {budget} - {n} = {} are left\n", budget - n),
    };
    if others > 0 && threshold > 0 {
        explanation += &format!("the threshold leaves it {chunk} of them\n");
    }
    if cached > 0 {
        explanation += &format!("to compute: {prompt} - {cached} = {}\n", prompt - cached);
    }
    explanation += &format!(
        "{} / {chunk}, rounded up, = {}; the last chunk's last row gives the token",
        prompt - cached,
        counted(right, "step")
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "budget": budget, "others": others, "threshold": threshold, "cached": cached,
        "prompt": prompt,
    });
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(steps(prompt, chunk)), "what is in the cache is not computed again")
        .mistake(
            whole(steps(prompt - cached, most(others, threshold))),
            "the threshold does not count for a request that is alone",
        )
        .mistake(
            whole(steps(prompt - cached, most(others, 0))),
            "the threshold cuts a prompt that is not alone",
        )
        .mistake(
            whole(steps(prompt - cached, most(0, threshold))),
            "those who write take their tokens of each step first",
        )
        .mistake(
            whole(right + 1),
            "the step that computes the end of the prompt chooses the first token",
        )
        .mistake(whole((prompt - cached) / chunk), "the rest needs a step, too")
}

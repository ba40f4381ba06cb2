//! What is free when a step is over.

use serde_json::json;

use super::drawn::{blocks, counted, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "free-after-step",
    about: "free blocks after a step",
    chapter: "l5-scheduler/running.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let n = draw.between(3, 4);
    // Their tokens, of which the last one was chosen in the step before and is not computed. Every
    // other one begins a block with it.
    let tokens: Vec<usize> = (0..n)
        .map(|_| match draw.one_in(2) {
            true => draw.between(1, 4) * block_size + 1,
            false => draw.between(2, 4 * block_size),
        })
        .collect();
    let ends = draw.one_in(2).then(|| draw.below(n));
    let prompt = if draw.one_in(2) { draw.between(1, 3 * block_size) } else { 0 };
    let free = n + blocks(prompt, block_size) + draw.between(0, 6);

    let size = |tokens: usize| blocks(tokens, block_size);
    let new: Vec<usize> = tokens.iter().map(|t| size(*t) - size(t - 1)).collect();
    let taken = new.iter().sum::<usize>();
    let (admitted, back) = (size(prompt), ends.map_or(0, |i| size(tokens[i])));
    let right = free - taken - admitted + back;

    let rows: Vec<Vec<usize>> =
        tokens.iter().enumerate().map(|(i, t)| vec![i, *t, t - 1]).collect();
    let comes = match prompt {
        0 => String::new(),
        p => format!("\nAnother one comes with a prompt of {}.", counted(p, "token")),
    };
    let goes = match ends {
        None => "None of them ends.".into(),
        Some(i) => format!("Request {i} ends with the token of this step."),
    };
    let text = format!(
        "Blocks of {block_size} tokens, {free} of them free, nothing shared. These run:\n\n{}\n{comes}\n\
         {goes} The step has tokens for all.\nHow many blocks are free when it is over?",
        table(&["request", "tokens", "computed"], &rows)
    );
    let mut explanation =
        format!("new blocks for one token each: {} = {taken}\n", separated(&new, " + "));
    if prompt > 0 {
        explanation +=
            &format!("for the prompt: {prompt} / {block_size}, rounded up, = {admitted}\n");
    }
    if let Some(i) = ends {
        explanation += &format!(
            "request {i} gives back {} / {block_size}, rounded up, = {back}; its last token has no slot\n",
            tokens[i]
        );
    }
    let (minus, plus) = (
        if prompt > 0 { format!(" - {admitted}") } else { String::new() },
        if ends.is_some() { format!(" + {back}") } else { String::new() },
    );
    explanation += &format!("{free} - {taken}{minus}{plus} = {right}");
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "block_size": block_size, "free": free, "tokens": tokens, "ends": ends, "prompt": prompt,
    });
    // Room for the token that this step chooses, as if it were fed at once.
    let early: usize = tokens.iter().map(|t| size(t + 1) - size(t - 1)).sum();
    Question::new(text, whole(right), explanation, facts)
        .mistake(
            whole((free + back).saturating_sub(early + admitted)),
            "the token that a step chooses gets its slot in the next one",
        )
        .mistake(whole(free - admitted + back), "a token that begins a block needs a new one")
        .mistake(whole(free - taken - admitted), "who ends gives its blocks back")
        .mistake(whole(free - taken + back), "a prompt that is admitted takes blocks")
        .mistake(
            whole((free + back).saturating_sub(n + admitted)),
            "a token needs a new block only if it begins one",
        )
}

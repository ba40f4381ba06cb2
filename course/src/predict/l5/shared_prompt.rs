//! What several answers to one prompt cost.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "shared-prompt",
    about: "prompt tokens computed for n answers",
    chapter: "l5-scheduler/choices.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let full = draw.between(1, 4);
    let tail = draw.between(1, block_size - 1);
    let prompt = full * block_size + tail;
    let n = draw.between(2, 4);
    let best_of = if draw.one_in(2) { n + draw.between(1, 3) } else { 0 };
    let answers = n.max(best_of);

    let right = prompt + (answers - 1) * tail;
    let asked = match best_of {
        0 => format!("n = {n}"),
        best_of => format!("n = {n} and best_of = {best_of}"),
    };
    let text = wrapped(&format!(
        "Keys and values lie in blocks of {block_size} tokens with a prefix cache, empty so far. A request \
         with a prompt of {prompt} tokens asks for {asked}; each answer has several tokens. How many times \
         does a token of the prompt go through the model, counted over all answers?"
    ));
    let many = match best_of {
        0 => format!("{n} answers are generated."),
        _ => format!("best_of: {best_of} answers are generated, the {n} best are returned."),
    };
    let shared = format!(
        "{prompt} / {block_size}: {}, remainder {tail}. What is full the others share; the {tail}\n\
         of the unfinished block each computes for itself, and goes on to write there.",
        counted(full, "full block")
    );
    let explanation = format!(
        "{many}\nThe first computes the prompt: {prompt}.\n{shared}\n\
         {prompt} + {} * {tail} = {right}",
        answers - 1
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "block_size": block_size, "prompt": prompt, "n": n, "best_of": best_of,
    });
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(prompt + (n - 1) * tail), "best_of answers are generated, n are returned")
        .mistake(whole(answers * prompt), "full blocks of the prompt are computed once, for all")
        .mistake(whole(n * prompt), "full blocks of the prompt are computed once, for all")
        .mistake(whole(prompt), "an unfinished block has no hash: it cannot be shared")
        .mistake(
            whole(prompt + answers * tail),
            "the first answer goes on where the prompt was computed",
        )
        .mistake(whole((answers - 1) * tail), "the first answer computes the whole prompt")
}

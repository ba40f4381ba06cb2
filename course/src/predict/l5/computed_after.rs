//! What a request has after some steps: tokens, and how many of them are computed.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "computed-after",
    about: "tokens and computed tokens after some steps",
    chapter: "l5-scheduler/apply.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let budget = draw.between(8, 32);
    let prompt = draw.between(5, 100);
    let chunks = prompt.div_ceil(budget);
    let steps = (chunks + draw.between(0, 5)).saturating_sub(1).max(1);

    let written = (steps + 1).saturating_sub(chunks);
    let tokens = prompt + written;
    let computed = if written == 0 { steps * budget } else { tokens - 1 };
    let text = wrapped(&format!(
        "A request with a prompt of {prompt} tokens is alone; a step has {budget} tokens. \
         After {}: how many tokens has it, prompt and answer together, and of how many are keys and values computed?",
        counted(steps, "step")
    ));
    let mut explanation = format!("the prompt takes {prompt} / {budget}, rounded up, = ");
    explanation += &counted(chunks, "step");
    explanation += &match written {
        0 => format!(
            "\nit is not through: {steps} * {budget} = {computed} computed, and no token was chosen"
        ),
        n => format!(
            "\nthe last of them chooses the first token, each further one another: {n}\n\
             {prompt} + {n} = {tokens} tokens; the last one is fed in the next step, so {computed}\n\
             are computed"
        ),
    };
    let pair = |tokens: usize, computed: usize| Answer::List(vec![tokens as i64, computed as i64]);
    let facts = json!({ "budget": budget, "prompt": prompt, "steps": steps });
    Question::new(text, pair(tokens, computed), explanation, facts)
        .mistake(
            pair(tokens, tokens),
            "the token chosen last is not computed: that is what the next step is for",
        )
        .mistake(
            pair(tokens.max(prompt + 1) - 1, computed.max(1) - 1),
            "the step that ends the prompt chooses a token already",
        )
        .mistake(
            pair(prompt + steps, prompt + steps - 1),
            "no token is chosen before all of the prompt is computed",
        )
        .mistake(
            pair(tokens, steps.min(prompt)),
            "a chunk computes as many tokens as it has, not one",
        )
        .mistake(pair(tokens, prompt), "each token that was written and fed is computed, too")
        .mistake(pair(computed, tokens), "the tokens first, then the computed ones")
}

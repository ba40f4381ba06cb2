//! What a request has after a step with drafts: tokens, and how many of them are computed.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "drafts",
    about: "tokens and computed tokens after a step with drafts",
    chapter: "l5-scheduler/drafts.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let prompt = draw.between(5, 60);
    let output = draw.between(2, 9);
    let drafts = draw.between(2, 6);
    let right = draw.between(0, drafts - 1);

    let before = prompt + output;
    let (tokens, computed) = (before + right + 1, before + right);
    let text = wrapped(&format!(
        "A request has a prompt of {prompt} tokens and {}; all but the newest are computed. \
         A step feeds the newest and {drafts} drafts. {} right, the next one is wrong. After the step: how many \
         tokens does the request have, prompt and output together, and how many of them are computed?",
        counted(output, "output token"),
        match right {
            0 => "None of them is".to_owned(),
            1 => "The first is".to_owned(),
            n => format!("The first {n} are"),
        },
    ));
    let explanation = format!(
        "before the step {prompt} + {output} = {before} tokens, of which {} are computed\n\
         {right} accepted and one more that is sampled: {before} + {right} + 1 = {tokens} tokens\n\
         the newest from before and the accepted ones are computed now: {} + 1 + {right} = {computed}",
        before - 1,
        before - 1,
    );
    let pair = |tokens: usize, computed: usize| Answer::List(vec![tokens as i64, computed as i64]);
    let facts = json!({ "prompt": prompt, "output": output, "drafts": drafts, "right": right });
    Question::new(text, pair(tokens, computed), explanation, facts)
        .mistake(pair(tokens, before + drafts), "rejected drafts are not computed")
        .mistake(pair(tokens, tokens), "the newest token is fed in the next step")
        .mistake(
            pair(tokens - 1, computed - 1),
            "behind the accepted drafts one more token is sampled",
        )
        .mistake(pair(before + drafts, computed), "rejected drafts are no tokens of the request")
        .mistake(pair(before + 1, before), "each accepted draft is an output token, too")
        .mistake(pair(computed, tokens), "the tokens first, then the computed ones")
}

//! How long an answer becomes with all of a small pool to itself.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "kv-exhausted",
    about: "tokens of an answer that outgrows the pool",
    chapter: "l5-scheduler/running.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let num_blocks = draw.between(4, 9);
    let slots = (num_blocks - 1) * block_size;
    let prompt = draw.between(2, slots - 2);
    let fits = slots - prompt + 1;
    let max_tokens = if draw.one_in(4) { fits + 2 - draw.below(4.min(fits)) } else { 500 };

    let right = fits.min(max_tokens);
    let text = wrapped(&format!(
        "num_gpu_blocks is {num_blocks}, blocks hold {block_size} tokens. A request with a prompt of {prompt} tokens and \
         max_tokens {max_tokens} is alone; the model never ends by itself and has room for 4,096 tokens. \
         How many tokens has the answer when it ends?"
    ));
    let mut explanation = format!(
        "the pool without the null block: ({num_blocks} - 1) * {block_size} = {slots} slots\n\
         {slots} - {prompt} = {} tokens of the answer can be fed, and one more is chosen: {fits}\n",
        slots - prompt
    );
    explanation += &if max_tokens <= fits {
        format!("max_tokens {max_tokens} is not above it: it ends with length")
    } else {
        "There it ends with kv_exhausted: its next token fits no pool of this size.".into()
    };
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "block_size": block_size, "num_blocks": num_blocks, "prompt": prompt,
        "max_tokens": max_tokens,
    });
    let capped = |n: usize| whole(n.min(max_tokens));
    Question::new(text, whole(right), explanation, facts)
        .mistake(capped(fits - 1), "the token chosen last is never fed, so it needs no slot")
        .mistake(capped(fits + block_size), "block 0 is the null block: it is never handed out")
        .mistake(whole(max_tokens), "the pool is full before")
        .mistake(whole(fits), "max_tokens ends it before")
        .mistake(capped(slots), "the prompt has slots, too")
}

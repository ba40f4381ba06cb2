//! How much of a sequence others could reuse.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "hashed-tokens",
    about: "tokens of a sequence that others can reuse",
    chapter: "l3-paged-kv/steps.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let prompt = draw.between(2, 6) * block_size + draw.below(block_size);
    // Often the last token would just fill a block.
    let generated = match draw.below(3) {
        0 => (prompt + 1).next_multiple_of(block_size) - prompt,
        1 => 1,
        _ => draw.between(1, 2 * block_size),
    };

    let tokens = prompt + generated;
    let computed = tokens - 1;
    let reusable = computed / block_size * block_size;
    let text = wrapped(&format!(
        "Blocks of {block_size} tokens. A request with a prompt of {prompt} tokens ran alone and has just \
         generated token number {generated}. How many tokens lie in blocks that have a hash?"
    ));
    let explanation = format!(
        "it has:    {prompt} + {generated} = {tokens} tokens\n\
         computed:  {computed}; the newest one is fed in the next step\n\
         full:      {computed} / {block_size}, rounded down, = {} blocks, {reusable} tokens",
        computed / block_size
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "block_size": block_size, "prompt": prompt, "generated": generated });
    Question::new(text, whole(reusable), explanation, facts)
        .mistake(
            whole(tokens / block_size * block_size),
            "the newest token has no keys and values yet: it is computed in the next step",
        )
        .mistake(whole(computed), "only full blocks are hashed")
        .mistake(whole(tokens), "only full blocks are hashed, and the newest token is not computed")
        .mistake(whole(reusable / block_size), "those are blocks; tokens are asked for")
        .mistake(whole(reusable + block_size), "a block that is begun has no hash: round down")
        .mistake(
            whole(prompt / block_size * block_size),
            "generated tokens are hashed like those of the prompt",
        )
        .mistake(whole((prompt - 1) / block_size * block_size), "that is what the prompt could hit")
}

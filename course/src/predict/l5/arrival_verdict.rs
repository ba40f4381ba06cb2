//! Whether a request is accepted on arrival.

use serde_json::json;

use super::drawn::blocks;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "arrival-verdict",
    about: "taken, or refused at once and why",
    chapter: "l5-scheduler/requests.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let num_blocks = draw.between(5, 13);
    let capacity = num_blocks - 1;
    let slots = capacity * block_size;
    // The model is longer than the pool, or the pool than the model; the prompt ends near a limit.
    let longest = slots + draw.between(0, 3 * block_size) - block_size;
    let limit = if draw.one_in(3) { longest.min(slots) } else { draw.pick(&[longest, slots]) };
    let prompt = limit + draw.between(0, 4) - 3;
    let max_tokens = if draw.one_in(4) { 1 } else { draw.between(2, 40) };

    let needed = blocks(prompt + usize::from(max_tokens > 1), block_size);
    let right = match () {
        () if prompt >= longest => "max_model_len",
        () if needed > capacity => "exceeds_pool",
        () => "taken",
    };
    let text = wrapped(&format!(
        "num_gpu_blocks is {num_blocks}, blocks hold {block_size} tokens, max_model_len is {longest}. \
         A request comes with a prompt of {prompt} tokens and max_tokens {max_tokens}. \
         What becomes of it: taken, max_model_len or exceeds_pool?"
    ));
    let more = if max_tokens > 1 { " + 1" } else { "" };
    let first = if prompt >= longest { "not below" } else { "below" };
    let mut explanation = format!("prompt {prompt}: {first} max_model_len {longest}\n");
    if right != "max_model_len" {
        explanation += &format!(
            "blocks: ({prompt}{more}) / {block_size}, rounded up, = {needed}; the pool has {num_blocks} - 1 = {capacity}\n"
        );
    }
    explanation += &match right {
        "taken" => {
            "It is taken: alone it can be completed, or ends for a reason of its own.".into()
        }
        reason => format!("It is refused: {reason}."),
    };
    let name = |verdict: &str| Answer::Name("", verdict.into());
    let facts = json!({
        "block_size": block_size, "num_blocks": num_blocks, "max_model_len": longest,
        "prompt": prompt, "max_tokens": max_tokens,
    });
    let question = Question::new(text, name(right), explanation, facts);
    match right {
        "taken" => question
            .mistake(
                name("exceeds_pool"),
                if blocks(prompt + 1, block_size) > capacity {
                    "a single token of an answer needs no slot: the last one is never fed"
                } else if prompt + max_tokens > slots {
                    "only the prompt and one token must fit: who outgrows the pool ends later"
                } else {
                    "all of it fits: count the blocks again"
                },
            )
            .mistake(
                name("max_model_len"),
                "the prompt is shorter than that; an answer that gets there ends, no more",
            ),
        "exceeds_pool" => question
            .mistake(
                name("taken"),
                if blocks(prompt, block_size) <= capacity {
                    "the first token of the answer is fed for the second one, and needs a slot"
                } else if needed <= num_blocks {
                    "block 0 is the null block: it is never handed out"
                } else {
                    "no pool of this size holds the prompt, however long it waits"
                },
            )
            .mistake(name("max_model_len"), "the prompt is shorter than max_model_len"),
        _ => question
            .mistake(
                name("taken"),
                "there must be room for a token of an answer: the prompt has to be shorter",
            )
            .mistake(name("exceeds_pool"), "max_model_len is looked at before the pool"),
    }
}

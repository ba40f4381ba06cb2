//! What a preempted request computes again.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "recomputed-tokens",
    about: "what a preempted request computes again",
    chapter: "l5-scheduler/preemption.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let prompt = draw.between(block_size, 4 * block_size);
    let written = draw.between(1, 3 * block_size);
    let tokens = prompt + written;
    // Full blocks have hashes. The last token was chosen and not computed.
    let full = (tokens - 1) / block_size;
    let capacity = tokens.div_ceil(block_size) + draw.between(1, 4);
    let spare = capacity - full;
    let taken = if draw.one_in(3) {
        draw.between(1, spare)
    } else {
        (spare + draw.between(0, full)).min(capacity)
    };

    let lost = taken.saturating_sub(spare).min(full);
    let left = full - lost;
    let right = tokens - left * block_size;
    let text = wrapped(&format!(
        "A pool of {capacity} blocks of {block_size} tokens, beside the null block. A request has a prompt of {prompt} tokens \
         and wrote {written}, the last of which is not computed yet, when it is preempted for another one. \
         That one takes {taken} blocks of other contents and ends. \
         How many tokens does the first request compute in its next step? The step has tokens enough."
    ));
    let explanation = format!(
        "{tokens} tokens, {} computed: {full} full blocks with hashes\n\
         free for the other one before any of those goes: {capacity} - {full} = {spare}\n\
         it takes {taken}: {lost} of the hashed ones, from the tail\n\
         {left} are found again: {tokens} - {left} * {block_size} = {right} tokens",
        tokens - 1
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "block_size": block_size, "prompt": prompt, "written": written, "capacity": capacity,
        "taken": taken,
    });
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(tokens), "full blocks keep their hashes and are found again")
        .mistake(
            whole(tokens - full * block_size),
            "blocks that another request took meanwhile are lost",
        )
        .mistake(
            whole(tokens - full.saturating_sub(taken) * block_size),
            "blocks without a hash, and never used ones, are taken first",
        )
        .mistake(
            whole(prompt.saturating_sub(left * block_size).max(1)),
            "what it wrote is computed again, too",
        )
        .mistake(
            whole(tokens - 1 - left * block_size),
            "the token chosen last is fed as well: with it the next one is chosen",
        )
        .mistake(whole(1), "its keys and values are gone with its blocks")
}

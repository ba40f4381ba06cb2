//! How much of a prompt need not be computed.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "prefix-hit",
    about: "tokens of a prompt that are in the cache",
    chapter: "l3-paged-kv/lookup.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let before = draw.between(3, 6) * block_size + draw.below(block_size);
    let full = before / block_size;
    // The same prompt again, a longer one that begins so, or one that leaves it somewhere.
    let (same, prompt) = match draw.below(4) {
        0 => (full * block_size, full * block_size),
        1 => (before, before + draw.between(1, 2 * block_size)),
        _ => {
            let same = draw.between(block_size, before - 1);
            (same, same + draw.between(1, 2 * block_size))
        }
    };
    let evicted = if draw.one_in(2) { 0 } else { draw.between(1, full - 1) };

    let cached = full - evicted;
    let alike = same / block_size;
    let most = (prompt - 1) / block_size;
    let hit = cached.min(alike).min(most);
    let lost = match evicted {
        0 => "All its blocks still have what was in them.".into(),
        n => format!(
            "Since then {} of it with a hash {} been handed out again.",
            counted(n, "block"),
            if n == 1 { "has" } else { "have" }
        ),
    };
    let agree = match same {
        n if n == prompt => format!("is its first {prompt} tokens"),
        n => format!("has {prompt} tokens, of which the first {n} are the same"),
    };
    let text = wrapped(&format!(
        "Blocks of {block_size} tokens. A prompt of {before} tokens was computed, and its request ended. \
         {lost} \
         A new prompt {agree}. \
         How many of its tokens does the cache provide?"
    ));
    let explanation = format!(
        "hashed:    {before} / {block_size}, rounded down, = {full} blocks\n\
         there:     {full} - {evicted} = {cached}: of a sequence, the last block goes first\n\
         alike:     {same} / {block_size}, rounded down, = {alike} blocks\n\
         at most:   ({prompt} - 1) / {block_size}, rounded down, = {most}: one token must be computed\n\
         the least of these is {hit}, and {hit} * {block_size} = {}",
        hit * block_size
    );
    let whole = |blocks: usize| Answer::Whole((blocks * block_size) as i64);
    let facts = json!({
        "block_size": block_size, "before": before, "evicted": evicted, "same": same,
        "prompt": prompt,
    });
    Question::new(text, whole(hit), explanation, facts)
        .mistake(
            whole(cached.min(alike)),
            "the last token must be computed, so its block cannot be a hit",
        )
        .mistake(
            whole(full.min(alike).min(most)),
            "blocks that were handed out again lost their hash",
        )
        .mistake(whole(cached.min(most)), "the hit ends at the first block that differs")
        .mistake(Answer::Whole(hit as i64), "those are blocks; tokens are asked for")
        .mistake(Answer::Whole(same as i64), "only full blocks can be hit")
        .mistake(
            whole(alike.saturating_sub(evicted).min(most)),
            "of a sequence the last block is handed out first: its beginning lives longest",
        )
        .mistake(whole(hit + 1), "that is one block too many")
}

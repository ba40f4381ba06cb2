//! What is left of the free list when a request with a prefix hit is admitted.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "admit-free",
    about: "free blocks after an admission",
    chapter: "l3-paged-kv/lookup.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    // Of the hit, some blocks are another request's and some wait in the free list.
    let (used, waiting) = (draw.between(1, 3), draw.between(0, 4));
    let hit = used + waiting;
    let prompt = hit * block_size + draw.between(1, 3 * block_size);
    let new = prompt.div_ceil(block_size) - hit;
    let needed = new + waiting;
    let free = (needed + draw.between(0, 5)).saturating_sub(2).max(waiting + 1);

    let left = if needed <= free { free - needed } else { free };
    let text = wrapped(&format!(
        "Blocks of {block_size} tokens, {free} of them free. A request with a prompt of {prompt} tokens hits \
         {}: another request uses {used} of those now, no request uses the other {waiting}. \
         Blocks for the whole prompt are reserved at once. How many blocks are free afterwards?",
        counted(hit, "cached block")
    ));
    let verdict = if needed <= free {
        format!("{needed} of {free} are there, and {free} - {needed} = {left} are left")
    } else {
        format!("only {free} are free: the request is not admitted, and nothing was taken")
    };
    let explanation = format!(
        "new:       {prompt} / {block_size}, rounded up, - {hit} = {new}\n\
         waiting:   {waiting}; an unused cached block is in the free list and leaves it\n\
         together:  {new} + {waiting} = {needed} must be free\n{verdict}"
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "block_size": block_size, "used": used, "waiting": waiting, "prompt": prompt, "free": free,
    });
    let mut question = Question::new(text, whole(left), explanation, facts).mistake(
        whole(free.saturating_sub(new)),
        "unused blocks of the hit are in the free list, and leave it",
    );
    if needed <= free {
        let mistakes: [(usize, &str); 3] = [
            (new + hit, "blocks that another request uses are not in the free list"),
            (waiting, "the rest of the prompt needs new blocks"),
            (0, "that is what was free before"),
        ];
        for (takes, why) in mistakes {
            question = question.mistake(whole(free.saturating_sub(takes)), why);
        }
        return question;
    }
    question
        .mistake(whole(0), "all or nothing: a request that does not fit takes no block")
        .mistake(
            whole(free - waiting),
            "all or nothing: of a request that does not fit not even the hit is taken",
        )
}

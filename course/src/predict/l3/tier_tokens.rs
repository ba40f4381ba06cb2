//! How many tokens of a prompt tiers have behind those of the pool.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, wrapped};

pub const KIND: Kind = Kind {
    name: "tier-tokens",
    about: "tokens of a prompt that are loaded from tiers",
    chapter: "l3-paged-kv/tiers.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let chunk = draw.pick(&[64, 128, 256]);
    let chunks = draw.between(4, 6);
    let prompt = chunk * chunks + draw.between(1, chunk - 1);
    let from = 16 * draw.below(2 * chunk / 16 + 1);
    // Most chunks are in one of the two, so that a prefix is often longer than nothing.
    let place: Vec<usize> = (0..chunks).map(|_| draw.pick(&[0, 0, 1, 1, 2, 2, 3])).collect();
    let has = |tier: usize| -> Vec<usize> {
        (0..chunks).filter(|n| place[*n] == tier || place[*n] == 2).collect()
    };
    let (dram, disk) = (has(0), has(1));

    let first = from / chunk;
    let prefix = (first..chunks).take_while(|n| place[*n] != 3).count();
    let right = ((first + prefix) * chunk).saturating_sub(from);

    let listed = |all: &[usize]| match all {
        [] => "no chunk".to_owned(),
        [one] => format!("chunk {one}"),
        some => format!("chunks {}", commas(some)),
    };
    let text = wrapped(&format!(
        "Blocks of 16 tokens, chunks of {chunk}. A prompt has {prompt} tokens. Of its chunks, DRAM \
         has {} and the disk has {}. The pool has its first {from} tokens. How many tokens are \
         loaded from the tiers?",
        listed(&dram),
        listed(&disk)
    ));
    let explanation = format!(
        "Token {from} is in chunk {first}, so the prefix begins there.\n\
         {prefix} chunks from it on are in a tier without a gap. They end at token {}.\n\
         The tokens before {from} are in the pool: {right} are loaded.",
        (first + prefix) * chunk
    );
    let facts = json!({
        "chunk": chunk, "prompt": prompt, "from": from, "dram": dram, "disk": disk,
    });
    let whole = |tokens: usize| Answer::Whole(tokens as i64);
    let anywhere = (first..chunks).filter(|n| place[*n] != 3).count();
    let dram_only = (first..chunks).take_while(|n| dram.contains(n)).count();
    let missing = |prefix: usize| ((first + prefix) * chunk).saturating_sub(from);
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(missing(anywhere)), "a chunk behind a gap is of no use")
        .mistake(whole(prefix * chunk), "the tokens that the pool has are not loaded")
        .mistake(whole(missing(dram_only)), "what DRAM does not have is read from the disk")
        .mistake(whole(prompt - from), "only whole chunks are kept, and only a prefix is of use")
        .mistake(whole(prefix), "those are chunks; tokens are asked for")
}

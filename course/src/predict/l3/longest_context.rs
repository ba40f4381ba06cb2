//! How long a few requests can get together.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "longest-context",
    about: "the longest context that fits a pool",
    chapter: "l3-paged-kv/sizing.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[8, 16, 32]);
    let requests = draw.between(2, 6);
    let num_blocks = requests * draw.between(4, 60) + draw.between(0, requests);
    let shared = if draw.one_in(2) { 0 } else { draw.between(1, 3) };

    let own = (num_blocks - 1 - shared) / requests;
    let most = (shared + own) * block_size;
    let share = match shared {
        0 => "They share nothing.".into(),
        n => format!("They share their first {}.", counted(n, "block")),
    };
    let text = wrapped(&format!(
        "A pool with num_blocks = {num_blocks}, blocks of {block_size} tokens; {requests} requests of the same length \
         run together. {share} How many tokens can each have stored at most?"
    ));
    let mut explanation = format!("to hand out:  {num_blocks} - 1 = {}\n", num_blocks - 1);
    explanation += &match shared {
        0 => format!("each:         {} / {requests}, rounded down, = {own}\n", num_blocks - 1),
        n => format!(
            "each:         ({} - {n}) / {requests}, rounded down, = {own} of its own, and {n}\n",
            num_blocks - 1
        ),
    };
    explanation += &format!("tokens:       {} * {block_size} = {most}", own + shared);
    let tokens = |blocks: usize| Answer::Whole((blocks * block_size) as i64);
    let facts = json!({
        "num_blocks": num_blocks, "block_size": block_size, "requests": requests, "shared": shared,
    });
    Question::new(text, tokens(own + shared), explanation, facts)
        .mistake(
            tokens((num_blocks - shared) / requests + shared),
            "the null block is in num_blocks and never handed out",
        )
        .mistake(
            Answer::Whole(
                ((num_blocks - 1 - shared) * block_size / requests + shared * block_size) as i64,
            ),
            "blocks are not divided: each has whole ones",
        )
        .mistake(tokens((num_blocks - 1) / requests), "what they share is stored once")
        .mistake(tokens(own), "the shared blocks hold tokens of each of them")
        .mistake(tokens(num_blocks - 1), "that is all of them together")
        .mistake(Answer::Whole((own + shared) as i64), "those are blocks; tokens are asked for")
}

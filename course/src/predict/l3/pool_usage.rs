//! How full a pool is.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "pool-usage",
    about: "how full a pool is",
    chapter: "l3-paged-kv/reference-counts.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let usable = draw.pick(&[16, 20, 24, 25, 32, 40, 50]);
    let held: Vec<usize> = (0..3).map(|_| draw.between(2, usable / 4)).collect();
    let shared = if draw.one_in(3) { 0 } else { draw.between(1, held[0].min(held[1])) };
    let users = held.iter().sum::<usize>();
    let used = users - shared;
    let cached = draw.between(1, usable - used);

    let shares = match shared {
        0 => "no two of them share one".into(),
        n => format!("the first two share {}", counted(n, "block")),
    };
    let text = wrapped(&format!(
        "A pool with num_blocks = {}. Three requests hold {}, {} and {} blocks; {shares}. \
         {} without a user still {} a hash. What is the pool's usage?",
        usable + 1,
        held[0],
        held[1],
        held[2],
        counted(cached, "block"),
        if cached == 1 { "has" } else { "have" }
    ));
    let less = if shared > 0 { format!(" - {shared}") } else { String::new() };
    let explanation = format!(
        "in use:  {} + {} + {}{less} = {used} blocks; cached ones without a user are free\n\
         of:      {} - 1 = {usable}; the null block is never handed out\n\
         usage = 1 - free / (num_blocks - 1) = {used} / {usable}",
        held[0],
        held[1],
        held[2],
        usable + 1
    );
    let part = |used: usize, of: usize| Answer::Real(used as f64 / of as f64);
    let facts = json!({ "num_blocks": usable + 1, "held": held, "shared": shared });
    Question::new(text, part(used, usable), explanation, facts)
        .mistake(part(used, usable + 1), "the null block does not count: divide by num_blocks - 1")
        .mistake(part(users, usable), "a block with two users is one block")
        .mistake(part(used + cached, usable), "a cached block without a user is free")
        .mistake(part(usable - used, usable), "that is the free part")
        .mistake(part(used - shared, usable), "a shared block is in use: count it once")
        .mistake(part(users + cached, usable), "a shared block is one, and a cached one is free")
        .mistake(part(100 * used, usable), "usage goes from 0 to 1; that is in percent")
}

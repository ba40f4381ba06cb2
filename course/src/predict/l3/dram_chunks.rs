//! Which chunks a tier of limited size has after some puts and gets.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{joined, wrapped};

pub const KIND: Kind = Kind {
    name: "dram-chunks",
    about: "chunks that a full tier keeps",
    chapter: "l3-paged-kv/tiers.md",
    draw,
};

/// The chunks at the end, in order. `used` says whether a get, and whether a second put, counts as a use.
fn kept(room: usize, ops: &[(bool, usize)], used: [bool; 2]) -> Vec<i64> {
    let mut chunks: Vec<usize> = Vec::new();
    for (put, chunk) in ops {
        let at = chunks.iter().position(|other| other == chunk);
        if at.is_some() && !used[usize::from(*put)] || at.is_none() && !put {
            continue;
        }
        if let Some(at) = at {
            chunks.remove(at);
        }
        chunks.push(*chunk);
        if chunks.len() > room {
            chunks.remove(0);
        }
    }
    chunks.sort_unstable();
    chunks.into_iter().map(|chunk| chunk as i64).collect()
}

fn draw(draw: &mut Draw) -> Question {
    let room = draw.between(2, 4);
    let n = draw.between(room + 4, room + 7);
    // The first ones fill it; gets ask for what was put.
    let mut ops: Vec<(bool, usize)> = (0..room).map(|chunk| (true, chunk)).collect();
    let mut next = room;
    while ops.len() < n {
        let put = draw.below(2) == 0;
        let known = draw.below(next);
        match (put, draw.one_in(4)) {
            (true, false) => {
                ops.push((true, next));
                next += 1;
            }
            (put, _) => ops.push((put, known)),
        }
    }
    let right = kept(room, &ops, [true, true]);

    let list: Vec<String> = ops
        .iter()
        .map(|(put, chunk)| format!("{} {chunk}", if *put { "put" } else { "get" }))
        .collect();
    let begin = wrapped(&format!(
        "A tier in DRAM has room for {room} chunks, which are all of one size. It evicts the chunk \
         that was used longest ago. It is empty, and then:"
    ));
    let text = format!(
        "{begin}\n\n{}\n\nWhich chunks does it have in the end, in ascending order?",
        list.chunks(6).map(|line| line.join(", ")).collect::<Vec<_>>().join(",\n")
    );
    let explanation = wrapped(&format!(
        "A put and a get of a chunk that is there are uses: it becomes the one used last. A get of \
         one that is not there changes nothing. A put of one evicts the chunk used longest ago, if \
         {room} are there. In the end it has {}.",
        joined(&right)
    ));
    let facts = json!({
        "room": room,
        "ops": ops.iter().map(|(put, chunk)| json!([usize::from(*put), chunk])).collect::<Vec<_>>(),
    });
    let mistake = |used| Answer::Rows(kept(room, &ops, used));
    let newest: Vec<i64> = (next.saturating_sub(room)..next).map(|chunk| chunk as i64).collect();
    Question::new(text, Answer::Rows(right), explanation, facts)
        .mistake(mistake([false, true]), "a get is a use, too")
        .mistake(mistake([true, false]), "a put of a chunk that is there is a use of it")
        .mistake(mistake([false, false]), "a chunk that is used again becomes the one used last")
        .mistake(
            Answer::Rows(newest),
            "evicted is the chunk used longest ago, not the one put first",
        )
}

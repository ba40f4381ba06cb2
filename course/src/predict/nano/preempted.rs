//! Which requests lose their blocks when the pool is full.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{joined, separated};

pub const KIND: Kind = Kind {
    name: "preempted",
    about: "requests that lose blocks in a full pool",
    chapter: "one-token.md#a-full-pool",
    draw,
};

const BLOCK_SIZE: usize = 4;

/// What a step does with the requests: its story, and those that are preempted, by their index.
fn step(stored: &[usize], mut free: usize, names: &[usize]) -> (Vec<String>, Vec<usize>) {
    let (mut story, mut preempted) = (Vec::new(), Vec::new());
    let (mut i, mut running) = (0, stored.len());
    while i < running {
        let (name, has) = (names[i], stored[i].div_ceil(BLOCK_SIZE));
        if stored[i] < has * BLOCK_SIZE {
            story.push(format!("request {name}: there is room in its last block"));
            i += 1;
        } else if free > 0 {
            free -= 1;
            story.push(format!("request {name}: its blocks are full, and it takes a free one"));
            i += 1;
        } else {
            running -= 1;
            let gives = stored[running].div_ceil(BLOCK_SIZE);
            free += gives;
            preempted.push(running);
            let last = names[running];
            let whose = if running == i { "it is" } else { &format!("request {last} was") };
            story.push(format!(
                "request {name}: no block is free; {whose} admitted last, and gives {gives} back"
            ));
        }
    }
    (story, preempted)
}

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(3, 4);
    let mut left: Vec<usize> = (1..=9).collect();
    let names: Vec<usize> = (0..n).map(|_| left.swap_remove(draw.below(left.len()))).collect();
    // Half of the requests are at the end of a block.
    let stored: Vec<usize> = (0..n)
        .map(|_| {
            let full = BLOCK_SIZE * draw.between(1, 2);
            if draw.one_in(3) { full + draw.between(1, 3) } else { full }
        })
        .collect();
    let free = draw.below(2);
    let (story, preempted) = step(&stored, free, &names);
    if preempted.is_empty() {
        return self::draw(draw);
    }

    let lines: Vec<String> = names
        .iter()
        .zip(&stored)
        .map(|(name, stored)| format!("request {name}   {stored} tokens in its blocks"))
        .collect();
    let text = format!(
        "Blocks of {BLOCK_SIZE} tokens, and {} free. These requests run, the one that\n\
         came first at the top. The next step is to compute one token of each:\n\n{}\n\n\
         Which requests are preempted in that step, in the order in which it happens?",
        if free == 1 { "one block is" } else { "no block is" },
        separated(&lines, "\n")
    );
    let named = |indices: &[usize]| -> Vec<usize> { indices.iter().map(|i| names[*i]).collect() };
    let explanation =
        format!("{}\nPreempted: {}", separated(&story, "\n"), joined(&named(&preempted)));
    let rows = |indices: &[usize]| {
        Answer::Rows(named(indices).into_iter().map(|name| name as i64).collect())
    };
    let needy: Vec<usize> = (0..n).filter(|i| stored[*i].is_multiple_of(BLOCK_SIZE)).collect();
    let without: Vec<usize> = needy.iter().copied().skip(free).collect();
    let lasts: Vec<usize> = (0..n).rev().take(without.len()).collect();
    let reversed: Vec<usize> = preempted.iter().rev().copied().collect();
    let facts = json!({
        "block_size": BLOCK_SIZE, "free": free,
        "requests": names.iter().zip(&stored).map(|(name, s)| json!([name, s])).collect::<Vec<_>>(),
    });
    Question::new(text, rows(&preempted), explanation, facts)
        .mistake(rows(&[0]), "the request admitted last is preempted, not the first one")
        .mistake(rows(&without), "a request takes the blocks of the one admitted last")
        .mistake(rows(&needy), "a free block is taken, and then those of the request admitted last")
        .mistake(
            rows(&lasts),
            "a preempted request gives all of its blocks back, and needs none itself",
        )
        .mistake(rows(&[n - 1]), "go on: more requests than that one lack a block")
        .mistake(rows(&reversed), "the other way round: the last one goes first")
        .mistake(rows(&[n - 2]), "a request that needs a block may itself be the last one")
}

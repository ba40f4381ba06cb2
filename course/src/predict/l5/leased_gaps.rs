//! How many blocks leases hold between the turns of a job.

use serde_json::json;

use super::drawn::table;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "leased-gaps",
    about: "blocks that leases hold behind each turn of a job",
    chapter: "l5-scheduler/retention.md",
    draw,
};

/// Prompts and outputs of the job of five turns, with blocks of 16.
const FIVE_TURNS: [(usize, usize); 5] = [(61, 9), (125, 12), (280, 20), (390, 22), (490, 20)];

fn draw(draw: &mut Draw) -> Question {
    let known = draw.one_in(8);
    let block_size = if known { 16 } else { draw.pick(&[4, 8, 16, 32]) };
    let turns = if known { FIVE_TURNS.to_vec() } else { drawn(draw, block_size) };

    let last = turns.len() - 1;
    let each = |blocks: fn(usize, usize, usize) -> usize, kept: bool| -> Answer {
        let of = |(n, (prompt, output)): (usize, &(usize, usize))| {
            if n == last && !kept { 0 } else { blocks(*prompt, *output, block_size) as i64 }
        };
        Answer::List(turns.iter().enumerate().map(of).collect())
    };
    let right = each(|prompt, output, size| (prompt + output - 1) / size, false);

    let rows: Vec<Vec<usize>> =
        turns.iter().zip(1..).map(|((prompt, output), n)| vec![n, *prompt, *output]).collect();
    let begin = wrapped(&format!(
        "Blocks of {block_size} tokens. A job has {} turns; each prompt begins with the conversation \
         before it, and the last one says that it is the last:",
        turns.len()
    ));
    let asked = wrapped(
        "The retention makes a lease of every turn that another one follows. How many blocks do \
         leases hold behind each turn?",
    );
    let rows = table(&["turn", "prompt tokens", "output tokens"], &rows);
    let text = format!("{begin}\n\n{rows}\n\n{asked}");
    let lines: Vec<String> = turns[..last]
        .iter()
        .zip(1..)
        .map(|((prompt, output), n)| {
            let computed = prompt + output - 1;
            let blocks = computed / block_size;
            format!("turn {n}: {prompt} + {output} - 1 = {computed} tokens, {blocks} full blocks")
        })
        .collect();
    let explanation = format!(
        "The last output token is not computed, and only full blocks are held.\n{}\n{}",
        lines.join("\n"),
        wrapped(
            "Behind the last turn nothing is held. The lease of a turn takes the place of the one \
             before it, whose blocks it contains."
        )
    );
    let facts = json!({
        "block_size": block_size,
        "turns": turns.iter().map(|(prompt, output)| json!([prompt, output])).collect::<Vec<_>>(),
    });
    Question::new(text, right, explanation, facts)
        .mistake(
            each(|prompt, output, size| (prompt + output - 1).div_ceil(size), false),
            "only full blocks are held: no other block can be hit",
        )
        .mistake(
            each(|prompt, output, size| (prompt + output) / size, false),
            "the last output token is computed by the next turn",
        )
        .mistake(
            each(|prompt, output, size| (prompt + output - 1) / size, true),
            "behind the last turn nothing is held",
        )
        .mistake(each(|prompt, _, size| prompt / size, false), "outputs are in the blocks, too")
}

fn drawn(draw: &mut Draw, block_size: usize) -> Vec<(usize, usize)> {
    let mut turns = Vec::new();
    let mut history = 0;
    for _ in 0..draw.between(3, 4) {
        let prompt = history + draw.between(block_size, 3 * block_size);
        let output = draw.between(2, 2 * block_size);
        history = prompt + output;
        turns.push((prompt, output));
    }
    turns
}

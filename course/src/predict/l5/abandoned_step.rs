//! What is left of a step that was planned and never ran.

use serde_json::json;

use super::drawn::{blocks, counted, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "abandoned-step",
    about: "blocks and queue after an abandoned step",
    chapter: "l5-scheduler/abandon.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8]);
    let n = draw.between(3, 4);
    let tokens: Vec<usize> = (0..n)
        .map(|_| match draw.one_in(3) {
            false => draw.between(1, 3) * block_size + 1,
            true => draw.between(2, 3 * block_size),
        })
        .collect();
    let scarce = !draw.one_in(3);
    let free = if scarce { draw.below(2) } else { n + draw.between(1, 4) };
    let prompts = draw.between(1, 2);
    let prompt = draw.between(2, block_size);

    // The plan: a block for each that begins one, and the last one admitted gives way.
    let size = |tokens: usize| blocks(tokens, block_size);
    let mut left = free;
    let mut running = n;
    let mut i = 0;
    let mut lines = Vec::new();
    while i < running {
        let new = size(tokens[i]) - size(tokens[i] - 1);
        while left < new && running > i {
            running -= 1;
            left += size(tokens[running] - 1);
            lines.push(format!("request {running} is preempted for request {i}"));
        }
        if i < running {
            left -= new;
            i += 1;
        }
    }
    let preempted = n - running;
    let back: usize = tokens[running..].iter().map(|t| size(t - 1)).sum();
    let admitted = if preempted > 0 { 0 } else { prompts.min(left / size(prompt)) };
    let (right_free, right_waiting) = (free + back, prompts + preempted);

    let rows: Vec<Vec<usize>> =
        tokens.iter().enumerate().map(|(i, t)| vec![i, *t, t - 1]).collect();
    let text = format!(
        "The policy is fcfs. Blocks of {block_size} tokens, {free} of them free, nothing shared.\n\
         These run, in the order of their admission:\n\n{}\n\n\
         {} of {} each wait{}. The next step is planned; the model\n\
         fails, and the step is abandoned. How many blocks are free then, and how many\n\
         requests wait?",
        table(&["request", "tokens", "computed"], &rows),
        if prompts == 1 { "A prompt".into() } else { counted(prompts, "prompt") },
        counted(prompt, "token"),
        if prompts == 1 { "s" } else { "" },
    );
    let mut explanation = lines.join("\n");
    if explanation.is_empty() {
        explanation = format!("No request is preempted, and {admitted} of {prompts} admitted.");
    }
    explanation += &format!(
        "\nBlocks that the step took go back, and requests it admitted wait again.\n\
         Requests it preempted stay so: {free} + {back} blocks, {prompts} + {preempted} requests"
    );
    let pair = |free: usize, waiting: usize| Answer::List(vec![free as i64, waiting as i64]);
    let facts = json!({
        "block_size": block_size, "free": free, "tokens": tokens, "prompts": prompts,
        "prompt": prompt,
    });
    let planned = left - admitted * size(prompt);
    Question::new(text, pair(right_free, right_waiting), explanation, facts)
        .mistake(
            pair(planned, right_waiting - admitted),
            "that is what the plan left; nothing that it took is kept",
        )
        .mistake(
            pair(free, prompts),
            "who was preempted has given its blocks up: that is not undone",
        )
        .mistake(pair(planned, right_waiting), "the blocks that it took go back, too")
        .mistake(
            pair(right_free, right_waiting - admitted),
            "requests that the step admitted wait again",
        )
        .mistake(
            pair(right_free, prompts + n),
            "those who ran go on running: they have what they had before",
        )
}

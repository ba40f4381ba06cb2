//! Of which rows of a batch a token is chosen.

use serde_json::json;

use super::drawn::{counted, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::joined;

pub const KIND: Kind = Kind {
    name: "sampled-rows",
    about: "the rows of a batch that are sampled",
    chapter: "l5-scheduler/sampling.md",
    draw,
};

/// A request before a step: its tokens, those that are computed, and those of the step.
#[derive(Clone, Copy)]
struct Part {
    tokens: usize,
    computed: usize,
    len: usize,
}

fn draw(draw: &mut Draw) -> Question {
    let chunk = draw.between(3, 6);
    let n = draw.between(3, 4);
    // Prompts and, longest first, how many steps each has behind it: nothing more decides. At the
    // beginning there are two, since who is alone is not cut.
    let mut steps: Vec<usize> = (0..n).map(|_| draw.below(5)).collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    steps[1] = steps[0];
    let prompts: Vec<usize> = (0..n).map(|_| draw.between(1, 3 * chunk)).collect();
    let parts: Vec<Part> = prompts
        .iter()
        .zip(&steps)
        .map(|(prompt, steps)| {
            let chunks = prompt.div_ceil(chunk);
            if *steps < chunks {
                let computed = steps * chunk;
                return Part { tokens: *prompt, computed, len: chunk.min(prompt - computed) };
            }
            let tokens = prompt + steps - chunks + 1;
            Part { tokens, computed: tokens - 1, len: 1 }
        })
        .collect();
    let mut ends = Vec::new();
    for part in &parts {
        ends.push(ends.last().copied().unwrap_or(0) + part.len);
    }
    let samples = |part: &Part| part.computed + part.len == part.tokens;
    let pick = |row: &dyn Fn(usize) -> usize, which: &dyn Fn(usize) -> bool| {
        let rows = (0..n).filter(|i| which(*i)).map(|i| row(i) as i64);
        Answer::Rows(rows.collect())
    };
    let wanted = |i: usize| samples(&parts[i]);
    let last = |i: usize| ends[i] - 1;
    let right: Vec<usize> = (0..n).filter(|i| wanted(*i)).map(last).collect();
    if right.is_empty() || parts.iter().all(|part| part.len == 1) {
        return self::draw(draw);
    }

    let rows: Vec<Vec<usize>> = parts
        .iter()
        .enumerate()
        .map(|(i, part)| vec![i, part.tokens, part.computed, part.len])
        .collect();
    let text = format!(
        "A step is packed in this order:\n\n{}\n\n\
         Of which rows of the batch, counted from 0, is a token chosen?",
        table(&["request", "tokens", "computed", "this step"], &rows)
    );
    let mut explanation = format!(
        "The batch has {}. A request gets a token if the step\n",
        counted(ends[n - 1], "row")
    ) + "computes the last one it has, from that one's row.\n";
    for (i, part) in parts.iter().enumerate() {
        let sum = format!("{} + {}", part.computed, part.len);
        explanation += &match samples(part) {
            true => format!("request {i}: {sum} = {}, so row {}\n", part.tokens, last(i)),
            false => format!("request {i}: {sum} < {}, so none\n", part.tokens),
        };
    }
    explanation += &joined(&right);
    let facts = json!({
        "chunk": chunk, "prompts": prompts, "steps": steps,
        "tokens": parts.iter().map(|p| p.tokens).collect::<Vec<_>>(),
        "lens": parts.iter().map(|p| p.len).collect::<Vec<_>>(),
    });
    let answer = Answer::Rows(right.iter().map(|row| *row as i64).collect());
    Question::new(text, answer, explanation, facts)
        .mistake(pick(&last, &|_| true), "a prompt that goes on is due no token yet")
        .mistake(pick(&last, &|i| i + 1 == n), "each request that is through gets one")
        .mistake(pick(&|i| ends[i], &wanted), "off by one: that is where the next request begins")
        .mistake(
            pick(&|i| ends[i] - parts[i].len, &wanted),
            "those are the first rows; the last one has seen all",
        )
        .mistake(
            pick(&|i| parts[i].tokens - 1, &wanted),
            "those are positions; rows count over the batch",
        )
        .mistake(pick(&|i| i, &wanted), "those are requests; rows are tokens of the batch")
        .mistake(
            pick(&last, &|i| parts[i].len == 1),
            "the last chunk of a prompt is due a token, too",
        )
}

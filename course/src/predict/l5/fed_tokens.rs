//! Which tokens a mixed batch feeds the model.

use serde_json::json;

use super::drawn::table;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::joined;

pub const KIND: Kind = Kind {
    name: "fed-tokens",
    about: "input ids of a mixed batch",
    chapter: "l5-scheduler/packing.md",
    draw,
};

/// A request's part of a step.
struct Part {
    prompt: Vec<usize>,
    answer: Vec<usize>,
    computed: usize,
    len: usize,
}

impl Part {
    fn tokens(&self) -> Vec<usize> {
        [&self.prompt[..], &self.answer[..]].concat()
    }
}

fn draw(draw: &mut Draw) -> Question {
    // One that writes, one in the midst of its prompt, and one that begins or comes back.
    let mut order = [0, 1, 2];
    for i in (1..3).rev() {
        order.swap(i, draw.below(i + 1));
    }
    let parts: Vec<Part> = order
        .iter()
        .enumerate()
        .map(|(place, what)| {
            let base = 10 * (place + 1);
            let len = draw.between(3, 5);
            let prompt: Vec<usize> = (0..len).map(|i| base + i).collect();
            let wrote = |draw: &mut Draw| -> Vec<usize> {
                (0..draw.between(1, 3)).map(|_| draw.between(50, 99)).collect()
            };
            match what {
                0 => {
                    let answer = wrote(draw);
                    Part { computed: len + answer.len() - 1, len: 1, prompt, answer }
                }
                1 => {
                    let computed = draw.between(1, len - 1);
                    let len = computed.min(len - computed);
                    Part { prompt, answer: Vec::new(), computed, len }
                }
                _ => {
                    let answer = if draw.one_in(2) { Vec::new() } else { wrote(draw) };
                    let all = prompt.len() + answer.len();
                    let len = if draw.one_in(2) { all } else { draw.between(2, all - 1) };
                    Part { prompt, answer, computed: 0, len }
                }
            }
        })
        .collect();

    let fed =
        |of: &dyn Fn(&Part) -> Vec<usize>| -> Vec<usize> { parts.iter().flat_map(of).collect() };
    let right = fed(&|part| part.tokens()[part.computed..part.computed + part.len].to_vec());
    let rows: Vec<Vec<String>> = parts
        .iter()
        .enumerate()
        .map(|(i, part)| {
            let answer = if part.answer.is_empty() { "-".into() } else { joined(&part.answer) };
            vec![
                i.to_string(),
                joined(&part.prompt),
                answer,
                part.computed.to_string(),
                part.len.to_string(),
            ]
        })
        .collect();
    let text = format!(
        "A step has these rows:\n\n{}\n\nWhich tokens are fed to the model, in order (input_ids)?",
        table(&["request", "prompt", "answer so far", "computed", "this step"], &rows)
    );
    let mut explanation =
        "Of prompt and answer together: behind the computed ones, as many as are due.\n"
            .to_string();
    for (i, part) in parts.iter().enumerate() {
        let (from, to) = (part.computed, part.computed + part.len);
        explanation += &format!(
            "request {i}: tokens {from} to {}: {}\n",
            to - 1,
            joined(&part.tokens()[from..to])
        );
    }
    let explanation = explanation.trim_end().to_string();
    let list = |tokens: Vec<usize>| Answer::Rows(tokens.iter().map(|t| *t as i64).collect());
    let facts = json!({
        "parts": parts.iter().map(|part| json!({
            "prompt": part.prompt, "answer": part.answer, "computed": part.computed, "len": part.len,
        })).collect::<Vec<_>>(),
    });
    let last = |part: &Part| part.tokens().last().copied().into_iter().collect::<Vec<_>>();
    Question::new(text, list(right), explanation, facts)
        .mistake(
            list(fed(&|part| match part.answer.len() {
                0 => part.tokens()[part.computed..part.computed + part.len].to_vec(),
                _ => last(part),
            })),
            "the last token alone is fed only when all others are computed",
        )
        .mistake(
            list(fed(&|part| part.prompt[..part.len.min(part.prompt.len())].to_vec())),
            "what is computed is not fed again",
        )
        .mistake(
            list(fed(&|part| {
                let (from, n) = (part.computed.min(part.prompt.len()), part.prompt.len());
                part.prompt[from..n.min(from + part.len)].to_vec()
            })),
            "the tokens of the answer are fed as those of the prompt are",
        )
        .mistake(
            list(fed(&|part| part.tokens()[part.computed..].to_vec())),
            "no more than the tokens of this step",
        )
        .mistake(list(fed(&last)), "a prompt is fed token by token, all of them")
        .mistake(
            list(fed(&|part| {
                let tokens = part.tokens();
                tokens[tokens.len() - part.len..].to_vec()
            })),
            "go on behind the computed ones, not back from the end",
        )
}

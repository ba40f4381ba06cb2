//! Whose logits a step is asked for.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

pub const KIND: Kind = Kind {
    name: "logit-rows",
    about: "the rows whose logits a step is asked for",
    chapter: "l2-model/decoder.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let sequences = draw.between(2, 5);
    let lens: Vec<i64> = (0..sequences)
        .map(|_| if draw.one_in(2) { 1 } else { draw.between(2, 9) as i64 })
        .collect();
    let mut cu = vec![0];
    for len in &lens {
        cu.push(cu[cu.len() - 1] + len);
    }
    // A chunk in the middle of a prompt wants no logits at all.
    let prompts: Vec<usize> = (0..sequences).filter(|s| lens[*s] > 1).collect();
    let unfinished = (!prompts.is_empty() && sequences > 2 && draw.one_in(2))
        .then(|| prompts[draw.below(prompts.len())]);

    let wanted: Vec<usize> = (0..sequences).filter(|s| Some(*s) != unfinished).collect();
    let rows: Vec<i64> = wanted.iter().map(|s| cu[s + 1] - 1).collect();
    let chunk = match unfinished {
        Some(s) => format!(
            "\nSequence {s} brings a chunk from the middle of its prompt; each other one wants\n\
             its next token."
        ),
        None => "\nEach sequence wants its next token.".into(),
    };
    let text = format!(
        "A batch of {sequences} sequences, cu_seqlens_q = [{}].{chunk}\n\
         What is logit_rows (indices into the batch)?",
        commas(&cu)
    );
    let mut explanation =
        "The next token comes from a sequence's last row: cu_seqlens_q[s + 1] - 1.\n".to_string();
    for s in 0..sequences {
        explanation += &if Some(s) == unfinished {
            format!("sequence {s}: none, its prompt goes on\n")
        } else {
            format!("sequence {s}: {} - 1 = {}\n", cu[s + 1], cu[s + 1] - 1)
        };
    }
    explanation += &format!("[{}]", commas(&rows));
    let of = |row: &dyn Fn(usize) -> i64| Answer::Rows(wanted.iter().map(|s| row(*s)).collect());
    let facts = json!({ "cu_seqlens_q": cu, "rows": rows });
    let all = (0..sequences).map(|s| cu[s + 1] - 1).collect();
    Question::new(text, Answer::Rows(rows), explanation, facts)
        .mistake(Answer::Rows(all), "a prompt that goes on wants no logits yet")
        .mistake(
            of(&|s| cu[s + 1]),
            "off by one: cu_seqlens_q[s + 1] is where the next sequence begins",
        )
        .mistake(of(&|s| cu[s]), "those are the first rows; the last one has seen the whole prompt")
        .mistake(of(&|s| lens[s] - 1), "those count within a sequence; rows count over the batch")
        .mistake(of(&|s| s as i64), "those are sequences; rows are tokens of the batch")
        .mistake(of(&|s| lens[s]), "those are lengths")
}

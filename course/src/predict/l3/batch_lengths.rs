//! The lengths in a batch's description.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{joined, separated};

pub const KIND: Kind = Kind {
    name: "batch-lengths",
    about: "cu_seqlens_q or seq_lens_kv of a step",
    chapter: "l3-paged-kv/meta.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let sequences = draw.between(3, 4);
    let mut lines = String::new();
    let mut steps = Vec::new();
    for s in 0..sequences {
        let (computed, q_len) = match draw.below(4) {
            0 => (0, draw.between(2, 9)),
            1 => (draw.between(1, 4) * 8, draw.between(2, 8)),
            _ => (draw.between(3, 40), 1),
        };
        let what = match (computed, q_len) {
            (0, _) => "its whole prompt",
            (_, 1) => "its next token",
            _ => "a chunk of its prompt",
        };
        lines += &format!("sequence {s}: {computed} stored, {q_len} new ({what})\n");
        steps.push((computed, q_len));
    }
    let asks_q = draw.one_in(2);

    let mut ends = vec![0];
    for (_, q_len) in &steps {
        ends.push(ends[ends.len() - 1] + q_len);
    }
    let kv: Vec<usize> = steps.iter().map(|(computed, q_len)| computed + q_len).collect();
    let asked = if asks_q { "cu_seqlens_q" } else { "seq_lens_kv" };
    let text = format!("A step runs these sequences, in this order:\n\n{lines}\nWhat is {asked}?");
    let list = |values: Vec<usize>| Answer::List(values.iter().map(|n| *n as i64).collect());
    let facts = json!({
        "asked": asked,
        "computed": steps.iter().map(|s| s.0).collect::<Vec<_>>(),
        "q_lens": steps.iter().map(|s| s.1).collect::<Vec<_>>(),
    });
    if asks_q {
        let lens: Vec<usize> = steps.iter().map(|s| s.1).collect();
        let explanation = format!(
            "{} rows stand in a line. cu_seqlens_q says where those of each\n\
             sequence begin, and at the end how many there are.\n{}",
            separated(&lens, " + "),
            joined(&ends)
        );
        // A list with fewer numbers than are asked for is not read, so wrong ones have as many.
        let keys: Vec<usize> = kv.iter().fold(vec![0], |mut sums, n| {
            sums.push(sums[sums.len() - 1] + n);
            sums
        });
        let with_total = |mut list: Vec<usize>| {
            list.push(list.iter().sum());
            list
        };
        let last = |ends: &[usize]| ends.iter().map(|n| n.saturating_sub(1)).collect();
        return Question::new(text, list(ends.clone()), explanation, facts)
            .mistake(list(keys), "rows of the batch are new tokens; stored ones bring none")
            .mistake(list(with_total(lens)), "those are lengths, not where each begins")
            .mistake(list(last(&ends)), "where a sequence ends is where the next one begins");
    }
    let explanation = format!(
        "Attention reads what is stored and what this step writes: stored + new.\n{}",
        joined(&kv)
    );
    let stored: Vec<usize> = steps.iter().map(|s| s.0).collect();
    let new: Vec<usize> = steps.iter().map(|s| s.1).collect();
    Question::new(text, list(kv.clone()), explanation, facts)
        .mistake(list(stored), "the step's own keys are written before it attends, and count")
        .mistake(list(new), "those are the queries; keys are also the stored ones")
        .mistake(list(ends[1..].to_vec()), "that is where the queries end in the batch")
        .mistake(
            list(kv.iter().map(|n| n - 1).collect()),
            "those are the last positions; a length is one more",
        )
}

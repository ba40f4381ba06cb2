//! Where in a GGUF file a tensor's bytes begin.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "gguf-offset",
    about: "where in a GGUF file a tensor begins",
    chapter: "l2-model/gguf.md",
    draw,
};

const ALIGNMENT: usize = 32;

fn draw(draw: &mut Draw) -> Question {
    let head = draw.between(300, 900);
    let names = ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"];
    let count = draw.between(2, 3);
    let sizes: Vec<usize> = (0..count).map(|_| draw.between(5, 60)).collect();
    let asked = draw.between(1, count - 1);

    let mut offsets = vec![0];
    for n in &sizes[..count - 1] {
        let end = offsets[offsets.len() - 1] + 4 * n;
        offsets.push(up(end));
    }
    let data = up(head);
    let place = data + offsets[asked];

    let mut lines = String::new();
    for (name, n) in names.iter().zip(&sizes) {
        lines += &format!("{name:<24} F32 [{n}]\n");
    }
    let text = format!(
        "A GGUF file, alignment 32. Header, metadata and tensor infos take the first\n\
         {head} bytes. Its tensors, in the order of the file, one right behind the other\n\
         but for padding:\n\n{lines}\n\
         At which byte of the file (counted from 0) does {} begin?",
        names[asked]
    );
    let mut explanation =
        format!("The data begins at the next multiple of 32: {head} -> {data}.\n");
    for (k, n) in sizes.iter().enumerate().take(asked) {
        let end = offsets[k] + 4 * n;
        explanation += &format!(
            "{}: offset {}, 4 * {n} = {} bytes; {end} up to a multiple of 32: {}\n",
            names[k].rsplit('.').nth(1).unwrap_or(names[k]),
            offsets[k],
            4 * n,
            offsets[k + 1]
        );
    }
    explanation += &format!("{data} + {} = {place}", offsets[asked]);

    let whole = |n: usize| Answer::Whole(n as i64);
    let packed: usize = sizes[..asked].iter().map(|n| 4 * n).sum();
    let elements: usize = sizes[..asked].iter().fold(0, |at, n| up(at + n));
    let facts = json!({ "head": head, "sizes": sizes, "asked": asked, "names": names[..count] });
    Question::new(text, whole(place), explanation, facts)
        .mistake(
            whole(offsets[asked]),
            "that is the offset in the info; it counts from the data section",
        )
        .mistake(whole(head + offsets[asked]), "the data section is aligned, too")
        .mistake(whole(data + packed), "each tensor begins at a multiple of 32")
        .mistake(whole(head + packed), "the data section and each tensor begin at multiples of 32")
        .mistake(whole(up(head + packed)), "padded once at the end, and not behind each")
        .mistake(whole(data + elements), "F32 takes four bytes")
        .mistake(whole(data), "that is where the first tensor begins")
}

fn up(n: usize) -> usize {
    n.div_ceil(ALIGNMENT) * ALIGNMENT
}

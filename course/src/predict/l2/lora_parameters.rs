//! How large an adapter is.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "lora-parameters",
    about: "numbers in a LoRA adapter",
    chapter: "l2-model/lora.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let layers = draw.pick(&[2, 3, 4, 6, 12]);
    let d = draw.pick(&[32, 64]);
    let kv_heads = draw.pick(&[1, 2, 3, 4]);
    let group = draw.pick(&[2, 3, 4]);
    let (q, kv) = (kv_heads * group * d, kv_heads * d);
    let hidden = q;
    let inner = hidden * draw.pick(&[2, 3, 4]);
    let rank = draw.pick(&[4, 8, 16, 32]);
    let (names, shapes) = match draw.pick(&[0, 1, 2]) {
        0 => ("q_proj and v_proj", vec![(q, hidden), (kv, hidden)]),
        1 => ("k_proj and o_proj", vec![(kv, hidden), (hidden, q)]),
        _ => ("up_proj and down_proj", vec![(inner, hidden), (hidden, inner)]),
    };

    let of = |cost: &dyn Fn(usize, usize) -> usize| -> usize {
        shapes.iter().map(|(n, k)| cost(*n, *k)).sum()
    };
    let layer = of(&|n, k| rank * (n + k));
    let total = layers * layer;
    let text = format!(
        "A model of {layers} layers with H = {hidden}, H_q = {}, H_kv = {kv_heads}, D = {d}, I = {inner}.\n\
         A LoRA adapter of rank {rank} changes {names} of every layer.\n\
         How many numbers does it have?",
        kv_heads * group,
    );
    let terms: Vec<_> = shapes.iter().map(|(n, k)| format!("{rank} * ({n} + {k})")).collect();
    let explanation = format!(
        "A is [r, K] and B is [N, r]: r (N + K) numbers for each projection\n\
         = {layers} * ({}) = {}",
        terms.join(" + "),
        grouped(total as i64)
    );
    let count = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "layers": layers, "hidden": hidden, "q_heads": kv_heads * group, "kv_heads": kv_heads,
        "head_dim": d, "intermediate": inner, "rank": rank, "modules": names,
    });
    Question::new(text, count(total), explanation, facts)
        .mistake(count(layer), "that is one layer")
        .mistake(count(layers * of(&|n, k| n * k)), "those are the projections themselves")
        .mistake(count(layers * of(&|_, k| rank * k)), "that is A alone; B has numbers, too")
        .mistake(count(layers * of(&|n, _| rank * n)), "that is B alone; A has numbers, too")
        .mistake(
            count(layers * of(&|n, k| rank * n * k)),
            "A and B are two matrices: their sizes are added, not multiplied",
        )
        .mistake(count(2 * total), "those are bytes in bf16; the question is about numbers")
}

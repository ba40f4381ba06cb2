//! How many weights a layer has.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "layer-weights",
    about: "how many weights a layer has",
    chapter: "l2-model/config.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let family = draw.pick(&["llama", "qwen2", "qwen3"]);
    let d = draw.pick(&[4, 8, 16]);
    let kv_heads = draw.between(1, 3);
    let q_heads = kv_heads * draw.between(2, 3);
    // A qwen3 head need not be hidden / q_heads.
    let h = if family == "qwen3" { 2 * d * draw.between(2, 5) } else { q_heads * d };
    let i = h * draw.between(2, 4);

    let (q, kv) = (q_heads * d, kv_heads * d);
    let attention = q * h + 2 * kv * h + h * q;
    let mlp = 3 * i * h;
    let (extra, extra_said) = match family {
        "qwen2" => (q + 2 * kv, format!("biases:  {q} + 2 * {kv} = {}\n", q + 2 * kv)),
        "qwen3" => (2 * d, format!("norms of q and k heads: 2 * {d} = {}\n", 2 * d)),
        _ => (0, String::new()),
    };
    let norms = 2 * h;
    let total = attention + mlp + extra + norms;

    let has = match family {
        "qwen2" => "qwen2 (bias on q, k and v)",
        "qwen3" => "qwen3 (a norm of each q and k head; no biases)",
        _ => "llama (no biases)",
    };
    let text = format!(
        "A config of family {has}:\n\nH = {h}, H_q = {q_heads}, H_kv = {kv_heads}, D = {d}, I = {i}\n\n\
         How many weights does one layer have, norms{} included?",
        if extra > 0 { " and all" } else { "" }
    );
    let explanation = format!(
        "q:       [{q}, {h}] = {}\nk and v: 2 * [{kv}, {h}] = {}\no:       [{h}, {q}] = {}\n{extra_said}\
         gate and up: 2 * [{i}, {h}] = {}\ndown:    [{h}, {i}] = {}\n\
         the norms before attention and MLP: 2 * {h} = {norms}\ntogether {}",
        grouped((q * h) as i64),
        grouped((2 * kv * h) as i64),
        grouped((h * q) as i64),
        grouped((2 * i * h) as i64),
        grouped((i * h) as i64),
        grouped(total as i64)
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "family": family, "hidden": h, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": d,
        "intermediate": i,
    });
    Question::new(text, whole(total), explanation, facts)
        .mistake(whole(total - norms), "the two norms of the layer are missing")
        .mistake(whole(total - h), "a layer has two norms: before attention and before the MLP")
        .mistake(whole(total - extra), "the matrices and norms are right; the family has more")
        .mistake(whole(total - i * h), "gate, up and down: the MLP has three matrices")
        .mistake(whole(total + 2 * (q - kv) * h), "k and v have H_kv heads, fewer than the queries")
        .mistake(whole(total - h * q), "the o projection is missing")
        .mistake(whole(total - kv * h), "k and v are two matrices")
        .mistake(
            whole(total - attention + 2 * h * h + 2 * kv * h),
            "attention is H_q * D wide, which need not be H",
        )
}

//! Which KV head a query head reads.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "gqa-head",
    about: "the KV head that a query head reads",
    chapter: "l1-tensors/attention.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let (kv_heads, group) = (draw.between(2, 8), draw.between(2, 6));
    let q_heads = kv_heads * group;
    let h = draw.between(1, q_heads - 1);

    let head = h / group;
    let text = format!(
        "Attention with {q_heads} query heads and {kv_heads} KV heads (all counted from 0).\n\
         Whose keys does query head {h} read: which KV head is it?"
    );
    let from = head * group;
    let explanation = format!(
        "group = H_q / H_kv = {q_heads} / {kv_heads} = {group}\n\
         KV head = h / group = {h} / {group} = {head}, rounded down: it serves query heads\n\
         {from} to {}.",
        from + group - 1
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "q_heads": q_heads, "kv_heads": kv_heads, "head": h });
    Question::new(text, whole(head), explanation, facts)
        .mistake(whole(h % kv_heads), "groups are neighbours: h / group, not h % H_kv")
        .mistake(
            whole(h / kv_heads),
            "divided by the number of KV heads, not by the size of a group",
        )
        .mistake(whole(h % group), "that is the place of the query head in its group")
        .mistake(whole(head + 1), "KV heads are counted from 0")
}

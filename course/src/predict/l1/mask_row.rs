//! Which keys a query sees.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "mask-row",
    about: "the first and the last key a query sees",
    chapter: "l1-tensors/attention.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let q_len = draw.between(2, 6);
    let cached = draw.between(1, 10);
    let kv_len = cached + q_len;
    let i = draw.below(q_len);
    let p = kv_len - q_len + i;
    let window = (!draw.one_in(4)).then(|| draw.between(2, p + 1));

    let lo = window.map_or(0, |w| (p + 1).saturating_sub(w));
    let said = match window {
        Some(w) => format!("a sliding window of {w}"),
        None => "no sliding window".into(),
    };
    let text = format!(
        "A step of causal attention: q_len = {q_len}, kv_len = {kv_len}, {said}.\n\
         Which are the first and the last key that query {i} sees (all counted from 0)?"
    );
    let first = match window {
        Some(w) => format!("max(0, p + 1 - window) = max(0, {p} + 1 - {w}) = {lo}"),
        None => "0: there is no window".into(),
    };
    let explanation = format!(
        "The query's own position: p = kv_len - q_len + i = {kv_len} - {q_len} + {i} = {p}\n\
         last key: {p}, itself\nfirst key: {first}"
    );
    let pair = |a: usize, b: usize| Answer::List(vec![a as i64, b as i64]);
    let lo_of = |p: usize| window.map_or(0, |w| (p + 1).saturating_sub(w));
    let facts = json!({ "q_len": q_len, "kv_len": kv_len, "window": window, "i": i });
    let mut question = Question::new(text, pair(lo, p), explanation, facts)
        .mistake(pair(lo_of(i), i), "query 0 of this step is not token 0: keys wait in the cache")
        .mistake(pair(lo, p - 1), "a query sees its own key")
        .mistake(pair(lo, p + 1), "the last one is the query's own key, which is included")
        .mistake(pair(lo_of(kv_len - 1), kv_len - 1), "causal: no query sees keys behind its own")
        .mistake(pair(lo, kv_len - 1), "causal: no query sees keys behind its own");
    if let Some(w) = window {
        question = question
            .mistake(pair(0, p), "the window is missing")
            .mistake(
                pair(p.saturating_sub(w), p),
                "a window of n is n keys, the query's own among them",
            )
            .mistake(
                pair(kv_len.saturating_sub(w), p),
                "the window ends at the query, not at the last key",
            );
    }
    question
}

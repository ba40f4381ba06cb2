//! How many weights a whole model has, tied or not.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "model-weights",
    about: "how many weights a whole model has",
    chapter: "l2-model/config.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let (kv_heads, group, d) = (draw.between(1, 2), draw.between(2, 3), draw.pick(&[4, 8]));
    let q_heads = kv_heads * group;
    let h = q_heads * d;
    let i = h * draw.between(2, 3);
    let layers = draw.between(2, 6);
    let v = 50 * draw.between(2, 20);
    let tied = draw.one_in(2);

    let layer = 2 * h * h + 2 * kv_heads * d * h + 3 * i * h + 2 * h;
    let (embedding, head) = (v * h, if tied { 0 } else { v * h });
    let total = embedding + layers * layer + h + head;
    let text = format!(
        "A llama without biases, H = {h}, vocabulary V = {v}, {layers} layers of\n\
         {} weights each (norms included), embeddings {}.\nHow many weights has the model?",
        grouped(layer as i64),
        if tied { "tied" } else { "not tied" }
    );
    let head_said = if tied {
        "head:       0, it is the embedding".to_string()
    } else {
        format!("head:       [{v}, {h}] = {}", grouped(head as i64))
    };
    let explanation = format!(
        "embedding:  [{v}, {h}] = {}\nlayers:     {layers} * {} = {}\nfinal norm: {h}\n{head_said}\n\
         together    {}",
        grouped(embedding as i64),
        grouped(layer as i64),
        grouped((layers * layer) as i64),
        grouped(total as i64)
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "family": "llama", "hidden": h, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": d,
        "intermediate": i, "layers": layers, "vocab": v, "tied": tied,
    });
    let question = Question::new(text, whole(total), explanation, facts)
        .mistake(whole(total - h), "the norm before the head is missing");
    if tied {
        question
            .mistake(whole(total + v * h), "tied: the head is the embedding, not a second matrix")
            .mistake(whole(total - v * h), "the embedding is missing")
            .mistake(whole(total + v * h - h), "tied, and one norm comes before the head")
    } else {
        question
            .mistake(whole(total - v * h), "not tied: the head is a matrix of its own")
            .mistake(whole(total - v * h - h), "a head of its own, and one norm before it")
            .mistake(whole(total - 2 * v * h), "embedding and head are missing")
    }
}

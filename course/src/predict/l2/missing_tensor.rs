//! Which tensor a checkpoint lacks, given its config.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "missing-tensor",
    about: "which tensor a checkpoint lacks",
    chapter: "l2-model/checkpoints.md",
    draw,
};

const LAYER: &str = "model.layers.0.";
const HEAD: &str = "lm_head.weight";

fn draw(draw: &mut Draw) -> Question {
    let family = draw.pick(&["llama", "qwen2", "qwen3"]);
    let tied = draw.one_in(2);
    let all = expected(family, tied);
    // Those that a family or a flag brings along are the interesting ones.
    let special: Vec<&String> = all
        .iter()
        .filter(|name| name.contains("bias") || name.contains("_norm") || *name == HEAD)
        .collect();
    let missing = if draw.one_in(3) || special.is_empty() {
        all[draw.below(all.len())].clone()
    } else {
        special[draw.below(special.len())].clone()
    };
    let mut listed: Vec<String> = all.iter().filter(|n| **n != missing).cloned().collect();
    // A file lists its tensors in an order of its own.
    for i in (1..listed.len()).rev() {
        listed.swap(i, draw.below(i + 1));
    }

    let ties = if tied { "tied" } else { "not tied" };
    let text = format!(
        "A checkpoint of a {family} with one layer, embeddings {ties};\n\
         `attention_bias` and `mlp_bias` are not set. Its tensors:\n\n{}\n\nOne is missing. Which?",
        listed.join("\n")
    );
    let explanation = format!(
        "Outside of the layer: embed_tokens, norm{}.\n\
         In it: two norms; q, k, v, o; gate, up, down{}.\n\
         Of these, {missing} is not in the list.",
        if tied { "; tied, so no lm_head" } else { " and, not tied, lm_head" },
        match family {
            "qwen2" => ";\nin a qwen2 biases of q, k, v",
            "qwen3" => ";\nin a qwen3 norms of q and k",
            _ => "",
        }
    );
    let name = |name: &str| Answer::Name(LAYER, name.into());
    let facts = json!({ "family": family, "tied": tied, "listed": listed });
    let mut question = Question::new(text, name(&missing), explanation, facts);
    if tied {
        question =
            question.mistake(name(HEAD), "the embeddings are tied: the head is the embedding");
    }
    for there in &listed {
        question = question.mistake(name(there), "that one is in the list");
    }
    for other in expected("qwen2", false).iter().chain(&expected("qwen3", false)) {
        question = question.mistake(name(other), format!("a {family} has no such tensor"));
    }
    question.mistake(
        name("model.layers.0.self_attn.o_proj.bias"),
        "the o projection has no bias where `attention_bias` is not set",
    )
}

/// Every tensor of a model with one layer.
fn expected(family: &str, tied: bool) -> Vec<String> {
    let layer = |part: &str| format!("{LAYER}{part}");
    let mut names = vec!["model.embed_tokens.weight".into(), "model.norm.weight".into()];
    for part in ["input_layernorm", "post_attention_layernorm"] {
        names.push(layer(&format!("{part}.weight")));
    }
    for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        names.push(layer(&format!("self_attn.{part}.weight")));
        if family == "qwen2" && part != "o_proj" {
            names.push(layer(&format!("self_attn.{part}.bias")));
        }
    }
    if family == "qwen3" {
        names.push(layer("self_attn.q_norm.weight"));
        names.push(layer("self_attn.k_norm.weight"));
    }
    for part in ["gate_proj", "up_proj", "down_proj"] {
        names.push(layer(&format!("mlp.{part}.weight")));
    }
    if !tied {
        names.push(HEAD.into());
    }
    names
}

//! The log probability of a token.

use serde_json::json;

use super::drawn::{Table, likeliest, listed};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{significant, wrapped};

pub const KIND: Kind = Kind {
    name: "row-logprob",
    about: "a log probability, raw or processed",
    chapter: "l4-sampler/logprobs.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(4, 6);
    let weights: Vec<usize> = (0..n).map(|_| draw.between(1, 8)).collect();
    let k = draw.between(2, n - 1);
    let order = likeliest(&weights);
    let chosen = order[draw.below(k)];
    let raw = draw.one_in(2);
    let cool = draw.one_in(2);

    let shares = |cool: bool| -> Vec<usize> {
        weights.iter().map(|w| if cool { w * w } else { *w }).collect()
    };
    let logprob = |cool: bool, k: usize| {
        let shares = shares(cool);
        let total: usize = order[..k].iter().map(|i| shares[*i]).sum();
        (shares[chosen], total, (shares[chosen] as f64 / total as f64).ln())
    };
    let (share, total, right) = if raw { logprob(false, n) } else { logprob(cool, k) };
    let logits: Vec<String> =
        weights.iter().map(|w| if *w == 1 { "0".into() } else { format!("ln {w}") }).collect();
    let ids: Vec<usize> = (0..n).collect();
    let table = Table::new().row("token", &ids).row("logit", &logits);
    let temperature = if cool { 0.5 } else { 1.0 };
    let text = format!(
        "A row of logits:\n\n{table}\n\n\
         With temperature {temperature} and top_k {k}, token {chosen} was drawn. What is its {}\n\
         log probability? `ln(2/3)` is a way to write one.",
        if raw { "raw" } else { "processed" }
    );
    let end = format!("ln({share}/{total}) = {}.", significant(right));
    let explanation = if raw {
        wrapped(&format!(
            "Raw is the model's own distribution: neither temperature nor top-k. e^(ln n) = n, so the \
             shares sum to {total}, and token {chosen} has {share} of it: {end}"
        ))
    } else {
        let does = if cool { "squares" } else { "leaves" };
        wrapped(&format!(
            "Processed is what was drawn from. Temperature {temperature} {does} the shares; top-k leaves \
             tokens {}. Their shares sum to {total}, of which token {chosen} has {share}: {end}",
            listed(&order[..k])
        ))
    };
    let facts = json!({
        "weights": weights, "k": k, "temperature": temperature, "chosen": chosen, "raw": raw,
    });
    let mut question = Question::new(text, Answer::Real(right), explanation, facts);
    for (cool, k, why) in [
        (false, n, "processed is after temperature and filters: what was drawn from"),
        (false, k, "the temperature comes before the filters"),
        (cool, n, "what top-k threw out has no probability left, the others share it"),
        (cool, k, ""),
    ] {
        let why = if raw {
            "raw is the model's distribution, before temperature and filters"
        } else {
            why
        };
        question = question.mistake(Answer::Real(logprob(cool, k).2), why);
    }
    question
        .mistake(Answer::Real(right.exp()), "that is the probability; its logarithm is asked for")
        .mistake(Answer::Real(-right), "the logarithm of a probability is never above 0")
        .mistake(
            Answer::Real((weights[chosen] as f64).ln()),
            "that is the logit: the logarithm of the sum is still to be subtracted",
        )
        .mistake(Answer::Real(right / std::f64::consts::LN_2), "the natural logarithm is asked for")
        .mistake(
            Answer::Real(right / std::f64::consts::LN_10),
            "the natural logarithm is asked for",
        )
}

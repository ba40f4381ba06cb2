//! The likeliest token, after all that may change the logits.

use serde_json::json;

use super::drawn::{Table, ids, listed};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "greedy-token",
    about: "the token of a row at temperature 0",
    chapter: "l4-sampler/sampler.md",
    draw,
};

const VOCAB: usize = 6;

/// How a reader goes through it.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Right,
    NoBias,
    BiasLast,
    BanIsLow,
    NoPenalty,
    SignForgotten,
    PromptForgotten,
    LastOfTies,
}

/// A row and a request. Logits are halves, and the penalty is 2: all of it is exact.
struct Said {
    logits: Vec<f64>,
    bias: (usize, f64),
    banned: usize,
    prompt: Vec<usize>,
    answer: Vec<usize>,
    presence: f64,
}

fn draw(draw: &mut Draw) -> Question {
    let low = if draw.one_in(3) { 1 } else { 7 };
    let logits: Vec<f64> =
        (0..VOCAB).map(|_| (draw.between(1, 12) as f64 - low as f64) / 2.0).collect();
    let seen = ids(draw, 3, VOCAB);
    let bias = (draw.below(VOCAB), draw.pick(&[1.0, 2.0, 3.0]));
    let said = Said {
        logits,
        bias,
        banned: draw.below(VOCAB),
        prompt: seen[..1].to_vec(),
        answer: seen[1..].to_vec(),
        presence: draw.pick(&[0.0, 0.5, 1.0]),
    };
    let temperature_only = draw.pick(&["top_k 3", "top_k 2, top_p 0.5", "top_p 0.9", "min_p 0.2"]);
    let seed = draw.below(100);

    let right = said.token(Turn::Right);
    let all: Vec<usize> = (0..VOCAB).collect();
    let table = Table::new().row("token", &all).row("logit", &said.logits);
    let text = format!(
        "A row of logits:\n\n{table}\n\n\
         The prompt holds token {}, the answer so far {}. The request says\n\
         logit_bias {{{}: {}}}, banned_tokens [{}], repetition_penalty 2,\n\
         presence_penalty {}, temperature 0, {temperature_only}, seed {seed}.\n\n\
         Which token is chosen?",
        listed(&said.prompt),
        listed(&said.answer),
        said.bias.0,
        said.bias.1,
        said.banned,
        said.presence
    );
    let after: Vec<String> =
        all.iter()
            .map(|i| {
                if *i == said.banned { "-".into() } else { said.logit(*i, Turn::Right).to_string() }
            })
            .collect();
    let biased: Vec<String> = all
        .iter()
        .map(|i| {
            let bias = if *i == said.bias.0 { said.bias.1 } else { 0.0 };
            if *i == said.banned { "-".into() } else { (said.logits[*i] + bias).to_string() }
        })
        .collect();
    let table = Table::new().row("token", &all).row("bias, ban", &biased).row("penalties", &after);
    let explanation = format!(
        "{table}\nThe largest is token {right}'s{}.\n\
         Temperature 0 takes it: filters have nothing to do, and no number is drawn.",
        if said.token(Turn::LastOfTies) == right { "" } else { " (of equal ones the lower id's)" }
    );
    let whole = |i: usize| Answer::Whole(i as i64);
    let facts = json!({
        "logits": said.logits, "bias": [said.bias.0 as f64, said.bias.1], "banned": said.banned,
        "prompt": said.prompt, "answer": said.answer, "presence": said.presence,
    });
    let mut question = Question::new(text, whole(right), explanation, facts);
    for (turn, why) in [
        (Turn::BanIsLow, "that one is banned"),
        (Turn::NoBias, "the bias is added at temperature 0, too"),
        (Turn::NoPenalty, "penalties are applied at temperature 0, too"),
        (Turn::SignForgotten, "a negative logit is multiplied by the repetition penalty"),
        (Turn::PromptForgotten, "the repetition penalty sees the prompt, too"),
        (Turn::BiasLast, "the bias comes first: the repetition penalty divides the sum"),
        (Turn::LastOfTies, "of equal logits the lower id wins"),
    ] {
        question = question.mistake(whole(said.token(turn)), why);
    }
    let plain = |i: &usize| said.logits[*i];
    let largest = (0..VOCAB).rev().max_by(|a, b| plain(a).total_cmp(&plain(b))).unwrap_or(0);
    question.mistake(whole(largest), "that is the largest before bias, ban and penalties")
}

impl Said {
    fn logit(&self, i: usize, turn: Turn) -> f64 {
        let bias = match i == self.bias.0 && turn != Turn::NoBias {
            true => self.bias.1,
            false => 0.0,
        };
        let mut logit = self.logits[i];
        if turn != Turn::BiasLast {
            logit += bias;
        }
        let answered = self.answer.contains(&i);
        let seen = answered || turn != Turn::PromptForgotten && self.prompt.contains(&i);
        if seen && turn != Turn::NoPenalty {
            let divided = logit > 0.0 || turn == Turn::SignForgotten;
            logit = if divided { logit / 2.0 } else { logit * 2.0 };
        }
        if answered && turn != Turn::NoPenalty {
            logit -= self.presence;
        }
        if turn == Turn::BiasLast { logit + bias } else { logit }
    }

    fn token(&self, turn: Turn) -> usize {
        let logit = |i: &usize| self.logit(*i, turn);
        let left = (0..VOCAB).filter(|i| *i != self.banned || turn == Turn::BanIsLow);
        // `max_by` keeps the last of equal ones.
        let best = match turn {
            Turn::LastOfTies => left.max_by(|a, b| logit(a).total_cmp(&logit(b))),
            _ => left.rev().max_by(|a, b| logit(a).total_cmp(&logit(b))),
        };
        best.unwrap_or(0)
    }
}

//! What a rejected token is replaced by.

use serde_json::json;

use super::drawn::{Table, hundredths, parts};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "residual-share",
    about: "what replaces a rejected token",
    chapter: "l4-sampler/verify.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(4, 5);
    // In twentieths.
    let (p, q) = (parts(draw, n, 20), parts(draw, n, 20));
    let residual: Vec<usize> = p.iter().zip(&q).map(|(p, q)| p.saturating_sub(*q)).collect();
    let total: usize = residual.iter().sum();
    let rejected: Vec<usize> = (0..n).filter(|i| p[*i] < q[*i]).collect();
    let gained: Vec<usize> = (0..n).filter(|i| residual[*i] > 0).collect();
    // One alone gets everything, which is no question.
    if gained.len() < 2 {
        return self::draw(draw);
    }
    let rejected = draw.pick(&rejected);
    let mut asked = draw.pick(&gained);
    if draw.one_in(8) {
        asked = draw.below(n);
    }

    let right = residual[asked] as f64 / total as f64;
    let column = |of: &[usize]| of.iter().map(|t| hundredths(5 * t)).collect::<Vec<_>>();
    let ids: Vec<usize> = (0..n).collect();
    let table = Table::new()
        .row("token", &ids)
        .row("the model, p", &column(&p))
        .row("the draft, q", &column(&q));
    let text = format!(
        "{table}\n\nThe draft's token {rejected} was rejected. With what probability does token {asked} take its\n\
         place?"
    );
    let left = Table::new().row("token", &ids).row("max(0, p - q)", &column(&residual));
    let sum: Vec<String> = column(&residual).into_iter().filter(|t| t != "0").collect();
    let explanation = format!(
        "{left}\n\
         The sum is {} = {}.\n\
         Made a distribution again, token {asked} has {} / {} = {}/{total}.\n\
         What the draft proposed too often is not drawn; what it proposed too rarely is\n\
         made up for.",
        separated(&sum, " + "),
        hundredths(5 * total),
        hundredths(5 * residual[asked]),
        hundredths(5 * total),
        residual[asked]
    );
    let real = |of: usize, total: usize| Answer::Real(of as f64 / total as f64);
    let others = 20 - p[rejected];
    let distance: usize = p.iter().zip(&q).map(|(p, q)| p.abs_diff(*q)).sum();
    let facts = json!({ "p": p, "q": q, "asked": asked });
    let mut question = Question::new(text, Answer::Real(right), explanation, facts)
        .mistake(real(residual[asked], 20), "made a distribution again: divide by the sum")
        .mistake(
            real(p[asked], 20),
            "what the draft had its chance with is taken off: max(0, p - q), not p",
        );
    if asked != rejected {
        question = question.mistake(
            real(p[asked], others),
            "not p without the rejected token: max(0, p - q), made a distribution again",
        );
    }
    question
        .mistake(real(p[asked].abs_diff(q[asked]), distance), "where q is larger, nothing is left")
        .mistake(real(q[asked], 20), "the draft's own probability has had its chance")
        .mistake(
            real(q[asked].saturating_sub(p[asked]), total),
            "the other way round: max(0, p - q)",
        )
}

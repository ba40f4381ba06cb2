//! How much of a draft stands.

use serde_json::json;

use super::drawn::{Table, hundredths};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::significant;

pub const KIND: Kind = Kind {
    name: "drafts-accepted",
    about: "how many tokens of a draft stand",
    chapter: "l4-sampler/verify.md",
    draw,
};

/// A number this near to the limit of acceptance is no question, in hundredths.
const NEAR: f64 = 6.0;

fn draw(draw: &mut Draw) -> Question {
    let k = draw.between(3, 4);
    let certain = draw.one_in(4);
    // Probabilities of the drafted token: the model's and the draft's, in hundredths.
    let mut rows: Vec<[usize; 3]> = Vec::new();
    while rows.len() < k {
        let q = if certain { 100 } else { 5 * draw.between(8, 19) };
        let p = 5 * draw.between(if certain { 10 } else { 5 }, if certain { 19 } else { 17 });
        let u = draw.between(6, 94);
        let limit = 100.0 * p as f64 / q as f64;
        // The first is accepted mostly, or there would be no draft to judge.
        let soon = rows.is_empty() && u as f64 > limit && !draw.one_in(3);
        if (limit - u as f64).abs() > NEAR && !soon {
            rows.push([p, q, u]);
        }
    }

    let stands = |[p, q, u]: &[usize; 3]| u * q < 100 * p;
    let right = rows.iter().take_while(|row| stands(row)).count();
    let column = |which: usize| rows.iter().map(|row| hundredths(row[which])).collect::<Vec<_>>();
    let places: Vec<usize> = (0..k).collect();
    let mut table = Table::new().row("place", &places).row("the model's probability", &column(0));
    if !certain {
        table = table.row("the draft's probability", &column(1));
    }
    let table = table.row("random number (accept)", &column(2));
    let from = if certain {
        "A lookup drafts tokens, without chance."
    } else {
        "A small model drafts tokens by chance."
    };
    let text = format!(
        "{from} About the drafted tokens:\n\n{table}\n\n\
         How many tokens of the draft are accepted?"
    );
    let mut explanation = match certain {
        true => "Drafted without chance, a token had all of the draft's probability: q = 1.\n",
        false => "",
    }
    .to_string();
    explanation += "A token is accepted if the number is below p / q, and all before it were:\n";
    for (place, row @ [p, q, u]) in rows.iter().enumerate().take(right + 1) {
        let verdict = if stands(row) { "below: accepted" } else { "not below: rejected" };
        explanation += &format!(
            "place {place}: {} / {} = {}, {} is {verdict}\n",
            hundredths(*p),
            hundredths(*q),
            significant(*p as f64 / *q as f64),
            hundredths(*u)
        );
    }
    explanation += &match right {
        n if n == k => format!("All {k} stand, and a bonus token follows."),
        n => format!("{n} stand; at place {n} another token is drawn, the rest is forgotten."),
    };
    let whole = |n: usize| Answer::Whole(n as i64);
    let prefix = |accepts: &dyn Fn(&[usize; 3]) -> bool| {
        whole(rows.iter().take_while(|row| accepts(row)).count())
    };
    let facts = json!({ "rows": rows, "certain": certain });
    Question::new(text, whole(right), explanation, facts)
        .mistake(
            whole(rows.iter().filter(|row| stands(row)).count()),
            "behind a rejected token nothing stands: the rest followed from it",
        )
        .mistake(
            prefix(&|[p, q, _]| p >= q),
            "p < q is no rejection yet: such a token is accepted with p / q",
        )
        .mistake(prefix(&|[p, _, u]| u < p), "the number is compared with p / q, not with p")
        .mistake(prefix(&|row| !stands(row)), "the number must be below p / q")
        .mistake(prefix(&|[_, q, u]| u < q), "the number is compared with p / q, not with q")
        .mistake(whole(right + 1), "that counts the token behind them: it is none of the draft's")
        .mistake(whole(k), "one of them is rejected")
}

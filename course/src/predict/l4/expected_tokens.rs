//! What a draft brings on average.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::significant;

pub const KIND: Kind = Kind {
    name: "expected-tokens",
    about: "tokens of a verified draft on average",
    chapter: "l4-sampler/verify.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let percent = draw.pick(&[25, 40, 50, 50, 60, 70, 75, 80, 90]);
    let k = draw.between(1, 8);
    let a = f64::from(percent) / 100.0;

    let right = (0..=k).map(|i| a.powi(i as i32)).sum::<f64>();
    let (tokens, all) = if k == 1 { ("token", "") } else { ("tokens", ", if it is reached") };
    let text = format!(
        "A draft has {k} {tokens}, each accepted with probability {a}{all}.\n\
         How many tokens does a step of the model bring, on average?",
    );
    let terms = match k {
        1 => format!("1 + {a}"),
        2 => format!("1 + {a} + {a}^2"),
        _ => format!("1 + {a} + ... + {a}^{k}"),
    };
    let explanation = format!(
        "A first token always comes: the draft's, or the one that replaces it. A second\n\
         one comes if the first was accepted, a third if two were, and so on; behind a\n\
         whole draft it is the bonus:\n\
         {terms} = (1 - {a}^{}) / (1 - {a}) = {}",
        k + 1,
        significant(right)
    );
    let facts = json!({ "percent": percent, "k": k });
    let n = k as f64;
    Question::new(text, Answer::Real(right), explanation, facts)
        .mistake(
            Answer::Real(right - 1.0),
            "those are the draft's; behind them comes one more, whatever happens",
        )
        .mistake(
            Answer::Real(1.0 + a * n),
            "behind a rejected token the rest is forgotten: the i-th needs all before it",
        )
        .mistake(Answer::Real(a * n), "not every token has its chance: those before it must stand")
        .mistake(
            Answer::Real(right - a.powi(k as i32)),
            "behind a draft that was accepted whole comes a bonus token",
        )
        .mistake(Answer::Real(n + 1.0), "that many if all of the draft is accepted")
        .mistake(
            Answer::Real(1.0 + n * a.powi(k as i32)),
            "the part of a draft in front of a rejected token stands",
        )
        .mistake(Answer::Real(1.0 / (1.0 - a)), "that is a draft without end")
}

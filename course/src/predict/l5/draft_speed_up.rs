//! How much faster an engine is with drafts.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{significant, wrapped};

pub const KIND: Kind = Kind {
    name: "draft-speed-up",
    about: "tokens a second with drafts, compared with none",
    chapter: "l5-scheduler/speculation.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let percent = draw.pick(&[30, 50, 60, 70, 80, 90]);
    let k = draw.between(2, 6);
    let without = draw.between(8, 20);
    let with = without + draw.between(1, without);
    let a = f64::from(percent) / 100.0;

    let tokens = (0..=k).map(|i| a.powi(i as i32)).sum::<f64>();
    let (slower, right) = (with as f64 / without as f64, tokens * without as f64 / with as f64);
    let text = wrapped(&format!(
        "A step of one request takes {without} ms without drafts and {with} ms with {}. Each draft is accepted with \
         probability {a}, if all before it are. How many times as many tokens a second does the engine make with drafts?",
        counted(k, "draft"),
    ));
    let explanation = format!(
        "a step with drafts brings 1 + {a} + .. + {a}^{k} = {} tokens instead of one\n\
         and takes {with} / {without} = {} times as long\n\
         {} / {} = {}",
        significant(tokens),
        significant(slower),
        significant(tokens),
        significant(slower),
        significant(right),
    );
    let facts = json!({ "percent": percent, "k": k, "without": without, "with": with });
    let all = (k + 1) as f64;
    Question::new(text, Answer::Real(right), explanation, facts)
        .mistake(Answer::Real(tokens), "a step with drafts takes longer")
        .mistake(Answer::Real(all / slower), "that many if every draft is accepted")
        .mistake(
            Answer::Real((1.0 + a * k as f64) / slower),
            "behind a rejected draft the others are lost, too",
        )
        .mistake(Answer::Real((tokens - 1.0) / slower), "one token always comes, with drafts too")
        .mistake(Answer::Real(tokens * slower), "longer steps make fewer tokens a second")
}

//! What three penalties make of a logit.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::significant;

pub const KIND: Kind = Kind {
    name: "penalised-logit",
    about: "a logit after three penalties",
    chapter: "l4-sampler/penalties.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let size = draw.between(1, 8) as f64 / 2.0;
    let logit = if draw.one_in(2) { size } else { -size };
    let repetition = draw.pick(&[1.0, 1.25, 2.0, 2.0]);
    let presence = draw.pick(&[0.0, 0.5, 1.0]);
    let frequency = draw.pick(&[0.25, 0.5, 1.0]);
    // In the prompt only, in the answer only, or in both.
    let in_prompt = draw.pick(&[0, 1, 2, 3]);
    let in_answer = if in_prompt > 0 && draw.one_in(3) { 0 } else { draw.between(1, 3) };

    let away = |logit: f64, by: f64| if logit > 0.0 { logit / by } else { logit * by };
    let subtracted =
        |count: usize| (if count > 0 { presence } else { 0.0 }) + frequency * count as f64;
    let repeated = away(logit, repetition);
    let right = repeated - subtracted(in_answer);
    let times = |n: usize| match n {
        1 => "once".into(),
        2 => "twice".into(),
        n => format!("{n} times"),
    };
    let text = format!(
        "A token has the logit {logit}. The prompt holds it {}, the answer so far\n{}.\n\n\
         repetition_penalty {repetition}, presence_penalty {presence}, frequency_penalty {frequency}\n\n\
         What is its logit after these penalties?",
        times(in_prompt),
        times(in_answer)
    );
    let repeating = match (repetition, logit > 0.0) {
        (1.0, _) => "a repetition penalty of 1 changes nothing".to_string(),
        (_, true) => format!(
            "it was seen, and is positive: {logit} / {repetition} = {}",
            significant(repeated)
        ),
        (_, false) => format!(
            "it was seen, and is negative: {logit} * {repetition} = {}; either way it\n\
             becomes less likely",
            significant(repeated)
        ),
    };
    let rest = match in_answer {
        0 => "the answer does not hold it: presence and frequency do not look at the prompt".into(),
        n => format!(
            "the answer holds it: {} - {presence} (once) - {frequency} * {n} = {}",
            significant(repeated),
            significant(right)
        ),
    };
    let explanation = format!("{repeating}\n{rest}");
    let facts = json!({
        "logit": logit, "repetition": repetition, "presence": presence, "frequency": frequency,
        "in_prompt": in_prompt, "in_answer": in_answer,
    });
    let counts = (in_prompt + in_answer) as i32;
    Question::new(text, Answer::Real(right), explanation, facts)
        .mistake(
            Answer::Real(logit / repetition - subtracted(in_answer)),
            "dividing makes a negative logit larger: it is multiplied",
        )
        .mistake(
            Answer::Real(repeated - subtracted(in_prompt + in_answer)),
            "presence and frequency count the answer; the prompt is not the model's doing",
        )
        .mistake(
            Answer::Real(if in_answer == 0 { logit } else { right }),
            "the repetition penalty sees the prompt, too",
        )
        .mistake(
            Answer::Real(repeated - (presence + frequency) * in_answer as f64),
            "presence is subtracted once, however often the token stands there",
        )
        .mistake(
            Answer::Real(repeated - presence - frequency),
            match in_answer {
                0 => "presence and frequency count the answer, which does not hold the token",
                _ => "frequency is subtracted as many times as the answer holds the token",
            },
        )
        .mistake(
            Answer::Real(away(logit - subtracted(in_answer), repetition)),
            "the repetition penalty comes first: the others are subtracted from what it leaves",
        )
        .mistake(
            Answer::Real(away(logit, repetition.powi(counts)) - subtracted(in_answer)),
            "the repetition penalty is applied once, however often the token was seen",
        )
        .mistake(
            Answer::Real(repeated + subtracted(in_answer)),
            "a penalty above 0 makes a token less likely",
        )
}

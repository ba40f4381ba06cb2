//! How many steps a device can replay from recordings, for given arrivals.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{separated, wrapped};

pub const KIND: Kind = Kind {
    name: "replayable-steps",
    about: "steps that a device can replay",
    chapter: "l5-scheduler/shapes.md",
    draw,
};

/// Steps that only decode, if prompts wait for `most` of them. `early` says whether steps count that came before the
/// prompt.
fn stable(arrivals: &[usize], most: usize, early: bool) -> Vec<bool> {
    let (mut waiting, mut decoded) = (0, 0);
    let steps = arrivals.iter().map(|arrivals| {
        let none = waiting == 0;
        waiting += arrivals;
        if none && waiting > 0 && !early {
            decoded = 0;
        }
        let prompts = waiting > 0 && decoded >= most;
        decoded = if prompts { 0 } else { decoded + 1 };
        waiting = if prompts { 0 } else { waiting };
        !prompts
    });
    steps.collect()
}

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(10, 14);
    let most = draw.between(2, 4);
    let is_stable = !draw.one_in(3);
    // About one request a step, and in many steps none.
    let arrivals: Vec<usize> = (0..n).map(|_| draw.pick(&[0, 0, 0, 1, 1, 2, 3])).collect();
    let count = |steps: &[bool]| steps.iter().filter(|decodes| **decodes).count();

    let without = arrivals.iter().filter(|n| **n == 0).count();
    let steps = stable(&arrivals, most, true);
    let right = if is_stable { count(&steps) } else { without };
    let setting = match is_stable {
        true => format!("compose is stable, with max_decode_steps {most}"),
        false => "compose is mixed".into(),
    };
    let about = wrapped(&format!(
        "A step has room for all prompts that wait; {setting}. In how many of these {} do all rows decode, so that a \
         device can replay them?",
        counted(n, "step"),
    ));
    let text = format!(
        "Requests decode in all of the following steps, and the step before the first\n\
         one computed prompts. Before each step this many requests arrive:\n\n\
         {}\n\n{about}",
        separated(&arrivals, "  "),
    );
    let explanation = match is_stable {
        true => {
            let shapes: Vec<&str> = steps.iter().map(|d| if *d { "D" } else { "P" }).collect();
            format!(
                "{}\n{}\n\n\
                 A step of prompts (P) comes when a prompt waits and {most} steps that decode (D)\n\
                 have passed since the last one. All prompts that wait are in it.",
                separated(&arrivals, "  "),
                separated(&shapes, "  ")
            )
        }
        false => {
            format!("{without} of the steps have no arrival: the others have prompts in them.")
        }
    };
    let facts = json!({
        "arrivals": arrivals, "max_decode_steps": if is_stable { most } else { 0 },
    });
    let whole = |n: usize| Answer::Whole(n as i64);
    let other = if is_stable { without } else { count(&steps) };
    let why = match is_stable {
        true => "a prompt waits for its step: with arrivals in a step it can still only decode",
        false => {
            "with mixed steps a prompt does not wait: it is in the step that it arrives before"
        }
    };
    let question = Question::new(text, whole(right), explanation, facts)
        .mistake(whole(other), why)
        .mistake(whole(n - right), "those are the steps with prompts");
    if !is_stable {
        return question;
    }
    question
        .mistake(
            whole(count(&stable(&arrivals, most, false))),
            "steps that decoded before the prompt arrived count, too",
        )
        .mistake(
            whole(count(&stable(&arrivals, most + 1, true))),
            "after that many steps that decode, the next one has the prompts",
        )
        .mistake(
            whole(n - n / (most + 1)),
            "a step of prompts comes only if a prompt waits; if none does, the step decodes",
        )
}

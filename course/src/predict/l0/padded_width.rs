//! To which recorded width a step is filled up.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "padded-width",
    about: "filler rows of a recorded step",
    chapter: "l0-kernels/graphs.md",
    draw,
};

/// The next recorded width: 1, 2, 4, 8, from there by 8 to 64, by 16 to 256.
fn width(rows: usize) -> usize {
    match rows {
        0..=8 => rows.next_power_of_two(),
        9..=64 => rows.next_multiple_of(8),
        _ => rows.next_multiple_of(16),
    }
}

fn draw(draw: &mut Draw) -> Question {
    let rows = match draw.below(3) {
        0 => draw.between(3, 8),
        1 => draw.between(9, 64),
        _ => draw.between(65, 256),
    };
    let filler = width(rows) - rows;
    let text = format!(
        "Decode steps are recorded for 1, 2, 4 and 8 rows, from there for every eighth\n\
         number to 64, and for every sixteenth to 256. A step decodes {rows} sequences,\n\
         one token each.\n\n\
         How many rows of filler does it get?"
    );
    let explanation =
        format!("The next recorded width is {}: {} - {rows} = {filler}.", width(rows), width(rows));
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "rows": rows });
    let mut question = Question::new(text, whole(filler), explanation, facts)
        .mistake(whole(width(rows)), "that is the width; the sequences themselves are no filler")
        .mistake(whole(rows.next_power_of_two() - rows), "only the first widths are powers of two");
    if rows > 8 {
        let other = if rows <= 64 { rows.next_multiple_of(16) } else { rows.next_multiple_of(8) };
        question = question.mistake(whole(other - rows), "steps of 8 end at 64; beyond it is 16");
    }
    question
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_goes_to_the_first_width_of_the_list_that_holds_it() {
        let by_eight = (1..=8).map(|n| 8 * n);
        let by_sixteen = (5..=16).map(|n| 16 * n);
        let widths: Vec<usize> = [1, 2, 4].into_iter().chain(by_eight).chain(by_sixteen).collect();
        for rows in 1..=256 {
            let first = widths.iter().find(|width| **width >= rows);
            assert_eq!(Some(&width(rows)), first, "{rows} rows");
        }
    }
}

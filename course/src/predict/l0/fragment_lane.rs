//! Which lane holds an element of a tensor core's result.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "fragment-lane",
    about: "who holds an element of an mma's result",
    chapter: "l0-kernels/matmul.md",
    draw,
};

/// The lane and the register of an element of the 16 x 8 result.
fn holder(row: usize, column: usize) -> (usize, usize) {
    (row % 8 * 4 + column / 2, row / 8 * 2 + column % 2)
}

fn draw(draw: &mut Draw) -> Question {
    let (row, column) = (draw.below(16), draw.below(8));
    let (lane, register) = holder(row, column);
    let text = format!(
        "A warp multiplies a 16 x 16 by a 16 x 8 matrix with one mma. With\n\
         group = lane / 4 and pair = lane % 4, a lane's registers 0 and 1 hold\n\
         columns 2 pair and 2 pair + 1 of row group of the result, registers 2 and 3\n\
         the same columns of row group + 8.\n\n\
         Which lane and which of its registers hold row {row}, column {column}? Two numbers."
    );
    let explanation = format!(
        "group is {row} % 8 = {}, pair is {column} / 2 = {}: lane 4 x {} + {} = {lane}.\n\
         The register is {} for the column, and {} for the row: {register}.",
        row % 8,
        column / 2,
        row % 8,
        column / 2,
        column % 2,
        if row < 8 { "0 more" } else { "2 more" },
    );
    let both = |lane: usize, register: usize| Answer::List(vec![lane as i64, register as i64]);
    let facts = json!({ "row": row, "column": column });
    Question::new(text, both(lane, register), explanation, facts)
        .mistake(both(lane, column % 2), "the lower eight rows are in registers 2 and 3")
        .mistake(both(row % 8 * 4 + column % 4, register), "neighbouring columns are one lane's")
        .mistake(both(column / 2 * 8 + row % 8, register), "four neighbouring lanes share a row")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_where_the_rule_puts_it_and_no_two_share_a_place() {
        let mut seen = std::collections::BTreeSet::new();
        for lane in 0..32 {
            for register in 0..4 {
                // The rule as the question says it, from the lane's side.
                let (group, pair) = (lane / 4, lane % 4);
                let (row, column) = (group + register / 2 * 8, 2 * pair + register % 2);
                assert_eq!(holder(row, column), (lane, register));
                assert!(seen.insert((row, column)));
            }
        }
        assert_eq!(seen.len(), 128);
    }
}

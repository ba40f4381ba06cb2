//! Where an element of a long sum goes.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "lane-of",
    about: "the way of an element through a sum",
    chapter: "l1-tensors/lanes.md",
    draw,
};

const LANES: usize = 16;

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(40, 200);
    let i = draw.between(LANES, n - 1);
    // How many folds have happened: after 8; after 8 and 4; after 8, 4 and 2.
    let folds = draw.below(4);

    let lane = i % LANES;
    let left = LANES >> folds;
    let place = lane % left;
    let done = match folds {
        0 => "before any lanes are folded".into(),
        1 => "after the first fold (8 lanes left)".into(),
        n => format!("after {} folds ({left} lanes left)", ["two", "three"][n - 2]),
    };
    let text = format!(
        "A row of {n} numbers is added up in 16 lanes, which are then folded.\n\
         In which lane (counted from 0) is element {i} (counted from 0)\n{done}?"
    );
    let mut explanation = format!("Element i goes to lane i % 16: {i} % 16 = {lane}.");
    let mut at = lane;
    for half in [8, 4, 2].into_iter().take(folds) {
        let (from, to) = (at, at % half);
        explanation += &if from == to {
            format!(
                "\nThe fold by {half} adds lane {} to lane {from}: it stays in {from}.",
                from + half
            )
        } else {
            format!("\nThe fold by {half} adds lane {from} to lane {to}: now it is in {to}.")
        };
        at = to;
    }
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "n": n, "i": i, "folds": folds });
    Question::new(text, whole(place), explanation, facts)
        .mistake(whole(lane), "that is the lane it went to; the folds are missing")
        .mistake(
            whole(lane >> folds),
            "a fold adds the upper half of the lanes to the lower half, not neighbours to each other",
        )
        .mistake(whole(i * LANES / n), "elements are dealt in turn, not in sixteen runs")
        .mistake(whole(i % 8 % left), "there are 16 lanes, also where vectors hold 8")
}

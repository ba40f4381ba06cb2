//! Whose values a lane has after some steps of a butterfly.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "butterfly",
    about: "whose values are in a lane's sum",
    chapter: "l0-kernels/reduce.md",
    draw,
};

/// Lanes whose values are in the sum of `lane` after exchanges with these bits, in rising order.
fn gathered(lane: usize, bits: &[usize]) -> Vec<usize> {
    let fixed = !bits.iter().sum::<usize>();
    (0..32).filter(|other| other & fixed == lane & fixed).collect()
}

fn draw(draw: &mut Draw) -> Question {
    let lane = draw.below(32);
    let steps = draw.between(1, 2);
    let all: [usize; 5] = if draw.one_in(3) { [1, 2, 4, 8, 16] } else { [16, 8, 4, 2, 1] };
    let bits = &all[..steps];

    let text = format!(
        "A warp adds its 32 values up: in each step a lane adds what the lane has\n\
         whose number differs in one bit. The bits are {}, in this order.\n\n\
         Whose values are in the sum of lane {lane} after {}? Give the numbers of\n\
         the lanes, the smallest first.",
        separated(&all, ", "),
        if steps == 1 { "one step" } else { "two steps" },
    );
    let list = |lanes: &[usize]| Answer::Rows(lanes.iter().map(|l| *l as i64).collect());
    let lanes = gathered(lane, bits);
    let explanation = match steps {
        1 => format!("{lane} and {lane} xor {} = {}.", bits[0], lane ^ bits[0]),
        _ => format!(
            "After the first step lane {lane} has its own value and that of {lane} xor {} = {}.\n\
             Its partner in the second step, {lane} xor {} = {}, has its own and that of {}.",
            bits[0],
            lane ^ bits[0],
            bits[1],
            lane ^ bits[1],
            lane ^ bits[1] ^ bits[0]
        ),
    };
    let facts = json!({ "lane": lane, "bits": bits });
    let other: Vec<usize> = all.iter().rev().copied().take(steps).collect();
    let down: Vec<usize> = (0..=steps).map(|i| (lane + i) % 32).collect();
    Question::new(text, list(&lanes), explanation, facts)
        .mistake(list(&gathered(lane, &other)), "those are the bits from the other end")
        .mistake(list(&down), "partners are found by a bit, not by counting on")
        .mistake(
            list(&lanes[..lanes.len().min(steps + 1)]),
            "after two steps a lane has four values: its partner brings two",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_gathered_what_following_the_exchanges_gives() {
        for bits in [&[16, 8][..], &[1], &[1, 2, 4], &[16, 8, 4, 2, 1]] {
            let mut held: Vec<Vec<usize>> = (0..32).map(|lane| vec![lane]).collect();
            for bit in bits {
                let partner = |lane: usize| held[lane ^ bit].clone();
                held = (0..32).map(|lane| [held[lane].clone(), partner(lane)].concat()).collect();
            }
            for (lane, mut lanes) in held.into_iter().enumerate() {
                lanes.sort_unstable();
                assert_eq!(gathered(lane, bits), lanes);
            }
        }
    }
}

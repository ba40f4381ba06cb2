//! Which seat a request gets, after others have come and gone.

use serde_json::json;

use super::drawn::{listed, names};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "seat",
    about: "the seat of a request that is admitted",
    chapter: "l5-scheduler/seats.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(4, 6);
    let names = names(draw, n + 3);
    let (first, newcomers) = names.split_at(n);
    let mut left: Vec<usize> = (0..n).collect();
    let gone: Vec<usize> =
        (0..draw.between(2, 3)).map(|_| left.swap_remove(draw.below(left.len()))).collect();
    let nth = draw.below(gone.len());

    // Each newcomer takes the lowest of the seats that are free.
    let mut free = gone.clone();
    free.sort_unstable();
    let right = free[nth];
    let ends: Vec<usize> = gone.iter().map(|seat| first[*seat]).collect();
    let asked = newcomers[nth];
    let text = format!(
        "All {} seats are free.\n\
         Requests {} are admitted, in this order.\n\
         Then requests {} end, in this order.\n\
         Then requests {} are admitted, in this order.\n\
         Which seat does request {asked} get? The first seat is 0.",
        n + 4,
        listed(first),
        listed(&ends),
        listed(&newcomers[..gone.len()]),
    );
    let explanation = format!(
        "The requests that are left keep their seats, so these are free: {},\n\
         and those that were never given. The lowest is given first, so request\n\
         {asked} gets seat {right}.",
        listed(&free)
    );
    let facts = json!({
        "seats": n + 4, "first": first, "end": ends, "then": &newcomers[..gone.len()], "nth": nth,
    });
    let seat = |seat: usize| Answer::Whole(seat as i64);
    Question::new(text, seat(right), explanation, facts)
        .mistake(
            seat(gone[nth]),
            "seats are given lowest first, not in the order in which they were returned",
        )
        .mistake(
            seat(gone[gone.len() - 1 - nth]),
            "seats are given lowest first, not in the reverse order of their return",
        )
        .mistake(seat(n + nth), "seats that were returned are given again")
        .mistake(
            seat(left.len() + nth),
            "seats are not row numbers: the requests that are left keep theirs",
        )
}

//! How large a nucleus is.

use serde_json::json;

use super::drawn::{hundredths, likeliest, parts};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

pub const KIND: Kind = Kind {
    name: "top-p-kept",
    about: "how many tokens top-p keeps",
    chapter: "l4-sampler/filters.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(5, 7);
    // In twentieths; p lies between two of them, so that no sum is equal to it.
    let twentieths = parts(draw, n, 20);
    let p = draw.pick(&[0, 32, 48, 57, 63, 72, 78, 83, 88, 88, 93, 93]);

    let order = likeliest(&twentieths);
    let kept = kept(&twentieths, &order, p);
    let probs: Vec<String> = twentieths.iter().map(|t| hundredths(t * 5)).collect();
    let text = format!(
        "The probabilities of tokens 0 to {}:\n\n[{}]\n\nHow many tokens does top_p = {} keep?",
        n - 1,
        commas(&probs),
        hundredths(p)
    );
    let mut explanation =
        "From the likeliest down; a token stays if those before it have less than p:\n".to_string();
    let mut before = 0;
    for (nth, i) in order.iter().enumerate() {
        let verdict = match nth {
            nth if nth < kept => "stays",
            _ => "goes, and all behind it",
        };
        explanation +=
            &format!("token {i} ({}): {} before it, {verdict}\n", probs[*i], hundredths(before));
        before += 5 * twentieths[*i];
        if nth == kept {
            break;
        }
    }
    explanation += &match p {
        0 => "p = 0 keeps one: an empty choice would be none.".to_string(),
        _ => format!("The one that crosses {} stays: {kept} tokens.", hundredths(p)),
    };
    let in_order: Vec<usize> = (0..n).collect();
    let large = twentieths.iter().filter(|t| 5 * **t >= p).count();
    let rare = twentieths.iter().filter(|t| 5 * **t >= 100 - p).count();
    let relative = twentieths.iter().filter(|t| 100 * **t >= p * twentieths[order[0]]).count();
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "parts": twentieths, "p": p });
    Question::new(text, whole(kept), explanation, facts)
        .mistake(
            whole(kept - 1),
            "the token that crosses p stays: together they must have at least p",
        )
        .mistake(whole(kept + 1), "one too many: without the last they have p already")
        .mistake(
            whole(self::kept(&twentieths, &in_order, p)),
            "sum from the likeliest down, not in the order of the ids",
        )
        .mistake(whole(large), "p is compared with the sum so far, not with each probability")
        .mistake(whole(rare), "p is compared with the sum so far, not with each probability")
        .mistake(whole(relative), "that is min-p: top-p sums")
}

/// Tokens of an order before which there is less than p; at least one.
fn kept(twentieths: &[usize], order: &[usize], p: usize) -> usize {
    let mut before = 0;
    let stays = |i: &&usize| {
        let stays = before < p;
        before += 5 * twentieths[**i];
        stays
    };
    order.iter().take_while(stays).count().max(1)
}

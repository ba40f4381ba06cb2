//! Who is left after several filters.

use serde_json::json;

use super::drawn::{Table, hundredths, likeliest, listed};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, separated};

pub const KIND: Kind = Kind {
    name: "filter-survivors",
    about: "tokens that several filters leave",
    chapter: "l4-sampler/filters.md",
    draw,
};

/// What a request says.
#[derive(Clone, Copy)]
struct Said {
    cool: bool,
    k: usize,
    p: usize,
    min_p: usize,
}

/// How a reader goes through it.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Right,
    NoTemperature,
    TiesStay,
    LastOfTies,
    NotAgain,
    TopPFirst,
    CrossingGoes,
    MinPOfAll,
    NoMinP,
}

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(6, 7);
    let cool = draw.one_in(3);
    let most = if cool { 5 } else { 9 };
    let weights: Vec<usize> = (0..n).map(|_| draw.between(1, most)).collect();
    let said = Said {
        cool,
        k: draw.between(3, n - 1),
        p: draw.pick(&[55, 65, 75, 85, 95]),
        min_p: draw.pick(&[0, 0, 15, 35, 45, 55]),
    };
    let Some(left) = said.left(&weights, Turn::Right) else {
        // A sum that is exactly p is a matter of rounding, and no question.
        return self::draw(draw);
    };

    let min_p = match said.min_p {
        0 => String::new(),
        m => format!(", min_p = {}", hundredths(m)),
    };
    let temperature = if cool { "0.5" } else { "1" };
    let ids: Vec<usize> = (0..n).collect();
    let table = Table::new().row("token", &ids).row("share", &weights);
    let text = format!(
        "At temperature 1 these tokens' probabilities are in the proportions\n\n{table}\n\n\
         A request has temperature = {temperature}, top_k = {}, top_p = {}{min_p}.\n\
         Which tokens may it draw? In ascending order.",
        said.k,
        hundredths(said.p)
    );
    let explanation = said.explained(&weights, &left);
    let rows = |ids: Vec<usize>| Answer::Rows(ids.into_iter().map(|id| id as i64).collect());
    let facts = json!({
        "weights": weights, "cool": cool, "k": said.k, "p": said.p, "min_p": said.min_p,
    });
    let mut question = Question::new(text, rows(left), explanation, facts);
    for (turn, why) in [
        (Turn::NoTemperature, "the temperature comes first: at 0.5 every proportion is squared"),
        (Turn::TiesStay, "top-k keeps exactly k: of equal tokens those with the lower ids"),
        (Turn::LastOfTies, "of equal tokens the lower ids come first"),
        (Turn::NotAgain, "top-p is a part of what top-k left, which sums to 1 again"),
        (Turn::TopPFirst, "top-k comes before top-p, which is a part of what top-k left"),
        (Turn::CrossingGoes, "the token that crosses p stays"),
        (Turn::MinPOfAll, "min-p is a part of the largest probability, not of all of it"),
        (Turn::NoMinP, "min-p throws out what is less than that part of the largest"),
    ] {
        // Nothing at all cannot be answered.
        if let Some(ids) = said.left(&weights, turn).filter(|ids| !ids.is_empty()) {
            question = question.mistake(rows(ids), why);
        }
    }
    question
}

impl Said {
    /// Tokens in order of their likelihood that are left by top-k and then by top-p; `None` where
    /// a sum is just p, or a share just that of min-p.
    fn left(self, weights: &[usize], turn: Turn) -> Option<Vec<usize>> {
        let weights: Vec<usize> = match self.cool && turn != Turn::NoTemperature {
            true => weights.iter().map(|w| w * w).collect(),
            false => weights.to_vec(),
        };
        let mut order = likeliest(&weights);
        if turn == Turn::LastOfTies {
            order.sort_by_key(|i| std::cmp::Reverse((weights[*i], *i)));
        }
        let total: usize = weights.iter().sum();
        let sum = |ids: &[usize]| ids.iter().map(|i| weights[*i]).sum::<usize>();
        let top_k = |ids: &[usize]| -> Vec<usize> {
            let kth = weights[ids[self.k.min(ids.len()) - 1]];
            let stays = |(nth, i): &(usize, usize)| {
                *nth < self.k || turn == Turn::TiesStay && weights[*i] == kth
            };
            ids.iter().copied().enumerate().filter(stays).map(|(_, i)| i).collect()
        };
        let top_p = |ids: &[usize], total: usize| -> Option<Vec<usize>> {
            let mut kept = Vec::new();
            for i in ids {
                let before = sum(&kept);
                if 100 * before == self.p * total {
                    return None;
                }
                if 100 * before > self.p * total {
                    break;
                }
                kept.push(*i);
            }
            if turn == Turn::CrossingGoes && kept.len() > 1 {
                kept.pop();
            }
            Some(kept)
        };
        let mut left = match turn {
            Turn::TopPFirst => top_k(&top_p(&order, total)?),
            Turn::NotAgain => top_p(&top_k(&order), total)?,
            _ => {
                let ids = top_k(&order);
                top_p(&ids, sum(&ids))?
            }
        };
        if turn != Turn::NoMinP {
            let largest = if turn == Turn::MinPOfAll { sum(&left) } else { weights[order[0]] };
            if left.iter().any(|i| 100 * weights[*i] == self.min_p * largest) {
                return None;
            }
            left.retain(|i| 100 * weights[*i] > self.min_p * largest);
        }
        left.sort_unstable();
        Some(left)
    }

    fn explained(self, weights: &[usize], left: &[usize]) -> String {
        let shares: Vec<usize> =
            weights.iter().map(|w| if self.cool { w * w } else { *w }).collect();
        let order = likeliest(&shares);
        let first = &order[..self.k];
        let of: Vec<usize> = first.iter().map(|i| shares[*i]).collect();
        let total: usize = of.iter().sum();
        let mut lines = Vec::new();
        if self.cool {
            lines.push(format!("temperature 0.5 squares the proportions: {}", commas(&shares)));
        }
        lines.push(format!(
            "top_k {}: tokens {}, with {} = {total}",
            self.k,
            listed(first),
            separated(&of, " + ")
        ));
        let mut before = 0;
        let mut kept = 0;
        while kept < of.len() && 100 * before < self.p * total {
            before += of[kept];
            kept += 1;
        }
        lines.push(format!(
            "top_p {0}: {0} * {total} = {1}, which token {2} crosses: {3} left",
            hundredths(self.p),
            hundredths(self.p * total),
            first[kept - 1],
            kept
        ));
        if self.min_p > 0 {
            lines.push(format!(
                "min_p {0}: at least {0} * {1} = {2}",
                hundredths(self.min_p),
                of[0],
                hundredths(self.min_p * of[0])
            ));
        }
        lines.push(format!("Left: {}.", listed(left)));
        lines.join("\n")
    }
}

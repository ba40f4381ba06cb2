//! A percentile of latencies that are only counted.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::l5::drawn::table;

pub const KIND: Kind = Kind {
    name: "latency-percentile",
    about: "a percentile from counts",
    chapter: "l6-ensemble/slo.md",
    draw,
};

/// Far enough apart that no bucket holds two of them.
const TIMES: [usize; 6] = [20, 40, 80, 160, 320, 640];

fn draw(draw: &mut Draw) -> Question {
    let from = draw.below(2);
    let times = &TIMES[from..from + 5];
    let counts: Vec<usize> =
        [12, 9, 5, 2, 1].map(|most| draw.between(usize::from(most < 9), most)).to_vec();
    let percent = draw.pick(&[50, 90, 95, 99]);
    // A window publishes three of them.
    let percent = if percent == 90 { 95 } else { percent };
    let total: usize = counts.iter().sum();
    let at = |rank: usize| {
        let mut seen = 0;
        let found = counts.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        times[found.unwrap_or(times.len() - 1)]
    };
    let rank = (percent * total).div_ceil(100).max(1);
    let right = at(rank);

    let rows: Vec<Vec<usize>> = times.iter().zip(&counts).map(|(t, n)| vec![*t, *n]).collect();
    let text = format!(
        "A minute's first tokens were counted:\n\n{}\n\nWhat is p{percent}, in ms?",
        table(&["TTFT (ms)", "requests"], &rows)
    );
    let explanation = format!(
        "{total} requests: rank {percent}% of {total}, rounded up, = {rank}\n\
         counted from the shortest, number {rank} has {right} ms"
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let sum: usize = times.iter().zip(&counts).map(|(t, n)| t * n).sum();
    let facts = json!({ "times": times, "counts": counts, "percent": percent });
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(at((percent * total / 100).max(1))), "the rank is rounded up")
        .mistake(
            whole(times[percent * (times.len() - 1) / 100]),
            "the share is of the requests, not of the rows",
        )
        .mistake(whole(sum / total.max(1)), "that is the mean")
        .mistake(whole(at(total)), "that is the maximum")
        .mistake(whole(at((rank + 1).min(total))), "one rank too far")
        .mistake(whole(at(1)), "that is the minimum")
        .mistake(whole(at(rank.saturating_sub(1).max(1))), "one rank too early")
}

//! Rows of a step that is planned while another one runs, and how many of them are of no use.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "rows-ahead",
    about: "rows of a step that is planned ahead, and those of no use",
    chapter: "l5-scheduler/ahead.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(3, 5);
    let mut requests: Vec<(usize, usize, bool)> = (0..n)
        .map(|_| {
            let generated = draw.between(1, 6);
            let left = draw.between(1, 4);
            (generated, generated + left, draw.between(0, 2) == 0)
        })
        .collect();
    // One of each kind, so that every mistake gives another answer.
    requests[0] = (requests[0].0, requests[0].0 + 1, false);
    requests[1] = (requests[1].0, requests[1].0 + 3, true);

    let certain = |request: &&(usize, usize, bool)| request.0 + 1 >= request.1;
    let rows = n - requests.iter().filter(certain).count();
    let stops = requests.iter().filter(|request| request.2).count();
    let useless = requests.iter().filter(|request| request.2 && !certain(request)).count();
    let lines: String = requests
        .iter()
        .enumerate()
        .map(|(id, (generated, max, stops))| {
            let stops = if *stops { ", and samples a stop token" } else { "" };
            format!("\n  request {id}: {generated} output tokens, max_tokens {max}{stops}")
        })
        .collect();
    let text = wrapped(&format!(
        "{n} requests decode. While their step runs, the next one is planned ahead. Before the running step, and in \
         it:"
    ));
    let ask = wrapped(
        "How many rows does the step ahead have, and how many of them turn out to be of no use?",
    );
    let text = format!("{text}{lines}\n{ask}");
    let explanation = format!(
        "with one output token left, a request ends with the running step: {} of {n}\n\
         the other {rows} get a row\n\
         a stop token is not known when the step is planned: {useless} of the {rows} sample one",
        n - rows,
    );
    let pair = |rows: usize, useless: usize| Answer::List(vec![rows as i64, useless as i64]);
    let facts = json!({
        "requests": requests.iter().map(|(generated, max, stops)| json!([generated, max, u8::from(*stops)]))
            .collect::<Vec<_>>(),
    });
    Question::new(text, pair(rows, useless), explanation, facts)
        .mistake(pair(n, useless + n - rows), "an end by max_tokens is known beforehand")
        .mistake(pair(n, useless), "an end by max_tokens is known beforehand")
        .mistake(pair(rows - useless, 0), "a stop token is not known when the step is planned")
        .mistake(pair(rows, stops), "a request without a row cannot have one of no use")
        .mistake(pair(rows, 0), "a request that has ended has no use for its row")
        .mistake(pair(useless, rows), "the rows first, then those of no use")
}

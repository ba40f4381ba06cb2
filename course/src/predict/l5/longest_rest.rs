//! Which lease ends under `adaptive`: the one whose job stays away longest.

use serde_json::json;

use super::drawn::{names, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, significant, wrapped};

pub const KIND: Kind = Kind {
    name: "longest-rest",
    about: "the lease that ends: the longest expected rest",
    chapter: "l5-scheduler/adaptive.md",
    draw,
};

const TOOLS: [&str; 2] = ["ls", "make"];

/// Expected rest of a pause of this age, by records of longer ones.
fn rest(records: &[usize], age: usize) -> f64 {
    let longer: Vec<usize> =
        records.iter().filter(|gap| **gap > age).map(|gap| gap - age).collect();
    (age + longer.iter().sum::<usize>()) as f64 / (1 + longer.len()) as f64
}

fn draw(draw: &mut Draw) -> Question {
    let names = names(draw, 4);
    let (records, leases) = loop {
        let records: Vec<Vec<usize>> = [(1, 6), (4, 30)]
            .into_iter()
            .map(|(low, high)| {
                let n = draw.between(2, 4);
                (0..n).map(|_| draw.between(low, high)).collect()
            })
            .collect();
        let leases: Vec<(usize, usize)> =
            (0..4).map(|_| (draw.below(2), draw.between(1, 20))).collect();
        let mut rests: Vec<f64> =
            leases.iter().map(|(tool, age)| rest(&records[*tool], *age)).collect();
        rests.sort_by(f64::total_cmp);
        // None as long as the longest, however it is rounded.
        if rests[3] - rests[2] > 0.01 {
            break (records, leases);
        }
    };
    let most = |value: &dyn Fn(&(usize, usize)) -> f64| {
        let best = (0..4).max_by(|a, b| value(&leases[*a]).total_cmp(&value(&leases[*b])));
        names[best.unwrap_or(0)] as i64
    };
    let right = most(&|(tool, age)| rest(&records[*tool], *age));

    let rows: Vec<Vec<String>> = leases
        .iter()
        .zip(&names)
        .map(|((tool, age), name)| vec![name.to_string(), TOOLS[*tool].to_owned(), age.to_string()])
        .collect();
    let known: Vec<String> = records
        .iter()
        .zip(TOOLS)
        .map(|(gaps, tool)| format!("`{tool}` has taken {} s", commas(gaps)))
        .collect();
    let asked = wrapped(
        "A running request needs a block, and none is free. Under `adaptive`: the lease of which \
         job ends?",
    );
    let text = format!(
        "{}.\nFour jobs have a lease of a block each, and wait for their tools:\n\n{}\n\n{asked}",
        known.join(";\n"),
        table(&["job", "tool", "seconds so far"], &rows)
    );
    let lines: Vec<String> = leases
        .iter()
        .zip(&names)
        .map(|((tool, age), name)| {
            let longer = records[*tool].iter().filter(|gap| *gap > age).count();
            let rest = significant(rest(&records[*tool], *age));
            format!("job {name}: {longer} records are longer than {age} s; E = {rest} s")
        })
        .collect();
    let explanation = format!(
        "E = (age + sum of (gap - age) over longer records) / (1 + their number)\n\n{}\n\n\
         The job with the longest expected rest is {right}.",
        lines.join("\n")
    );
    let facts = json!({
        "records": records,
        "leases": leases.iter().zip(&names).map(|((tool, age), name)| json!([name, tool, age]))
            .collect::<Vec<_>>(),
    });
    let whole = Answer::Whole;
    let mean = |gaps: &[usize]| gaps.iter().sum::<usize>() as f64 / gaps.len() as f64;
    Question::new(text, whole(right), explanation, facts)
        .mistake(
            whole(most(&|(_, age)| *age as f64)),
            "that is the oldest lease; asked is for how long its job will still be away",
        )
        .mistake(
            whole(most(&|(tool, age)| mean(&records[*tool]) - *age as f64)),
            "records that are shorter than the age say nothing about this pause",
        )
        .mistake(
            whole(most(&|(tool, age)| -rest(&records[*tool], *age))),
            "that job comes back soonest: its lease is the last to end",
        )
}

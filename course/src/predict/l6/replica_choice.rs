//! Which replica serves a request.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::l5::drawn::table;

pub const KIND: Kind = Kind {
    name: "replica-choice",
    about: "wait, preemptions and a cached prefix",
    chapter: "l6-ensemble/replicas.md",
    draw,
};

/// Milliseconds of wait, tenths of a preemption a second, cached tokens.
type Replica = (usize, usize, usize);

fn draw(draw: &mut Draw) -> Question {
    let per_token = draw.pick(&[1, 2]);
    let replicas: Vec<Replica> = loop {
        let replicas: Vec<Replica> = (0..3)
            .map(|_| {
                let rate = if draw.one_in(2) { 0 } else { draw.between(1, 6) };
                (20 * draw.between(0, 40), rate, 16 * draw.between(0, 25))
            })
            .collect();
        // Neither two equal replicas nor a gain that equals its price.
        let (least, warm) = (quickest(&replicas, 100), warmest(&replicas));
        let gain = per_token * replicas[warm].2.saturating_sub(replicas[least].2);
        let price = penalized(&replicas[warm]) - penalized(&replicas[least]);
        let distinct = |of: &dyn Fn(&Replica) -> usize| {
            (0..3).all(|i| (0..i).all(|j| of(&replicas[i]) != of(&replicas[j])))
        };
        if gain != price && distinct(&penalized) && distinct(&|r| r.2) && distinct(&|r| r.0) {
            break replicas;
        }
    };
    let (least, warm) = (quickest(&replicas, 100), warmest(&replicas));
    let saved = per_token * (replicas[warm].2 - replicas[least].2);
    let waits = penalized(&replicas[warm]) - penalized(&replicas[least]);
    let right = if saved > waits { warm } else { least };

    let rows: Vec<Vec<String>> = replicas
        .iter()
        .enumerate()
        .map(|(i, (wait, rate, cached))| {
            let rate = format!("{}", *rate as f64 / 10.0);
            vec![i.to_string(), wait.to_string(), rate, cached.to_string()]
        })
        .collect();
    let text = format!(
        "Three replicas of a lane could serve a request:\n\n{}\n\n\
         A prompt token takes {per_token} ms, and a preemption a second counts as 1000 ms of\n\
         wait. Which replica is chosen?",
        table(&["replica", "wait (ms)", "preemptions/s", "cached tokens"], &rows)
    );
    let mut explanation = String::new();
    for (i, replica) in replicas.iter().enumerate() {
        let (wait, rate, _) = *replica;
        explanation +=
            &format!("replica {i}: {wait} + {} = {} ms of wait\n", rate * 100, penalized(replica));
    }
    explanation += &format!(
        "least: {least}, longest prefix: {warm}\n\
         the prefix saves {per_token} x ({} - {}) = {saved} ms more and costs {waits} ms of wait:\n\
         replica {right}",
        replicas[warm].2, replicas[least].2
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let unfair = per_token * replicas[warm].2 > waits;
    let facts = json!({ "replicas": replicas, "per_token": per_token });
    Question::new(text, whole(right), explanation, facts)
        .mistake(
            whole(if unfair { warm } else { least }),
            "the quickest replica holds a part of the prefix as well: only the rest is saved",
        )
        .mistake(whole(warm), "the longest prefix saves less than the wait that it adds")
        .mistake(whole(least), "the longest prefix saves more than the wait that it adds")
        .mistake(whole(quickest(&replicas, 0)), "preemptions count as wait")
}

fn penalized(replica: &Replica) -> usize {
    replica.0 + 100 * replica.1
}

/// The replica with the least wait, when a tenth of a preemption a second counts as so many milliseconds.
fn quickest(replicas: &[Replica], penalty: usize) -> usize {
    (0..replicas.len()).min_by_key(|i| replicas[*i].0 + penalty * replicas[*i].1).unwrap_or(0)
}

fn warmest(replicas: &[Replica]) -> usize {
    (0..replicas.len()).max_by_key(|i| replicas[*i].2).unwrap_or(0)
}

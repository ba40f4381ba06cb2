//! What a lease costs a neighbour: how long a request waits beside it.

use serde_json::json;

use super::drawn::table;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "lease-cost",
    about: "when a request begins that needs leased blocks",
    chapter: "l5-scheduler/retention.md",
    draw,
};

/// Milliseconds from the begin of a lease to its expiry.
const TTL: usize = 2000;

fn draw(draw: &mut Draw) -> Question {
    let lease = draw.between(3, 8);
    let mut running: Vec<(usize, usize)> =
        (0..2).map(|_| (draw.between(2, 6), 100 * draw.between(4, 28))).collect();
    if running[0].1 == running[1].1 {
        running[1].1 += 100;
    }
    let free = draw.between(0, 3);
    let used: usize = running.iter().map(|(blocks, _)| blocks).sum();
    let pool = free + lease + used;
    let arrival = 100 * draw.between(1, 3);
    let needed = draw.between(free + 1, pool);

    // Blocks that the request could have at a time, and whether the lease is over or may end for it.
    let runs = |at: usize| running.iter().filter(move |(_, end)| *end > at);
    let could_have = |at: usize, alone: bool| {
        let leased = at < TTL && !(alone && runs(at).count() <= 1);
        pool - runs(at).map(|(blocks, _)| blocks).sum::<usize>() - if leased { lease } else { 0 }
    };
    let begin = |alone: bool| {
        let mut times: Vec<usize> = running.iter().map(|(_, end)| *end).chain([TTL]).collect();
        times.sort_unstable();
        times.into_iter().find(|at| could_have(*at, alone) >= needed).unwrap_or(arrival)
    };
    let right = begin(true);

    let rows: Vec<Vec<usize>> =
        running.iter().zip(1..).map(|((blocks, end), n)| vec![n, *blocks, *end]).collect();
    let given = wrapped(&format!(
        "A pool of {pool} blocks under `continuum`. At 0 ms a step of a job ends, and a lease holds \
         {lease} blocks for {TTL} ms; its job does not come back. Two requests run:"
    ));
    let asked = wrapped(&format!(
        "At {arrival} ms a request arrives that needs {needed} blocks. At which millisecond does it \
         begin?"
    ));
    let rows = table(&["request", "blocks", "ends at ms"], &rows);
    let text = format!("{given}\n\n{rows}\n\n{asked}");
    let mut times: Vec<usize> = running.iter().map(|(_, end)| *end).chain([TTL]).collect();
    times.sort_unstable();
    let lines: Vec<String> = times
        .iter()
        .take_while(|at| **at <= right)
        .map(|at| {
            let lease = match (*at >= TTL, runs(*at).count()) {
                (true, _) => "the lease is over",
                (_, 0 | 1) => "the lease may end for it",
                _ => "two run: the lease stays",
            };
            format!("{at:>5} ms: it could have {} blocks ({lease})", could_have(*at, true))
        })
        .collect();
    let explanation = format!(
        "When it arrives, {free} are free, and no lease ends for it as long as two run.\n{}\n\
         So it begins at {right} ms.",
        lines.join("\n")
    );
    let facts = json!({
        "pool": pool, "lease": lease, "arrival": arrival, "needed": needed,
        "running": running.iter().map(|(blocks, end)| json!([blocks, end])).collect::<Vec<_>>(),
    });
    let whole = |at: usize| Answer::Whole(at as i64);
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(arrival), "no lease ends for a waiting request while two others run")
        .mistake(
            whole(begin(false)),
            "while at most one request runs, the lease may end for others",
        )
        .mistake(whole(TTL), "it need not wait for the lease if enough is free without it")
        .mistake(whole(right - arrival), "that is how long it waits; asked is when it begins")
}

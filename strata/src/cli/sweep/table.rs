//! The table of a sweep, in Markdown that reads well as text, too.

use std::fmt::Write as _;

use super::summary::{Cell, Cells, Metric, Ratios};
use server::words::count;

/// What a sweep was run on, as a line above its tables.
pub(super) fn table(subject: &str, cells: &Cells, unfinished: usize) -> String {
    let mut out = format!("# Sweep\n\n{subject}\n");
    if unfinished > 0 {
        let _ = writeln!(
            out,
            "\n{} did not finish: a prompt was too long for its pool. Times are those of the others.",
            count(unfinished, "job")
        );
    }
    by_cell(&mut out, cells);
    over_the_grid(&mut out, cells);
    out
}

/// Mean job seconds of each policy, a table for each pool.
fn by_cell(out: &mut String, cells: &Cells) {
    let mut pools: Vec<usize> = cells.cells.iter().map(|cell| cell.num_gpu_blocks).collect();
    pools.dedup();
    for pool in pools {
        let _ = writeln!(out, "\n## {pool} blocks: mean job seconds (ratio to fcfs)\n");
        let mut rows = vec![vec!["jobs/s".to_owned()]];
        rows[0].extend(cells.variants.iter().map(ToString::to_string));
        for (number, cell) in cells.cells.iter().enumerate() {
            if cell.num_gpu_blocks != pool {
                continue;
            }
            let mut row = vec![rate(cell)];
            row.extend((0..cells.variants.len()).map(|variant| {
                let value = cells.value(number, variant, Metric::Mean);
                let ratio = cells.to_baseline(number, variant, Metric::Mean);
                match value.seconds.is_finite() {
                    true => format!("{:.2} ({ratio:.3})", value.seconds),
                    // No job has finished.
                    false => "-".to_owned(),
                }
            }));
            rows.push(row);
        }
        markdown(out, &rows);
    }
}

/// Ratios of each policy over all cells.
fn over_the_grid(out: &mut String, cells: &Cells) {
    out.push_str("\n## Over all pools and rates\n\nRatios of job seconds, each a mean over the seeds: their mean, ");
    out.push_str("90th and 99th percentile over the cells, and the worst cell.\n\n");
    let mut rows = vec![vec![
        "policy".to_owned(),
        "seconds".to_owned(),
        "to fcfs".to_owned(),
        "worst".to_owned(),
        "to the best other".to_owned(),
        "P90".to_owned(),
        "P99".to_owned(),
        "worst".to_owned(),
    ]];
    for row in cells.rows() {
        let worst =
            |ratios: &Ratios| format!("{} ({})", ratio(ratios.worst), named(&ratios.worst_cell));
        let mut line = vec![
            row.policy.to_string(),
            row.metric.name().to_owned(),
            ratio(row.to_baseline.mean),
            worst(&row.to_baseline),
        ];
        match &row.to_best_other {
            Some(best) => {
                line.extend([ratio(best.mean), ratio(best.p90), ratio(best.p99), worst(best)])
            }
            None => line.extend(std::iter::repeat_n("-".to_owned(), 4)),
        }
        rows.push(line);
    }
    markdown(out, &rows);
}

/// A ratio; a dash if no job has finished in one of its cells.
fn ratio(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.3}") } else { "-".to_owned() }
}

fn rate(cell: &Cell) -> String {
    cell.rate.map_or("as given".to_owned(), |rate| rate.to_string())
}

/// A cell as `5402 @ 2`: blocks and jobs per second.
fn named(cell: &Cell) -> String {
    match cell.rate {
        Some(rate) => format!("{} @ {rate}", cell.num_gpu_blocks),
        None => cell.num_gpu_blocks.to_string(),
    }
}

/// Writes rows of equal length, the first of which is the heading, with aligned columns.
fn markdown(out: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
        if number == 0 {
            let dashes = widths.iter().enumerate().map(|(column, width)| match column {
                0 => "-".repeat(*width),
                _ => format!("{}:", "-".repeat(width - 1)),
            });
            let _ = writeln!(out, "| {} |", dashes.collect::<Vec<_>>().join(" | "));
        }
    }
}

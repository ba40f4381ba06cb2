//! The comparison as a page of Markdown.

use std::fmt::Write;

use super::ours::StartUp;
use super::samples::{Samples, Who, Work, median};
use super::{ALONE, BATCHED, PROMPT, Settings};

/// Comparisons: engine and precision, kind of work, and target ratio.
const TARGETS: [(Who, Work, Option<f64>); 8] = [
    (Who::Ours, Work::Decode(1), Some(1.4)),
    (Who::Ours, Work::Decode(8), Some(3.0)),
    (Who::Ours, Work::Decode(32), Some(3.0)),
    (Who::Ours, Work::Prefill, Some(2.0)),
    (Who::OursF32, Work::Decode(1), None),
    (Who::OursF32, Work::Decode(8), Some(2.5)),
    (Who::OursF32, Work::Decode(32), None),
    (Who::OursF32, Work::Prefill, Some(1.0)),
];

/// Maximum slowdown of ours beside a busy process.
const MAX_SLOWDOWN: f64 = 1.7;
/// Maximum milliseconds from a cached file to a model that is ready.
const MAX_LOAD_MS: f64 = 500.0;
/// Maximum of peak anonymous memory over weights as held; keys and values are added to it.
const MAX_MEMORY_RATIO: f64 = 1.3;

/// Facts of a report beside the samples.
pub struct Report {
    settings: Settings,
    rounds: usize,
    load: String,
    /// One entry for each round.
    pub startup: Vec<StartUp>,
}

impl Report {
    /// A report that begins now: notes the load of the machine before anything runs.
    pub fn new(settings: Settings, rounds: usize) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("unknown").to_string();
        eprintln!("load of the machine before the first round: {load}");
        Self { settings, rounds, load, startup: Vec::new() }
    }

    /// Renders the page.
    pub fn markdown(&self, samples: &Samples) -> String {
        let mut page = String::new();
        // Writing to a String cannot fail.
        let _ = self.introduction(&mut page);
        let _ = ratios(&mut page, samples);
        let _ = neighbours(&mut page, samples);
        let _ = self.start_up(&mut page);
        let _ = commands(&mut page, samples);
        page
    }

    fn introduction(&self, page: &mut String) -> std::fmt::Result {
        let Settings { threads, repeat } = self.settings;
        let (context, generate) = BATCHED;
        writeln!(page, "## Strata and llama.cpp, SmolLM2-135M, the same bf16 weights\n")?;
        writeln!(
            page,
            "{}, {threads} threads each; load before the first round: {}.",
            cpu(),
            self.load
        )?;
        writeln!(
            page,
            "Medians of {} alternated rounds of {repeat}. Whole model, attention included. Prefill: one prompt of \
             {PROMPT} tokens, logits of the last. Decode of batch 1: {ALONE} tokens from an empty context; of 8 and \
             32: {generate} tokens each after {context}. \"Of the limit\" is the work of our matmuls (for decode that \
             memory bounds: bytes of weights, keys and values) over what was measured in the same run.\n",
            self.rounds,
        )
    }

    fn start_up(&self, page: &mut String) -> std::fmt::Result {
        let Some(first) = self.startup.first() else { return Ok(()) };
        let load = median(self.startup.iter().map(|s| s.load_ms));
        writeln!(
            page,
            "| starting up, default model | measured | target | met |\n|---|---|---|---|"
        )?;
        let met = yes(load < MAX_LOAD_MS);
        writeln!(page, "| cached file to ready | {load:.0} ms | < {MAX_LOAD_MS:.0} ms | {met} |")?;
        let peak = self.startup.iter().filter_map(|s| s.peak_bytes).max();
        if let Some(peak) = peak.map(|bytes| bytes as f64) {
            let max_bytes = MAX_MEMORY_RATIO * first.weight_bytes + first.kv_bytes;
            writeln!(
                page,
                "| peak anonymous memory | {:.0} MB | < {:.0} MB ({MAX_MEMORY_RATIO} x {:.0} MB of weights + {:.0} MB of \
                 keys and values) | {} |",
                peak / 1e6,
                max_bytes / 1e6,
                first.weight_bytes / 1e6,
                first.kv_bytes / 1e6,
                yes(peak < max_bytes),
            )?;
        }
        writeln!(page)
    }
}

fn ratios(page: &mut String, samples: &Samples) -> std::fmt::Result {
    writeln!(
        page,
        "| work | activations | ours, tok/s | llama.cpp, tok/s | ratio | target | met | ours, of the limit |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|")?;
    for (who, work, target) in TARGETS {
        let (ours, theirs) =
            (samples.rate(who, false, work), samples.rate(Who::Theirs, false, work));
        let ratio = ours / theirs;
        let mode = if who == Who::OursF32 { "f32" } else { "bf16" };
        let (goal, met) = match target {
            Some(target) => (format!("{target:.1}"), yes(ratio >= target)),
            None => (String::new(), ""),
        };
        let reached = samples.reached(who, work).map_or(String::new(), |r| {
            format!("{:.0}% of {:.0} {}", r.fraction * 100.0, r.limit, r.unit)
        });
        writeln!(
            page,
            "| {work} | {mode} | {ours:.0} | {theirs:.0} | {ratio:.2} | {goal} | {met} | {reached} |"
        )?;
    }
    writeln!(page)
}

fn neighbours(page: &mut String, samples: &Samples) -> std::fmt::Result {
    if samples.rate(Who::Ours, true, Work::Prefill).is_nan() {
        return Ok(());
    }
    writeln!(
        page,
        "| beside one busy process | ours, tok/s | times slower | target | met | llama.cpp, tok/s | times slower |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for work in [Work::Decode(1), Work::Decode(8), Work::Decode(32), Work::Prefill] {
        let pair = |who| {
            let busy = samples.rate(who, true, work);
            (busy, samples.rate(who, false, work) / busy)
        };
        let ((ours, slower), (theirs, their_slower)) = (pair(Who::Ours), pair(Who::Theirs));
        let met = yes(slower <= MAX_SLOWDOWN);
        writeln!(
            page,
            "| {work} | {ours:.0} | {slower:.2} | {MAX_SLOWDOWN} | {met} | {theirs:.0} | {their_slower:.2} |"
        )?;
    }
    writeln!(page)
}

fn commands(page: &mut String, samples: &Samples) -> std::fmt::Result {
    writeln!(page, "The commands:\n\n```sh")?;
    for command in &samples.commands.0 {
        writeln!(page, "{command}")?;
    }
    writeln!(page, "```")
}

fn yes(met: bool) -> &'static str {
    if met { "yes" } else { "no" }
}

/// Name of the processor as it reports it.
fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH.into(), |(_, name)| name.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::samples::Figure;

    #[test]
    fn a_ratio_is_held_against_its_target() {
        let mut samples = Samples::default();
        let figure = |rate| vec![Figure { work: Work::Decode(8), rate, reached: None }];
        samples.add(Who::Ours, false, figure(1600.0));
        samples.add(Who::OursF32, false, figure(1000.0));
        samples.add(Who::Theirs, false, figure(500.0));
        let report = Report::new(Settings { threads: 2, repeat: 3 }, 1);
        let page = report.markdown(&samples);
        assert!(
            page.contains("| decode, batch 8 | bf16 | 1600 | 500 | 3.20 | 3.0 | yes |"),
            "{page}"
        );
        assert!(
            page.contains("| decode, batch 8 | f32 | 1000 | 500 | 2.00 | 2.5 | no |"),
            "{page}"
        );
        assert!(!page.contains("busy process"), "{page}");
    }
}

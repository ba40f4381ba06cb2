//! The comparison as a page of Markdown.

use std::fmt::Write;

use super::obtain::Project;
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
        let _ = self.introduction(&mut page, samples);
        let _ = ratios(&mut page, samples);
        let _ = neighbours(&mut page, samples);
        let _ = self.start_up(&mut page);
        let _ = commands(&mut page, samples);
        page
    }

    fn introduction(&self, page: &mut String, samples: &Samples) -> std::fmt::Result {
        let Settings { threads, repeat } = self.settings;
        let (context, generate) = BATCHED;
        let theirs = samples.projects().iter().map(Project::to_string).collect::<Vec<_>>();
        let theirs = theirs.join(" and ");
        writeln!(page, "## Strata and {theirs}, SmolLM2-135M, the same bf16 weights\n")?;
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
    let projects = samples.projects();
    write!(page, "| work | activations | ours, tok/s |")?;
    projects.iter().try_for_each(|project| write!(page, " {project}, tok/s | ratio |"))?;
    writeln!(page, " target | met | ours, of the limit |")?;
    writeln!(page, "|---|---|---|{}---|---|---|", "---|---|".repeat(projects.len()))?;
    for (who, work, target) in TARGETS {
        let ours = samples.rate(who, false, work);
        let rate = |project| samples.rate(Who::Theirs(project), false, work);
        // The aims are set against llama.cpp.
        let ratio = ours / rate(Project::LlamaCpp);
        let mode = if who == Who::OursF32 { "f32" } else { "bf16" };
        let (goal, met) = match target {
            Some(target) => (format!("{target:.1}"), yes(ratio >= target)),
            None => (String::new(), ""),
        };
        let reached = samples.reached(who, work).map_or(String::new(), |r| {
            format!("{:.0}% of {:.0} {}", r.fraction * 100.0, r.limit, r.unit)
        });
        write!(page, "| {work} | {mode} | {ours:.0} |")?;
        for project in &projects {
            let theirs = rate(*project);
            write!(page, " {theirs:.0} | {:.2} |", ours / theirs)?;
        }
        writeln!(page, " {goal} | {met} | {reached} |")?;
    }
    writeln!(page)
}

fn neighbours(page: &mut String, samples: &Samples) -> std::fmt::Result {
    if samples.rate(Who::Ours, true, Work::Prefill).is_nan() {
        return Ok(());
    }
    let projects = samples.projects();
    write!(page, "| beside one busy process | ours, tok/s | times slower | target | met |")?;
    projects.iter().try_for_each(|project| write!(page, " {project}, tok/s | times slower |"))?;
    writeln!(page, "\n|---|---|---|---|---|{}", "---|---|".repeat(projects.len()))?;
    for work in [Work::Decode(1), Work::Decode(8), Work::Decode(32), Work::Prefill] {
        let pair = |who| {
            let busy = samples.rate(who, true, work);
            (busy, samples.rate(who, false, work) / busy)
        };
        let (ours, slower) = pair(Who::Ours);
        let met = yes(slower <= MAX_SLOWDOWN);
        write!(page, "| {work} | {ours:.0} | {slower:.2} | {MAX_SLOWDOWN} | {met} |")?;
        for project in &projects {
            let (theirs, slower) = pair(Who::Theirs(*project));
            write!(page, " {theirs:.0} | {slower:.2} |")?;
        }
        writeln!(page)?;
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
        samples.add(Who::Theirs(Project::LlamaCpp), false, figure(500.0));
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
        assert!(page.contains("Strata and llama.cpp, ") && !page.contains("ik_llama"), "{page}");
    }

    #[test]
    fn a_second_project_has_its_own_columns_and_no_target() {
        let mut samples = Samples::default();
        let figure = |rate| vec![Figure { work: Work::Decode(8), rate, reached: None }];
        for (who, rate) in [
            (Who::Ours, 1000.0),
            (Who::Theirs(Project::IkLlama), 800.0),
            (Who::Theirs(Project::LlamaCpp), 500.0),
        ] {
            samples.add(who, false, figure(rate));
        }
        let page = Report::new(Settings { threads: 2, repeat: 3 }, 1).markdown(&samples);
        let header = "| llama.cpp, tok/s | ratio | ik_llama.cpp, tok/s | ratio | target |";
        assert!(page.contains(header), "{page}");
        assert!(page.contains("| bf16 | 1000 | 500 | 2.00 | 800 | 1.25 | 3.0 | no |"), "{page}");
        assert!(page.contains("Strata and llama.cpp and ik_llama.cpp"), "{page}");
    }
}

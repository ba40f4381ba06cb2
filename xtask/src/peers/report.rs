//! The comparison as a page of Markdown.

use std::fmt::Write;

use super::obtain::Project;
use super::ours::StartUp;
use super::samples::{Samples, Who, Work, median};
use super::weights::Weights;
use super::{ALONE, BATCHED, PROMPT, Settings};

/// Comparisons: engine and precision, and kind of work.
const ROWS: [(Who, Work); 9] = [
    (Who::Ours, Work::Decode(1)),
    (Who::Ours, Work::Decode(8)),
    (Who::Ours, Work::Decode(32)),
    (Who::Ours, Work::Prefill),
    (Who::Ours, Work::Serving),
    (Who::OursF32, Work::Decode(1)),
    (Who::OursF32, Work::Decode(8)),
    (Who::OursF32, Work::Decode(32)),
    (Who::OursF32, Work::Prefill),
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

    /// Renders the page, with a table for each storage of weights.
    pub fn markdown(&self, compared: &[Weights], samples: &Samples) -> String {
        let mut page = String::new();
        // Writing to a String cannot fail.
        let _ = self.introduction(&mut page, samples);
        for &weights in compared {
            let _ = writeln!(page, "### {}\n", weights.title());
            let _ = ratios(&mut page, weights, samples);
            let _ = servers(&mut page, weights, samples);
            let _ = neighbours(&mut page, weights, samples);
        }
        let _ = self.start_up(&mut page);
        let _ = commands(&mut page, samples);
        page
    }

    fn introduction(&self, page: &mut String, samples: &Samples) -> std::fmt::Result {
        let Settings { threads, repeat } = self.settings;
        let (context, generate) = BATCHED;
        let theirs = samples.projects().iter().map(Project::to_string).collect::<Vec<_>>();
        let theirs = theirs.join(" and ");
        writeln!(page, "## Strata and {theirs}, SmolLM2-135M, the same weights\n")?;
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

fn ratios(page: &mut String, weights: Weights, samples: &Samples) -> std::fmt::Result {
    let projects = samples.projects();
    write!(page, "| work | activations | ours, tok/s | of the limit |")?;
    projects.iter().try_for_each(|project| write!(page, " {project}, tok/s | ratio | aim |"))?;
    writeln!(page, "\n|---|---|---|---|{}", "---|---|---|".repeat(projects.len()))?;
    for (who, work) in ROWS {
        let ours = samples.rate(weights, who, false, work);
        if ours.is_nan() {
            continue;
        }
        let mode = if who == Who::OursF32 { "f32" } else { "bf16" };
        let reached = samples.reached(weights, who, work).map_or(String::new(), |r| {
            format!("{:.0}% of {:.0} {}", r.fraction * 100.0, r.limit, r.unit)
        });
        write!(page, "| {work} | {mode} | {ours:.0} | {reached} |")?;
        for &project in &projects {
            let theirs = samples.rate(weights, Who::Theirs(project), false, work);
            if theirs.is_nan() {
                write!(page, " | | |")?;
                continue;
            }
            let ratio = ours / theirs;
            let aim = match weights.aim(who, work, project) {
                Some(aim) if ratio >= aim => format!("{aim:.1}: met"),
                Some(aim) => format!("{aim:.1}: not met"),
                None => String::new(),
            };
            write!(page, " {theirs:.0} | {ratio:.2} | {aim} |")?;
        }
        writeln!(page)?;
    }
    writeln!(page)
}

/// Latencies of the servers, in milliseconds.
fn servers(page: &mut String, weights: Weights, samples: &Samples) -> std::fmt::Result {
    let Some(ours) = samples.latency(weights, Who::Ours) else { return Ok(()) };
    writeln!(page, "| server | TTFT p50, ms | ITL p99, ms |\n|---|---|---|")?;
    writeln!(page, "| strata serve | {:.0} | {:.0} |", ours.ttft_ms, ours.itl_ms)?;
    if let Some(theirs) = samples.latency(weights, Who::Theirs(Project::LlamaCpp)) {
        writeln!(page, "| llama-server | {:.0} | {:.0} |", theirs.ttft_ms, theirs.itl_ms)?;
    }
    writeln!(page)
}

fn neighbours(page: &mut String, weights: Weights, samples: &Samples) -> std::fmt::Result {
    if samples.rate(weights, Who::Ours, true, Work::Prefill).is_nan() {
        return Ok(());
    }
    let projects = samples.projects();
    write!(page, "| beside one busy process | ours, tok/s | times slower | target | met |")?;
    projects.iter().try_for_each(|project| write!(page, " {project}, tok/s | times slower |"))?;
    writeln!(page, "\n|---|---|---|---|---|{}", "---|---|".repeat(projects.len()))?;
    for work in [Work::Decode(1), Work::Decode(8), Work::Decode(32), Work::Prefill] {
        let pair = |who| {
            let busy = samples.rate(weights, who, true, work);
            (busy, samples.rate(weights, who, false, work) / busy)
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
    use crate::peers::samples::{Figure, Latency};

    fn page(compared: &[Weights], samples: &Samples) -> String {
        Report::new(Settings { threads: 2, repeat: 3 }, 1).markdown(compared, samples)
    }

    #[test]
    fn a_ratio_is_held_against_its_aim() {
        let mut samples = Samples::default();
        let figure = |rate| vec![Figure::rate(Work::Decode(8), rate)];
        let bf16 = Weights::Bf16;
        samples.add(bf16, Who::Ours, false, figure(1600.0));
        samples.add(bf16, Who::OursF32, false, figure(1000.0));
        samples.add(bf16, Who::Theirs(Project::LlamaCpp), false, figure(500.0));
        let page = page(&[bf16], &samples);
        assert!(
            page.contains("| decode, batch 8 | bf16 | 1600 |  | 500 | 3.20 | 3.0: met |"),
            "{page}"
        );
        assert!(
            page.contains("| decode, batch 8 | f32 | 1000 |  | 500 | 2.00 | 2.5: not met |"),
            "{page}"
        );
        assert!(!page.contains("busy process") && !page.contains("TTFT"), "{page}");
        assert!(page.contains("Strata and llama.cpp, ") && !page.contains("ik_llama"), "{page}");
    }

    #[test]
    fn every_storage_and_every_project_has_its_own_figures_and_aims() {
        let mut samples = Samples::default();
        for (weights, who, rate) in [
            (Weights::Q4_1, Who::Ours, 160.0),
            (Weights::Q4_1, Who::Theirs(Project::IkLlama), 100.0),
            (Weights::Q4_1, Who::Theirs(Project::LlamaCpp), 50.0),
            (Weights::Q8_0, Who::Ours, 90.0),
            (Weights::Q8_0, Who::Theirs(Project::LlamaCpp), 60.0),
        ] {
            samples.add(weights, who, false, vec![Figure::rate(Work::Decode(1), rate)]);
        }
        let page = page(&[Weights::Q4_1, Weights::Q8_0], &samples);
        let header = "| llama.cpp, tok/s | ratio | aim | ik_llama.cpp, tok/s | ratio | aim |";
        assert!(page.contains(header), "{page}");
        let row = "| bf16 | 160 |  | 50 | 3.20 | 2.2: met | 100 | 1.60 | 1.7: not met |";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("| bf16 | 90 |  | 60 | 1.50 | 1.5: met | | | |"), "{page}");
        assert!(page.contains("Strata and llama.cpp and ik_llama.cpp"), "{page}");
    }

    #[test]
    fn servers_have_a_row_of_latencies_each() {
        let mut samples = Samples::default();
        for (who, ttft_ms) in [(Who::Ours, 500.0), (Who::Theirs(Project::LlamaCpp), 2400.0)] {
            let latency = Some(Latency { ttft_ms, itl_ms: 200.0 });
            let figure = Figure { latency, ..Figure::rate(Work::Serving, 400.0) };
            samples.add(Weights::Bf16, who, false, vec![figure]);
        }
        let page = page(&[Weights::Bf16], &samples);
        assert!(page.contains("| strata serve | 500 | 200 |"), "{page}");
        assert!(page.contains("| llama-server | 2400 | 200 |"), "{page}");
    }
}

//! Report of a run, as a JSON file and as a table.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::bench::{Limits, Measure, Target};
use crate::compare::Comparison;
use crate::parity::Verdict;
use crate::sanitize::Sanitized;
use crate::{Context, Size};

/// Report of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Date in UTC: year, month and day.
    pub date: String,
    /// Version of Strata.
    pub version: &'static str,
    /// The device.
    pub device: DeviceFacts,
    /// Whether the device was emulated: then its figures mean nothing.
    pub emulated: bool,
    /// Results of the checks.
    pub parity: Vec<Verdict>,
    /// Results of the checks under compute-sanitizer.
    pub sanitizer: Option<Sanitized>,
    /// Measured limits of the device.
    pub limits: Option<Limits>,
    /// Results of the benchmarks.
    pub measures: Vec<Measure>,
    /// Comparison with transformers.
    pub compare: Option<Comparison>,
    /// Benchmarks that failed, and why.
    pub failures: Vec<String>,
}

/// Description of the device, to compare with reports from others.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFacts {
    /// Name, as the driver reports it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: usize,
    /// Size of its memory, in bytes.
    pub memory: usize,
    /// CUDA version of the driver.
    pub driver: (u32, u32),
    /// Version of the compiler, if the kernels were compiled on this machine.
    pub nvrtc: Option<(i32, i32)>,
    /// Whether cuBLASLt was available.
    pub cublaslt: bool,
}

impl Report {
    /// Creates an empty report of this device and day.
    ///
    /// # Errors
    /// There is no device.
    pub fn new(ctx: &Context) -> Result<Self> {
        let properties = ctx.gpu.properties();
        let device = DeviceFacts {
            name: properties.name.clone(),
            capability: properties.capability,
            multiprocessors: properties.multiprocessors,
            memory: properties.memory,
            driver: kernels::probe()?.driver_version,
            nvrtc: kernels::compile::nvrtc_version().ok(),
            cublaslt: kernels::gemm_library(),
        };
        Ok(Self {
            date: today(),
            version: env!("CARGO_PKG_VERSION"),
            device,
            emulated: ctx.gpu.is_emulated(),
            parity: Vec::new(),
            sanitizer: None,
            limits: None,
            measures: Vec::new(),
            compare: None,
            failures: Vec::new(),
        })
    }

    /// Writes the report to `<gpu>-<date>.json` in a directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let device = if self.emulated { "emulated".into() } else { slug(&self.device.name) };
        let path = folder.join(format!("{device}-{}.json", self.date));
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Whether all checks passed and compute-sanitizer found no error. A missed target does not count, since a slow
    /// device is not a defect.
    pub fn is_sound(&self) -> bool {
        let sanitized = self.sanitizer.as_ref().is_none_or(|s| !s.found_something());
        sanitized && self.failures.is_empty() && self.parity.iter().all(|verdict| verdict.holds)
    }

    /// The report as a table.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        let DeviceFacts { name, capability: (major, minor), multiprocessors, memory, .. } =
            &self.device;
        writeln!(
            out,
            "{name}, sm_{major}{minor}, {multiprocessors} multiprocessors, {} MiB, {}",
            memory >> 20,
            self.date
        )?;
        if self.emulated {
            writeln!(out, "EMULATED: a CPU stood in for the device. Figures mean nothing.")?;
        }
        let held = self.parity.iter().filter(|verdict| verdict.holds).count();
        writeln!(out, "\nparity: {held} of {} checks hold", self.parity.len())?;
        for verdict in self.parity.iter().filter(|verdict| !verdict.holds) {
            writeln!(out, "  FAILED  {}: {}", verdict.name, verdict.why.as_deref().unwrap_or(""))?;
        }
        match &self.sanitizer {
            None => writeln!(out, "compute-sanitizer: not run")?,
            Some(Sanitized::Skipped { why }) => writeln!(out, "compute-sanitizer: not run: {why}")?,
            Some(Sanitized::Ran { tools }) => {
                for tool in tools {
                    let word = if tool.clean { "clean" } else { "FOUND SOMETHING" };
                    writeln!(out, "compute-sanitizer {}: {word}", tool.name)?;
                }
            }
        }
        if !self.measures.is_empty() {
            writeln!(out, "\n{}", measure_header())?;
        }
        for measure in &self.measures {
            writeln!(out, "{}", measure_line(measure))?;
        }
        if let Some(compare) = &self.compare {
            writeln!(out, "\nbeside transformers ({})", compare.machine)?;
            for pair in &compare.pairs {
                let theirs = pair.theirs.map_or("none".into(), |t| format!("{t:.0}"));
                let ratio = pair.ratio.map_or("no ratio".into(), |r| format!("{r:.2} times"));
                let verdict = pair.ratio.map_or("", |r| word(pair.target.reached(r)));
                writeln!(
                    out,
                    "  {} requests: {:.0} tokens/s, theirs {theirs} ({}): {ratio}{}  {verdict}",
                    pair.ours.workload.requests,
                    pair.ours.tokens_per_second,
                    pair.how,
                    target(pair.target, ""),
                )?;
            }
        }
        for failure in &self.failures {
            writeln!(out, "\nNOT MEASURED  {failure}")?;
        }
        let reached = self.measures.iter().filter_map(Measure::reached);
        let (all, good) = reached.fold((0, 0), |(all, good), r| (all + 1, good + usize::from(r)));
        if all > 0 {
            writeln!(out, "\n{good} of {all} targets are reached")?;
        }
        Ok(())
    }
}

fn measure_header() -> String {
    format!("{:<38}{:<62}{:>15}  of its limit", "what", "workload", "figure")
}

/// A measure as a line of the table.
pub fn measure_line(measure: &Measure) -> String {
    let figure = match measure.value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    };
    let ratio = measure.ratio.as_ref().map_or(String::new(), |ratio| {
        let share = ratio.share;
        let value = if share {
            format!("{:.1}%", 100.0 * ratio.value)
        } else {
            format!("{:.2} x", ratio.value)
        };
        let wanted =
            ratio.target.map_or(String::new(), |t| target(t, if share { "%" } else { "x" }));
        let verdict = measure.reached().map_or("", word);
        format!("{value} {}{wanted}  {verdict}", ratio.of)
    });
    let line = format!(
        "{:<38}{:<62}{:>15}  {ratio}",
        measure.name,
        measure.workload,
        format!("{figure} {}", measure.unit),
    );
    line.trim_end().to_string()
}

fn target(target: Target, unit: &str) -> String {
    let number = |x: f64| if unit == "%" { format!("{:.0}%", 100.0 * x) } else { format!("{x}") };
    match target {
        Target::AtLeast(least) => format!(" (at least {})", number(least)),
        Target::AtMost(most) => format!(" (at most {})", number(most)),
    }
}

fn word(reached: bool) -> &'static str {
    if reached { "pass" } else { "MISS" }
}

/// Name of a device, as a part of a file name.
fn slug(name: &str) -> String {
    let lower = name.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date((now.as_secs() / 86_400) as i64)
}

/// Date of a day that is given as its number from 1 January 1970. Years begin in March here, so that the leap day is
/// the last day of a year.
fn date(day: i64) -> String {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + later)
}

/// Line that is printed when a check has run.
pub fn verdict_line(verdict: &Verdict) -> String {
    let Verdict { name, holds, outcome, why, seconds } = verdict;
    if *holds {
        return format!("    ok  {name}: {outcome} ({seconds:.1} s)");
    }
    format!("FAILED  {name}: {} ({seconds:.1} s)", why.as_deref().unwrap_or("no reason was given"))
}

/// Size of the checks: small if requested, and on an emulated device, which is slow.
pub fn size(quick: bool, emulated: bool) -> Size {
    if quick || emulated { Size::Tiny } else { Size::Full }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Ratio;

    #[test]
    fn days_have_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(11_017), "2000-03-01");
        assert_eq!(date(20_454), "2026-01-01");
        assert_eq!(date(-1), "1969-12-31");
    }

    #[test]
    fn a_name_becomes_a_files() {
        assert_eq!(slug("NVIDIA H200"), "nvidia-h200");
        assert_eq!(slug(" A100-SXM4-80GB / MIG "), "a100-sxm4-80gb-mig");
    }

    #[test]
    fn a_figure_stands_beside_its_limit_and_its_target() {
        let mut measure = Measure {
            name: "rms_norm".into(),
            workload: "[1, 2]".into(),
            value: 3655.2,
            unit: "GB/s",
            seconds: 1.0,
            ratio: Some(Ratio {
                of: "copy bandwidth".into(),
                value: 0.8503,
                share: true,
                target: Some(Target::AtLeast(0.85)),
            }),
        };
        let line = measure_line(&measure);
        assert!(line.contains("3655 GB/s  85.0% copy bandwidth (at least 85%)  pass"), "{line}");
        measure.ratio = Some(Ratio {
            of: "the time to read its bytes".into(),
            value: 1.4,
            share: false,
            target: Some(Target::AtMost(1.25)),
        });
        let line = measure_line(&measure);
        assert!(line.ends_with("1.40 x the time to read its bytes (at most 1.25)  MISS"), "{line}");
        measure.ratio = None;
        assert!(measure_line(&measure).ends_with("3655 GB/s"));
    }
}

//! Speed of the device, and of kernels and models as a fraction of its limits.
//!
//! Two limits are measured first, in the same run: the bandwidth of a copy, and the rate of a large
//! matmul. All other figures are given as a fraction of them, so that a figure is comparable across
//! devices. Times are the device's own (events in the stream), medians of several runs after some
//! that do not count.

mod attention;
mod chunks;
mod limits;
mod memory;
mod model;
mod serve;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use kernels::{Buffer, Gpu, Timer};
use serde::Serialize;

use crate::{Context, Numbers};
pub use limits::Limits;
pub(crate) use serve::workloads;
pub use serve::{SERVED, Served, Workload, serve};

/// Target of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Target {
    /// Whether a figure meets the target.
    pub fn reached(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
        }
    }
}

/// A figure relative to a reference.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The reference of which it is a fraction or a multiple.
    pub of: String,
    /// The fraction or multiple.
    pub value: f64,
    /// Whether it is a fraction of a limit, of which more is better, and not a multiple.
    pub share: bool,
    /// Target of the figure.
    pub target: Option<Target>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// Name of what was measured.
    pub name: String,
    /// Size of the workload.
    pub workload: String,
    /// The figure.
    pub value: f64,
    /// Unit of the figure.
    pub unit: &'static str,
    /// Median time of one run, in seconds.
    pub seconds: f64,
    /// The figure relative to a limit.
    pub ratio: Option<Ratio>,
}

impl Measure {
    /// Whether it meets its target, if it has one.
    pub fn reached(&self) -> Option<bool> {
        let ratio = self.ratio.as_ref()?;
        Some(ratio.target?.reached(ratio.value))
    }
}

/// Measures everything and reports each figure as it comes. A measurement that fails is reported by
/// name, and the rest continues.
///
/// # Errors
/// The limits could not be measured.
pub fn run(
    ctx: &Context,
    only: &str,
    mut said: impl FnMut(&Measure),
) -> Result<(Limits, Vec<Measure>, Vec<String>)> {
    let mut failures = Vec::new();
    let limits = Limits::measure(ctx)?;
    let mut measures = limits.measures();
    measures.iter().for_each(&mut said);
    type Part = fn(&Context, &Limits, &mut dyn FnMut(Measure)) -> Result<()>;
    let parts: [(&str, Part); 6] = [
        ("memory", memory::run),
        ("gemv", memory::gemv),
        ("attention", attention::run),
        ("chunks", |ctx, _, take| chunks::run(ctx, take)),
        ("model", model::run),
        ("serve", serve::run),
    ];
    for (name, part) in parts.into_iter().filter(|(name, _)| name.contains(only)) {
        let mut take = |measure: Measure| {
            said(&measure);
            measures.push(measure);
        };
        let started = Instant::now();
        if let Err(e) = part(ctx, &limits, &mut take) {
            failures.push(format!("{name}: {e:#}"));
        }
        eprintln!("{name}: {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok((limits, measures, failures))
}

/// Number of runs that are timed together, and number of repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    pub together: usize,
    pub samples: usize,
}

impl Runs {
    /// Repetitions for runs of microseconds.
    pub(crate) fn short(ctx: &Context) -> Self {
        if ctx.tiny() {
            Self { together: 1, samples: 1 }
        } else {
            Self { together: 20, samples: 15 }
        }
    }

    /// Repetitions for runs of milliseconds.
    pub(crate) fn long(ctx: &Context) -> Self {
        if ctx.tiny() { Self { together: 1, samples: 1 } } else { Self { together: 3, samples: 7 } }
    }
}

/// Median time of one run of `work`, which only enqueues, by the device's clock.
pub(crate) fn time(
    gpu: &Gpu,
    runs: Runs,
    mut work: impl FnMut(usize) -> Result<()>,
) -> Result<Duration> {
    let mut timer = Timer::new(gpu)?;
    // Compiles, allocates scratch, and raises the clock rates.
    for i in 0..runs.together.div_ceil(2) {
        work(i)?;
    }
    gpu.synchronize()?;
    let mut times = Vec::with_capacity(runs.samples);
    for _ in 0..runs.samples {
        let timed =
            timer.time(gpu, || -> Result<()> { (0..runs.together).try_for_each(&mut work) })?;
        times.push(timed / runs.together as u32);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Memory of `len` bytes that is not all zeros: small ordinary numbers, as bf16 and as f32.
pub(crate) fn filled(gpu: &Arc<Gpu>, len: usize) -> Result<Buffer> {
    // One random piece is copied as often as needed: no kernel depends on repetitions.
    let mut numbers = Numbers::new("filled");
    let piece: Vec<f32> = numbers.normals((len / 4).clamp(1, 1 << 18), 0.05);
    // A bf16 in each half: both are ordinary numbers.
    let piece: Vec<u32> = piece.iter().map(|x| (x.to_bits() >> 16) * 0x1_0001).collect();
    let mut buffer = Buffer::zeroed(gpu, len)?;
    let mut at = 0;
    while at < len / 4 {
        let n = piece.len().min(len / 4 - at);
        buffer.view_mut().cast::<u32>().part(at, n).copy_from(gpu, &piece[..n])?;
        at += n;
    }
    Ok(buffer)
}

/// A rate of bytes as a measurement, relative to the copy.
pub(crate) fn by_bandwidth(
    limits: &Limits,
    name: impl Into<String>,
    workload: String,
    bytes: usize,
    took: Duration,
    least: Option<f64>,
) -> Measure {
    let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
    Measure {
        name: name.into(),
        workload,
        value: rate / 1e9,
        unit: "GB/s",
        seconds: took.as_secs_f64(),
        ratio: Some(Ratio {
            of: "copy bandwidth".into(),
            value: rate / limits.copy,
            share: true,
            target: least.map(Target::AtLeast),
        }),
    }
}

/// A rate of operations as a measurement, relative to the large matmul.
pub(crate) fn by_matmul(
    limits: &Limits,
    name: impl Into<String>,
    workload: String,
    operations: f64,
    took: Duration,
    least: f64,
) -> Measure {
    let rate = operations / took.as_secs_f64().max(1e-9);
    Measure {
        name: name.into(),
        workload,
        value: rate / 1e12,
        unit: "TFLOP/s",
        seconds: took.as_secs_f64(),
        ratio: Some(Ratio {
            of: "matmul peak".into(),
            value: rate / limits.matmul,
            share: true,
            target: Some(Target::AtLeast(least)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_reached_on_its_own_side() {
        assert!(Target::AtLeast(0.8).reached(0.8) && !Target::AtLeast(0.8).reached(0.79));
        assert!(Target::AtMost(1.25).reached(1.25) && !Target::AtMost(1.25).reached(1.26));
    }
}

//! `--by-op`: where the time of a step goes.
//!
//! The workload runs once more on a profiled runtime ([`l1_tensor::Profile`]), whose ops add up their own times. What
//! is shown is the repetition whose step took the median time, so the times of a table add up to its step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use l1_tensor::cpu::machine::{Readings, flop_peak, read_bandwidths};
use l1_tensor::{OpKind, OpTotals, Profile, WeightId};
use l2_model::{Decoder, Matrix};
use serde_json::{Value, json};

use super::measure::{Run, WARM_UP, Workload};
use super::subject::Subject;
use crate::cli::kv::Kv;

/// Rows of a table, in the order of a step. The last one is the time outside of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Op {
    Embedding,
    NormsAndRope,
    Matrix(Matrix),
    OtherMatmuls,
    Adapter,
    KvWrite,
    Attention,
    Elementwise,
    Argmax,
    Other,
}

impl Op {
    fn name(self) -> String {
        match self {
            Op::Embedding => "embedding".into(),
            Op::NormsAndRope => "norms + rope".into(),
            Op::Matrix(matrix) => matrix.to_string(),
            Op::OtherMatmuls => "other matmuls".into(),
            Op::Adapter => "adapter".into(),
            Op::KvWrite => "KV write".into(),
            Op::Attention => "attention".into(),
            Op::Elementwise => "elementwise".into(),
            Op::Argmax => "argmax".into(),
            Op::Other => "other".into(),
        }
    }
}

/// Time by op of one workload.
pub(super) struct ByOp {
    work: Kind,
    /// Steps of a repetition.
    steps: usize,
    /// Duration of these steps.
    took: Duration,
    ops: BTreeMap<Op, OpTotals>,
    /// Bytes per second from memory beside all repetitions.
    read: Readings,
    /// FLOP/s of the matmuls' activations, right before.
    peak: f64,
}

/// Kind of work.
#[derive(Clone, Copy)]
enum Kind {
    /// One prompt of so many tokens, which may take several steps.
    Prefill(usize),
    /// Decode steps of so many sequences.
    Decode(usize),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Prefill(tokens) => f.pad(&format!("prefill {tokens}")),
            Kind::Decode(batch) => f.pad(&format!("batch {batch}")),
        }
    }
}

impl ByOp {
    /// Measures decode steps of a batch.
    ///
    /// # Errors
    /// A device whose ops cannot be timed one by one; no memory; what the model reports.
    pub fn decode(subject: &Subject, kv: &Kv, work: &Workload) -> anyhow::Result<Self> {
        Self::measure(subject, kv, work, Kind::Decode(work.batch), work.generate, |run, begin| {
            run.at_context()?;
            run.decode(WARM_UP)?;
            run.at_context()?;
            begin();
            run.decode(work.generate)
        })
    }

    /// Measures the prefill of one prompt.
    ///
    /// # Errors
    /// As [`ByOp::decode`].
    pub fn prefill(subject: &Subject, kv: &Kv, work: &Workload) -> anyhow::Result<Self> {
        let work = Workload { batch: 1, ..*work };
        Self::measure(subject, kv, &work, Kind::Prefill(work.prompt), 1, |run, begin| {
            run.empty();
            begin();
            run.fill(work.prompt)
        })
    }

    /// Measures `repetition`, which calls its second argument when the part to time begins.
    fn measure(
        subject: &Subject,
        kv: &Kv,
        work: &Workload,
        kind: Kind,
        steps: usize,
        repetition: impl Fn(&mut Run<'_>, &mut dyn FnMut()) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let profile = Arc::new(Profile::default());
        let rt = subject.rt.profiled(&profile)?;
        let adapter = subject.adapter.as_ref().map(|adapter| &adapter.weights);
        let mut run = Run::new(&rt, &subject.decoder, adapter, kv, work)?;
        let peak = flop_peak(&rt, rt.precision());
        let mut read = read_bandwidths(rt.pool());
        let mut runs = Vec::with_capacity(work.repeat);
        for _ in 0..work.repeat {
            let mut started = Instant::now();
            repetition(&mut run, &mut || {
                profile.take();
                started = Instant::now();
            })?;
            runs.push((started.elapsed(), profile.take()));
            read = read.and(&read_bandwidths(rt.pool()));
        }
        // Of an even number, the faster of the two in the middle.
        runs.sort_by_key(|(took, _)| *took);
        let middle = runs.len().saturating_sub(1) / 2;
        let (took, totals) = runs.into_iter().nth(middle).unwrap_or_default();
        let ops = by_name(&subject.decoder, &totals, took);
        Ok(Self { work: kind, steps, took, ops, read, peak })
    }

    /// Milliseconds of a step (of a prompt) in an op, and those in which the caller waited for other threads.
    fn ms(&self, totals: &OpTotals) -> (f64, f64) {
        let of_step = |time: Duration| time.as_secs_f64() * 1e3 / self.steps as f64;
        (of_step(totals.time), of_step(totals.waited))
    }

    /// Milliseconds of a step.
    fn step_ms(&self) -> f64 {
        self.took.as_secs_f64() * 1e3 / self.steps as f64
    }

    /// Milliseconds of a step in which the caller waited for other threads.
    fn wait_ms(&self) -> f64 {
        self.ops.values().map(|totals| self.ms(totals).1).sum()
    }

    fn rates(&self, totals: &OpTotals) -> Option<Rates> {
        let seconds = totals.time.as_secs_f64();
        let (bytes, flops) = (totals.work.bytes as f64, totals.work.flops as f64);
        if seconds == 0.0 || bytes + flops == 0.0 {
            return None;
        }
        let memory = |limit: f64| bytes / limit.max(1.0) / seconds;
        let arithmetic = flops / self.peak.max(1.0) / seconds;
        let by_memory = memory(self.read.best()) >= arithmetic;
        Some(Rates {
            gb_per_s: bytes / seconds / 1e9,
            gflop_per_s: flops / seconds / 1e9,
            limit: if by_memory { "memory" } else { "flops" },
            of_limit: if by_memory { memory(self.read.best()) } else { arithmetic },
            of_median: by_memory.then(|| memory(self.read.median())),
        })
    }

    /// An entry of `by_op` in the output of `--json`. Numbers of calls, bytes and operations are those of a step.
    pub fn json(&self) -> Value {
        let steps = self.steps as f64;
        let op = |(op, totals): (&Op, &OpTotals)| {
            let ((ms, wait_ms), rates) = (self.ms(totals), self.rates(totals));
            let of = |value: fn(&Rates) -> f64| rates.as_ref().map(value);
            json!({
                "op": op.name(),
                "calls": totals.calls as f64 / steps,
                "ms": ms,
                "wait_ms": wait_ms,
                "bytes": totals.work.bytes as f64 / steps,
                "flops": totals.work.flops as f64 / steps,
                "gb_s": of(|r| r.gb_per_s),
                "gflop_s": of(|r| r.gflop_per_s),
                "limit": rates.as_ref().map(|r| r.limit),
                "of_limit": of(|r| r.of_limit),
                "of_median": rates.as_ref().and_then(|r| r.of_median),
            })
        };
        let (work, batch, prompt) = match self.work {
            Kind::Prefill(tokens) => ("prefill", 1, Some(tokens)),
            Kind::Decode(batch) => ("decode", batch, None),
        };
        json!({
            "work": work,
            "batch": batch,
            "prompt_tokens": prompt,
            "step_ms": self.step_ms(),
            "wait_ms": self.wait_ms(),
            "read_gb_s": self.read.best() / 1e9,
            "read_gb_s_median": self.read.median() / 1e9,
            "gflop_s": self.peak / 1e9,
            "ops": self.ops.iter().map(op).collect::<Vec<_>>(),
        })
    }
}

/// Rates of an op, beside the limit that binds it: the one by which its work takes longer.
struct Rates {
    gb_per_s: f64,
    gflop_per_s: f64,
    limit: &'static str,
    /// Fraction of the limit: 1 is all of it. Of memory, the best reading.
    of_limit: f64,
    /// The same of the median reading; `None` for the other limit.
    of_median: Option<f64>,
}

/// Totals by rows of a table. A weight is named by the decoder.
fn by_name(
    decoder: &Decoder,
    totals: &BTreeMap<OpKind, OpTotals>,
    took: Duration,
) -> BTreeMap<Op, OpTotals> {
    let names: BTreeMap<WeightId, Matrix> =
        decoder.matrices().map(|(name, weight)| (WeightId::of(weight), name)).collect();
    let mut rows = BTreeMap::<Op, OpTotals>::new();
    for (kind, totals) in totals {
        let op = match kind {
            OpKind::Matmul(weight) => {
                names.get(weight).map_or(Op::OtherMatmuls, |m| Op::Matrix(*m))
            }
            OpKind::LowRank => Op::Adapter,
            OpKind::Attention => Op::Attention,
            OpKind::KvWrite => Op::KvWrite,
            OpKind::Norm | OpKind::Rope => Op::NormsAndRope,
            OpKind::Embedding => Op::Embedding,
            OpKind::Select => Op::Argmax,
            OpKind::Elementwise => Op::Elementwise,
        };
        *rows.entry(op).or_default() += *totals;
    }
    let inside: Duration = rows.values().map(|totals| totals.time).sum();
    let time = took.saturating_sub(inside);
    rows.insert(Op::Other, OpTotals { time, ..OpTotals::default() });
    rows
}

impl fmt::Display for ByOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (best, median) = (self.read.best() / 1e9, self.read.median() / 1e9);
        writeln!(
            f,
            "{}: {:.3} ms; memory {best:.1} GB/s at best (median {median:.1}), {:.0} GFLOP/s",
            self.work,
            self.step_ms(),
            self.peak / 1e9
        )?;
        writeln!(
            f,
            "{:<14} {:>6} {:>9} {:>6} {:>8} {:>9} {:>9} {:>7} {:>8}  {:>14} {:>9}",
            "op",
            "calls",
            "ms",
            "share",
            "wait ms",
            "MB",
            "MFLOP",
            "GB/s",
            "GFLOP/s",
            "of limit",
            "of median"
        )?;
        let steps = self.steps as f64;
        for (op, totals) in &self.ops {
            let (ms, wait) = self.ms(totals);
            let share = 100.0 * ms / self.step_ms();
            let calls = totals.calls as f64 / steps;
            write!(f, "{:<14} {calls:>6.0} {ms:>9.3} {share:>5.1}% {wait:>8.3}", op.name())?;
            if let Some(rates) = self.rates(totals) {
                let (mb, mflop) = (totals.work.bytes as f64 / 1e6, totals.work.flops as f64 / 1e6);
                let Rates { gb_per_s, gflop_per_s, limit, of_limit, of_median } = rates;
                write!(
                    f,
                    " {:>9.2} {:>9.1} {gb_per_s:>7.1} {gflop_per_s:>8.1}  {:>14}",
                    mb / steps,
                    mflop / steps,
                    format!("{:.0}% of {limit}", 100.0 * of_limit)
                )?;
                if let Some(of_median) = of_median {
                    write!(f, " {:>8.0}%", 100.0 * of_median)?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// All workloads: milliseconds by op in one table, and then a table for each.
pub(super) struct ByOps<'a>(pub &'a [ByOp]);

impl fmt::Display for ByOps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        self.0.iter().try_for_each(|all| write!(f, "\n{all}"))
    }
}

impl ByOps<'_> {
    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<24}", "ms a step (a prompt)")?;
        self.0.iter().try_for_each(|all| write!(f, " {:>13}", all.work))?;
        let ops: BTreeSet<_> = self.0.iter().flat_map(|all| all.ops.keys()).collect();
        for op in ops {
            write!(f, "\n{:<24}", op.name())?;
            for all in self.0 {
                match all.ops.get(op) {
                    Some(totals) => write!(f, " {:>13.3}", all.ms(totals).0)?,
                    None => write!(f, " {:>13}", "-")?,
                }
            }
        }
        write!(f, "\n{:<24}", "all")?;
        self.0.iter().try_for_each(|all| write!(f, " {:>13.3}", all.step_ms()))?;
        write!(f, "\n{:<24}", "waits, part of the ops")?;
        self.0.iter().try_for_each(|all| write!(f, " {:>13.3}", all.wait_ms()))?;
        writeln!(f)
    }
}

//! The report, as a table and as JSON.

use std::fmt;
use std::time::Duration;

use l1_tensor::cpu::machine::Readings;
use l1_tensor::{Precision, WeightStorage};
use l5_scheduler::RequestAdapter;
use serde_json::{Value, json};

use super::BenchArgs;
use super::by_op::{ByOp, ByOps};
use super::measure::Timings;
use super::subject::Subject;
use crate::cli::kv::Kv;
use server::words::{count, size};

/// What the machine can do at most, measured at the start.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Bytes per second from memory, all threads.
    pub read: Readings,
    /// FLOP/s of bf16 activations, all threads.
    pub bf16_flops: f64,
    /// FLOP/s of f32 activations, all threads.
    pub f32_flops: f64,
}

impl Limits {
    /// FLOP/s of activations in this precision.
    pub fn flops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Bf16 => self.bf16_flops,
            Precision::F32 => self.f32_flops,
        }
    }
}

/// All that a run has to say about one subject.
pub(super) struct Report {
    model: String,
    /// Requested storage of the weights.
    weights: WeightStorage,
    adapter: Option<RequestAdapter>,
    /// Anonymous memory that the subject has added to the process, in bytes.
    resident: Option<i64>,
    /// The same of the buffers of the largest batch.
    grown: Option<i64>,
    architecture: String,
    runtime: String,
    device: String,
    isa: String,
    precision: Precision,
    threads: usize,
    prompt: usize,
    context: usize,
    generate: usize,
    repeat: usize,
    load: Duration,
    /// Size of the weights in memory, in bytes.
    pub weight_bytes: usize,
    weight_storage: String,
    /// Weights that a step reads.
    step_bytes: usize,
    /// The memory of the largest batch.
    kv: Kv,
    /// FLOP of one token's matmuls, and of one row of logits.
    flops: (usize, usize),
    limits: Limits,
    results: Vec<Figures>,
    /// Time by op of each batch size and of a prompt; empty unless it was asked for.
    pub by_op: Vec<ByOp>,
}

/// The medians of one batch size. Fractions are of the limits, 1 being all.
pub(super) struct Figures {
    pub batch: usize,
    pub prefill_tokens_per_s: f64,
    pub decode_tokens_per_s: f64,
    bytes_per_token: f64,
    /// Read bandwidth beside this decode: the best and the middle of its readings.
    read: (f64, f64),
    prefill_of_flops: f64,
    decode_of_flops: f64,
    /// Of the best reading beside each decode, so that the limit is not understated.
    pub decode_of_bandwidth: f64,
    pub decode_of_median_bandwidth: f64,
}

impl Report {
    /// A report without results.
    pub fn new(args: &BenchArgs, subject: &Subject, limits: Limits, kv: Kv) -> Self {
        let Subject { rt, decoder, .. } = subject;
        Self {
            model: subject.model.clone(),
            weights: subject.weights,
            adapter: subject.adapter.clone(),
            resident: subject.resident,
            grown: None,
            architecture: decoder.config().architecture.clone(),
            runtime: rt.to_string(),
            device: rt.device().to_string(),
            isa: rt.isa().to_string(),
            precision: rt.precision(),
            threads: rt.pool().threads(),
            prompt: args.prompt_tokens,
            context: args.context,
            generate: args.gen_tokens,
            repeat: args.repeat,
            load: subject.took,
            weight_bytes: decoder.weight_bytes(),
            weight_storage: decoder.weight_storage(),
            step_bytes: decoder.bytes_per_step(),
            kv,
            flops: decoder.flops(),
            limits,
            results: Vec::new(),
            by_op: Vec::new(),
        }
    }

    /// Add what was measured with this batch size. `grown`: bytes that its buffers have added to the process.
    pub fn add(&mut self, batch: usize, timings: &Timings, grown: Option<i64>) {
        self.grown = self.grown.max(grown);
        let rate = |tokens: usize, times: &[Duration]| {
            median(times.iter().map(|t| tokens as f64 / t.as_secs_f64().max(1e-9)))
        };
        let decode_tokens = batch * self.generate;
        let prefill_tokens_per_s = rate(batch * self.prompt, &timings.prefill);
        let bytes_per_token = self.bytes_per_token(batch);
        let (token, row) = (self.flops.0 as f64, self.flops.1 as f64);
        let peak = self.limits.flops(self.precision);
        // Of a prompt only the last row pays for the output projection.
        let prefill_flop_per_token = token + row / self.prompt as f64;
        let decode_tokens_per_s = rate(decode_tokens, &timings.decode);
        // Each repetition is held against its own reading, then the median is taken.
        let beside = || timings.decode.iter().zip(&timings.read_bytes_per_s);
        let of = |limit: fn(&Readings) -> f64| {
            median(beside().map(|(t, read)| {
                let bytes = decode_tokens as f64 * bytes_per_token;
                bytes / t.as_secs_f64().max(1e-9) / limit(read).max(1.0)
            }))
        };
        let read = |limit: fn(&Readings) -> f64| median(timings.read_bytes_per_s.iter().map(limit));
        self.results.push(Figures {
            batch,
            prefill_tokens_per_s,
            decode_tokens_per_s,
            bytes_per_token,
            read: (read(Readings::best), read(Readings::median)),
            prefill_of_flops: prefill_tokens_per_s * prefill_flop_per_token / peak,
            decode_of_flops: decode_tokens_per_s * (token + row) / peak,
            decode_of_bandwidth: of(Readings::best),
            decode_of_median_bandwidth: of(Readings::median),
        });
    }

    /// Bytes that decoding one token reads: its share of the weights, and the keys and values of its
    /// own sequence, halfway through the measurement.
    fn bytes_per_token(&self, batch: usize) -> f64 {
        let keys = self.context as f64 + (self.generate as f64 + 1.0) / 2.0;
        self.step_bytes as f64 / batch as f64 + keys * self.kv.bytes_per_token() as f64
    }

    /// What was measured with each batch size.
    pub fn figures(&self) -> impl Iterator<Item = &Figures> {
        self.results.iter()
    }

    /// The machine and its limits.
    pub fn machine(&self) -> String {
        format!("{}\n{}", self.runtime, self.limits)
    }

    /// The workload.
    pub fn workload(&self) -> String {
        format!(
            "prefill: {} per sequence; decode: {} from a context of {}; medians of {}",
            count(self.prompt, "token"),
            count(self.generate, "token"),
            self.context,
            count(self.repeat, "run"),
        )
    }

    /// Anonymous memory of the model and of the buffers of its largest batch, in bytes, as far as the system says.
    pub fn resident_bytes(&self) -> Option<i64> {
        Some(self.resident? + self.grown?)
    }

    /// The contract of `--json`. Rates are per second, `flops` in FLOP/s, fractions of 1.
    ///
    /// The outer `bytes_per_token` and `fraction` are those of the first batch size.
    pub fn json(&self) -> Value {
        let results: Vec<Value> = self.results.iter().map(Figures::json).collect();
        let first = self.results.first();
        let by_op: Vec<Value> = self.by_op.iter().map(ByOp::json).collect();
        json!({
            "model": self.model,
            "architecture": self.architecture,
            "device": self.device,
            "isa": self.isa,
            "precision": self.precision.to_string(),
            "threads": self.threads,
            "prompt_tokens": self.prompt,
            "context": self.context,
            "gen_tokens": self.generate,
            "repeat": self.repeat,
            "load_ms": self.load.as_secs_f64() * 1e3,
            "weight_bytes": self.weight_bytes,
            "weight_storage": self.weight_storage,
            "weights": self.weights.to_string(),
            "adapter": self.adapter.as_ref().map(|adapter| json!({
                "name": adapter.name,
                "rank": adapter.weights.rank(),
                "bytes": adapter.weights.bytes(),
            })),
            "resident_bytes": self.resident_bytes(),
            "kv_bytes_per_token": self.kv.bytes_per_token(),
            "kv": self.kv.report(0),
            "results": results,
            "by_op": (!by_op.is_empty()).then_some(by_op),
            "bytes_per_token": first.map(|f| f.bytes_per_token),
            "read_gb_s": self.limits.read.best() / 1e9,
            "read_gb_s_median": self.limits.read.median() / 1e9,
            "flops": { "bf16": self.limits.bf16_flops, "f32": self.limits.f32_flops },
            "fraction": first.map(Figures::fraction),
        })
    }
}

impl Figures {
    fn json(&self) -> Value {
        json!({
            "batch": self.batch,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "bytes_per_token": self.bytes_per_token,
            "read_gb_s": self.read.0 / 1e9,
            "read_gb_s_median": self.read.1 / 1e9,
            "fraction": self.fraction(),
        })
    }

    fn fraction(&self) -> Value {
        json!({
            "decode_of_bandwidth": self.decode_of_bandwidth,
            "decode_of_median_bandwidth": self.decode_of_median_bandwidth,
            "decode_of_flops": self.decode_of_flops,
            "prefill_of_flops": self.prefill_of_flops,
        })
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "limits: memory {:.1} GB/s at best (median {:.1}); {:.0} GFLOP/s in bf16, {:.0} in f32",
            self.read.best() / 1e9,
            self.read.median() / 1e9,
            self.bf16_flops / 1e9,
            self.f32_flops / 1e9,
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}) on {}", self.model, self.architecture, self.runtime)?;
        writeln!(
            f,
            "weights {} in {}, loaded in {:.0} ms; KV cache {:.1} kB per token",
            size(self.weight_bytes as u64),
            self.weight_storage,
            self.load.as_secs_f64() * 1e3,
            self.kv.bytes_per_token() as f64 / 1e3,
        )?;
        writeln!(f, "KV cache of the largest batch: {}", self.kv)?;
        writeln!(f, "{}", self.limits)?;
        writeln!(f, "{}", self.workload())?;
        writeln!(f)?;
        writeln!(
            f,
            "{:>6}  {:>14} {:>8}  {:>14} {:>8} {:>8} {:>9}  {:>20}",
            "batch",
            "prefill tok/s",
            "of peak",
            "decode tok/s",
            "of peak",
            "of best",
            "of median",
            "read, best (median)"
        )?;
        for r in &self.results {
            writeln!(
                f,
                "{:>6}  {:>14.1} {:>7.1}%  {:>14.1} {:>7.1}% {:>7.1}% {:>8.1}%  {:>6.1} ({:>6.1}) GB/s",
                r.batch,
                r.prefill_tokens_per_s,
                r.prefill_of_flops * 100.0,
                r.decode_tokens_per_s,
                r.decode_of_flops * 100.0,
                r.decode_of_bandwidth * 100.0,
                r.decode_of_median_bandwidth * 100.0,
                r.read.0 / 1e9,
                r.read.1 / 1e9,
            )?;
        }
        let dash = "-".to_string();
        let of = |i: usize| self.results.get(i).map_or(dash.clone(), |r| r.size_per_token());
        writeln!(f)?;
        writeln!(
            f,
            "Decoding one token reads {} at the first batch size, {} at the last. Shares: of the FLOP/s above\n\
             (of peak), counting matmuls only; of the best and of the median reading of the memory bandwidth beside each\n\
             decode (of best, of median), counting weights, keys and values. Attention, norms and waits take the rest of\n\
             the time.",
            of(0),
            of(self.results.len().saturating_sub(1)),
        )?;
        match self.by_op.as_slice() {
            [] => Ok(()),
            all => write!(f, "\n{}", ByOps(all)),
        }
    }
}

impl Figures {
    /// Bytes per second that decoding reads.
    pub fn decode_bytes_per_s(&self) -> f64 {
        self.decode_tokens_per_s * self.bytes_per_token
    }

    fn size_per_token(&self) -> String {
        size(self.bytes_per_token as u64)
    }
}

/// The middle one; of an even number, the mean of the two in the middle. 0 of nothing.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_is_in_the_middle_of_an_odd_and_of_an_even_number_of_values() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), 2.5);
        assert_eq!(median([].into_iter()), 0.0);
    }
}

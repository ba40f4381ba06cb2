//! What a token costs, from a row of 151,936 logits on.
//!
//! The table printed first takes medians, which is what means something on a machine that does
//! other things too; criterion follows. Where `STRATA_LIBLLAMA` names a `libllama.so`, llama.cpp's
//! sampler chain gets the same logits, a run of ours and a run of theirs in turn, so that a noisy
//! moment is noisy for both. Its column counts what `llama_sampler_sample` does: the array of
//! candidates is filled from the logits, then the chain is applied.
//!
//! Rows: "words" has a bulk of normal logits and a head that falls off as words do (Zipf); "noise"
//! is the bulk alone, hotter and flatter than any model; "flat" is all the same number, where
//! nothing can be left out. Two rows of each take turns: together they are more than a core's own
//! cache holds, which is where a model that has just computed them leaves them.

mod llama;
mod rows;

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};
use l1_tensor::{Runtime, RuntimeOptions, Tensor};
use l4_sampler::{DrawKey, History, Logits, Result, Row, Sampled, Sampler, SamplingParams};

use llama::{Chain, Llama};
use rows::{HISTORY, ROWS, Shape, VOCAB};

/// How often each is timed.
const ROUNDS: usize = 301;

/// What is timed: a name, its rows, what the request asks, how long it may take (us).
struct Workload {
    name: &'static str,
    shape: Shape,
    params: SamplingParams,
    aim: Option<f64>,
}

fn workloads() -> Vec<Workload> {
    let of = |name, shape, aim, params| Workload { name, shape, params, aim };
    let plain = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let penalised = SamplingParams {
        repetition_penalty: 1.1,
        presence_penalty: 0.1,
        frequency_penalty: 0.1,
        ..plain.clone()
    };
    let top_p = SamplingParams { top_p: 0.9, ..plain.clone() };
    let min_p = SamplingParams { min_p: 0.05, ..plain.clone() };
    let typical = SamplingParams { typical_p: 0.9, ..plain.clone() };
    let usual = SamplingParams { top_k: 50, top_p: 0.9, ..penalised.clone() };
    vec![
        of("greedy", Shape::Words, Some(40.0), SamplingParams::greedy()),
        of("top-k 50, top-p, penalties", Shape::Words, Some(250.0), usual.clone()),
        of("the same", Shape::Noise, Some(250.0), usual),
        of(
            "greedy, penalties",
            Shape::Words,
            None,
            SamplingParams { temperature: 0.0, ..penalised },
        ),
        of("top-k 50", Shape::Words, None, SamplingParams { top_k: 50, ..plain.clone() }),
        of("top-k 5000", Shape::Words, None, SamplingParams { top_k: 5000, ..plain.clone() }),
        of("temperature alone", Shape::Words, None, plain),
        of("top-p alone", Shape::Words, None, top_p.clone()),
        of("top-p alone", Shape::Noise, None, top_p.clone()),
        of("top-p alone", Shape::Flat, None, top_p),
        of("min-p alone", Shape::Words, None, min_p.clone()),
        of("min-p alone", Shape::Flat, None, min_p),
        of("typical-p alone", Shape::Words, None, typical.clone()),
        of("typical-p alone", Shape::Noise, None, typical),
    ]
}

fn runtime(threads: usize) -> Result<Runtime> {
    Ok(Runtime::new(RuntimeOptions { threads: Some(threads), ..Default::default() })?)
}

/// The key of the draw at a position.
fn key(position: u32) -> DrawKey {
    DrawKey { seed: 7, sample: 0, position }
}

/// A history of as many tokens as a short conversation has.
fn history() -> History {
    let (prompt, answer) = HISTORY.split_at(HISTORY.len() * 3 / 4);
    let mut history = History::new(prompt, answer.len());
    answer.iter().for_each(|token| history.push(*token));
    history
}

/// Our side of a workload: a sampler with all it needs.
struct Ours {
    sampler: Sampler,
    history: History,
    out: Vec<Sampled>,
}

impl Ours {
    fn new(threads: usize) -> Result<Self> {
        let sampler = Sampler::new(&runtime(threads)?, VOCAB);
        Ok(Self { sampler, history: history(), out: vec![Sampled::default(); 64] })
    }

    /// Tokens of `n` rows from row `at` on, and how long they took, in us.
    fn time(
        &mut self,
        logits: &Tensor,
        params: &SamplingParams,
        at: usize,
        n: usize,
    ) -> Result<f64> {
        let history = &self.history;
        let row = |i: usize| Row { params, history, ends: &[], mask: None, key: key(i as u32) };
        let rows: Vec<Row<'_>> = (at..at + n).map(row).collect();
        let logits = logits.view().narrow(0, at, n)?;
        let start = Instant::now();
        self.sampler.sample(Logits::Shared(logits), &rows, &mut self.out[..n])?;
        let taken = start.elapsed().as_secs_f64() * 1e6;
        black_box(&self.out);
        Ok(taken)
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn best(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

/// One row at a time on one thread, beside llama.cpp's chain.
fn alone(llama: Option<&Llama>) -> Result<()> {
    println!(
        "one row of {VOCAB}, one thread: us       median     best      aim    llama.cpp   ratio"
    );
    let mut ours = Ours::new(1)?;
    for Workload { name, shape, params, aim } in workloads() {
        let logits = shape.tensor(ROWS)?;
        let chain = llama.and_then(|llama| Chain::of(llama, &params));
        let (mut times, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let at = round % ROWS;
            times.push(ours.time(&logits, &params, at, 1)?);
            if let Some(chain) = &chain {
                theirs.push(chain.time(&logits.view().narrow(0, at, 1)?)?);
            }
        }
        let (least, taken) = (best(&times), median(times));
        let aim = aim.map_or(String::new(), |aim| format!("{aim:.0}"));
        let (them, ratio) = match median(theirs) {
            them if them.is_nan() => (String::new(), String::new()),
            them => (format!("{them:.0}"), format!("{:.1}x", them / taken)),
        };
        println!("{name:<27} {shape:<6} {taken:>12.1} {least:>8.1} {aim:>8} {them:>12} {ratio:>7}");
    }
    Ok(())
}

/// Rows in parallel: the usual request, 64 times.
fn batched() -> Result<()> {
    const BATCH: usize = 64;
    let Workload { params, .. } = workloads().swap_remove(1);
    let logits = Shape::Words.tensor(BATCH)?;
    let (mut one, mut two) = (Ours::new(1)?, Ours::new(2)?);
    let (mut by_one, mut by_two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS / 6 {
        by_one.push(one.time(&logits, &params, 0, BATCH)?);
        by_two.push(two.time(&logits, &params, 0, BATCH)?);
    }
    println!("\n{BATCH} rows of the usual request: us    one thread  two threads     aim   ratio");
    let line = |name: &str, one: f64, two: f64| {
        println!("{name:<32} {one:>14.0} {two:>12.0}    1.7x {:>6.2}x", one / two);
    };
    line("best", best(&by_one), best(&by_two));
    line("median", median(by_one), median(by_two));
    Ok(())
}

fn main() -> Result<()> {
    let llama = Llama::from_env();
    if llama.is_none() {
        println!(
            "(no llama.cpp beside it: STRATA_LIBLLAMA names no libllama.so that can be loaded)"
        );
    }
    alone(llama.as_ref())?;
    batched()?;

    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("sampler");
    group.throughput(Throughput::Elements(1));
    let mut ours = Ours::new(1)?;
    for Workload { name, shape, params, .. } in workloads() {
        let logits = shape.tensor(ROWS)?;
        let mut at = 0;
        group.bench_function(BenchmarkId::new(name, shape), |b| {
            b.iter(|| {
                at = (at + 1) % ROWS;
                ours.time(&logits, &params, at, 1)
            });
        });
    }
    group.finish();
    Ok(())
}

//! `strata bench`: how fast a model runs here, and how fast this machine would let it run.
//!
//! A figure in tokens per second says little by itself. Two limits give it a scale:
//!
//! * **Decode** of few sequences reads every weight for every step, so it can be no faster than
//!   memory: `read bandwidth / bytes per step`.
//! * **Prefill** (and decode of many sequences) reuses each weight it has read, so it can be no
//!   faster than the multipliers: `peak FLOP/s / FLOP per token`.
//!
//! (This is the roofline model; Williams, Waterman and Patterson 2009.) Both limits are measured in
//! the same run: the peak at the start, the bandwidth again right before and after every decode,
//! because on shared machines it changes from one minute to the next. The fraction that is reached
//! is what should be compared between machines and versions.

mod measure;
mod report;

use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;
use l1_tensor::cpu::machine::{flop_peak, read_bandwidth};
use l1_tensor::{DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions};
use l2_model::ModelFiles;

use crate::hub;
use measure::{Workload, measure};
use report::{Limits, Report};

/// Measure prefill and decode, beside the limits of this machine.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// smollm2, a hub id (org/name), a Hugging Face directory, or a .gguf file
    #[arg(long, value_name = "MODEL", default_value = "smollm2")]
    pub model: String,
    /// auto, cpu or cuda[:N]
    #[arg(long, default_value = "auto")]
    pub device: DeviceRequest,
    /// auto, f32 (exact activations) or bf16 (rounded activations)
    #[arg(long, default_value = "auto")]
    pub precision: PrecisionRequest,
    /// Threads of one forward pass [default: one for each core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Tokens of each prompt in the prefill measurement
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    pub prompt_tokens: usize,
    /// Tokens each sequence generates in the decode measurement
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub gen_tokens: usize,
    /// Tokens each sequence holds when its decode measurement begins
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub context: usize,
    /// Sequences at once: a list of batch sizes, measured one after the other
    #[arg(long, value_name = "N,..", default_value = "1,8,32", value_delimiter = ',', value_parser = at_least_one)]
    pub batch: Vec<usize>,
    /// Repetitions of each measurement, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

fn at_least_one(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(e) => Err(e.to_string()),
    }
}

/// Run the command.
///
/// # Errors
/// A model that cannot be found or loaded, a workload longer than its context, no memory for the
/// state of the largest batch.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let rt = Runtime::new(RuntimeOptions {
        device: args.device,
        precision: args.precision,
        threads: args.threads,
        isa: None,
    })?;
    let source = hub::resolve(&args.model, &hub::Options::from_env())?;
    let started = Instant::now();
    let decoder = ModelFiles::open(source.path())?.decoder(&rt)?;
    let load = started.elapsed();

    let workload = |batch| Workload {
        batch,
        prompt: args.prompt_tokens,
        context: args.context,
        generate: args.gen_tokens,
        repeat: args.repeat,
    };
    let longest = workload(1).longest();
    let max = decoder.config().max_context;
    ensure!(
        longest <= max,
        "sequences would have {longest} tokens, but the context of {} holds {max}: \
         lower --prompt-tokens, --context or --gen-tokens",
        args.model
    );

    let limits = Limits {
        read_bytes_per_s: read_bandwidth(rt.pool()),
        bf16_flops: flop_peak(&rt, Precision::Bf16),
        f32_flops: flop_peak(&rt, Precision::F32),
    };
    let mut report = Report::new(args, &rt, &decoder, load, limits);
    for &batch in &args.batch {
        let timings =
            measure(&rt, &decoder, &workload(batch)).with_context(|| format!("batch {batch}"))?;
        report.add(batch, &timings);
    }
    if args.json {
        println!("{}", serde_json::to_string(&report.json())?);
    } else {
        print!("{report}");
    }
    Ok(())
}

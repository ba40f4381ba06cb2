//! `nano`: completes a prompt with the engine of the fast track.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use l2_model::ModelFiles;
use nano::{Engine, Request, load};

/// The file of the default model in the cache.
const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Complete prompts with the engine of the fast track, all of them in one batch
#[derive(Parser)]
struct Args {
    /// The prompts
    #[arg(required = true, value_name = "PROMPT")]
    prompts: Vec<String>,
    /// A GGUF file or a Hugging Face model directory [default: SmolLM2-135M-Instruct in the cache]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Maximum number of output tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_tokens: usize,
    /// Number of KV blocks of 16 tokens [default: as many as all prompts need]
    #[arg(long, value_name = "N")]
    num_blocks: Option<usize>,
    /// Maximum number of tokens of a step
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_num_batched_tokens: usize,
}

const BLOCK_SIZE: usize = 16;

fn main() -> Result<()> {
    let args = Args::parse();
    let path = match args.model {
        Some(path) => path,
        None => default_model()?,
    };
    let files = ModelFiles::open(&path)?;
    let tokenizer = files.tokenizer()?;
    let requests =
        args.prompts.iter().enumerate().map(|(id, prompt)| {
            Ok(Request::new(id, tokenizer.encode(prompt, true)?, args.max_tokens))
        });
    let requests: Vec<Request> = requests.collect::<Result<_>>()?;
    let blocks = |request: &Request| (request.prompt + args.max_tokens).div_ceil(BLOCK_SIZE);
    let largest = requests.iter().map(blocks).max().unwrap_or(0);
    let num_blocks = args.num_blocks.unwrap_or_else(|| requests.iter().map(blocks).sum());
    if requests.iter().any(|request| request.prompt == 0) {
        bail!("a prompt has no tokens");
    }
    if num_blocks < largest || args.max_num_batched_tokens == 0 || args.max_tokens == 0 {
        bail!("the longest request needs {largest} blocks, and a step and an output need a token");
    }
    let model = load::load(&files)?;
    let mut engine = Engine::new(model, num_blocks, BLOCK_SIZE, args.max_num_batched_tokens);
    engine.stop = files.stop_tokens().to_vec();
    requests.into_iter().for_each(|request| engine.add(request));

    let began = Instant::now();
    let mut ended = engine.run();
    let seconds = began.elapsed().as_secs_f64();
    ended.sort_by_key(|request| request.id);
    let mut out = stdout().lock();
    for request in &ended {
        let text = tokenizer.decode(request.output(), true)?;
        writeln!(out, "{}{text}", args.prompts[request.id])?;
    }
    let tokens: usize = ended.iter().map(|request| request.output().len()).sum();
    let preemptions = engine.scheduler.preemptions;
    writeln!(
        out,
        "({tokens} tokens in {seconds:.1} s; {num_blocks} blocks of {BLOCK_SIZE} tokens, {preemptions} preemptions)"
    )?;
    Ok(())
}

/// The default model, if it was downloaded.
fn default_model() -> Result<PathBuf> {
    let cache = std::env::var_os("STRATA_CACHE").map(PathBuf::from).or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        Some(cache.or_else(home)?.join("strata"))
    });
    match cache.map(|dir| dir.join(DEFAULT_MODEL)) {
        Some(path) if path.is_file() => Ok(path),
        _ => {
            bail!("{DEFAULT_MODEL} is not in the cache: run `cargo run --release -- fetch smollm2`")
        }
    }
}

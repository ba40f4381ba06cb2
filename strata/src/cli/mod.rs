//! The `strata` command line.
//!
//! Three rules hold for every subcommand. **stdout carries the result and nothing else**, so that it can be piped:
//! device, times and progress go to stderr, and only if it is a terminal. **An error is one line on stderr**, beginning
//! with `error:`; several problems of a file have a line each. **The exit code** is 2 for bad usage, 1 for a failure,
//! 130 after Ctrl-C.
//!
//! `options/` defines the engine's options; `args.rs`, `kv.rs`, `sampling.rs` and `guides.rs` hold the others that
//! several subcommands share. `load.rs` loads the model that they name, and `adapter.rs` its LoRA adapter. Each subcommand has a
//! file of its own.

mod adapter;
mod args;
mod bench;
mod chat;
mod chat_template;
mod compare;
mod context;
mod ensemble;
mod error;
mod fetch;
mod generate;
mod guides;
mod interrupt;
mod job_history;
mod kv;
mod load;
mod logits;
mod models;
mod options;
mod out;
mod perplexity;
mod plot;
mod progress;
mod prompt;
mod prompts;
mod quantize;
mod recording;
mod response;
mod router;
mod router_tune;
mod sampling;
mod serve;
mod serving;
mod simulate;
mod sweep;
mod tokenize;
mod trace;
mod wrap;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use context::Context;

const EXAMPLES: &str = "\
Examples:
  strata generate \"The capital of France is\"
  strata generate --chat \"Why is the sky blue?\" --max-tokens 200
  strata generate --chat \"Name a colour\" --temperature 0.8 --top-p 0.95 --n 3
  strata generate --chat \"Is water wet?\" --choice yes,no
  strata chat --system \"You are brief.\"
  strata generate --model Qwen/Qwen3-0.6B \"Once upon a time\"
  strata generate --model ./model.Q4_K.gguf --json \"1, 1, 2, 3, 5,\"
  strata tokenize --json \"Hello, world\"
  strata simulate --workload load.json --rate 4
  strata sweep --out sweep
  strata compare --model fixtures/tiny-llama --golden fixtures/tiny-llama/golden.safetensors

MODEL is one of:
  smollm2                      SmolLM2-135M-Instruct, the default; downloaded once
  org/name                     a model on the hub (also org/name@revision, org/name:Q4_1)
  a directory                  with config.json, tokenizer.json and safetensors
  a .gguf file                 which contains all of these

Exit codes: 0 success, 1 failure, 2 bad usage, 130 interrupted.";

/// Run and serve language models, and see how they work.
#[derive(Debug, Parser)]
#[command(name = "strata", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    context: Context,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(Box<generate::GenerateArgs>),
    Chat(chat::ChatArgs),
    Logits(logits::LogitsArgs),
    Perplexity(perplexity::PerplexityArgs),
    Tokenize(tokenize::TokenizeArgs),
    ChatTemplate(chat_template::ChatTemplateArgs),
    Compare(compare::CompareArgs),
    Bench(bench::BenchArgs),
    Serve(Box<serve::ServeArgs>),
    Ensemble(ensemble::EnsembleArgs),
    Simulate(Box<simulate::SimulateArgs>),
    Sweep(Box<sweep::SweepArgs>),
    Router(router::RouterArgs),
    Models(models::ModelsArgs),
    Fetch(fetch::FetchArgs),
    Quantize(quantize::QuantizeArgs),
    Trace(trace::TraceArgs),
}

/// Parses the arguments of this process, runs the subcommand, and reports what went wrong.
///
/// A closed stdout (`strata ... | head`) ends the command quietly and successfully.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) => return error::refuse(&refusal),
    };
    interrupt::install();
    cli.run().unwrap_or_else(|e| error::report(&e))
}

impl Cli {
    fn run(self) -> anyhow::Result<ExitCode> {
        let context = &self.context;
        match &self.command {
            Command::Generate(args) => generate::run(args, context)?,
            Command::Chat(args) => chat::run(args, context)?,
            Command::Logits(args) => logits::run(args, context)?,
            Command::Perplexity(args) => perplexity::run(args, context)?,
            Command::Tokenize(args) => tokenize::run(args, context)?,
            Command::ChatTemplate(args) => chat_template::run(args, context)?,
            Command::Compare(args) => return compare::run(args, context),
            Command::Bench(args) => bench::run(args, context)?,
            Command::Serve(args) => serve::run(args, context)?,
            Command::Simulate(args) => simulate::run(args, context)?,
            Command::Sweep(args) => sweep::run(args, context)?,
            Command::Router(args) => router::run(args)?,
            Command::Ensemble(args) => ensemble::run(args, context)?,
            Command::Models(args) => models::run(args)?,
            Command::Fetch(args) => fetch::run(args, context)?,
            Command::Quantize(args) => quantize::run(args, context)?,
            Command::Trace(args) => trace::run(args)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}

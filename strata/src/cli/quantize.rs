//! `strata quantize`: a checkpoint with fewer bits a weight.

use std::path::PathBuf;

use l2_model::ModelFiles;
use l2_model::quantize::{QuantizeOptions, QuantizeReport, to_nvfp4};
use serde::Serialize;

use super::context::{Context, warn};
use super::out;
use crate::hub::{self, HubError};
use server::words::{count, size};

/// Quantise a checkpoint: a Hugging Face directory or a GGUF file
///
/// Writes a directory with safetensors in the layout of compressed-tensors, which vLLM and transformers read as well.
/// The weights of linear layers are rounded to the nearest code; nothing is calibrated. Activations are not quantised.
/// The weights of a GGUF file are expanded to bf16 first, and its config and tokenizer are written as Hugging Face's.
#[derive(Debug, clap::Args)]
pub struct QuantizeArgs {
    /// The model: a Hugging Face directory in bf16, f16 or f32, a GGUF file, smollm2, or a hub id (org/name)
    #[arg(value_name = "MODEL")]
    model: String,
    /// The format: nvfp4 (4-bit floats, an 8-bit scale for 16 weights, one global scale a matrix: 4.5 bits a weight)
    #[arg(long, value_name = "FORMAT")]
    to: Format,
    /// The directory to write, which must be empty or absent
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Quantise the output head too. If it is tied to the embedding, the head becomes a matrix of its own, and the
    /// embedding stays as it is
    #[arg(long)]
    lm_head: bool,
    /// Write into a directory that is not empty, and delete the model in it: weights, configs and tokenizer
    /// (*.safetensors, config.json, generation_config.json, tokenizer.json, tokenizer_config.json and the like)
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Formats that can be written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// 4-bit floats with scales
    Nvfp4,
}

#[derive(Serialize)]
struct Answer<'a> {
    output: &'a str,
    quantized: usize,
    ignored: Vec<Ignored<'a>>,
    rounded_before: Vec<&'static str>,
    bytes_before: usize,
    bytes_after: usize,
}

/// A linear layer that stays as it is.
#[derive(Serialize)]
struct Ignored<'a> {
    name: &'a str,
    /// The reason, with what would change it.
    reason: String,
}

/// Runs the command.
///
/// # Errors
/// What the hub, the input and the disk report.
pub fn run(args: &QuantizeArgs, context: &Context) -> anyhow::Result<()> {
    let source = hub::resolve(&args.model, &context.hub()).map_err(|why| match why {
        HubError::PathNotFound { .. } | HubError::UnknownModel { .. } => anyhow::anyhow!(
            "no such model: {}; give a Hugging Face directory in bf16, f16 or f32, a GGUF file, or a hub id (org/name)",
            args.model
        ),
        why => why.into(),
    })?;
    let Format::Nvfp4 = args.to;
    let options = QuantizeOptions { lm_head: args.lm_head, force: args.force };
    let report = to_nvfp4(source.path(), &args.output, options)?;
    let output = args.output.display().to_string();
    if !report.has_tokenizer {
        let input = source.path().display();
        warn(format_args!(
            "{input} has no tokenizer that can be read, so {output} takes token ids only: copy a tokenizer.json into it"
        ));
    }
    let formats: Vec<&str> = report.rounded_before.iter().map(|format| format.name()).collect();
    if !formats.is_empty() {
        warn(format_args!(
            "{} has weights in {}, with fewer than 8 bits each, and they are rounded a second time: quantise the bf16 \
             checkpoint that it was made from if you have it",
            source.path().display(),
            formats.join(", ")
        ));
    }
    let files = ModelFiles::open(source.path())?;
    let config = files.config();
    // 4 bits a weight, and one scale of a byte for 16.
    let head = config.tied_embeddings.then(|| config.vocab * config.hidden * 9 / 16);
    if args.json {
        let ignored = report.ignored.iter().map(|name| {
            let odd = report.odd_rows.contains(name);
            Ignored { name, reason: if odd { ODD_ROWS.into() } else { reason_of_head(head) } }
        });
        out::json_line(&Answer {
            output: &output,
            quantized: report.quantized,
            ignored: ignored.collect(),
            rounded_before: formats,
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
        })?;
        return Ok(());
    }
    Ok(out::text(&summary(&output, &report, head))?)
}

const ODD_ROWS: &str = "their rows are not a multiple of 16 weights long";

/// Reason of an output head that stays as it is. `tied_head`: the size in bytes that a head of its own would have.
fn reason_of_head(tied_head: Option<usize>) -> String {
    match tied_head {
        Some(bytes) => {
            let size = size(bytes as u64);
            format!("tied to the embedding; --lm-head would add a matrix of {size}")
        }
        None => "--lm-head quantises it".into(),
    }
}

fn summary(output: &str, report: &QuantizeReport, tied_head: Option<usize>) -> String {
    let odd = &report.odd_rows;
    let heads = report.ignored.iter().filter(|name| !odd.contains(name));
    let heads = heads.map(|name| format!("{name} ({})", reason_of_head(tied_head)));
    let odd = match odd.len() {
        0 => None,
        n => {
            let named = if n <= 4 { odd.join(", ") } else { format!("{n} linear layers") };
            let list = if n <= 4 { "" } else { ": see `ignore` in config.json" };
            Some(format!("{named} ({ODD_ROWS}{list})"))
        }
    };
    let ignored: Vec<String> = heads.chain(odd).collect();
    let ignored = match ignored.is_empty() {
        true => String::new(),
        false => format!("not quantised: {}\n", ignored.join("; ")),
    };
    format!(
        "{output}: {} in nvfp4\n{ignored}{} of tensors before, {} after\n\
         nothing was calibrated: compare both on a text of yours with `strata perplexity TEXT -m MODEL`\n",
        count(report.quantized, "weight"),
        size(report.bytes_before as u64),
        size(report.bytes_after as u64),
    )
}

//! `strata models`: the supported models.

use std::fmt::Write;

use l2_model::SUPPORTED;
use l2_model::checkpoint::StoredType;
use serde::Serialize;

use super::out;

const CONTAINERS: [&str; 2] = [
    "Hugging Face directory: config.json, tokenizer.json, safetensors (one file or shards)",
    "GGUF, version 2 or 3",
];
const NOTE: &str = "On a CPU with AVX-512 BF16, or with --weights packed, quantised weights stay packed in memory and are \
    dequantized to bf16 whenever they are used. On CUDA those in NVFP4 do. Others, and all with --weights bf16, are \
    expanded when a model is loaded: 16 bits a weight.";

/// List the supported model families and weight formats
#[derive(Debug, clap::Args)]
pub struct ModelsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    families: Vec<Family>,
    types: Vec<Format>,
    containers: [&'static str; 2],
    note: &'static str,
}

#[derive(Serialize)]
struct Family {
    name: &'static str,
    about: &'static str,
}

/// A format of stored weights; safetensors contain only unquantised ones.
#[derive(Serialize)]
struct Format {
    name: &'static str,
    bits_per_weight: f64,
    /// Where weights stay packed.
    memory_bits_per_weight: f64,
    quantised: bool,
}

/// Runs the command.
///
/// # Errors
/// A stdout that cannot be written to.
pub fn run(args: &ModelsArgs) -> anyhow::Result<()> {
    let answer = Answer {
        families: SUPPORTED.map(|(name, about)| Family { name, about }).into(),
        types: StoredType::ALL.map(format_of).into(),
        containers: CONTAINERS,
        note: NOTE,
    };
    if args.json {
        out::json_line(&answer)?
    } else {
        out::text(&table(&answer))?
    }
    Ok(())
}

fn format_of(ty: StoredType) -> Format {
    Format {
        name: ty.name(),
        bits_per_weight: (8 * ty.block_bytes()) as f64 / ty.block_len() as f64,
        memory_bits_per_weight: ty
            .blocks()
            .map_or(16.0, |format| (8 * format.packed_bytes()) as f64 / format.block_len() as f64),
        quantised: ty.is_quantised(),
    }
}

fn table(answer: &Answer) -> String {
    let mut text = String::from("Families\n");
    // Writing to a String does not fail.
    for family in &answer.families {
        let _ = writeln!(text, "  {:<9} {}", family.name, family.about);
    }
    text.push_str("\nNumber formats, bits per weight in a file and packed in memory\n");
    for Format { name, bits_per_weight, memory_bits_per_weight, .. } in &answer.types {
        let _ = writeln!(text, "  {name:<9} {bits_per_weight:<8} {memory_bits_per_weight}");
    }
    text.push_str("\nFiles\n");
    for container in answer.containers {
        let _ = writeln!(text, "  {container}");
    }
    let _ = writeln!(text, "\n{}", answer.note);
    text
}

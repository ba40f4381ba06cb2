//! Storages of weights that are compared, and the files that the sides read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::obtain::{Peer, Project, peers_dir};
use super::samples::{Who, Work};
use course::shell::{program, run};

/// Storage of the weights, by the names of `llama-quantize`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weights {
    /// 16 bits a weight
    Bf16,
    /// 8 bits a weight, blocks of 32
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits a weight with a minimum, blocks of 32
    #[value(name = "q4_1")]
    Q4_1,
    /// 4 bits a weight, blocks of 256; llama-quantize stores matrices with other widths as Q5_0, Q5_1 and Q8_0
    #[value(name = "q4_k_m")]
    Q4KM,
    /// 4.5 bits a weight: Strata reads what `strata quantize --lm-head` makes, the others the same model as Q4_1
    Nvfp4,
}

/// The files of one comparison.
#[derive(Clone, Debug)]
pub struct Models {
    /// What Strata reads: a GGUF file, or a directory.
    pub ours: PathBuf,
    /// The GGUF file that the others read.
    pub theirs: PathBuf,
}

impl Weights {
    /// Name in a table, with what the others read if that is not the same file.
    pub fn title(self) -> &'static str {
        match self {
            Weights::Bf16 => "bf16",
            Weights::Q8_0 => "Q8_0",
            Weights::Q4_1 => "Q4_1",
            Weights::Q4KM => "Q4_K_M",
            Weights::Nvfp4 => "NVFP4 (the others: Q4_1)",
        }
    }

    /// Files with these weights. Those that do not exist are made from the default model, by llama.cpp's own tool or,
    /// for NVFP4, by `strata`.
    pub fn models(self, peer: &Peer, strata: &Path, default_model: &Path) -> Result<Models> {
        let one = |file: PathBuf| Models { ours: file.clone(), theirs: file };
        match self {
            Weights::Bf16 => Ok(one(made(peer, default_model, "bf16")?)),
            Weights::Q8_0 => Ok(one(made(peer, default_model, "q8_0")?)),
            // The default model is stored in this format.
            Weights::Q4_1 => Ok(one(default_model.into())),
            Weights::Q4KM => Ok(one(made(peer, default_model, "q4_k_m")?)),
            Weights::Nvfp4 => {
                let theirs = default_model.into();
                Ok(Models { ours: quantized(strata, default_model)?, theirs })
            }
        }
    }

    /// The ratio that Strata aims at in this comparison, if there is an aim.
    pub fn aim(self, who: Who, work: Work, project: Project) -> Option<f64> {
        use Work::{Decode, Prefill, Serving};
        if who == Who::OursF32 {
            return match (project, work) {
                (Project::LlamaCpp, Decode(8)) => Some(2.5),
                (Project::LlamaCpp, Prefill) => Some(1.0),
                _ => None,
            };
        }
        match (project, self, work) {
            (Project::LlamaCpp, Weights::Bf16, Serving) => Some(3.0),
            (Project::LlamaCpp, Weights::Bf16, Decode(8 | 32)) => Some(3.0),
            (Project::LlamaCpp, Weights::Bf16, Prefill) => Some(2.3),
            (Project::LlamaCpp, Weights::Q4_1, Decode(1)) => Some(2.2),
            (Project::LlamaCpp, Weights::Q4_1, Decode(8 | 32)) => Some(3.0),
            (Project::LlamaCpp, Weights::Q8_0 | Weights::Q4KM, Decode(1)) => Some(1.5),
            (Project::LlamaCpp, Weights::Q8_0 | Weights::Q4KM, Decode(8 | 32)) => Some(2.5),
            (Project::LlamaCpp, Weights::Q4_1 | Weights::Q8_0 | Weights::Q4KM, Prefill) => {
                Some(2.0)
            }
            (Project::LlamaCpp, Weights::Nvfp4, Decode(1)) => Some(3.0),
            (Project::IkLlama, Weights::Bf16, Prefill) => Some(1.6),
            (Project::IkLlama, Weights::Q8_0 | Weights::Q4_1 | Weights::Q4KM, Decode(1)) => {
                Some(1.7)
            }
            (Project::IkLlama, Weights::Q8_0 | Weights::Q4_1 | Weights::Q4KM, Prefill) => Some(1.6),
            _ => None,
        }
    }
}

/// The default model with its weights in a format of `llama-quantize`, made once.
fn made(peer: &Peer, default_model: &Path, format: &str) -> Result<PathBuf> {
    let path = peers_dir()?.join(format!("smollm2-{format}.gguf"));
    if !path.is_file() {
        // Written under another name first: an interrupted run must not leave half a file.
        let part = path.with_extension("part");
        let mut quantize = program(peer.tool("llama-quantize"));
        quantize.arg("--allow-requantize").arg(default_model).arg(&part).args([format, "2"]);
        run(&mut quantize)?;
        fs::rename(&part, &path).with_context(|| path.display().to_string())?;
    }
    Ok(path)
}

/// The default model in NVFP4, made once.
fn quantized(strata: &Path, default_model: &Path) -> Result<PathBuf> {
    let path = peers_dir()?.join("smollm2-nvfp4");
    if !path.is_dir() {
        let part = path.with_extension("part");
        let mut quantize = program(strata);
        quantize.arg("quantize").arg(default_model).args(["--to", "nvfp4", "--lm-head"]);
        run(quantize.arg("--force").arg("--output").arg(&part))?;
        fs::rename(&part, &path).with_context(|| path.display().to_string())?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_the_one_of_llama_quantize() {
        let names: Vec<String> = Weights::value_variants()
            .iter()
            .map(|weights| weights.to_possible_value().unwrap().get_name().to_string())
            .collect();
        assert_eq!(names, ["bf16", "q8_0", "q4_1", "q4_k_m", "nvfp4"]);
    }
}

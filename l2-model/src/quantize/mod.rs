//! Quantising a checkpoint: from a Hugging Face directory or a GGUF file to a directory in NVFP4.
//!
//! The result is in the layout of compressed-tensors with unquantised activations (W4A16), which vLLM and transformers
//! read as well. Weights of linear layers are rounded (`quantize/nvfp4.rs`), all other tensors are copied as they are.
//! Matrices that engines fuse (q, k and v; gate and up) share their global scale, since kernels of other engines have
//! only one for the fused matrix.
//!
//! A GGUF file is first, tensor by tensor, what a Hugging Face directory in bf16 with its weights would be
//! (`quantize/source.rs`), with a config and a tokenizer that are made from its metadata.
//!
//! Nothing is calibrated: scales come from the weights alone.

mod config;
mod error;
mod gguf;
mod matrix;
mod nvfp4;
mod output;
mod plan;
mod source;
mod writer;

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::{Checkpoint, StoredType};
use crate::config::parse_python_json;
use crate::decoder::load::expected_tensors;
use crate::{ModelFiles, Result};

pub use error::QuantizeError;
use gguf::Texts;
use output::{copy_others, io, prepare, write_json};
use plan::Plan;
use source::Source;

const CONFIG: &str = "config.json";

/// Options of [`to_nvfp4`].
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizeOptions {
    /// Quantise the output head too. A head that is tied to the embedding becomes a matrix of its own.
    pub lm_head: bool,
    /// Write into a directory that is not empty, over files of the same names. The model that is there is deleted: its
    /// weights, its configs and its tokenizer.
    pub force: bool,
}

/// What [`to_nvfp4`] has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizeReport {
    /// Number of quantised weights: matrices.
    pub quantized: usize,
    /// Linear layers that were left as they are, by module name.
    pub ignored: Vec<String>,
    /// Those of them whose rows are not a multiple of 16 weights long, which NVFP4 cannot have. The others are the
    /// output head.
    pub odd_rows: Vec<String>,
    /// Block formats of the quantised weights with fewer than 8 bits a weight: weights that are rounded a second time,
    /// which costs more quality than rounding them once. Only those of a GGUF file have any.
    pub rounded_before: Vec<StoredType>,
    /// Whether the input has a tokenizer, which was copied or written.
    pub has_tokenizer: bool,
    /// Size of the tensors of the model before, in bytes.
    pub bytes_before: usize,
    /// The same after.
    pub bytes_after: usize,
}

/// Quantises the checkpoint `input`, a Hugging Face directory or a GGUF file, to NVFP4, into the directory `output`,
/// which is created.
///
/// Weights of a GGUF file are rounded to bf16 first: they are those that loading it with expanded weights has.
/// `config.json`, `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` are made from its metadata.
///
/// `config.json` is written last, so a directory that an error left behind is no model.
///
/// # Errors
/// [`QuantizeError`] (as [`Error::Quantize`](crate::Error::Quantize)), [`Error::NotFinite`](crate::Error::NotFinite)
/// for a number of any tensor, copied ones included, or what opening the input reports.
pub fn to_nvfp4(input: &Path, output: &Path, options: QuantizeOptions) -> Result<QuantizeReport> {
    // Before the weights are read.
    if output.exists() && !output.is_dir() {
        return Err(QuantizeError::OutputIsFile { path: output.into() }.into());
    }
    let files = ModelFiles::open(input)?;
    let (config, texts) = match files.checkpoint() {
        Checkpoint::Safetensors(_) if !input.is_dir() => {
            return Err(QuantizeError::NotADirectory { path: input.into() }.into());
        }
        Checkpoint::Safetensors(_) => (read_config(input)?, None),
        Checkpoint::Gguf(file) => {
            let not_written =
                |reason| QuantizeError::ConfigNotWritten { path: input.into(), reason };
            let config = files.config().to_hf_json().map_err(not_written)?;
            (config, Some(Texts::of(file, files.config(), input)?))
        }
    };
    files.checkpoint().check(&expected_tensors(files.config()))?;
    let source = Source::new(files.checkpoint(), files.config());
    let plan = Plan::new(files.config(), options.lm_head);
    if texts.is_none() && plan.is_quantised(source) {
        return Err(QuantizeError::AlreadyQuantized { path: input.into() }.into());
    }
    if plan.is_empty() {
        return Err(QuantizeError::NothingToQuantize { path: input.into() }.into());
    }
    // First, so that weights that cannot be quantised leave an existing output as it is.
    let globals = plan.globals(source)?;
    prepare(input, output, options.force)?;
    let mut report = plan.write(source, output, &globals)?;
    match texts {
        Some(texts) => {
            texts.write(output)?;
            report.has_tokenizer = texts.has_tokenizer();
        }
        None => {
            copy_others(input, output)?;
            report.has_tokenizer = files.tokenizer().is_ok();
        }
    }
    let untie = options.lm_head && files.config().tied_embeddings;
    let config = config::quantised(&config, &report.ignored, untie);
    write_json(&output.join(CONFIG), &config)?;
    Ok(report)
}

fn read_config(input: &Path) -> std::result::Result<Value, QuantizeError> {
    let path = input.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(|e| io(&path, e))?;
    parse_python_json(&text).map_err(|e| io(&path, e.into()))
}

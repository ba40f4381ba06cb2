//! Quantising a checkpoint: from a Hugging Face directory to one in NVFP4.
//!
//! The result is in the layout of compressed-tensors with unquantised activations (W4A16), which vLLM and transformers
//! read as well. Weights of linear layers are rounded (`quantize/nvfp4.rs`), all other tensors are copied as they are.
//! Matrices that engines fuse (q, k and v; gate and up) share their global scale, since kernels of other engines have
//! only one for the fused matrix.
//!
//! Nothing is calibrated: scales come from the weights alone.

mod config;
mod nvfp4;
mod writer;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::nvfp4::GROUP;
use crate::checkpoint::{Checkpoint, SafetensorsDir, StoredTensor};
use crate::config::parse_python_json;
use crate::decoder::load::{EMBEDDING, LM_HEAD, expected_tensors};
use crate::{ModelConfig, ModelFiles, Result};

use writer::Entry;

/// Maximum size of a file of weights, in bytes. Larger checkpoints get shards.
const SHARD_BYTES: usize = 5_000_000_000;

const CONFIG: &str = "config.json";

/// Files of a model beside its weights and its config. With those of an earlier model the output would have a
/// tokenizer, a chat template or end tokens that are not its own. Other texts may be the user's.
const TEXTS_OF_MODELS: [&str; 12] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

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
    /// Whether the input has a tokenizer, which was copied.
    pub has_tokenizer: bool,
    /// Size of the tensors of the model before, in bytes.
    pub bytes_before: usize,
    /// The same after.
    pub bytes_after: usize,
}

/// Error of quantising a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The input is no Hugging Face directory.
    #[error(
        "{} is not a Hugging Face directory; a GGUF file is quantised already or can be by llama-quantize: pass the \
         directory that it was made from", path.display()
    )]
    NotADirectory {
        /// The input.
        path: PathBuf,
    },
    /// The input is quantised.
    #[error("{} is quantised already: quantise the bf16 checkpoint that it was made from", path.display())]
    AlreadyQuantized {
        /// The input.
        path: PathBuf,
    },
    /// No weight can be quantised.
    #[error("no weight of {} can be quantised: their rows must be a multiple of {GROUP} weights long", path.display())]
    NothingToQuantize {
        /// The input.
        path: PathBuf,
    },
    /// The output directory has files.
    #[error("{} is not empty: pass another directory, or --force to write over it", path.display())]
    OutputNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The output is a file.
    #[error("{} is a file: pass a directory for the output, which is created", path.display())]
    OutputIsFile {
        /// The file.
        path: PathBuf,
    },
    /// The output directory cannot be made.
    #[error("cannot make the directory {}: {reason}; pass another one", path.display())]
    OutputNotMade {
        /// The directory.
        path: PathBuf,
        /// Reason.
        reason: std::io::Error,
    },
    /// Input and output are the same directory.
    #[error("{} is the input: pass another directory for the output", path.display())]
    SameDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A file of the input is in the output directory, where it would be deleted.
    #[error(
        "{} of the input is a link to a file in {}: pass another directory for the output", file.display(),
        path.display()
    )]
    InputInOutput {
        /// The file, as the input names it.
        file: PathBuf,
        /// The output directory.
        path: PathBuf,
    },
    /// A weight is infinite or not a number.
    #[error(
        "{weight} has a value that is infinite or not a number in row {row}: it cannot be quantised"
    )]
    NotFinite {
        /// The tensor.
        weight: String,
        /// The row.
        row: usize,
    },
    /// A file cannot be read or written.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Reason.
        reason: std::io::Error,
    },
}

/// Quantises the checkpoint in the directory `input` to NVFP4, into the directory `output`, which is created.
///
/// `config.json` is written last, so a directory that an error left behind is no model.
///
/// # Errors
/// [`QuantizeError`] (as [`Error::Quantize`](crate::Error::Quantize)), or what opening the input reports.
pub fn to_nvfp4(input: &Path, output: &Path, options: QuantizeOptions) -> Result<QuantizeReport> {
    if !input.is_dir() {
        return Err(QuantizeError::NotADirectory { path: input.into() }.into());
    }
    // Before the weights are read.
    if output.exists() && !output.is_dir() {
        return Err(QuantizeError::OutputIsFile { path: output.into() }.into());
    }
    let files = ModelFiles::open(input)?;
    let config_path = input.join(CONFIG);
    let text = std::fs::read_to_string(&config_path).map_err(|e| io(&config_path, e))?;
    let config = parse_python_json(&text).map_err(|e| io(&config_path, e.into()))?;
    files.checkpoint().check(&expected_tensors(files.config()))?;
    let Checkpoint::Safetensors(dir) = files.checkpoint() else {
        return Err(QuantizeError::NotADirectory { path: input.into() }.into());
    };
    let plan = Plan::new(files.config(), options.lm_head);
    let quantised = |name: &str| dir.tensor(name).is_none_or(|t| t.ty.block_len() > 1);
    if plan.items.iter().any(|item| quantised(&item.from)) {
        return Err(QuantizeError::AlreadyQuantized { path: input.into() }.into());
    }
    if plan.items.iter().all(|item| item.group.is_none()) {
        return Err(QuantizeError::NothingToQuantize { path: input.into() }.into());
    }
    // First, so that weights that cannot be quantised leave an existing output as it is.
    let globals = plan.globals(dir)?;
    prepare(input, output, options.force)?;
    let mut report = plan.write(dir, output, &globals)?;
    report.has_tokenizer = files.tokenizer().is_ok();
    copy_others(input, output)?;
    let untie = options.lm_head && files.config().tied_embeddings;
    let config = config::quantised(&config, &report.ignored, untie);
    write_json(&output.join(CONFIG), &config)?;
    Ok(report)
}

fn io(path: &Path, reason: std::io::Error) -> QuantizeError {
    QuantizeError::Io { path: path.into(), reason }
}

fn write_json(path: &Path, value: &Value) -> std::result::Result<(), QuantizeError> {
    remove(path)?;
    std::fs::write(path, format!("{value:#}\n")).map_err(|e| io(path, e))
}

/// Removes what a file will be written in place of. A link that is there, to the input for example, must not be written
/// through.
fn remove(path: &Path) -> std::result::Result<(), QuantizeError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io(path, e)),
        _ => Ok(()),
    }
}

/// Makes the output directory, or empties it of the model that is there.
fn prepare(input: &Path, output: &Path, force: bool) -> std::result::Result<(), QuantizeError> {
    let not_made = |reason| QuantizeError::OutputNotMade { path: output.into(), reason };
    std::fs::create_dir_all(output).map_err(not_made)?;
    let real = |path: &Path| path.canonicalize().map_err(|e| io(path, e));
    let real_output = real(output)?;
    if real(input)? == real_output {
        return Err(QuantizeError::SameDirectory { path: output.into() });
    }
    // Before anything is deleted.
    let inside = |file: &PathBuf| is_input(file) && passes_through(file, &real_output);
    if let Some(file) = files_in(input)?.into_iter().find(inside) {
        return Err(QuantizeError::InputInOutput { file, path: output.into() });
    }
    for path in files_in(output)? {
        if !force {
            return Err(QuantizeError::OutputNotEmpty { path: output.into() });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_weights(&name) || name == CONFIG || TEXTS_OF_MODELS.contains(&name.as_str()) {
            std::fs::remove_file(&path).map_err(|e| io(&path, e))?;
        }
    }
    Ok(())
}

/// Whether a path is in a directory, or any of the links behind it is. `dir` is canonical. A link alone counts: the
/// input cannot be read through it when it is deleted.
fn passes_through(path: &Path, dir: &Path) -> bool {
    let mut path = path.to_path_buf();
    // As many links as Linux follows; with more of them no file can be read.
    for _ in 0..=40 {
        let Some(parent) = path.parent() else { return false };
        if parent.canonicalize().is_ok_and(|parent| parent == dir) {
            return true;
        }
        let Ok(target) = std::fs::read_link(&path) else { return false };
        path = parent.join(target);
    }
    false
}

/// What is in a directory, by name.
fn files_in(dir: &Path) -> std::result::Result<Vec<PathBuf>, QuantizeError> {
    let entries = std::fs::read_dir(dir).and_then(|entries| {
        entries.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>()
    });
    let mut paths = entries.map_err(|e| io(dir, e))?;
    paths.sort();
    Ok(paths)
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

/// Whether a file is copied: all small text files are but the config.
fn is_text(name: &str) -> bool {
    let text =
        ["json", "jinja", "txt", "model"].iter().any(|ext| name.ends_with(&format!(".{ext}")));
    text && !is_weights(name) && name != CONFIG
}

/// Whether a file of the input may be read or copied.
fn is_input(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_weights(&name) || is_text(&name) || name == CONFIG
}

/// Copies tokenizer, chat template and generation config.
fn copy_others(input: &Path, output: &Path) -> std::result::Result<(), QuantizeError> {
    for path in files_in(input)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.is_file() && is_text(name) {
            let to = output.join(name);
            remove(&to)?;
            std::fs::copy(&path, to).map_err(|e| io(&path, e))?;
        }
    }
    Ok(())
}

/// A tensor of the output.
struct Item {
    /// Its name, with `.weight` at the end where it is quantised.
    name: String,
    /// The stored tensor that it is made of.
    from: String,
    shape: Vec<usize>,
    /// For one that is quantised, the weights with which it shares its global scale.
    group: Option<String>,
}

impl Item {
    /// What is written for it, given the stored tensor.
    fn entries(&self, stored: &StoredTensor<'_>) -> Vec<Entry> {
        let entry = |ending: &str, dtype, shape: Vec<usize>, bytes| Entry {
            name: format!("{}{ending}", self.name),
            dtype,
            shape,
            bytes,
        };
        let (&[n, k], Some(_)) = (self.shape.as_slice(), &self.group) else {
            return vec![entry("", stored.ty.name(), self.shape.clone(), stored.bytes.len())];
        };
        vec![
            entry("_packed", "U8", vec![n, k / 2], n * k / 2),
            entry("_scale", "F8_E4M3", vec![n, k / GROUP], n * k / GROUP),
            entry("_global_scale", "F32", vec![1], size_of::<f32>()),
        ]
    }
}

/// What becomes of each tensor.
struct Plan {
    items: Vec<Item>,
    ignored: Vec<String>,
    odd_rows: Vec<String>,
}

impl Plan {
    fn new(config: &ModelConfig, lm_head: bool) -> Self {
        let mut plan = Self { items: Vec::new(), ignored: Vec::new(), odd_rows: Vec::new() };
        for (name, shape) in expected_tensors(config) {
            plan.add(name.clone(), name, shape, lm_head);
        }
        if config.tied_embeddings {
            match lm_head {
                true => plan.add(
                    LM_HEAD.into(),
                    EMBEDDING.into(),
                    vec![config.vocab, config.hidden],
                    true,
                ),
                false => plan.ignored.push("lm_head".into()),
            }
        }
        plan
    }

    fn add(&mut self, name: String, from: String, shape: Vec<usize>, lm_head: bool) {
        let module = name.strip_suffix(".weight").unwrap_or_default();
        let linear = module.ends_with("_proj") || name == LM_HEAD;
        let fits = shape.last().is_some_and(|k| k.is_multiple_of(GROUP));
        let quantise = linear && fits && (name != LM_HEAD || lm_head);
        if linear && !quantise {
            self.ignored.push(module.into());
            if !fits {
                self.odd_rows.push(module.into());
            }
        }
        let group = quantise.then(|| fused(module));
        self.items.push(Item { name, from, shape, group });
    }

    /// Writes all tensors, in one file or several.
    fn write(
        &self,
        dir: &SafetensorsDir,
        output: &Path,
        globals: &BTreeMap<&str, f32>,
    ) -> Result<QuantizeReport> {
        let mut shards: Vec<(usize, Vec<&Item>)> = Vec::new();
        let (mut before, mut after, mut quantized) = (0, 0, 0);
        for item in &self.items {
            let Some(stored) = dir.tensor(&item.from) else { continue };
            let bytes: usize = item.entries(&stored).iter().map(|entry| entry.bytes).sum();
            before += if item.name == item.from { stored.bytes.len() } else { 0 };
            after += bytes;
            quantized += usize::from(item.group.is_some());
            match shards.last_mut() {
                Some((size, items)) if *size + bytes <= SHARD_BYTES => {
                    *size += bytes;
                    items.push(item);
                }
                _ => shards.push((bytes, vec![item])),
            }
        }
        let mut places = serde_json::Map::new();
        let count = shards.len();
        for (i, (_, items)) in shards.into_iter().enumerate() {
            let name = match count {
                1 => "model.safetensors".to_string(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
            };
            for entry in write_shard(dir, &output.join(&name), &items, globals)? {
                places.insert(entry.name, name.clone().into());
            }
        }
        if count > 1 {
            let index = json!({"metadata": {"total_size": after}, "weight_map": places});
            write_json(&output.join("model.safetensors.index.json"), &index)?;
        }
        Ok(QuantizeReport {
            quantized,
            ignored: self.ignored.clone(),
            odd_rows: self.odd_rows.clone(),
            has_tokenizer: false,
            bytes_before: before,
            bytes_after: after,
        })
    }

    /// Global scale of each group.
    fn globals(&self, dir: &SafetensorsDir) -> Result<BTreeMap<&str, f32>> {
        let mut largest: BTreeMap<&str, f32> = BTreeMap::new();
        for item in &self.items {
            let (Some(group), Some(stored)) = (&item.group, dir.tensor(&item.from)) else {
                continue;
            };
            let amax = matrix_amax(&stored)?;
            let of_group = largest.entry(group).or_default();
            *of_group = of_group.max(amax);
        }
        Ok(largest.into_iter().map(|(group, amax)| (group, nvfp4::global_scale(amax))).collect())
    }
}

/// The group of a module: engines fuse q, k and v, and gate and up.
fn fused(module: &str) -> String {
    let (parent, name) = module.rsplit_once('.').unwrap_or(("", module));
    match name {
        "q_proj" | "k_proj" | "v_proj" => format!("{parent}.qkv"),
        "gate_proj" | "up_proj" => format!("{parent}.gate_up"),
        _ => module.into(),
    }
}

/// Writes a file; returns its tensors.
fn write_shard(
    dir: &SafetensorsDir,
    path: &Path,
    items: &[&Item],
    globals: &BTreeMap<&str, f32>,
) -> Result<Vec<Entry>> {
    let bad = |e| io(path, e);
    let sources = items.iter().filter_map(|item| Some((*item, dir.tensor(&item.from)?)));
    let mut entries: Vec<(Entry, &Item, StoredTensor<'_>)> = sources
        .flat_map(|(item, stored)| {
            item.entries(&stored).into_iter().map(move |e| (e, item, stored))
        })
        .collect();
    // Wide numbers first, so that each tensor begins at a multiple of its numbers' size.
    let width = |entry: &Entry| match entry.dtype {
        "F32" => 4,
        "U8" | "F8_E4M3" => 1,
        _ => 2,
    };
    entries.sort_by(|(a, ..), (b, ..)| width(b).cmp(&width(a)).then_with(|| a.name.cmp(&b.name)));
    let header: Vec<Entry> = entries.iter().map(|(entry, ..)| entry.clone()).collect();
    remove(path)?;
    let mut file = writer::create(path, &header).map_err(bad)?;
    // Codes and scales of a weight are neighbours, by name.
    let mut scales = Vec::new();
    for (entry, item, stored) in entries {
        let global = item.group.as_deref().and_then(|group| globals.get(group));
        match global {
            None => file.write_all(stored.bytes),
            Some(global) if entry.dtype == "F32" => file.write_all(&global.to_le_bytes()),
            Some(global) if entry.dtype == "U8" => {
                let (codes, of_codes) = quantize(&stored, *global)?;
                scales = of_codes;
                file.write_all(&codes)
            }
            Some(_) => file.write_all(&scales),
        }
        .map_err(bad)?;
        dir.release(&item.from);
    }
    file.flush().map_err(bad)?;
    Ok(header)
}

/// Rows that a thread takes, for a number of rows.
fn share(rows: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    rows.div_ceil(threads).max(1)
}

/// Largest magnitude of a matrix.
fn matrix_amax(stored: &StoredTensor<'_>) -> Result<f32> {
    let rows = stored.n_rows();
    let of = &|from: usize, to: usize| -> Result<f32> {
        let (mut values, mut largest) = (vec![0.0; stored.row_len()], 0.0f32);
        for row in from..to {
            stored.dequantize_row(row, &mut values)?;
            let amax = nvfp4::amax(&values);
            if !amax.is_finite() {
                let weight = stored.name.into();
                return Err(QuantizeError::NotFinite { weight, row }.into());
            }
            largest = largest.max(amax);
        }
        Ok(largest)
    };
    std::thread::scope(|scope| {
        let chunk = share(rows);
        let parts: Vec<_> = (0..rows)
            .step_by(chunk)
            .map(|from| scope.spawn(move || of(from, rows.min(from + chunk))))
            .collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Result<f32>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().try_fold(0.0f32, |largest, part| Ok(largest.max(join(part)?)))
    })
}

/// Codes and scales of a matrix.
fn quantize(stored: &StoredTensor<'_>, global: f32) -> Result<(Vec<u8>, Vec<u8>)> {
    let (rows, k) = (stored.n_rows(), stored.row_len());
    let (mut codes, mut scales) = (vec![0; rows * k / 2], vec![0; rows * k / GROUP]);
    if k == 0 {
        return Ok((codes, scales));
    }
    let chunk = share(rows);
    let of = &|from: usize, codes: &mut [u8], scales: &mut [u8]| -> Result<()> {
        let mut values = vec![0.0; k];
        let rows = codes.chunks_exact_mut(k / 2).zip(scales.chunks_exact_mut(k / GROUP));
        for (row, (codes, scales)) in rows.enumerate() {
            stored.dequantize_row(from + row, &mut values)?;
            nvfp4::quantize_row(&values, global, codes, scales);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let parts = codes.chunks_mut(chunk * k / 2).zip(scales.chunks_mut(chunk * k / GROUP));
        let parts: Vec<_> = parts
            .enumerate()
            .map(|(i, (codes, scales))| scope.spawn(move || of(i * chunk, codes, scales)))
            .collect();
        parts.into_iter().try_for_each(|part| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok((codes, scales))
}

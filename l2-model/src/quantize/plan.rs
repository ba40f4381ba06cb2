//! What becomes of each tensor: rounded, or written as it is.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::json;

use super::matrix::{amax, quantize};
use super::output::{io, remove, write_json};
use super::source::{Source, SourceTensor};
use super::writer::{self, Entry};
use super::{QuantizeReport, nvfp4};
use crate::checkpoint::StoredType;
use crate::checkpoint::nvfp4::GROUP;
use crate::decoder::load::{EMBEDDING, LM_HEAD, expected_tensors};
use crate::{ModelConfig, Result};

/// Maximum size of a file of weights, in bytes. Larger checkpoints get shards.
const SHARD_BYTES: usize = 5_000_000_000;

/// A tensor of the output.
struct Item {
    /// Its name, with `.weight` at the end where it is quantised.
    name: String,
    /// The tensor of the input that it is made of.
    from: String,
    shape: Vec<usize>,
    /// For one that is quantised, the weights with which it shares its global scale.
    group: Option<String>,
}

impl Item {
    /// What is written for it, given the tensor that it is made of.
    fn entries(&self, tensor: &SourceTensor<'_>) -> Vec<Entry> {
        let entry = |ending: &str, dtype, shape: Vec<usize>, bytes| Entry {
            name: format!("{}{ending}", self.name),
            dtype,
            shape,
            bytes,
        };
        let (&[n, k], Some(_)) = (self.shape.as_slice(), &self.group) else {
            return vec![entry("", tensor.dtype(), self.shape.clone(), tensor.bytes())];
        };
        vec![
            entry("_packed", "U8", vec![n, k / 2], n * k / 2),
            entry("_scale", "F8_E4M3", vec![n, k / GROUP], n * k / GROUP),
            entry("_global_scale", "F32", vec![1], size_of::<f32>()),
        ]
    }
}

/// What becomes of each tensor.
pub(super) struct Plan {
    items: Vec<Item>,
    ignored: Vec<String>,
    odd_rows: Vec<String>,
}

impl Plan {
    pub(super) fn new(config: &ModelConfig, lm_head: bool) -> Self {
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

    /// Whether no weight can be quantised.
    pub(super) fn is_empty(&self) -> bool {
        self.items.iter().all(|item| item.group.is_none())
    }

    /// Whether a weight is quantised already. One that is missing has other tensors in its place.
    pub(super) fn is_quantised(&self, source: Source<'_>) -> bool {
        let is = |item: &Item| source.tensor(&item.from).is_none_or(|t| t.stored.ty.is_quantised());
        self.items.iter().any(is)
    }

    /// Formats with fewer than 8 bits a weight of the weights that are quantised.
    fn rounded_before(&self, source: Source<'_>) -> Vec<StoredType> {
        let mut all = Vec::new();
        for item in self.items.iter().filter(|item| item.group.is_some()) {
            let Some(ty) = source.tensor(&item.from).map(|tensor| tensor.stored.ty) else {
                continue;
            };
            if ty.is_quantised() && ty.block_bytes() < ty.block_len() && !all.contains(&ty) {
                all.push(ty);
            }
        }
        all
    }

    /// Writes all tensors, in one file or several.
    pub(super) fn write(
        &self,
        source: Source<'_>,
        output: &Path,
        globals: &BTreeMap<&str, f32>,
    ) -> Result<QuantizeReport> {
        let mut shards: Vec<(usize, Vec<&Item>)> = Vec::new();
        let (mut before, mut after, mut quantized) = (0, 0, 0);
        for item in &self.items {
            let Some(tensor) = source.tensor(&item.from) else { continue };
            let bytes: usize = item.entries(&tensor).iter().map(|entry| entry.bytes).sum();
            before += if item.name == item.from { tensor.stored.bytes.len() } else { 0 };
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
            for entry in write_shard(source, &output.join(&name), &items, globals)? {
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
            rounded_before: self.rounded_before(source),
            has_tokenizer: false,
            bytes_before: before,
            bytes_after: after,
        })
    }

    /// Global scale of each group. Reads all tensors: those that are copied must be finite too.
    pub(super) fn globals(&self, source: Source<'_>) -> Result<BTreeMap<&str, f32>> {
        let mut largest: BTreeMap<&str, f32> = BTreeMap::new();
        for item in &self.items {
            let Some(tensor) = source.tensor(&item.from) else { continue };
            let amax = amax(&tensor)?;
            let Some(group) = &item.group else { continue };
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
    source: Source<'_>,
    path: &Path,
    items: &[&Item],
    globals: &BTreeMap<&str, f32>,
) -> Result<Vec<Entry>> {
    let bad = |e| io(path, e);
    let tensors = items.iter().filter_map(|item| Some((*item, source.tensor(&item.from)?)));
    let tensors: Vec<(&Item, SourceTensor<'_>)> = tensors.collect();
    let mut entries: Vec<(Entry, &Item, &SourceTensor<'_>)> = tensors
        .iter()
        .flat_map(|(item, tensor)| {
            item.entries(tensor).into_iter().map(move |entry| (entry, *item, tensor))
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
    for (entry, item, tensor) in entries {
        let global = item.group.as_deref().and_then(|group| globals.get(group));
        match global {
            None => tensor.write(|bytes| Ok(file.write_all(bytes).map_err(bad)?))?,
            Some(global) if entry.dtype == "F32" => {
                file.write_all(&global.to_le_bytes()).map_err(bad)?;
            }
            Some(global) if entry.dtype == "U8" => {
                let (codes, of_codes) = quantize(tensor, *global)?;
                scales = of_codes;
                file.write_all(&codes).map_err(bad)?;
            }
            Some(_) => file.write_all(&scales).map_err(bad)?,
        }
        source.release(&item.from);
    }
    file.flush().map_err(bad)?;
    Ok(header)
}

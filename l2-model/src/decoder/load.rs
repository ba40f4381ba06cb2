//! From a checkpoint to weights as the runtime's device wants them.
//!
//! The config says which tensors there must be; all that are missing, left over or of another shape
//! are reported in one error. Then each matrix is read row by row, expanded to f32, rounded to bf16
//! and packed, on all threads, and its mapped pages are given back, so that the file and the model
//! are never in memory together. Matrices in block formats keep their blocks on a CPU, and those in NVFP4
//! on a device; they are only put in another order ([`PackedBlocks`](l1_tensor::PackedBlocks),
//! [`DeviceWeight`](l1_tensor::DeviceWeight)). For a device the rows go into pinned memory, piece by piece,
//! and one piece travels while the next is being written.

use std::sync::Arc;

use l1_tensor::ops::{Epilogue, RopeTable};
use l1_tensor::{BlockPart, RowOrder, Runtime, Tensor, Weight};

use super::{Attention, Branch, Decoder, Layer, Mlp, NormWeights, OpWeights};
use crate::checkpoint::names::unpermute_rows;
use crate::checkpoint::{Checkpoint, Stored, StoredTensor, TensorSetError};
use crate::config::{self, Activation, AttentionConfig, Norm, Op};
use crate::finite::first_not_finite;
use crate::{Error, ModelConfig, Result};

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
const FINAL_NORM: &str = "model.norm";
pub(crate) const LM_HEAD: &str = "lm_head.weight";

impl Decoder {
    /// Loads the weights that `config` requires.
    ///
    /// # Errors
    /// [`TensorSetError`] (as [`Error::Checkpoint`]) listing every tensor that does not fit, or
    /// what reading and packing report.
    pub fn load(rt: &Runtime, checkpoint: &Checkpoint, config: ModelConfig) -> Result<Self> {
        checkpoint.check(&expected_tensors(&config))?;
        // exercise l2.load
        let loader = Loader { rt, checkpoint };
        let rope = RopeTable::new(config.rope.rotary_dim, config.rope.theta, &config.rope.scaling)?;
        let embedding = Arc::new(loader.matrix(&[(EMBEDDING, None)], RowOrder::Plain)?);
        let lm_head = if config.tied_embeddings {
            Arc::clone(&embedding)
        } else {
            Arc::new(loader.matrix(&[(LM_HEAD, None)], RowOrder::Plain)?)
        };
        let layers = config
            .layers
            .iter()
            .enumerate()
            .map(|(i, layer)| loader.layer(i, layer))
            .collect::<Result<_>>()?;
        let final_norm = loader.norm(FINAL_NORM, config.final_norm)?;
        Ok(Self { config, embedding, layers, final_norm, lm_head, rope })
        // end of exercise
    }
}

/// Every tensor a model has: Hugging Face name and shape.
pub(crate) fn expected_tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let (h, v) = (config.hidden, config.vocab);
    let mut out = vec![(EMBEDDING.to_string(), vec![v, h])];
    let mut add = |name: String, shape: Vec<usize>| out.push((name, shape));
    for (i, layer) in config.layers.iter().enumerate() {
        for branch in &layer.branches {
            let p = prefix(i, &branch.op);
            norm_tensors(norm_name(i, &branch.op), branch.norm, h, &mut add);
            op_tensors(&p, &branch.op, h, h, &mut add);
        }
    }
    norm_tensors(FINAL_NORM.into(), config.final_norm, h, &mut add);
    if !config.tied_embeddings {
        add(LM_HEAD.into(), vec![v, h]);
    }
    out
}

/// Tensors of one op whose names begin with `p`, with `inputs` elements a row where attention reads them.
pub(crate) fn op_tensors(
    p: &str,
    op: &Op,
    inputs: usize,
    h: usize,
    add: &mut impl FnMut(String, Vec<usize>),
) {
    match op {
        Op::Attention(a) => {
            let (q, kv) = (a.q_heads * a.head_dim, a.kv_heads * a.head_dim);
            for (name, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
                add(format!("{p}.{name}.weight"), vec![rows, inputs]);
                if a.qkv_bias {
                    add(format!("{p}.{name}.bias"), vec![rows]);
                }
            }
            add(format!("{p}.o_proj.weight"), vec![h, q]);
            if a.o_bias {
                add(format!("{p}.o_proj.bias"), vec![h]);
            }
            if a.qk_norm.is_some() {
                add(format!("{p}.q_norm.weight"), vec![a.head_dim]);
                add(format!("{p}.k_norm.weight"), vec![a.head_dim]);
            }
        }
        Op::Mlp(m) => {
            let wide = m.intermediate;
            for (name, n, k) in
                [("gate_proj", wide, h), ("up_proj", wide, h), ("down_proj", h, wide)]
            {
                add(format!("{p}.{name}.weight"), vec![n, k]);
                if m.bias {
                    add(format!("{p}.{name}.bias"), vec![n]);
                }
            }
        }
    }
}

fn prefix(layer: usize, op: &Op) -> String {
    match op {
        Op::Attention(_) => format!("model.layers.{layer}.self_attn"),
        Op::Mlp(_) => format!("model.layers.{layer}.mlp"),
    }
}

fn norm_name(layer: usize, op: &Op) -> String {
    match op {
        Op::Attention(_) => format!("model.layers.{layer}.input_layernorm"),
        Op::Mlp(_) => format!("model.layers.{layer}.post_attention_layernorm"),
    }
}

fn norm_tensors(name: String, norm: Norm, width: usize, add: &mut impl FnMut(String, Vec<usize>)) {
    if matches!(norm, Norm::Layer { .. }) {
        add(format!("{name}.bias"), vec![width]);
    }
    add(format!("{name}.weight"), vec![width]);
}

pub(crate) struct Loader<'a> {
    pub(crate) rt: &'a Runtime,
    pub(crate) checkpoint: &'a Checkpoint,
}

/// A stored matrix that becomes some rows of a packed one.
struct Part<'a> {
    /// Its Hugging Face name.
    name: &'a str,
    stored: Stored<'a>,
    /// Row `i` is stored row `rows[i]`: undoes the permutation of GGUF's q and k.
    rows: Option<Vec<usize>>,
}

impl Loader<'_> {
    fn layer(&self, i: usize, layer: &config::LayerConfig) -> Result<Layer> {
        let branch = |b: &config::Branch| {
            Ok(Branch {
                norm: self.norm(&norm_name(i, &b.op), b.norm)?,
                op: self.op(&prefix(i, &b.op), &b.op)?,
                mode: b.mode,
                scale: b.scale,
            })
        };
        Ok(Layer { branches: layer.branches.iter().map(branch).collect::<Result<_>>()? })
    }

    pub(crate) fn op(&self, p: &str, op: &Op) -> Result<OpWeights> {
        Ok(match op {
            Op::Attention(a) => OpWeights::Attention(self.attention(p, a)?),
            Op::Mlp(m) => {
                let name = |part: &str| format!("{p}.{part}.weight");
                let (gate, up, down) = (name("gate_proj"), name("up_proj"), name("down_proj"));
                let bias = |parts: &[&str]| self.bias(p, parts, m.bias);
                OpWeights::Mlp(Mlp {
                    gate_up: self.matrix(&[(&gate, None), (&up, None)], RowOrder::GateUp)?,
                    gate_up_bias: bias(&["gate_proj", "up_proj"])?,
                    activation: activation(m.activation),
                    intermediate: m.intermediate,
                    down: self.matrix(&[(&down, None)], RowOrder::Plain)?,
                    down_bias: bias(&["down_proj"])?,
                })
            }
        })
    }

    fn attention(&self, p: &str, a: &AttentionConfig) -> Result<Attention> {
        // exercise l2.load
        let name = |part: &str| format!("{p}.{part}.weight");
        let (q, k, v, o) = (name("q_proj"), name("k_proj"), name("v_proj"), name("o_proj"));
        let heads = |n| Some((a.head_dim, n));
        let qkv = [(q.as_str(), heads(a.q_heads)), (&k, heads(a.kv_heads)), (&v, None)];
        let mut qkv_bias = Vec::new();
        if a.qkv_bias {
            for (part, shape) in
                [("q_proj", heads(a.q_heads)), ("k_proj", heads(a.kv_heads)), ("v_proj", None)]
            {
                qkv_bias.extend(self.vector_in_order(&format!("{p}.{part}.bias"), shape)?);
            }
        }
        let head_norm = |part: &str| -> Result<Option<Tensor>> {
            a.qk_norm.map(|_| self.tensor(&name(part))).transpose()
        };
        Ok(Attention {
            config: a.clone(),
            qkv: self.matrix(&qkv, RowOrder::Plain)?,
            qkv_bias: a.qkv_bias.then(|| on_device(self.rt, &qkv_bias)).transpose()?,
            q_norm: head_norm("q_norm")?,
            k_norm: head_norm("k_norm")?,
            o: self.matrix(&[(&o, None)], RowOrder::Plain)?,
            o_bias: self.bias(p, &["o_proj"], a.o_bias)?,
        })
        // end of exercise
    }

    pub(crate) fn norm(&self, name: &str, kind: Norm) -> Result<NormWeights> {
        let bias = matches!(kind, Norm::Layer { .. });
        Ok(NormWeights {
            kind,
            weight: self.tensor(&format!("{name}.weight"))?,
            bias: bias.then(|| self.tensor(&format!("{name}.bias"))).transpose()?,
        })
    }

    /// The biases of projections that were fused, one after another.
    pub(crate) fn bias(&self, p: &str, parts: &[&str], present: bool) -> Result<Option<Tensor>> {
        if !present {
            return Ok(None);
        }
        let mut all = Vec::new();
        for part in parts {
            all.extend(self.vector(&format!("{p}.{part}.bias"))?);
        }
        on_device(self.rt, &all).map(Some)
    }

    fn stored(&self, name: &str) -> Result<StoredTensor<'_>> {
        Ok(self.checkpoint.get(name).ok_or_else(|| missing(name))?)
    }

    /// A matrix, in one tensor or several.
    fn weight(&self, name: &str) -> Result<Stored<'_>> {
        Ok(self.checkpoint.stored(name)?.ok_or_else(|| missing(name))?)
    }

    /// A small tensor, as f32: a norm or a bias. One number that is not finite would make every logit NaN.
    fn vector(&self, name: &str) -> Result<Vec<f32>> {
        let stored = self.stored(name)?;
        let mut out = vec![0.0; stored.len()];
        stored.dequantize_row(0, &mut out)?;
        match out.iter().position(|x| !x.is_finite()) {
            None => Ok(out),
            Some(i) => {
                let (tensor, value) = (stored.name.into(), out[i]);
                Err(Error::NotFinite { tensor, at: vec![i], value })
            }
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        on_device(self.rt, &self.vector(name)?)
    }

    /// A vector with its elements in Hugging Face order: `heads` is (head dim, heads) of a q or k.
    fn vector_in_order(&self, name: &str, heads: Option<(usize, usize)>) -> Result<Vec<f32>> {
        // exercise l2.load
        let stored = self.vector(name)?;
        Ok(match heads.filter(|_| self.checkpoint.rows_are_permuted(name)) {
            Some((dim, n)) => unpermute_rows(dim, n).into_iter().map(|i| stored[i]).collect(),
            None => stored,
        })
        // end of exercise
    }

    /// Load matrices of one width, one above the other, as a single weight. For a q or k,
    /// `(head dim, heads)` goes with the name.
    pub(crate) fn matrix(
        &self,
        names: &[(&str, Option<(usize, usize)>)],
        order: RowOrder,
    ) -> Result<Weight> {
        // exercise l2.load
        let mut parts = Vec::with_capacity(names.len());
        for (name, heads) in names {
            let permuted = heads.filter(|_| self.checkpoint.rows_are_permuted(name));
            let stored = self.weight(name)?;
            stored.tensors().for_each(|tensor| self.checkpoint.prefetch(tensor.name));
            parts.push(Part {
                name,
                stored,
                rows: permuted.map(|(dim, n)| unpermute_rows(dim, n)),
            });
        }
        let n = parts.iter().map(|p| p.stored.n_rows()).sum();
        let k = parts.first().map_or(0, |p| p.stored.row_len());
        // Part and stored row of a row of the whole.
        let find = |mut i: usize| {
            for part in &parts {
                if i < part.stored.n_rows() {
                    return Ok((part, part.rows.as_ref().map_or(i, |rows| rows[i])));
                }
                i -= part.stored.n_rows();
            }
            row_past_the_end(i)
        };
        let weight = match self.blocks(&parts, k, order) {
            Some(blocks) => Weight::load_blocks(self.rt, k, order, &blocks, &|i| {
                let (part, row) = find(i)?;
                Ok::<_, Error>(part.stored.blocks_of_row(row)?)
            })
            .map_err(|e| match e {
                Error::Tensor(l1_tensor::Error::BadRow { row, why, .. }) => {
                    in_tensor(find(row), why)
                }
                e => e,
            })?,
            None => Weight::load(self.rt, n, k, order, &|i, out| {
                let (part, row) = find(i)?;
                part.stored.dequantize_row(row, out)?;
                check_row(part, row, out)
            })?,
        };
        for tensor in parts.iter().flat_map(|part| part.stored.tensors()) {
            self.checkpoint.release(tensor.name);
        }
        scaled(weight, &parts)
        // end of exercise
    }

    /// Block formats of the parts of a matrix, if it can keep them.
    fn blocks(&self, parts: &[Part<'_>], k: usize, order: RowOrder) -> Option<Vec<BlockPart>> {
        let block = |part: &Part<'_>| {
            Some(BlockPart { rows: part.stored.n_rows(), format: part.stored.blocks()? })
        };
        let blocks: Vec<_> = parts.iter().map(block).collect::<Option<_>>()?;
        Weight::keeps_blocks(self.rt, k, order, &blocks).then_some(blocks)
    }
}

/// Fails if a number of a row of a matrix is not finite in bf16: a single one makes logits NaN. (The row was just
/// computed, so this reads the cache. The blocks of a packed matrix are not looked at number by number: their scales are
/// checked.)
fn check_row(part: &Part<'_>, row: usize, values: &[f32]) -> Result<()> {
    match first_not_finite(values) {
        None => Ok(()),
        Some((i, value)) => {
            let tensor = part.stored.name().into();
            Err(Error::NotFinite { tensor, at: vec![row, i], value })
        }
    }
}

/// Names the tensor and its row that cannot be packed.
fn in_tensor(at: Result<(&Part<'_>, usize)>, why: String) -> Error {
    at.map_or_else(|e| e, |(part, row)| Error::Row { tensor: part.name.to_string(), row, why })
}

/// Gives a weight the factors of its parts, if there are any.
fn scaled(weight: Weight, parts: &[Part<'_>]) -> Result<Weight> {
    let factor = |part: &Part<'_>| part.stored.factor();
    if parts.iter().all(|part| factor(part).is_none()) {
        return Ok(weight);
    }
    // A plain matrix beside quantised ones: times one, which changes nothing.
    let factors = parts.iter().map(|part| (part.stored.n_rows(), factor(part).unwrap_or(1.0)));
    Ok(weight.scaled(&factors.collect::<Vec<_>>())?)
}

fn missing(name: &str) -> TensorSetError {
    TensorSetError { missing: vec![(name.into(), vec![])], ..Default::default() }
}

/// Loading asks for rows below the sum of all parts only; a wrong sum should not become a panic.
fn row_past_the_end<T>(beyond: usize) -> Result<T> {
    Err(Error::Tensor(l1_tensor::Error::OutOfRange {
        op: "pack",
        what: "row past the end by",
        index: beyond as i64,
        limit: 0,
    }))
}

/// What folds gates and ups.
pub(super) fn activation(of: Activation) -> Epilogue {
    match of {
        Activation::Silu => Epilogue::SiluMul,
        Activation::Gelu => Epilogue::GeluMul,
        Activation::GeluTanh => Epilogue::GeluTanhMul,
    }
}

/// A vector in the memory of the runtime's device.
pub(super) fn on_device(rt: &Runtime, values: &[f32]) -> Result<Tensor> {
    Ok(Tensor::from_slice(values, &[values.len()])?.to_device(rt.device())?)
}

#[cfg(test)]
mod tests;

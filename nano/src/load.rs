//! A model from a checkpoint. Files are layer 2's subject; here they are only expanded to `f32`.

use anyhow::{Context, Result, bail};
use l1_tensor::ops::RopeScaling;
use l2_model::ModelFiles;
use l2_model::checkpoint::Checkpoint;
use l2_model::checkpoint::names::unpermute_rows;
use l2_model::{Activation, Norm, Op};

use crate::{Heads, Layer, Matrix, Model};

/// Reads the weights of a model of the Llama family, all of them as `f32`.
///
/// # Errors
/// Tensors that are missing or cannot be read, and models that are not built like this: other norms or activations, biases,
/// sliding windows, norms of queries, scaled RoPE.
pub fn load(files: &ModelFiles) -> Result<Model> {
    let (config, checkpoint) = (files.config(), files.checkpoint());
    let (_, attention) = config.attention_layers().next().context("the model has no layers")?;
    let heads = Heads { query: attention.q_heads, kv: attention.kv_heads, dim: attention.head_dim };
    let Norm::Rms { eps } = config.final_norm else { bail!("nano has no layer norm") };
    for branch in config.layers.iter().flat_map(|layer| &layer.branches) {
        let plain = match &branch.op {
            Op::Attention(a) => {
                !a.qkv_bias && !a.o_bias && a.qk_norm.is_none() && a.window.is_none()
            }
            Op::Mlp(mlp) => mlp.activation == Activation::Silu && !mlp.bias,
        };
        if !plain || branch.norm != config.final_norm {
            bail!("nano runs models that are built like Llama, and {} is not", config.architecture);
        }
    }
    let rope = &config.rope;
    if rope.scaling != RopeScaling::None || rope.rotary_dim != heads.dim {
        bail!("nano has plain RoPE only: SmolLM2 has it, for example");
    }
    let embedding = matrix(checkpoint, "model.embed_tokens", None)?;
    let lm_head = match config.tied_embeddings {
        true => embedding.clone(),
        false => matrix(checkpoint, "lm_head", None)?,
    };
    let layers = (0..config.layers.len()).map(|i| layer(checkpoint, i, heads));
    Ok(Model {
        layers: layers.collect::<Result<_>>()?,
        norm: matrix(checkpoint, "model.norm", None)?.data,
        embedding,
        lm_head,
        heads,
        eps,
        rope_theta: rope.theta as f32,
    })
}

fn layer(checkpoint: &Checkpoint, i: usize, heads: Heads) -> Result<Layer> {
    let read = |name: &str, heads: Option<(usize, usize)>| {
        matrix(checkpoint, &format!("model.layers.{i}.{name}"), heads)
    };
    Ok(Layer {
        attn_norm: read("input_layernorm", None)?.data,
        q: read("self_attn.q_proj", Some((heads.dim, heads.query)))?,
        k: read("self_attn.k_proj", Some((heads.dim, heads.kv)))?,
        v: read("self_attn.v_proj", None)?,
        o: read("self_attn.o_proj", None)?,
        mlp_norm: read("post_attention_layernorm", None)?.data,
        gate: read("mlp.gate_proj", None)?,
        up: read("mlp.up_proj", None)?,
        down: read("mlp.down_proj", None)?,
    })
}

/// A tensor. A vector is a matrix of one row. A GGUF file has the rows of query and key heads in another order, which
/// depends on the size and the number of the `heads`.
fn matrix(checkpoint: &Checkpoint, name: &str, heads: Option<(usize, usize)>) -> Result<Matrix> {
    let name = format!("{name}.weight");
    let stored = checkpoint.get(&name).with_context(|| format!("the checkpoint has no {name}"))?;
    let mut out = Matrix::zeros(stored.n_rows(), stored.row_len());
    let order = match heads {
        Some((dim, n)) if checkpoint.rows_are_permuted(&name) => unpermute_rows(dim, n),
        _ => (0..out.rows).collect(),
    };
    for (to, from) in order.into_iter().enumerate() {
        stored.dequantize_row(from, out.row_mut(to)).with_context(|| name.clone())?;
    }
    checkpoint.release(&name);
    Ok(out)
}

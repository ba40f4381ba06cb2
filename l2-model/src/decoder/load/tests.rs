use std::path::{Path, PathBuf};

use l1_tensor::{Device, DeviceRequest, RuntimeOptions};

use super::*;
use crate::{ModelFiles, judge};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

fn runtime() -> Runtime {
    let device = DeviceRequest::Exactly(Device::Cpu);
    Runtime::new(RuntimeOptions { device, threads: Some(1), ..Default::default() }).unwrap()
}

struct Loaded {
    name: &'static str,
    files: ModelFiles,
    decoder: Decoder,
}

fn load(name: &'static str) -> Loaded {
    let files = ModelFiles::open(&fixture(name)).unwrap();
    let decoder = files.decoder(&runtime()).unwrap();
    Loaded { name, files, decoder }
}

impl Loaded {
    /// The rows of a stored tensor as the file has them, rounded to bf16 as packed weights are.
    fn stored(&self, name: &str) -> Vec<Vec<f32>> {
        let tensor = self.files.checkpoint().get(name).unwrap();
        let row = |r: usize| {
            let mut out = vec![half::bf16::ZERO; tensor.row_len()];
            tensor.dequantize_row_bf16(r, &mut out).unwrap();
            out.into_iter().map(f32::from).collect()
        };
        (0..tensor.n_rows()).map(row).collect()
    }

    fn attention(&self, layer: usize) -> &Attention {
        let of = |b: &'_ Branch| matches!(b.op, OpWeights::Attention(_));
        match &self.decoder.layers[layer].branches.iter().find(|b| of(b)).unwrap().op {
            OpWeights::Attention(a) => a,
            OpWeights::Mlp(_) => unreachable!("it was just looked for"),
        }
    }

    /// Rows `from..` of a packed weight against `expected`, which is `what` of the model.
    fn rows_are(&self, what: &str, weight: &Weight, from: usize, expected: &[Vec<f32>]) {
        let mut row = vec![0.0; weight.k()];
        let mut got = Vec::new();
        for r in 0..expected.len() {
            weight.row(from + r, &mut row).unwrap();
            got.extend_from_slice(&row);
        }
        let what = format!("rows of {what} of {}", self.name);
        judge::same_bits(&what, &[expected.len(), weight.k()], &got, &expected.concat());
    }
}

#[test]
fn rows_of_q_k_and_v_follow_each_other_in_hugging_face_order() {
    for name in ["tiny-llama", "tiny-llama-untied", "tiny-qwen3", "tiny-gguf/qwen3-bf16.gguf"] {
        let model = load(name);
        for layer in 0..model.decoder.layers.len() {
            let a = model.attention(layer);
            let mut from = 0;
            for part in ["q_proj", "k_proj", "v_proj"] {
                let of = format!("model.layers.{layer}.self_attn.{part}.weight");
                let expected = model.stored(&of);
                model.rows_are(&of, &a.qkv, from, &expected);
                from += expected.len();
            }
            assert_eq!(a.qkv.n(), from, "rows of the joined q, k and v of {name}");
            let of = format!("model.layers.{layer}.self_attn.o_proj.weight");
            model.rows_are(&of, &a.o, 0, &model.stored(&of));
        }
    }
}

/// llama.cpp's converter on the rows of one matrix: `reshape(heads, 2, half).swapaxes(1, 2)`.
fn permuted<T: Clone>(rows: &[T], heads: usize) -> Vec<T> {
    let head_dim = rows.len() / heads;
    let half = head_dim / 2;
    let mut out = rows.to_vec();
    for (r, row) in rows.iter().enumerate() {
        let (head, within) = (r / head_dim, r % head_dim);
        let (h, i) = (within / half, within % half);
        out[head * head_dim + 2 * i + h] = row.clone();
    }
    out
}

#[test]
fn gguf_rows_of_q_and_k_are_put_back_as_transformers_has_them() {
    for name in ["tiny-gguf/llama-f32.gguf", "tiny-gguf/llama-q8_0.gguf"] {
        let model = load(name);
        let a = model.attention(1);
        let AttentionConfig { q_heads, kv_heads, head_dim, .. } = a.config;
        let joined = |from: usize, n: usize| {
            let row = |r: usize| {
                let mut out = vec![0.0; a.qkv.k()];
                a.qkv.row((from + r) as _, &mut out).unwrap();
                out
            };
            (0..n * head_dim).map(row).collect::<Vec<_>>()
        };
        let dims = |heads: usize| [heads * head_dim, a.qkv.k()];
        // Converting what was loaded must give the file again.
        for (part, from, heads) in
            [("q_proj", 0, q_heads), ("k_proj", q_heads * head_dim, kv_heads)]
        {
            let of = format!("model.layers.1.self_attn.{part}.weight");
            judge::same_bits(
                &format!("rows of {of} of {name}, converted to GGUF's order again"),
                &dims(heads),
                &permuted(&joined(from, heads), heads).concat(),
                &model.stored(&of).concat(),
            );
        }
        let v = "model.layers.1.self_attn.v_proj.weight";
        model.rows_are(v, &a.qkv, (q_heads + kv_heads) * head_dim, &model.stored(v));
    }
}

#[test]
fn a_tied_head_is_the_embedding_and_an_untied_one_its_own_matrix() {
    for name in ["tiny-llama", "tiny-qwen2", "tiny-llama-untied", "tiny-mistral"] {
        let model = load(name);
        let tied = model.files.config().tied_embeddings;
        assert_eq!(
            Arc::ptr_eq(&model.decoder.embedding, &model.decoder.lm_head),
            tied,
            "whether {name}, tied: {tied}, holds one matrix for both ends"
        );
        model.rows_are("the embedding", &model.decoder.embedding, 0, &model.stored(EMBEDDING));
        let head = if tied { EMBEDDING } else { LM_HEAD };
        model.rows_are("the head", &model.decoder.lm_head, 0, &model.stored(head));
    }
}

#[test]
fn biases_are_in_the_order_of_their_rows() {
    for name in ["tiny-qwen2", "tiny-gguf/qwen2-q8_0.gguf"] {
        let model = load(name);
        let parts = ["q_proj", "k_proj", "v_proj"];
        let stored =
            parts.map(|part| model.stored(&format!("model.layers.0.self_attn.{part}.bias")));
        let expected: Vec<f32> = stored.concat().concat();
        let bias = model.attention(0).qkv_bias.as_ref();
        let got = bias.unwrap_or_else(|| panic!("{name} has a bias on q, k and v")).to_vec_f32();
        let what = format!("the bias of q, k and v of {name}");
        judge::close(&what, &[expected.len()], &got.unwrap(), &expected, 1e-2);
        let scores = load("tiny-llama");
        assert!(scores.attention(0).qkv_bias.is_none(), "a llama without attention_bias has none");
    }
}

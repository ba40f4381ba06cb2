//! The model of the chapter "One token, end to end": nine words, two layers, small enough to be printed.
//!
//! `fixtures/reference/make_one_token.py` has trained it on two sentences.

use serde::Deserialize;

use crate::{Heads, Layer, Matrix, Model};

/// The tiny model and its vocabulary.
#[derive(Clone, Debug)]
pub struct Toy {
    /// Word of each token.
    pub words: Vec<String>,
    /// The model.
    pub model: Model,
}

impl Toy {
    /// Reads the model, which is part of the program.
    pub fn load() -> Self {
        let file = include_str!("../one-token/model.json");
        let file: File = serde_json::from_str(file).expect("the fixture is a model");
        let heads = Heads { query: file.query_heads, kv: file.kv_heads, dim: file.head_dim };
        let embedding = matrix(&file.embedding);
        let layers = file.layers.iter().map(|layer| Layer {
            attn_norm: layer.attn_norm.clone(),
            q: matrix(&layer.q),
            k: matrix(&layer.k),
            v: matrix(&layer.v),
            o: matrix(&layer.o),
            mlp_norm: layer.mlp_norm.clone(),
            gate: matrix(&layer.gate),
            up: matrix(&layer.up),
            down: matrix(&layer.down),
        });
        let model = Model {
            layers: layers.collect(),
            norm: file.norm,
            lm_head: embedding.clone(),
            embedding,
            heads,
            eps: file.eps,
            rope_theta: file.rope_theta,
        };
        Self { words: file.words, model }
    }

    /// Tokens of a text whose words are separated by spaces. `None` if it has another word.
    pub fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let token = |word: &str| self.words.iter().position(|known| known == word);
        text.split_whitespace().map(|word| Some(token(word)? as u32)).collect()
    }

    /// Text of tokens.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let words: Vec<&str> = tokens.iter().map(|t| self.words[*t as usize].as_str()).collect();
        words.join(" ")
    }

    /// The token that ends a sentence.
    pub fn stop(&self) -> u32 {
        self.words.len() as u32 - 1
    }
}

#[derive(Deserialize)]
struct File {
    words: Vec<String>,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f32,
    rope_theta: f32,
    embedding: Vec<Vec<f32>>,
    layers: Vec<LayerFile>,
    norm: Vec<f32>,
}

#[derive(Deserialize)]
struct LayerFile {
    attn_norm: Vec<f32>,
    q: Vec<Vec<f32>>,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    o: Vec<Vec<f32>>,
    mlp_norm: Vec<f32>,
    gate: Vec<Vec<f32>>,
    up: Vec<Vec<f32>>,
    down: Vec<Vec<f32>>,
}

fn matrix(rows: &[Vec<f32>]) -> Matrix {
    Matrix { rows: rows.len(), cols: rows.first().map_or(0, Vec::len), data: rows.concat() }
}

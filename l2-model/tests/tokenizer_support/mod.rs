//! Fixtures of the tokenizer tests.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::PathBuf;

use l2_model::checkpoint::GgufFile;
use l2_model::tokenizer::{GgufVocab, Tokenizer};
use serde::Deserialize;

/// The kinds of `fixtures/tokenizers`.
pub const KINDS: [&str; 6] = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "llama"];

/// What `fixtures/reference/make_tokenizers.py` wrote down for one kind.
#[derive(Deserialize)]
pub struct Golden {
    #[serde(default)]
    pub vocab_size: usize,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    #[serde(default)]
    pub specials: Vec<Special>,
    pub cases: Vec<Case>,
    pub decode_only: Vec<Case>,
    #[serde(default)]
    pub bytes_without_token: Vec<u8>,
}

#[derive(Deserialize)]
pub struct Special {
    pub text: String,
    pub id: u32,
    pub special: bool,
}

#[derive(Deserialize)]
pub struct Case {
    #[serde(default)]
    pub text: String,
    pub ids: Vec<u32>,
    #[serde(default)]
    pub ids_special: Vec<u32>,
    pub decoded: String,
    pub decoded_no_special: String,
}

/// A path below `fixtures/`.
pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(path)
}

/// A JSON fixture.
pub fn json<T: for<'de> Deserialize<'de>>(path: &str) -> T {
    let text = fs::read_to_string(fixture(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn golden(kind: &str) -> Golden {
    json(&format!("tokenizers/{kind}.json"))
}

pub fn from_gguf(kind: &str) -> Tokenizer {
    let file = GgufFile::open(&fixture(&format!("tokenizers/{kind}.gguf"))).unwrap();
    Tokenizer::from_gguf(GgufVocab::from_metadata(&file).unwrap()).unwrap()
}

pub fn from_json(kind: &str) -> Tokenizer {
    Tokenizer::from_file(fixture(&format!("tokenizers/{kind}.tokenizer.json"))).unwrap()
}

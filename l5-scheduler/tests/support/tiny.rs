//! Tiny models of the fixtures.

use std::path::Path;
use std::sync::Arc;

use l1_tensor::{Precision, Runtime};
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, ModelFiles};

use crate::runtime::runtime;

/// A tiny model with all that belongs to it.
pub struct Tiny {
    pub rt: Runtime,
    pub decoder: Arc<Decoder>,
    pub tokenizer: Tokenizer,
    pub ends: Vec<u32>,
}

pub fn tiny(name: &str) -> Tiny {
    on(name, runtime(Precision::F32, 2))
}

pub fn on(name: &str, rt: Runtime) -> Tiny {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
    let files = ModelFiles::open(&path).unwrap();
    let (decoder, tokenizer) = files.decoder_and_tokenizer(&rt);
    let (decoder, tokenizer) = (Arc::new(decoder.unwrap()), tokenizer.unwrap());
    Tiny { rt, decoder, tokenizer, ends: files.stop_tokens().to_vec() }
}

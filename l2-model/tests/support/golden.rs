//! What transformers computed for a prompt: a golden of `fixtures/`.

// Every test binary uses its own part of this.
#![allow(dead_code)]

use std::path::Path;

use l1_tensor::safetensors::SafetensorsFile;

/// Prompt, logits of all its tokens, greedy continuation, and how far each of those was ahead.
pub struct Golden {
    pub tokens: Vec<u32>,
    pub logits: Vec<f32>,
    pub greedy: Vec<u32>,
    pub margins: Vec<f32>,
}

impl Golden {
    pub fn open(path: &Path) -> Self {
        let file = SafetensorsFile::open(path).unwrap();
        let ids = |name: &str| {
            let t = file.tensor(name).unwrap();
            let ids = t.view().as_slice::<i64>("golden").unwrap();
            ids.iter().map(|id| *id as u32).collect::<Vec<_>>()
        };
        let floats = |name: &str| file.tensor(name).unwrap().to_vec_f32().unwrap();
        Self {
            tokens: ids("tokens"),
            logits: floats("logits"),
            greedy: ids("greedy"),
            margins: floats("greedy_margins"),
        }
    }
}

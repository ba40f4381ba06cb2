//! What torch and transformers computed, from the repository's fixtures.

use std::path::PathBuf;

use l1_tensor::Tensor;
use l1_tensor::safetensors::SafetensorsFile;

/// The repository's fixtures.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// The goldens made by `fixtures/reference/make_ops.py`: f64 results of torch, rounded once.
pub struct Goldens {
    file: SafetensorsFile,
}

impl Goldens {
    /// Open `fixtures/ops.safetensors`.
    pub fn open() -> Self {
        Self { file: SafetensorsFile::open(fixture("ops.safetensors")).expect("the fixture") }
    }

    /// The cases of an op: `rms_norm.odd`, `rms_norm.wide` and so on.
    pub fn cases(&self, op: &str) -> Vec<String> {
        let mut cases: Vec<String> = self
            .file
            .names()
            .iter()
            .filter_map(|n| n.strip_suffix(".out"))
            .filter(|n| n.split('.').next() == Some(op))
            .map(str::to_string)
            .collect();
        cases.sort();
        assert!(!cases.is_empty(), "no golden of {op}");
        cases
    }

    /// Tensor `name` of a case.
    pub fn tensor(&self, case: &str, name: &str) -> Tensor {
        self.file.tensor(&format!("{case}.{name}")).expect("a tensor of the fixture")
    }

    /// Tensor `name` of a case, if the case has one.
    pub fn maybe(&self, case: &str, name: &str) -> Option<Tensor> {
        let name = format!("{case}.{name}");
        self.file.contains(&name).then(|| self.file.tensor(&name).expect("a tensor"))
    }

    /// The parameters of a case.
    pub fn parameters(&self, case: &str) -> serde_json::Value {
        let text = &self.file.metadata().expect("metadata")[case];
        serde_json::from_str(text).expect("a JSON object")
    }
}

//! The reference's answers (fixtures/reference/make_tiny_goldens.py, make_tiny_gguf.py).

use l1_tensor::safetensors::SafetensorsFile;

use crate::strata::fixture;

/// Every tiny model with its golden file.
pub fn tiny_models() -> Vec<(String, String)> {
    let directories = [
        "tiny-llama",
        "tiny-llama-untied",
        "tiny-llama-linear",
        "tiny-llama-yarn",
        "tiny-mistral",
        "tiny-qwen2",
        "tiny-qwen3",
    ];
    let files = [
        "llama-f32",
        "llama-f16",
        "llama-bf16",
        "llama-q8_0",
        "llama-q4_0",
        "llama-q4_1",
        "llama-k",
        "llama3-f16",
        "llama-linear-f16",
        "llama-yarn-f16",
        "qwen2-q8_0",
        "qwen3-bf16",
    ];
    let of_directory =
        |name: &&str| (fixture(name), fixture(&format!("{name}/golden.safetensors")));
    let of_file = |name: &&str| {
        let path = |end| fixture(&format!("tiny-gguf/{name}.{end}"));
        (path("gguf"), path("golden.safetensors"))
    };
    directories.iter().map(of_directory).chain(files.iter().map(of_file)).collect()
}

pub struct Golden(SafetensorsFile);

impl Golden {
    pub fn open(path: &str) -> Self {
        Golden(SafetensorsFile::open(path).unwrap())
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let tensor = self.0.tensor(name).unwrap();
        let ids = tensor.view().as_slice::<i64>("test").unwrap();
        ids.iter().map(|id| u32::try_from(*id).unwrap()).collect()
    }

    /// Rows of a matrix.
    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let tensor = self.0.tensor(name).unwrap();
        let width = tensor.dims()[1];
        tensor.to_vec_f32().unwrap().chunks(width).map(<[f32]>::to_vec).collect()
    }
}

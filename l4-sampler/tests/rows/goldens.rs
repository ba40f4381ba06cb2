//! What transformers' own processors made of some rows: `fixtures/sampling/processors.safetensors`, by
//! `fixtures/reference/make_sampling.py`.

use std::path::Path;

use l1_tensor::safetensors::SafetensorsFile;
use l4_sampler::History;
use serde_json::Value;

/// One case of a processor.
pub struct Case {
    /// `top_p.0.9`.
    pub name: String,
    /// What the processor was told.
    pub parameters: Value,
    /// The rows before.
    pub before: Vec<Vec<f32>>,
    /// The rows after.
    pub after: Vec<Vec<f32>>,
    /// Of each row, if the processor needs it: the prompt's tokens and the answer's.
    pub seen: Vec<(Vec<u32>, Vec<u32>)>,
}

impl Case {
    /// A number of the parameters, `otherwise` if the case does not give it.
    pub fn number(&self, name: &str, otherwise: f64) -> f32 {
        self.parameters.get(name).map_or(otherwise, |v| v.as_f64().expect("a number")) as f32
    }

    /// A count of the parameters; 0 if the case does not give it.
    pub fn count(&self, name: &str) -> usize {
        self.parameters.get(name).map_or(0, |v| v.as_u64().expect("a count") as usize)
    }

    /// A list of tokens.
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let list = self.parameters[name].as_array().expect("a list");
        list.iter().map(|v| v.as_u64().expect("a token") as u32).collect()
    }

    /// What row `i`'s request has seen.
    pub fn history(&self, i: usize) -> History {
        let (prompt, answer) = &self.seen[i];
        let mut history = History::new(prompt, answer.len());
        for token in answer {
            history.push(*token);
        }
        history
    }

    /// Rows before and after, with words for a message.
    pub fn rows(&self) -> impl Iterator<Item = (String, &[f32], &[f32])> + '_ {
        let rows = self.before.iter().zip(&self.after).enumerate();
        rows.map(|(i, (before, after))| {
            (format!("{}, row {i}", self.name), &before[..], &after[..])
        })
    }
}

/// The cases of a processor.
pub fn cases(processor: &str) -> Vec<Case> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/sampling/processors.safetensors");
    let file = SafetensorsFile::open(path).expect("the fixture");
    let f32s = |name: &str| -> Vec<Vec<f32>> {
        let tensor = file.tensor(name).expect("a tensor of the fixture");
        let rows = tensor.to_vec_f32().expect("f32");
        rows.chunks(tensor.dims()[1]).map(<[f32]>::to_vec).collect()
    };
    let tokens = |name: &str| -> Vec<Vec<u32>> {
        let (_, dims) = file.info(name).expect("a tensor of the fixture");
        let ids = file.bytes(name).expect("its bytes").as_chunks::<8>().0;
        let ids: Vec<u32> = ids.iter().map(|id| i64::from_le_bytes(*id) as u32).collect();
        ids.chunks(dims[1]).map(<[u32]>::to_vec).collect()
    };
    let mut cases: Vec<Case> = file
        .metadata()
        .expect("metadata")
        .iter()
        .filter(|(name, _)| name.split('.').next() == Some(processor) && name.contains('.'))
        .map(|(name, parameters)| Case {
            name: name.clone(),
            parameters: serde_json::from_str(parameters).expect("a JSON object"),
            before: f32s(&format!("{name}.in")),
            after: f32s(&format!("{name}.out")),
            seen: if file.contains(&format!("{name}.prompt")) {
                let prompts = tokens(&format!("{name}.prompt"));
                prompts.into_iter().zip(tokens(&format!("{name}.answer"))).collect()
            } else {
                Vec::new()
            },
        })
        .collect();
    assert!(!cases.is_empty(), "no golden of {processor}");
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

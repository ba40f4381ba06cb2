//! The texts of a Hugging Face directory, made from a GGUF file: tokenizer and generation config.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::QuantizeError;
use super::output::{io, remove, write_json};
use crate::ModelConfig;
use crate::checkpoint::GgufFile;
use crate::tokenizer::{GgufVocab, Tokenizer, TokenizerError};

/// What a directory has beside `config.json` and weights.
pub(super) struct Texts {
    /// `tokenizer.json` and `tokenizer_config.json`; `None` of a file without a tokenizer.
    tokenizer: Option<(String, Value)>,
    /// `generation_config.json`.
    generation: Value,
}

impl Texts {
    /// Makes the texts. Nothing is written yet, so what cannot be made leaves an output directory as it is.
    pub(super) fn of(
        file: &GgufFile<'_>,
        config: &ModelConfig,
        path: &Path,
    ) -> Result<Self, QuantizeError> {
        let not_written = |reason| QuantizeError::TokenizerNotWritten { path: path.into(), reason };
        // A file without a tokenizer is a model of token ids, as a directory without one is.
        let has = file.metadata().get("tokenizer.ggml.model").is_some();
        let tokenizer = has.then(|| tokenizer(file, config)).transpose().map_err(not_written)?;
        let pad = tokenizer.as_ref().and_then(|(.., pad)| *pad);
        let mut generation = json!({"bos_token_id": config.bos, "eos_token_id": config.eos});
        if let Some(pad) = pad {
            generation["pad_token_id"] = pad.into();
        }
        Ok(Self { tokenizer: tokenizer.map(|(json, config, _)| (json, config)), generation })
    }

    /// Whether there is a tokenizer.
    pub(super) fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Writes the files.
    pub(super) fn write(&self, output: &Path) -> Result<(), QuantizeError> {
        if let Some((json, config)) = &self.tokenizer {
            let path = output.join("tokenizer.json");
            remove(&path)?;
            std::fs::write(&path, json).map_err(|e| io(&path, e))?;
            write_json(&output.join("tokenizer_config.json"), config)?;
        }
        write_json(&output.join("generation_config.json"), &self.generation)
    }
}

/// `tokenizer.json`, `tokenizer_config.json`, and the id of the padding token.
fn tokenizer(
    file: &GgufFile<'_>,
    config: &ModelConfig,
) -> Result<(String, Value, Option<u32>), TokenizerError> {
    let tokenizer = Tokenizer::from_gguf(GgufVocab::from_metadata(file)?)?;
    let mut keys = Map::new();
    // The class that takes tokenizer.json as it is: those of a family would rebuild parts of it.
    keys.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    keys.insert("clean_up_tokenization_spaces".into(), false.into());
    keys.insert("model_max_length".into(), config.max_context.into());
    // A token that is named here is special to transformers. Chat templates need the names of BOS and EOS; the other two
    // would only take a spelling from the text.
    let special = |id: Option<u32>| id.filter(|id| tokenizer.is_special(*id));
    let named = [
        ("bos_token", tokenizer.bos()),
        ("eos_token", tokenizer.eos()),
        ("unk_token", special(tokenizer.unk())),
        ("pad_token", special(tokenizer.pad())),
    ];
    for (name, id) in named {
        if let Some(spelling) = id.and_then(|id| tokenizer.id_to_token(id)) {
            keys.insert(name.into(), spelling.into());
        }
    }
    if let Some(template) = tokenizer.chat_template() {
        keys.insert("chat_template".into(), template.into());
    }
    Ok((tokenizer.to_json()?, Value::Object(keys), special(tokenizer.pad())))
}

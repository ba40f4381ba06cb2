//! A model opened from one path: a Hugging Face directory or a GGUF file.

use std::path::{Path, PathBuf};

use l1_tensor::Runtime;
use serde_json::Value;

use crate::chat_template::ChatTemplate;
use crate::checkpoint::Checkpoint;
use crate::config::{parse_python_json, token_ids};
use crate::tokenizer::{GgufVocab, Tokenizer};
use crate::{Decoder, Error, ModelConfig, ModelDigest, Result};

/// Files of a model, opened and checked; no weight is read yet.
///
/// ```
/// # use std::path::Path;
/// use l2_model::ModelFiles;
///
/// # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama"));
/// let files = ModelFiles::open(path)?;
/// assert_eq!(files.config().layers.len(), 3);
/// let tokenizer = files.tokenizer()?;
/// assert!(tokenizer.vocab_size() <= files.config().vocab);
/// # Ok::<(), l2_model::Error>(())
/// ```
pub struct ModelFiles {
    path: PathBuf,
    checkpoint: Checkpoint,
    config: ModelConfig,
    stop_tokens: Vec<u32>,
}

impl ModelFiles {
    /// Opens a directory with `config.json` and safetensors, or a GGUF file.
    ///
    /// # Errors
    /// Errors of the config or the checkpoint; [`Error::GenerationConfig`].
    pub fn open(path: &Path) -> Result<Self> {
        // The config first: the error of an unsupported architecture is clearer than that of its unknown tensors.
        let of_dir = path.is_dir().then(|| ModelConfig::from_hf_file(&path.join("config.json")));
        let of_dir = of_dir.transpose()?;
        let checkpoint = Checkpoint::open(path)?;
        let config = match (of_dir, checkpoint.gguf()) {
            (Some(config), _) => config,
            (None, Some(file)) => ModelConfig::from_gguf(file)?,
            (None, None) => {
                let beside = path.parent().unwrap_or(Path::new(".")).join("config.json");
                ModelConfig::from_hf_file(&beside)?
            }
        };
        let stop_tokens = stop_tokens(path, &config)?;
        Ok(Self { path: path.into(), checkpoint, config, stop_tokens })
    }

    /// Configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Checkpoint that holds the weights.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Digest of config and weights: see [`ModelDigest`]. Reads at most 16 KiB of each tensor.
    pub fn digest(&self) -> ModelDigest {
        ModelDigest::of(&self.config, &self.checkpoint)
    }

    /// Stop tokens, which end a response: those of the config, of `generation_config.json` and of the
    /// GGUF metadata (end of sequence, of turn, of message), together.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// Reads the tokenizer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], also when there is none.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match self.checkpoint.gguf() {
            Some(file) => Ok(Tokenizer::from_gguf(GgufVocab::from_metadata(file)?)?),
            None => open_tokenizer(&self.path),
        }
    }

    /// Reads and packs the weights.
    ///
    /// # Errors
    /// See [`Decoder::load`].
    pub fn decoder(&self, rt: &Runtime) -> Result<Decoder> {
        Decoder::load(rt, &self.checkpoint, self.config.clone())
    }

    /// Reads weights and tokenizer in parallel: the tokenizer needs one thread and takes about as long.
    /// Each has its own result, because a model without a tokenizer still runs on token ids.
    pub fn decoder_and_tokenizer(&self, rt: &Runtime) -> (Result<Decoder>, Result<Tokenizer>) {
        std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| self.tokenizer());
            let decoder = self.decoder(rt);
            let tokenizer = tokenizer.join();
            (decoder, tokenizer.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

/// A model ready to run: decoder, tokenizer and stop tokens.
///
/// ```
/// # use std::path::Path;
/// use l1_tensor::{Runtime, RuntimeOptions};
/// use l2_model::{GenerateOptions, Model, Session, generate::generate};
///
/// # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama"));
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// let model = Model::load(path, &rt)?;
/// let prompt = model.tokenizer.encode("The sea", true)?;
/// let mut session = Session::new(&model.decoder, &rt, prompt.len() + 4)?;
/// let options =
///     GenerateOptions { max_tokens: 4, stop_tokens: &model.stop_tokens, ignore_eos: true };
/// let generation = generate(&mut session, &prompt, &options, |_token| true)?;
/// assert_eq!(generation.tokens.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model {
    /// Decoder: the forward pass.
    pub decoder: Decoder,
    /// Tokenizer: text to token ids and back.
    pub tokenizer: Tokenizer,
    /// Stop tokens, which end a response.
    pub stop_tokens: Vec<u32>,
}

impl Model {
    /// Loads decoder and tokenizer.
    ///
    /// # Errors
    /// Errors of files, tokenizer and decoder.
    pub fn load(path: &Path, rt: &Runtime) -> Result<Self> {
        let files = ModelFiles::open(path)?;
        let (decoder, tokenizer) = files.decoder_and_tokenizer(rt);
        Ok(Self { decoder: decoder?, tokenizer: tokenizer?, stop_tokens: files.stop_tokens })
    }

    /// Chat template of the model; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] for one that does not parse.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        chat_template(&self.tokenizer)
    }
}

/// Reads only the tokenizer of a model directory, a `tokenizer.json` or a GGUF file.
///
/// # Errors
/// [`Error::Tokenizer`] or [`Error::Checkpoint`].
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer> {
    if path.is_dir() {
        return Ok(Tokenizer::from_hf_dir(path)?);
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => Ok(Tokenizer::from_file(path)?),
        Some("safetensors") => open_tokenizer(path.parent().unwrap_or(Path::new("."))),
        _ => {
            let file = crate::checkpoint::GgufFile::open(path)?;
            Ok(Tokenizer::from_gguf(GgufVocab::from_metadata(&file)?)?)
        }
    }
}

/// Returns the chat template that a tokenizer came with.
///
/// # Errors
/// [`Error::ChatTemplate`] for one that does not parse.
pub fn chat_template(tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
    let name = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
    let (bos, eos) = (name(tokenizer.bos()), name(tokenizer.eos()));
    let source = tokenizer.chat_template();
    let template = source.map(|s| ChatTemplate::new(s, bos.as_deref(), eos.as_deref()));
    Ok(template.transpose()?)
}

/// Stop tokens, in order, each once: those of the config, and for a directory those of its `generation_config.json`.
fn stop_tokens(path: &Path, config: &ModelConfig) -> Result<Vec<u32>> {
    // exercise l2.config
    let mut all = config.eos.clone();
    if path.is_dir() {
        all.extend(generation_eos(&path.join("generation_config.json"))?);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
    // end of exercise
}

/// `eos_token_id` of a `generation_config.json`, if there is one.
fn generation_eos(path: &Path) -> Result<Vec<u32>> {
    let bad = |why: String| Error::GenerationConfig { path: path.into(), why };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(bad(e.to_string())),
    };
    let value: Value = parse_python_json(&text).map_err(|e| bad(e.to_string()))?;
    token_ids(value.get("eos_token_id"))
        .ok_or_else(|| bad("eos_token_id must be a token id or a list of them".into()))
}

#[cfg(test)]
mod tests;

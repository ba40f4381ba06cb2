//! Loads the model that the command line names.

use std::path::Path;
use std::time::{Duration, Instant};

use l1_tensor::Runtime;
use l2_model::tokenizer::{Tokenizer, TokenizerError};
use l2_model::{Decoder, ModelConfig, ModelDigest, ModelFiles, open_tokenizer};

use super::args::{ModelArgs, RuntimeArgs};
use super::context::Context;
use crate::hub;
use server::words::size;

/// A model in memory.
pub struct Loaded {
    /// Its device.
    pub rt: Runtime,
    /// Its weights.
    pub decoder: Decoder,
    /// Its tokenizer, or the reason why there is none: some commands need only ids.
    pub tokenizer: Result<Tokenizer, l2_model::Error>,
    /// Tokens that end a completion.
    pub stop_tokens: Vec<u32>,
    /// Digest of its checkpoint; `None` for random weights.
    pub digest: Option<ModelDigest>,
    /// Time to load it from the disk.
    pub took: Duration,
}

impl Loaded {
    /// Finds the model, downloads it if necessary, and loads it.
    ///
    /// # Errors
    /// What device, hub, checkpoint and config report.
    pub fn open(model: &ModelArgs, run: &RuntimeArgs, context: &Context) -> anyhow::Result<Self> {
        // The device first: a command that cannot run should fail before it downloads gigabytes.
        let rt = run.runtime()?;
        let source = hub::resolve(&model.model, &context.hub())?;
        let started = Instant::now();
        let files = ModelFiles::open(source.path())?;
        let (decoder, tokenizer) = files.decoder_and_tokenizer(&rt);
        let decoder = decoder?;
        let took = started.elapsed();
        // The model cannot produce a token without a logit.
        let known = |id: &&u32| (**id as usize) < decoder.config().vocab;
        let stop_tokens = files.stop_tokens().iter().filter(known).copied().collect();
        context.say(format_args!("{rt}; {}", rt.device_reason()));
        context.say(format_args!(
            "{}: {}, {} of weights in {}, loaded in {:.2} s",
            model.model,
            decoder.config().architecture,
            size(decoder.weight_bytes() as u64),
            decoder.weight_storage(),
            took.as_secs_f64()
        ));
        let digest = Some(files.digest());
        Ok(Self { rt, decoder, tokenizer, stop_tokens, digest, took })
    }
}

impl Loaded {
    /// A model without a checkpoint: the shapes of a config.json, with random weights made on the device. It has no
    /// tokenizer and no stop tokens.
    ///
    /// # Errors
    /// What device and config report; no memory.
    pub fn random(config: &Path, run: &RuntimeArgs, context: &Context) -> anyhow::Result<Self> {
        let rt = run.runtime()?;
        let config = ModelConfig::from_hf_file(config).map_err(l2_model::Error::from)?;
        let started = Instant::now();
        let decoder = Decoder::random(&rt, config, 0)?;
        let took = started.elapsed();
        context.say(format_args!("{rt}; {}", rt.device_reason()));
        let (size, seconds) = (size(decoder.weight_bytes() as u64), took.as_secs_f64());
        context.say(format_args!("{size} of random weights, made in {seconds:.2} s"));
        let none = TokenizerError::Missing { path: "random weights".into() };
        let (tokenizer, stop_tokens) = (Err(none.into()), Vec::new());
        Ok(Self { rt, decoder, tokenizer, stop_tokens, digest: None, took })
    }
}

/// Reads only the tokenizer of a model. Besides what names a model this takes a `tokenizer.json`, or a directory that
/// holds one and nothing else.
///
/// # Errors
/// What hub and tokenizer report.
pub fn tokenizer(model: &ModelArgs, context: &Context) -> anyhow::Result<Tokenizer> {
    let path = Path::new(&model.model);
    let is_json = path.extension().is_some_and(|e| e == "json") && path.is_file();
    if is_json || path.join("tokenizer.json").is_file() {
        return Ok(open_tokenizer(path)?);
    }
    let source = hub::resolve(&model.model, &context.hub())?;
    Ok(open_tokenizer(source.path())?)
}

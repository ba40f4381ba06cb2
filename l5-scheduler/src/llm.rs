//! Offline inference: generates a response for each of many prompts, without a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use l1_tensor::RuntimeOptions;
use l4_sampler::TokenLogprobs;
use l4_sampler::philox::fresh_seed;

pub use l4_sampler::SamplingParams;
pub use l4_sampler::guide::GuideSpec;
pub use l4_sampler::stop::StopRules;

use crate::adapters::DEFAULT_MAX_LORA_RANK;
use crate::engine::{
    Engine, EngineHandle, EngineModel, EngineOptions, EngineRequest, OutputChunk, ResponseStream,
    StartError, Startup, SubmitError,
};
use crate::{DraftCounts, FinishReason, OutputEnd, RequestAdapter};

/// Default maximum number of output tokens.
const MAX_TOKENS: usize = 128;

/// A model that generates responses for many prompts, as many at once as its memory holds.
///
/// ```
/// use l5_scheduler::{Llm, llm::SamplingParams};
///
/// let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama");
/// let llm = Llm::new(tiny)?.max_tokens(8).seed(1);
/// let params = SamplingParams { temperature: 0.8, top_p: 0.95, ..Default::default() };
/// let outputs = llm.generate(["Once upon a time", "The capital of France is"], &params)?;
/// assert_eq!(outputs.len(), 2);
/// assert_eq!(outputs[0].tokens.len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Llm {
    engine: Engine,
    stop: StopRules,
    seed: Option<u64>,
    adapter: Option<RequestAdapter>,
    progress: Option<Progress>,
}

/// Options of an [`Llm`]; a model's path alone is enough.
#[derive(Clone, Debug, Default)]
pub struct LlmOptions {
    /// Path of the model: a directory in Hugging Face's format, or a .gguf file.
    pub model: PathBuf,
    /// Device and threads.
    pub runtime: RuntimeOptions,
    /// Limits and memory.
    pub engine: EngineOptions,
    /// Directory of a LoRA adapter, which all prompts have. It allows adapters of rank 64 where `engine` allows none.
    pub adapter: Option<PathBuf>,
}

impl From<&str> for LlmOptions {
    fn from(model: &str) -> Self {
        Path::new(model).into()
    }
}

impl From<&Path> for LlmOptions {
    fn from(model: &Path) -> Self {
        Self { model: model.to_owned(), ..Self::default() }
    }
}

impl From<PathBuf> for LlmOptions {
    fn from(model: PathBuf) -> Self {
        Self { model, ..Self::default() }
    }
}

/// A prompt: text, or token ids as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text. The tokenizer's special tokens (mostly BOS) are added.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&&str> for Prompt {
    fn from(text: &&str) -> Self {
        Self::Text((*text).to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Self::Tokens(tokens)
    }
}

impl From<&Vec<u32>> for Prompt {
    fn from(tokens: &Vec<u32>) -> Self {
        Self::Tokens(tokens.clone())
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Self {
        Self::Tokens(tokens.to_owned())
    }
}

/// Response to one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The prompt, as token ids.
    pub prompt: Vec<u32>,
    /// Output text.
    pub text: String,
    /// Output tokens; the last may be the one that ended the output.
    pub tokens: Vec<u32>,
    /// Why the output ended.
    pub finish_reason: FinishReason,
    /// Error message, if the request failed.
    pub error: Option<String>,
    /// Log probabilities, one entry for each token, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Seed of its random numbers.
    pub seed: u64,
    /// Number of prompt tokens that were hit in the prefix cache.
    pub cached: usize,
    /// Drafts that steps verified, where the engine speculates.
    pub drafts: DraftCounts,
}

/// Why a call generated no responses. An error of a single response, while it is generated, is in its [`Output`].
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    /// A prompt or its parameters are invalid. No prompt was begun.
    #[error("prompt {at}: {why}")]
    Prompt {
        /// Index of the prompt, from 0.
        at: usize,
        /// What is wrong with it.
        why: SubmitError,
    },
    /// A text cannot be tokenized.
    #[error("prompt {at}: {why}")]
    Text {
        /// Index of the prompt, from 0.
        at: usize,
        /// What is wrong with it.
        why: l2_model::Error,
    },
    /// A prompt is text, and the model has no tokenizer.
    #[error("prompt {at} is text, and this model has no tokenizer: give token ids")]
    NoTokenizer {
        /// Index of the prompt, from 0.
        at: usize,
    },
}

impl Llm {
    /// Loads a model and creates its engine.
    ///
    /// # Errors
    /// [`StartError`], which says what is missing.
    pub fn new(options: impl Into<LlmOptions>) -> Result<Self, StartError> {
        let LlmOptions { model, runtime, mut engine, adapter } = options.into();
        let model = EngineModel::open(&model, runtime)?;
        let load = |path: PathBuf| {
            let max_rank = *engine.max_lora_rank.get_or_insert(DEFAULT_MAX_LORA_RANK);
            model.adapter(&path, max_rank)
        };
        let adapter = adapter.map(load).transpose()?;
        Ok(Self { adapter, ..Self::over(Engine::new(model, &engine)?) })
    }

    /// Uses an engine that is already running.
    pub fn over(engine: Engine) -> Self {
        let stop = StopRules { max_tokens: MAX_TOKENS, ..StopRules::default() };
        Self { engine, stop, seed: None, adapter: None, progress: None }
    }

    /// Sets the maximum number of output tokens of a prompt; 128 by default.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: usize) -> Self {
        self.stop.max_tokens = max_tokens;
        self
    }

    /// Sets the stop conditions. If they name no end tokens, those of the model apply.
    #[must_use]
    pub fn stop(self, stop: StopRules) -> Self {
        Self { stop, ..self }
    }

    /// Sets the seed of all prompts: each output is what it would be alone. Without it, each prompt has a random seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sets the LoRA adapter of all prompts of [`Llm::generate`]. The engine must allow it
    /// ([`EngineOptions::max_lora_rank`]).
    #[must_use]
    pub fn adapter(self, adapter: Option<RequestAdapter>) -> Self {
        Self { adapter, ..self }
    }

    /// Calls `progress` with (prompts that are done, all prompts) after each one, for a progress bar.
    #[must_use]
    pub fn on_progress(self, progress: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }

    /// Startup report of the engine.
    pub fn startup(&self) -> &Startup {
        self.engine.startup()
    }

    /// Handle to the engine.
    pub fn handle(&self) -> &EngineHandle {
        self.engine.handle()
    }

    /// Generates a response for each prompt, with the same parameters. Outputs are in the order of the prompts.
    ///
    /// # Errors
    /// [`LlmError`], before anything was begun.
    pub fn generate<P: Into<Prompt>>(
        &self,
        prompts: impl IntoIterator<Item = P>,
        params: &SamplingParams,
    ) -> Result<Vec<Output>, LlmError> {
        let request = |(at, prompt): (usize, P)| {
            let (prompt, continues) = self.tokens(at, prompt.into())?;
            let seed = self.seed.unwrap_or_else(fresh_seed);
            let (params, stop) = (params.clone(), self.stop.clone());
            let request = EngineRequest::new(prompt, params, stop);
            Ok(EngineRequest { seed, continues, adapter: self.adapter.clone(), ..request })
        };
        let requests: Result<Vec<_>, _> = prompts.into_iter().enumerate().map(request).collect();
        self.run(requests?)
    }

    /// Generates a response for each request, with its own parameters. Outputs are in the order of the requests.
    ///
    /// # Errors
    /// [`LlmError::Prompt`], before anything was begun.
    pub fn run(&self, requests: Vec<EngineRequest>) -> Result<Vec<Output>, LlmError> {
        let handle = self.handle();
        for (at, request) in requests.iter().enumerate() {
            handle.check(request).map_err(|why| LlmError::Prompt { at, why })?;
        }
        let all = requests.len();
        std::thread::scope(|scope| {
            // Requests are submitted while the queue has room; the others follow as requests are admitted.
            let (sender, submitted) = std::sync::mpsc::channel();
            scope.spawn(move || {
                for (at, request) in requests.into_iter().enumerate() {
                    let (prompt, seed) = (request.prompt.clone(), request.seed);
                    let streams = handle.submit_waiting(vec![request]);
                    let streams = streams.map_err(|why| LlmError::Prompt { at, why });
                    if sender.send((prompt, seed, streams)).is_err() {
                        return;
                    }
                }
            });
            let mut outputs = Vec::new();
            for (prompt, seed, streams) in submitted {
                let stream = streams?.pop();
                outputs.extend(stream.map(|stream| Self::output(prompt.to_vec(), seed, stream)));
                if let Some(progress) = &self.progress {
                    progress(outputs.len(), all);
                }
            }
            Ok(outputs)
        })
    }

    fn output(prompt: Vec<u32>, seed: u64, mut stream: ResponseStream) -> Output {
        let OutputChunk { tokens, text, logprobs, end } = stream.rest();
        let cached = stream.times().cached;
        let (finish_reason, error, drafts) = match end {
            Some(OutputEnd { finish, error, drafts, .. }) => (finish, error, drafts),
            None => (FinishReason::Failed, None, DraftCounts::default()),
        };
        Output { prompt, text, tokens, finish_reason, error, logprobs, seed, cached, drafts }
    }

    /// Tokens of the prompt, and whether the output text continues it.
    fn tokens(&self, at: usize, prompt: Prompt) -> Result<(Vec<u32>, bool), LlmError> {
        let text = match prompt {
            Prompt::Tokens(tokens) => return Ok((tokens, true)),
            Prompt::Text(text) => text,
        };
        let tokenizer = self.handle().model().tokenizer.as_ref();
        let tokenizer = tokenizer.ok_or(LlmError::NoTokenizer { at })?;
        if text.is_empty() {
            return Err(LlmError::Text { at, why: l2_model::Error::EmptyPrompt });
        }
        let tokens = tokenizer.encode(&text, true);
        tokens.map(|tokens| (tokens, true)).map_err(|why| LlmError::Text { at, why: why.into() })
    }
}

impl std::fmt::Debug for Llm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { engine, stop, seed, .. } = self;
        f.debug_struct("Llm")
            .field("engine", engine)
            .field("stop", stop)
            .field("seed", seed)
            .finish_non_exhaustive()
    }
}

/// Receives the number of prompts that are done, and of all prompts.
type Progress = Arc<dyn Fn(usize, usize) + Send + Sync>;

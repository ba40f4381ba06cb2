//! Many prompts at once, without a server: hand over all of them, get all answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use l1_tensor::RuntimeOptions;
use l4_sampler::TokenLogprobs;
use l4_sampler::philox::fresh_seed;

pub use l4_sampler::SamplingParams;
pub use l4_sampler::guide::GuideSpec;
pub use l4_sampler::stop::StopRules;

use crate::engine::{
    Answer, Engine, EngineHandle, EngineModel, EngineOptions, EngineRequest, Piece, StartError,
    Startup, SubmitError,
};
use crate::{AnswerEnd, FinishReason};

/// The most tokens of an answer, unless [`Llm::stop`] says otherwise.
const MAX_TOKENS: usize = 128;

/// A model that answers prompts, as many at once as its memory holds.
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
#[derive(Debug)]
pub struct Llm {
    engine: Engine,
    stop: StopRules,
    seed: Option<u64>,
    progress: bool,
}

/// What a [`Llm`] is made from: a model's path alone, or more.
#[derive(Clone, Debug, Default)]
pub struct LlmOptions {
    /// A directory as Hugging Face has them, or a .gguf file.
    pub model: PathBuf,
    /// Where it runs.
    pub runtime: RuntimeOptions,
    /// Limits and memory.
    pub engine: EngineOptions,
    /// Show no progress, where it would be shown: on a terminal.
    pub quiet: bool,
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
    /// Text. What the model expects around a text of its own (BOS, mostly) is added.
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

/// One prompt's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The prompt, as token ids.
    pub prompt: Vec<u32>,
    /// The answer's text.
    pub text: String,
    /// Its tokens; the last may be the one that ended it.
    pub tokens: Vec<u32>,
    /// How it ended.
    pub finish_reason: FinishReason,
    /// What went wrong, if it did not end well.
    pub error: Option<String>,
    /// One entry for each token, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// What its random numbers followed from.
    pub seed: u64,
    /// Tokens of the prompt that were in the cache.
    pub cached: usize,
}

/// Why prompts were not answered. What happens to one answer on its way is told by its [`Output`].
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    /// A prompt that cannot be meant. None was begun.
    #[error("prompt {at}: {why}")]
    Prompt {
        /// Which one, counted from 0.
        at: usize,
        /// Why.
        why: SubmitError,
    },
    /// A text that cannot be tokenized, or no tokenizer.
    #[error("prompt {at}: {why}")]
    Text {
        /// Which one, counted from 0.
        at: usize,
        /// Why.
        why: l2_model::Error,
    },
    /// A text for a model without a tokenizer.
    #[error("prompt {at} is text, and this model has no tokenizer: give token ids")]
    NoTokenizer {
        /// Which one, counted from 0.
        at: usize,
    },
}

impl Llm {
    /// Load a model and make its engine.
    ///
    /// # Errors
    /// [`StartError`], which says what is missing.
    pub fn new(options: impl Into<LlmOptions>) -> Result<Self, StartError> {
        let LlmOptions { model, runtime, engine, quiet } = options.into();
        let model = EngineModel::open(&model, runtime)?;
        Ok(Self { progress: !quiet, ..Self::over(Engine::new(model, &engine)?) })
    }

    /// The same over an engine that is there.
    pub fn over(engine: Engine) -> Self {
        let stop = StopRules { max_tokens: MAX_TOKENS, ..StopRules::default() };
        Self { engine, stop, seed: None, progress: false }
    }

    /// The most tokens of an answer: 128, if nobody says otherwise.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: usize) -> Self {
        self.stop.max_tokens = max_tokens;
        self
    }

    /// Where answers end. End tokens are the model's, if the rules name none.
    #[must_use]
    pub fn stop(self, stop: StopRules) -> Self {
        Self { stop, ..self }
    }

    /// What the random numbers of every answer follow from: each is as it would be alone. Without it, each prompt has a seed
    /// that nobody can guess.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// How the engine came to be.
    pub fn startup(&self) -> &Startup {
        self.engine.startup()
    }

    /// Its engine, for whoever wants more of it.
    pub fn handle(&self) -> &EngineHandle {
        self.engine.handle()
    }

    /// Answer all prompts, in the same way. Answers come in the order of the prompts.
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
            Ok(EngineRequest { seed, continues, ..EngineRequest::new(prompt, params, stop) })
        };
        let requests: Result<Vec<_>, _> = prompts.into_iter().enumerate().map(request).collect();
        self.run(requests?)
    }

    /// Answer requests, each in its own way. Answers come in the order of the requests.
    ///
    /// # Errors
    /// [`LlmError::Prompt`], before anything was begun.
    pub fn run(&self, requests: Vec<EngineRequest>) -> Result<Vec<Output>, LlmError> {
        let handle = self.handle();
        for (at, request) in requests.iter().enumerate() {
            handle.check(request).map_err(|why| LlmError::Prompt { at, why })?;
        }
        let bar = self.bar(requests.len());
        std::thread::scope(|scope| {
            // As many as may wait are handed in; the others follow as those are taken up.
            let (sender, answers) = std::sync::mpsc::channel();
            scope.spawn(move || {
                for (at, request) in requests.into_iter().enumerate() {
                    let (prompt, seed) = (request.prompt.clone(), request.seed);
                    let answer = handle.submit_waiting(vec![request]);
                    let answer = answer.map_err(|why| LlmError::Prompt { at, why });
                    if sender.send((prompt, seed, answer)).is_err() {
                        return;
                    }
                }
            });
            let mut outputs = Vec::new();
            for (prompt, seed, answer) in answers {
                let answer = answer?.pop();
                outputs.extend(answer.map(|answer| Self::output(prompt.to_vec(), seed, answer)));
                bar.inc(1);
            }
            bar.finish_and_clear();
            Ok(outputs)
        })
    }

    fn output(prompt: Vec<u32>, seed: u64, mut answer: Answer) -> Output {
        let Piece { tokens, text, logprobs, end } = answer.rest();
        let cached = answer.times().cached;
        let (finish_reason, error) = match end {
            Some(AnswerEnd { finish, error, .. }) => (finish, error),
            None => (FinishReason::Failed, None),
        };
        Output { prompt, text, tokens, finish_reason, error, logprobs, seed, cached }
    }

    /// The prompt as tokens, and whether its answer continues a text.
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

    /// Prompts that are done, for whoever watches a terminal. Elsewhere indicatif draws nothing.
    fn bar(&self, prompts: usize) -> ProgressBar {
        if !self.progress {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(prompts as u64);
        let style =
            ProgressStyle::with_template("{bar:40} {pos}/{len} prompts, {elapsed} ({eta} left)");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

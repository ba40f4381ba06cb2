//! Wire formats: how a request is written for a server, and what the events of its response say.

use l2_model::tokenizer::Tokenizer;
use l5_scheduler::{EngineRequest, FinishReason};
use l6_ensemble::RemoteApi;
use serde_json::Value;

use super::error::RemoteError;
use super::llama_server::LlamaServer;
use super::openai::OpenAi;
use crate::error::quoted;

/// Odd constant that spreads the seeds of a request's choices (the golden ratio of 64 bits, as in SplitMix64).
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The API of a server.
pub(super) trait Wire: Send + Sync {
    /// Address of its completions. `base` is the URL of the configuration, `root` the same without `/v1`.
    fn completions(&self, base: &str, root: &str) -> String;

    /// Checks that the server can do what a request asks for.
    ///
    /// # Errors
    /// What it cannot do, in the plural.
    fn check(&self, request: &EngineRequest) -> Result<(), &'static str>;

    /// Body of a request for choice `choice` of `request` from the model that the server calls `model`. Stop strings are
    /// left out: they are found here, in this server's text.
    fn body(&self, model: &str, request: &EngineRequest, choice: u32) -> Vec<u8>;

    /// Decoder of the events of one response.
    fn decoder(&self) -> Box<dyn Decoder>;
}

/// Decodes the events of one response.
pub(super) trait Decoder: Send {
    /// Decodes the data of an event. `None`: it says nothing about the output.
    ///
    /// # Errors
    /// [`RemoteError`]: it is no event of a completion, or the server has failed.
    fn decode(&mut self, data: &[u8]) -> Result<Option<Event>, RemoteError>;
}

/// What an event says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// New tokens, and how the response ended, if it has.
    Tokens(Vec<u32>, Option<FinishReason>),
    /// The stream has ended, and no response before it.
    Done,
}

impl Event {
    /// Whether it has tokens.
    pub fn has_tokens(&self) -> bool {
        matches!(self, Self::Tokens(tokens, _) if !tokens.is_empty())
    }
}

/// The wire format of an API. `tokenizer` is that of the model.
pub(super) fn wire(api: RemoteApi, tokenizer: Option<Tokenizer>) -> Box<dyn Wire> {
    match api {
        RemoteApi::OpenAi => Box::new(OpenAi),
        RemoteApi::LlamaServer => Box::new(LlamaServer::new(tokenizer)),
    }
}

/// Seed of a choice. The first one has the seed of the request, so that it is what the server itself would return.
pub(super) fn seed_of(seed: u64, choice: u32) -> u64 {
    seed.wrapping_add(SEED_STEP.wrapping_mul(u64::from(choice)))
}

/// Message of an error object of OpenAI's kind, or the object itself, shortened.
pub(super) fn message(error: &Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let text = inner.get("message").and_then(Value::as_str).map(str::to_owned);
    let text = text.or_else(|| inner.as_str().map(str::to_owned));
    quoted(&text.unwrap_or_else(|| inner.to_string()))
}

/// The error of a response that is none.
pub(super) fn malformed(what: &str) -> RemoteError {
    RemoteError::Malformed(what.to_owned())
}

/// The error of a finish reason that ends no output.
pub(super) fn odd_finish(reason: &str) -> RemoteError {
    RemoteError::Failed(format!("its finish reason is `{}`", quoted(reason)))
}

//! Greedy generation of one sequence: the simplest use of a decoder.

use std::time::{Duration, Instant};

use l1_tensor::ops::argmax;
use l1_tensor::{Runtime, TensorRef};

use crate::{
    Batch, ContiguousState, Decoder, Error, Result, SequenceState, Workspace, WorkspaceSpec,
};

/// Maximum number of prompt tokens per step. Larger chunks would not be faster: the matmuls run near
/// their peak from about a hundred rows on.
pub const PREFILL_CHUNK: usize = 512;

/// One sequence with its state and buffers.
pub struct Session<'m> {
    decoder: &'m Decoder,
    state: Box<dyn SequenceState + 'm>,
    max_len: usize,
    ws: Workspace,
    /// Tokens in the state.
    tokens: Vec<u32>,
    /// Number of these tokens that came from the prefix cache of the state.
    resumed: usize,
    positions: Vec<i32>,
}

impl<'m> Session<'m> {
    /// Creates a session for `max_len` tokens (at most the model's context) over a [`ContiguousState`].
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(decoder: &'m Decoder, rt: &Runtime, max_len: usize) -> Result<Self> {
        let max_len = max_len.clamp(1, decoder.config().max_context);
        let (config, dtype) = (decoder.config(), rt.activation_dtype());
        let state = ContiguousState::new_on(rt.device(), config, 1, max_len, dtype)?;
        Self::with_state(decoder, rt, Box::new(state), max_len)
    }

    /// Creates a session in slot 0 of a state. The state must be on the runtime's device and accept sequences of
    /// `max_len` tokens and steps of [`PREFILL_CHUNK`] tokens; the slot must be empty.
    ///
    /// # Errors
    /// No memory for the buffers.
    pub fn with_state(
        decoder: &'m Decoder,
        rt: &Runtime,
        state: Box<dyn SequenceState + 'm>,
        max_len: usize,
    ) -> Result<Self> {
        let max_len = max_len.clamp(1, decoder.config().max_context);
        let spec = WorkspaceSpec {
            max_tokens: max_len.min(PREFILL_CHUNK),
            max_rows: 1,
            max_context: max_len,
        };
        Ok(Self {
            decoder,
            state,
            max_len,
            ws: Workspace::new(rt, decoder.config(), spec)?,
            tokens: Vec::with_capacity(max_len),
            resumed: 0,
            positions: Vec::with_capacity(spec.max_tokens),
        })
    }

    /// Tokens fed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Maximum number of tokens of the session.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Number of tokens that were cached by the state and not computed: see [`SequenceState::resume`].
    pub fn resumed(&self) -> usize {
        self.resumed
    }

    /// Size of the keys and values in use, in bytes.
    pub fn state_bytes(&self) -> usize {
        self.state.bytes(0)
    }

    /// Appends tokens and returns the logits of the last one: f32 `[1, V]`.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] without tokens, [`Error::PromptTooLong`] beyond
    /// [`Session::max_len`], what [`Decoder::forward`] reports. On an error the session is as it
    /// was before.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<TensorRef<'_>> {
        let start = self.tokens.len();
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if start + tokens.len() > self.max_len() {
            let tokens = start + tokens.len();
            return Err(Error::PromptTooLong { tokens, context: self.max_len() });
        }
        let tokens = self.resume(tokens);
        // exercise l2.generate
        let chunk = self.ws.spec().max_tokens;
        for part in tokens.chunks(chunk) {
            if let Err(e) = self.step(part) {
                self.rollback(start)?;
                return Err(e);
            }
        }
        self.ws.logits(1)
        // end of exercise
    }

    /// Reuses the prefix of `tokens` that the state has cached, if nothing was fed yet. Returns the tokens that are
    /// left to feed.
    fn resume<'t>(&mut self, tokens: &'t [u32]) -> &'t [u32] {
        if self.tokens.is_empty() {
            self.resumed = self.state.resume(0, tokens);
            self.tokens.extend_from_slice(&tokens[..self.resumed]);
            return &tokens[self.resumed..];
        }
        tokens
    }

    fn step(&mut self, part: &[u32]) -> Result<()> {
        // exercise l2.generate
        let from = self.tokens.len() as i32;
        let n = part.len() as i32;
        self.positions.clear();
        self.positions.extend(from..from + n);
        let batch = Batch {
            tokens: part,
            positions: &self.positions,
            cu_seqlens_q: &[0, n],
            state_slots: &[0],
            logit_rows: &[part.len() as u32 - 1],
            ..Batch::default()
        };
        self.decoder.forward(&batch, self.state.as_mut(), &mut self.ws)?;
        self.tokens.extend_from_slice(part);
        Ok(())
        // end of exercise
    }

    /// Removes all tokens from `len` on; the prefix stays and need not be computed again.
    ///
    /// # Errors
    /// [`crate::BatchError`] when there are fewer.
    pub fn rollback(&mut self, len: usize) -> Result<()> {
        self.state.rollback(0, len)?;
        self.tokens.truncate(len);
        self.resumed = self.resumed.min(len);
        Ok(())
    }
}

/// Options of [`generate`].
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions<'a> {
    /// Maximum number of output tokens.
    pub max_tokens: usize,
    /// Stop tokens: each of them ends the generation.
    pub stop_tokens: &'a [u32],
    /// Whether to continue after stop tokens.
    pub ignore_eos: bool,
}

/// Reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen (it is the last output token), or `on_token` returned false.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

impl FinishReason {
    /// Name in OpenAI's API.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// Result of [`generate`].
#[derive(Clone, Debug)]
pub struct Generation {
    /// Output tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Reason why the generation ended.
    pub finish_reason: FinishReason,
    /// Time from the call to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

/// Continues `prompt` greedily: each step chooses the token with the largest logit. If the session already
/// holds a prefix of the prompt, that prefix is not computed again. `on_token` gets each output token and
/// returns whether to continue.
///
/// # Errors
/// [`Error::EmptyPrompt`]; [`Error::PromptTooLong`] when no room is left for a token; what
/// [`Decoder::forward`] reports.
pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
    mut on_token: impl FnMut(u32) -> bool,
) -> Result<Generation> {
    let started = Instant::now();
    let context = session.max_len();
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if prompt.len() >= context && options.max_tokens > 0 || prompt.len() > context {
        return Err(Error::PromptTooLong { tokens: prompt.len(), context });
    }
    // exercise l2.generate
    // At least one token must be fed: its logits are what the answer starts from.
    let shared = session.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
    let shared = shared.min(prompt.len() - 1);
    session.rollback(shared)?;
    let rt = session.ws.runtime().clone();
    let mut next = [0u32];
    argmax(&rt, session.feed(&prompt[shared..])?, &mut next)?;
    let prefill = started.elapsed();
    let room = options.max_tokens.min(context - prompt.len());
    let mut tokens = Vec::with_capacity(room);
    let mut finish_reason = FinishReason::Length;
    while tokens.len() < room {
        let token = next[0];
        tokens.push(token);
        let stops = !options.ignore_eos && options.stop_tokens.contains(&token);
        if !on_token(token) || stops {
            finish_reason = FinishReason::Stop;
            break;
        }
        if tokens.len() < room {
            argmax(&rt, session.feed(&next)?, &mut next)?;
        }
    }
    Ok(Generation { tokens, finish_reason, prefill, decode: started.elapsed() - prefill })
    // end of exercise
}

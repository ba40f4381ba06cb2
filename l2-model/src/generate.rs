//! One sequence, from a prompt to its end: the simplest use of a decoder.

use std::time::{Duration, Instant};

use l1_tensor::ops::argmax;
use l1_tensor::{Runtime, TensorRef};

use crate::{
    Batch, ContiguousState, Decoder, Error, Result, SequenceState, Workspace, WorkspaceSpec,
};

/// Tokens of a prompt that go through the model in one step. More would not be faster: the
/// matmuls run near their peak from about a hundred rows on.
pub const PREFILL_CHUNK: usize = 512;

/// One sequence with its state and buffers.
pub struct Session<'m> {
    decoder: &'m Decoder,
    state: Box<dyn SequenceState + 'm>,
    max_len: usize,
    ws: Workspace,
    /// The tokens in the state.
    tokens: Vec<u32>,
    /// How many of them the state had kept of another sequence.
    resumed: usize,
    positions: Vec<i32>,
}

impl<'m> Session<'m> {
    /// A session that can hold `max_len` tokens (at most the model's context), in one run of memory.
    ///
    /// # Errors
    /// No memory.
    pub fn new(decoder: &'m Decoder, rt: &Runtime, max_len: usize) -> Result<Self> {
        let max_len = max_len.clamp(1, decoder.config().max_context);
        let (config, dtype) = (decoder.config(), rt.activation_dtype());
        let state = ContiguousState::new_on(rt.device(), config, 1, max_len, dtype)?;
        Self::with_state(decoder, rt, Box::new(state), max_len)
    }

    /// A session in slot 0 of a state, on the runtime's device, that takes sequences of `max_len` tokens and steps of
    /// [`PREFILL_CHUNK`]. The slot must be empty.
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

    /// The tokens fed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The most tokens it holds.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// How many of the tokens the state had kept of an earlier sequence, so that they were not
    /// computed: see [`SequenceState::resume`].
    pub fn resumed(&self) -> usize {
        self.resumed
    }

    /// Bytes of keys and values in use.
    pub fn state_bytes(&self) -> usize {
        self.state.bytes(0)
    }

    /// Append tokens and return the logits after the last: f32 `[1, V]`.
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

    /// Ask the state whether it has kept the beginning of `tokens`, if nothing was fed yet. Returns
    /// what is left to feed.
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

    /// Forget all tokens from `len` on: a conversation that takes another turn keeps its prefix.
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

/// When to stop.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions<'a> {
    /// The most new tokens.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub stop_tokens: &'a [u32],
    /// Go on past them.
    pub ignore_eos: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen (it is the last of the tokens), or the receiver had enough.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
}

impl FinishReason {
    /// As in OpenAI's API.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The new tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// From the call to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Continue `prompt` greedily: at each step the token with the largest logit. The session may
/// already hold a prefix of the prompt; what they share is not computed again. `on_token` sees
/// each token as it comes and returns whether to go on.
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

//! One answer on its way: what its request has seen and said, beside its keys and values.
//!
//! It is there from when the request is added until it ends. A request that is preempted loses its blocks and nothing of
//! this, so what was told is never told again.

use std::sync::Arc;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::guide::{CompiledGuide, Guide, MaskAhead, MaskPending, MaskReady};
use l4_sampler::stop::{AnswerStream, StopReason, StopRules};
use l4_sampler::{
    DrawKey, Error, History, ParamError, Row, Sampled, SamplingParams, TokenLogprobs, TokenMask,
};

use super::answer::{AnswerEnd, AnswerJob, AnswerSink, News};
use crate::request::ANSWER_ROOM;
use crate::{FinishReason, RequestId};

/// One answer on its way.
pub(super) struct Answering {
    pub id: RequestId,
    params: Arc<SamplingParams>,
    /// Tokens that end it.
    ends: Vec<u32>,
    seed: u64,
    sample: u32,
    /// The most tokens that it may have.
    room: usize,
    /// What it has seen. Empty until the model has seen its prompt: those who wait need no memory.
    history: Option<History>,
    /// What it must look like, until its first token is due: parsers take memory, and a request that waits takes little.
    compiled: Option<CompiledGuide>,
    /// Where it is in that. Lent out while its mask is computed.
    guide: Option<Guide>,
    /// What its guide allows next, once that was computed.
    mask: TokenMask,
    /// Whether tokens that its guide leaves no choice about go in without being sampled.
    forces: bool,
    /// Those that come next.
    forced: Vec<u32>,
    stream: AnswerStream,
    /// What the stream is made from when the first token is due, where that takes memory: its rules, and whether its text
    /// continues the prompt's.
    late: Option<(StopRules, bool)>,
    reason: Option<StopReason>,
    error: Option<String>,
    sink: Box<dyn AnswerSink>,
}

impl Answering {
    /// An answer without tokens. One that cannot be begun fails when its first token is due.
    pub(super) fn new(
        id: RequestId,
        job: AnswerJob,
        tokenizer: Option<&Tokenizer>,
        vocab: usize,
        max_model_len: usize,
    ) -> Self {
        let refused = check(&job, vocab).err();
        let AnswerJob { prompt, params, stop, seed, sample, guide, continues, sink } = job;
        // Whether the last token that fits is the end is ours to say: a guide that it completes is the better reason.
        let rules = StopRules { max_tokens: usize::MAX, ..stop.clone() };
        let stream = begin_text(&rules, continues, tokenizer, &prompt);
        let late = refused.is_none() && !stop.strings.is_empty();
        let (stream, refused) = match (stream, refused) {
            // What looks for stop strings takes memory, and a request that waits takes little.
            (Ok(_), None) if late => (silent(), None),
            (Ok(stream), None) => (stream, None),
            (Ok(stream), Some(e)) => (stream, Some(e)),
            (Err(e), _) => (silent(), Some(e.into())),
        };
        let forces = params.logprobs.is_none() && !params.forbids_tokens();
        Self {
            id,
            ends: stop.ends(),
            // What was refused is not shown to the sampler.
            params: if refused.is_some() { SamplingParams::greedy().into() } else { params },
            seed,
            sample,
            room: stop.max_tokens.min(max_model_len.saturating_sub(prompt.len())),
            history: None,
            compiled: guide,
            late: late.then_some((rules, continues)),
            guide: None,
            mask: TokenMask::default(),
            forces,
            forced: Vec::new(),
            stream,
            reason: None,
            error: refused.map(|e| e.to_string()),
            sink,
        }
    }

    /// Whether it has gone wrong, so that its next token is its end.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// It goes wrong. The first error is the one that is told.
    pub(super) fn fail(&mut self, error: impl ToString) {
        self.error.get_or_insert_with(|| error.to_string());
    }

    /// Tokens that it has.
    pub(super) fn generated(&self) -> usize {
        self.history.as_ref().map_or(0, History::generated)
    }

    /// Its first token is due, or another one: it has a history from now on.
    pub(super) fn open(&mut self, prompt: &[u32], tokenizer: Option<&Tokenizer>) {
        // exercise l5.sample
        if self.history.is_none() {
            self.history = Some(History::new(prompt, self.room.min(ANSWER_ROOM)));
        }
        // end of exercise
        if let Some((rules, continues)) = self.late.take() {
            match begin_text(&rules, continues, tokenizer, prompt) {
                Ok(stream) => self.stream = stream,
                Err(e) => self.fail(e),
            }
        }
        if let Some(compiled) = self.compiled.take() {
            let mut guide = compiled.start();
            if self.forces {
                self.forced = guide.forced();
            }
            self.guide = Some(guide);
        }
    }

    /// Lends its guide to whoever computes what is allowed next, if its next token is to be chosen under one.
    pub(super) fn start_mask(&mut self, ahead: &MaskAhead) -> Option<MaskPending> {
        if !self.forced.is_empty() || self.has_failed() {
            return None;
        }
        let guide = self.guide.take()?;
        Some(ahead.start(guide, std::mem::take(&mut self.mask)))
    }

    /// Bytes that its guide will take when it is opened; none if it is open, or has none.
    pub(super) fn unopened_guide_bytes(&self) -> usize {
        self.compiled.as_ref().map_or(0, CompiledGuide::lexer_bytes)
    }

    /// Do without a guide: what has failed needs none.
    pub(super) fn drop_guide(&mut self) {
        self.compiled = None;
    }

    /// Bytes that its guide takes; none while it is lent out.
    pub(super) fn guide_bytes(&self) -> usize {
        self.guide.as_ref().map_or(0, Guide::lexer_bytes)
    }

    /// Whether its next token is to be chosen under a guide.
    pub(super) fn is_guided(&self) -> bool {
        self.guide.is_some()
    }

    /// Takes its guide back, and what is allowed next.
    pub(super) fn finish_mask(&mut self, pending: MaskPending) {
        let MaskReady { guide, mask, outcome } = pending.wait();
        (self.guide, self.mask) = (Some(guide), mask);
        if let Err(e) = outcome {
            self.fail(e);
        }
    }

    /// What the sampler must know to choose the token at `position` of prompt and answer together. `None` before its
    /// prompt was computed.
    pub(super) fn row(&self, position: usize) -> Option<Row<'_>> {
        let history = self.history.as_ref()?;
        // A mask that could not be computed means nothing, and neither does the token that is chosen then.
        let masked = self.guide.is_some() && self.forced.is_empty() && !self.has_failed();
        // exercise l5.sample
        Some(Row {
            params: &self.params,
            history,
            ends: &self.ends,
            mask: masked.then_some(&self.mask),
            key: DrawKey { seed: self.seed, sample: self.sample, position: position as u32 },
        })
        // end of exercise
    }

    /// A token was chosen from its row. It is the answer's next, unless its guide had one for it; what the guide forces
    /// behind it follows. All of them go to `tokens`, what may be shown of them to `text`. Returns why the answer ends, if
    /// it does.
    pub(super) fn choose(
        &mut self,
        sampled: &Sampled,
        tokens: &mut Vec<u32>,
        text: &mut String,
    ) -> Option<FinishReason> {
        if !self.has_failed()
            && let Err(e) = self.extend(sampled, tokens, text)
        {
            self.fail(e);
        }
        if self.has_failed() {
            return Some(FinishReason::Failed);
        }
        self.reason.as_ref().map(|reason| match reason {
            StopReason::Length => FinishReason::Length,
            _ => FinishReason::Stop,
        })
    }

    fn extend(
        &mut self,
        sampled: &Sampled,
        tokens: &mut Vec<u32>,
        text: &mut String,
    ) -> Result<(), Error> {
        if self.room == 0 {
            self.end(StopReason::Length, text);
            return Ok(());
        }
        if self.forced.is_empty() {
            let token = sampled.token?;
            tokens.push(token);
            self.take(token, text)?;
            if self.forces && self.reason.is_none() {
                self.forced = self.guide.as_mut().map(Guide::forced).unwrap_or_default();
            }
        }
        for token in std::mem::take(&mut self.forced) {
            if self.reason.is_none() {
                tokens.push(token);
                self.take(token, text)?;
            }
        }
        Ok(())
    }

    /// One more token, chosen or forced.
    fn take(&mut self, token: u32, text: &mut String) -> Result<(), Error> {
        // exercise l5.sample
        if let Some(history) = &mut self.history {
            history.push(token);
        }
        let (shown, mut reason) = self.stream.push(token);
        text.push_str(shown);
        if let (None, Some(guide)) = (&reason, &mut self.guide) {
            guide.advance(token)?;
            reason = guide.is_finished().then_some(StopReason::Guide);
        }
        if reason.is_none() && self.generated() >= self.room {
            reason = Some(StopReason::Length);
        }
        if let Some(reason) = reason {
            self.end(reason, text);
        }
        Ok(())
        // end of exercise
    }

    /// No more tokens. What was held back of the text is shown, unless it turns out to be a stop string.
    fn end(&mut self, reason: StopReason, text: &mut String) {
        let (rest, reason) = self.stream.end(reason);
        text.push_str(rest);
        self.reason = Some(reason);
    }

    /// Tell what is new.
    pub(super) fn tell(&mut self, tokens: &[u32], text: &str, logprobs: &[TokenLogprobs]) {
        if !tokens.is_empty() || !text.is_empty() {
            self.sink.push(&News { tokens, text, logprobs });
        }
    }

    /// The request has ended. Text that waited for more is told, where the answer counts as it is.
    pub(super) fn close(mut self, finish: FinishReason) {
        let counts = match finish {
            FinishReason::Stop | FinishReason::Length | FinishReason::KvExhausted => true,
            FinishReason::Aborted | FinishReason::Failed => false,
        };
        if counts && self.reason.is_none() {
            let (rest, _) = self.stream.end(StopReason::Length);
            if !rest.is_empty() {
                self.sink.push(&News { text: rest, ..News::default() });
            }
        }
        let stop = self.reason.filter(|_| counts);
        let error = self.error.filter(|_| finish == FinishReason::Failed);
        self.sink.end(&AnswerEnd { finish, stop, error });
    }
}

/// Whether a job can be meant.
pub(super) fn check(job: &AnswerJob, vocab: usize) -> Result<(), Error> {
    job.params.validate(vocab)?;
    job.stop.validate(vocab)?;
    match job.prompt.iter().copied().find(|id| *id as usize >= vocab) {
        Some(id) => {
            Err(l2_model::Error::from(l2_model::BatchError::TokenOutOfRange { id, vocab }).into())
        }
        None => Ok(()),
    }
}

/// The stream of an answer's text.
fn begin_text(
    rules: &StopRules,
    continues: bool,
    tokenizer: Option<&Tokenizer>,
    prompt: &[u32],
) -> Result<AnswerStream, ParamError> {
    match continues {
        true => AnswerStream::continuing(rules, tokenizer, prompt),
        false => AnswerStream::answering(rules, tokenizer),
    }
}

/// A stream for an answer that will say nothing.
fn silent() -> AnswerStream {
    let stream = AnswerStream::answering(&StopRules::default(), None);
    stream.expect("without stop strings a stream needs no tokenizer")
}

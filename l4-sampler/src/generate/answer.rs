//! One answer on its way: which tokens it has, which of them the model has seen, and what is still wanted of it.

use std::ops::Range;

use super::Choice;
use super::run::Run;
use crate::guide::{Guide, MaskAhead, MaskPending, MaskReady};
use crate::stop::{AnswerStream, StopReason};
use crate::{DrawKey, History, Result, Row, TokenLogprobs, TokenMask};

/// One answer on its way.
///
/// Its sequence is the prompt and its tokens. The model has seen the first `fed` of it; usually that is all but the token
/// that was chosen last.
pub(super) struct Answer {
    /// Where its state is.
    pub slot: u32,
    /// What its random numbers are keyed by.
    pub sample: u32,
    /// Tokens of its sequence that are in the state, the prompt's included.
    pub fed: usize,
    /// What it must look like. Away while its mask is computed.
    pub guide: Option<Guide>,
    pub tokens: Vec<u32>,
    /// Whether its slot was given back.
    pub left: bool,
    history: History,
    /// What its guide allows next, once that was computed.
    mask: TokenMask,
    logprobs: Vec<TokenLogprobs>,
    prompt: usize,
    /// The most tokens there is room for.
    room: usize,
    /// Whether every token is to be rated. Those that were not sampled wait for their row of logits.
    rates: bool,
    /// Tokens that were rated, and the sum of their raw log probabilities.
    rated: usize,
    sum: f64,
    stream: AnswerStream,
    text: String,
    reason: Option<StopReason>,
}

/// What the answers of a request have in common at their beginning.
pub(super) struct Beginning<'a> {
    pub prompt: &'a [u32],
    /// The most tokens there is room for.
    pub room: usize,
    pub rates: bool,
    pub guide: Option<&'a Guide>,
    pub stream: AnswerStream,
}

impl Beginning<'_> {
    /// An answer without tokens.
    pub(super) fn answer(&self, slot: u32, sample: u32) -> Answer {
        Answer {
            slot,
            sample,
            fed: 0,
            history: History::new(self.prompt, self.room),
            mask: TokenMask::default(),
            guide: self.guide.cloned(),
            tokens: Vec::with_capacity(self.room),
            logprobs: Vec::new(),
            left: false,
            prompt: self.prompt.len(),
            room: self.room,
            rates: self.rates,
            rated: 0,
            sum: 0.0,
            stream: self.stream.clone(),
            // A token has about so many bytes of text; an answer of longer words grows a few times.
            text: String::with_capacity(4 * self.room),
            reason: None,
        }
    }
}

impl Answer {
    /// Whether there is no room for a token.
    pub(super) fn is_full(&self) -> bool {
        self.tokens.len() >= self.room
    }

    /// Whether no more tokens are chosen.
    pub(super) fn has_ended(&self) -> bool {
        self.reason.is_some()
    }

    /// The places of its sequence that the model must see next. Empty when the answer needs nothing more: it has ended, and
    /// every token that is to be rated was.
    pub(super) fn due(&self) -> Range<usize> {
        let len = self.prompt + self.tokens.len();
        match self.reason {
            None => self.fed..len,
            // Nobody asks what comes after the last token.
            Some(_) if self.rates && self.rated < self.tokens.len() => self.fed..len - 1,
            Some(_) => self.fed..self.fed,
        }
    }

    /// The token that the logits after a place rate, where it was not sampled from them.
    pub(super) fn rates(&self, place: usize) -> Option<u32> {
        let i = (place + 1).checked_sub(self.prompt).filter(|i| self.rates && *i >= self.rated)?;
        self.tokens.get(i).copied()
    }

    /// Whether the next token is chosen from the logits after a place.
    pub(super) fn samples(&self, place: usize) -> bool {
        self.reason.is_none() && place + 1 == self.prompt + self.tokens.len()
    }

    /// What the sampler must know to choose the next token.
    pub(super) fn row<'a>(&'a self, run: &'a Run<'_>) -> Row<'a> {
        let position = (self.prompt + self.tokens.len()) as u32;
        Row {
            params: run.request.params,
            history: &self.history,
            ends: &run.ends,
            mask: self.guide.is_some().then_some(&self.mask),
            key: DrawKey { seed: run.request.seed, sample: self.sample, position },
        }
    }

    /// Lends its guide to whoever computes what is allowed next, if it has one.
    pub(super) fn start_mask(&mut self, ahead: &MaskAhead) -> Option<MaskPending> {
        let guide = self.guide.take()?;
        Some(ahead.start(guide, std::mem::take(&mut self.mask)))
    }

    /// Takes its guide back, and what is allowed next.
    ///
    /// # Errors
    /// What the guide reports.
    pub(super) fn finish_mask(&mut self, pending: MaskPending) -> Result<()> {
        let MaskReady { guide, mask, outcome } = pending.wait();
        (self.guide, self.mask) = (Some(guide), mask);
        Ok(outcome?)
    }

    /// The model has seen the sequence up to here.
    pub(super) fn saw(&mut self, fed: usize) {
        self.fed = fed;
    }

    /// The next token in order was rated.
    pub(super) fn rated(&mut self, raw: f64, told: Option<TokenLogprobs>) {
        self.rated += 1;
        self.sum += raw;
        self.logprobs.extend(told);
    }

    /// One more token, chosen or forced. What may be shown of its text goes to `show`, which says whether to go on.
    ///
    /// # Errors
    /// A token that the guide refuses.
    pub(super) fn take(&mut self, token: u32, show: &mut dyn FnMut(&str) -> bool) -> Result<()> {
        self.tokens.push(token);
        self.history.push(token);
        let (text, mut reason) = self.stream.push(token);
        self.text.push_str(text);
        let go_on = show(text);
        if reason.is_none() && !go_on {
            reason = Some(StopReason::Receiver);
        }
        if let (None, Some(guide)) = (&reason, &mut self.guide) {
            guide.advance(token)?;
            reason = guide.is_finished().then_some(StopReason::Guide);
        }
        if reason.is_none() && self.is_full() {
            reason = Some(StopReason::Length);
        }
        if let Some(reason) = reason {
            self.end(reason, show);
        }
        Ok(())
    }

    /// No more tokens. What was held back of the text is shown, unless it turns out to be a stop string.
    pub(super) fn end(&mut self, reason: StopReason, show: &mut dyn FnMut(&str) -> bool) {
        let (text, reason) = self.stream.end(reason);
        self.text.push_str(text);
        if !text.is_empty() {
            show(text);
        }
        self.reason = Some(reason);
    }

    /// Mean log probability of its tokens, as the model saw them.
    pub(super) fn mean(&self) -> f64 {
        self.sum / self.rated.max(1) as f64
    }

    pub(super) fn into_choice(self) -> Choice {
        Choice {
            sample: self.sample as usize,
            tokens: self.tokens,
            text: self.text,
            reason: self.reason.unwrap_or(StopReason::Length),
            logprobs: self.logprobs,
        }
    }
}

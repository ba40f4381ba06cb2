//! State of one choice of a response: its tokens, its text, its guide, and why it ended.
//!
//! The choice exists from when its request is accepted until it ends. A preempted request loses its blocks and nothing
//! of this state, so no token, text or log probability is reported twice.

use std::sync::Arc;

use l2_model::tokenizer::Tokenizer;

use super::FinishReason;
use crate::guide::{CompiledGuide, DraftMasks, Guide, MaskAhead, MaskPending, MaskReady};
use crate::stop::{AnswerStream, StopReason, StopRules};
use crate::{
    DrawKey, Error, History, ParamError, Row, RowError, Sampled, SamplingParams, TokenMask,
};

/// Maximum number of output tokens that a history has room for from the beginning; a longer output grows it.
const MAX_RESERVED_TOKENS: usize = 4096;

/// What one choice is generated from.
#[derive(Clone, Debug)]
pub struct ChoiceSpec {
    /// Sampling parameters.
    pub params: Arc<SamplingParams>,
    /// Stop conditions.
    pub stop: StopRules,
    /// Seed of all random numbers of the request.
    pub seed: u64,
    /// Number of this choice among those of its request: with the seed and a token's position, it keys the random
    /// number.
    pub sample: u32,
    /// Grammar that the output follows. Its parser is started with the first token: a waiting request has none.
    pub guide: Option<CompiledGuide>,
    /// Whether the output text continues the prompt's text; if not, it is decoded as a text of its own, as in a chat.
    pub continues: bool,
}

/// Why a choice ended, and what it had left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceEnd {
    /// Stop reason, if the output itself ended the choice.
    pub stop: Option<StopReason>,
    /// Error of [`FinishReason::Failed`].
    pub error: Option<String>,
    /// Whether that error is [`RowError::AllNan`]: the model's logits were not numbers.
    pub is_nan: bool,
}

/// What a step adds to a choice. The memory is reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTokens {
    /// New tokens, sampled and forced.
    pub tokens: Vec<u32>,
    /// Text that has become certain.
    pub text: String,
    /// Indices of the sampled rows that were read: one for each token that was not forced.
    pub rows: Vec<usize>,
}

impl NewTokens {
    /// Clears it for another step.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.text.clear();
        self.rows.clear();
    }
}

/// The state machine of one choice: sampled rows in, tokens and text out.
///
/// A step calls [`open`](Self::open) before the model runs, [`start_mask`](Self::start_mask) and
/// [`finish_mask`](Self::finish_mask) around it, hands [`row`](Self::row) to the sampler, and gives what was sampled to
/// [`choose`](Self::choose). Every way to generate text (a server, a command, a library) runs this one machine.
///
/// ```
/// use l4_sampler::output::{ChoiceSpec, ChoiceState, FinishReason, NewTokens};
/// use l4_sampler::stop::StopRules;
/// use l4_sampler::{Sampled, SamplingParams};
///
/// let stop = StopRules { max_tokens: 2, ..Default::default() };
/// let params = SamplingParams::greedy().into();
/// let spec = ChoiceSpec { params, stop, seed: 0, sample: 0, guide: None, continues: false };
/// let prompt = [5, 17];
/// let mut choice = ChoiceState::new(spec, &prompt, None, 100, 64);
/// choice.open(&prompt, &[], None);
/// assert_eq!(choice.row(2).unwrap().key.position, 2);
/// let sampled = |id| Sampled { token: Ok(id), ..Sampled::default() };
/// let mut new = NewTokens::default();
/// assert_eq!(choice.choose(&[sampled(7)], &[], &mut new), None);
/// new.clear();
///
/// // A draft is verified: a row for the token at its position, and one behind it.
/// choice.open(&prompt, &[8], None);
/// let rows = [sampled(8), sampled(9)];
/// assert_eq!(choice.choose(&rows, &[8], &mut new), Some(FinishReason::Length));
/// assert_eq!(new.tokens, [8], "the draft is accepted, and the output is complete");
/// assert_eq!(new.rows, [0], "the row that was read");
/// ```
pub struct ChoiceState {
    params: Arc<SamplingParams>,
    /// Tokens that end the output.
    ends: Vec<u32>,
    seed: u64,
    sample: u32,
    /// Maximum number of output tokens.
    room: usize,
    /// Tokens seen so far, counted. Empty until the prompt is computed: a waiting request needs no memory.
    history: Option<History>,
    /// History behind each draft of the step, if sampling depends on it.
    draft_histories: Vec<History>,
    /// The guide until the first token is due: parsers take memory, and a waiting request should take little.
    compiled: Option<CompiledGuide>,
    /// The guide's parser at this point of the output. Lent out while its mask is computed.
    guide: Option<Guide>,
    /// Tokens that the guide allows next and behind each draft, once that was computed.
    masks: DraftMasks,
    /// Whether tokens that the guide leaves no choice about are appended without being sampled.
    forces: bool,
    /// Forced tokens that come next.
    forced: Vec<u32>,
    stream: AnswerStream,
    /// Rules of the stream, and whether its text continues the prompt's, until the stream is created with the first
    /// token. Its memory is not allocated while the request waits.
    late: Option<(StopRules, bool)>,
    reason: Option<StopReason>,
    error: Option<String>,
    /// Whether the error is that all logits of a row were NaN.
    is_nan: bool,
}

impl ChoiceState {
    /// Creates a choice without tokens, for a model of `vocab` tokens and sequences of at most `max_model_len`. If the
    /// spec is invalid, the choice fails with its first token.
    pub fn new(
        spec: ChoiceSpec,
        prompt: &[u32],
        tokenizer: Option<&Tokenizer>,
        vocab: usize,
        max_model_len: usize,
    ) -> Self {
        let refused = spec.validate(prompt, vocab).err();
        let ChoiceSpec { params, stop, seed, sample, guide, continues } = spec;
        // The guide is checked before the length: if the last token completes it, the guide is the reason.
        let rules = StopRules { max_tokens: usize::MAX, ..stop.clone() };
        let stream = begin_text(&rules, continues, tokenizer, prompt);
        let late = refused.is_none() && !stop.strings.is_empty();
        let (stream, refused) = match (stream, refused) {
            // The matcher of stop strings takes memory, and a waiting request should take little.
            (Ok(_), None) if late => (silent(), None),
            (Ok(stream), None) => (stream, None),
            (Ok(stream), Some(e)) => (stream, Some(e)),
            (Err(e), _) => (silent(), Some(e.into())),
        };
        let forces = params.logprobs.is_none() && !params.forbids_tokens();
        Self {
            ends: stop.ends(),
            // The sampler never gets invalid parameters.
            params: if refused.is_some() { SamplingParams::greedy().into() } else { params },
            seed,
            sample,
            room: stop.max_tokens.min(max_model_len.saturating_sub(prompt.len())),
            history: None,
            draft_histories: Vec::new(),
            compiled: guide,
            late: late.then_some((rules, continues)),
            guide: None,
            masks: DraftMasks::default(),
            forces,
            forced: Vec::new(),
            stream,
            reason: None,
            error: refused.map(|e| e.to_string()),
            is_nan: false,
        }
    }

    /// Whether the choice has failed, so that its next token is its end.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Fails the choice. The first error is the one that is reported.
    pub fn fail(&mut self, error: impl ToString) {
        self.error.get_or_insert_with(|| error.to_string());
    }

    /// Number of output tokens.
    pub fn generated(&self) -> usize {
        self.history.as_ref().map_or(0, History::generated)
    }

    /// Prepares for the next token, and for those behind each of the step's `drafts`. With the first token the choice
    /// takes its memory: history, stop strings, guide.
    pub fn open(&mut self, prompt: &[u32], drafts: &[u32], tokenizer: Option<&Tokenizer>) {
        // exercise l4.choice
        if self.history.is_none() {
            self.history = Some(History::new(prompt, self.room.min(MAX_RESERVED_TOKENS)));
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
        self.count_drafts(drafts);
    }

    /// Counts the tokens behind each draft, for a request that depends on such counts.
    fn count_drafts(&mut self, drafts: &[u32]) {
        let Some(history) = &self.history else { return };
        if drafts.is_empty() || !self.params.depends_on_history(&self.ends) {
            return;
        }
        let counts = &mut self.draft_histories;
        counts.resize_with(drafts.len().max(counts.len()), History::default);
        // exercise l4.accept
        let mut before = history;
        for (draft, counts) in drafts.iter().zip(counts) {
            counts.clone_from(before);
            counts.push(*draft);
            before = counts;
        }
        // end of exercise
    }

    /// Lends the guide to the thread that computes masks, if the next token is to be chosen under it.
    pub fn start_mask(&mut self, drafts: &[u32], ahead: &MaskAhead) -> Option<MaskPending> {
        if !self.forced.is_empty() || self.has_failed() {
            self.masks.clear();
            return None;
        }
        let guide = self.guide.take()?;
        Some(ahead.start(guide, drafts, std::mem::take(&mut self.masks)))
    }

    /// Takes the guide back, with the masks of what it allows next and behind each draft.
    pub fn finish_mask(&mut self, pending: MaskPending) {
        let MaskReady { guide, masks, outcome } = pending.wait();
        (self.guide, self.masks) = (Some(guide), masks);
        if let Err(e) = outcome {
            self.fail(e);
        }
    }

    /// Bytes that the guide will take when its parser starts; 0 if it has started, or there is none.
    pub fn unopened_guide_bytes(&self) -> usize {
        self.compiled.as_ref().map_or(0, CompiledGuide::lexer_bytes)
    }

    /// Drops a guide whose parser has not started: a failed choice needs none.
    pub fn drop_guide(&mut self) {
        self.compiled = None;
    }

    /// Bytes that the guide takes; 0 while it is lent out.
    pub fn guide_bytes(&self) -> usize {
        self.guide.as_ref().map_or(0, Guide::lexer_bytes)
    }

    /// Whether the next token is to be chosen under a guide.
    pub fn is_guided(&self) -> bool {
        self.guide.is_some()
    }

    /// The sampler's input for the token at `position` of prompt and output together. `None` before
    /// [`open`](Self::open).
    pub fn row(&self, position: usize) -> Option<Row<'_>> {
        let history = self.history.as_ref()?;
        let mask = self.mask_after(0);
        // exercise l4.choice
        Some(Row {
            params: &self.params,
            history,
            ends: &self.ends,
            mask,
            key: DrawKey { seed: self.seed, sample: self.sample, position: position as u32 },
        })
        // end of exercise
    }

    /// The sampler's inputs for the token at `position`, and for the tokens behind each of the step's `drafts` drafts:
    /// each has the history, the mask and the random number of its own position. So a token does not depend on whether
    /// it was drafted, unless the draft was drawn.
    pub fn rows(&self, position: usize, drafts: usize) -> impl Iterator<Item = Option<Row<'_>>> {
        (0..=drafts).map(move |after| -> Option<Row<'_>> {
            if after == 0 {
                return self.row(position);
            }
            // exercise l4.accept
            let row = self.row(position + after)?;
            let counts = self.draft_histories.get(after - 1);
            let history = counts.unwrap_or(row.history);
            Some(Row { history, mask: self.mask_after(after), ..row })
            // end of exercise
        })
    }

    /// What the guide allows behind so many drafts.
    fn mask_after(&self, drafts: usize) -> Option<&TokenMask> {
        // A mask that could not be computed means nothing, and neither does the token that is chosen under it.
        let masked = self.guide.is_some() && self.forced.is_empty() && !self.has_failed();
        masked.then(|| self.masks.after(drafts)).flatten()
    }

    /// Takes what was sampled from its rows, `1 + drafts.len()` of them: the next token, unless the guide forced one,
    /// and the tokens that the guide forces behind it. While these are the drafts, the next row is that of the next
    /// token, which is taken too; the first token that is not a draft is the last one, because all later rows were
    /// computed behind another token.
    ///
    /// Appends what is new to `new`. Returns why the choice ends, if it does.
    pub fn choose(
        &mut self,
        sampled: &[Sampled],
        drafts: &[u32],
        new: &mut NewTokens,
    ) -> Option<FinishReason> {
        let (start, mut row) = (new.tokens.len(), 0);
        while !self.has_failed()
            && let Some(outcome) = sampled.get(row)
        {
            if let Err(e) = self.extend(row, outcome, new) {
                self.is_nan = matches!(e, Error::Row(RowError::AllNan));
                self.fail(e);
            }
            let taken = &new.tokens[start..];
            if drafts.is_empty() {
                break;
            }
            // exercise l4.accept
            let all_drafts = drafts.get(row..taken.len()).is_some_and(|fed| fed == &taken[row..]);
            row = taken.len();
            if self.reason.is_some() || !all_drafts || !self.is_verifiable(row) {
                break;
            }
            // end of exercise
        }
        self.finish()
    }

    /// Whether the token behind so many drafts was sampled under what the guide allows there.
    fn is_verifiable(&self, drafts: usize) -> bool {
        self.guide.is_none() || self.masks.after(drafts).is_some()
    }

    fn finish(&self) -> Option<FinishReason> {
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
        row: usize,
        sampled: &Sampled,
        NewTokens { tokens, text, rows }: &mut NewTokens,
    ) -> Result<(), Error> {
        if self.room == 0 {
            self.end(StopReason::Length, text);
            return Ok(());
        }
        if self.forced.is_empty() {
            rows.push(row);
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

    /// Appends one token, sampled or forced.
    fn take(&mut self, token: u32, text: &mut String) -> Result<(), Error> {
        // exercise l4.choice
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

    /// Ends the output. Text that was held back is released, unless it turns out to be a stop string.
    fn end(&mut self, reason: StopReason, text: &mut String) {
        let (rest, reason) = self.stream.end(reason);
        text.push_str(rest);
        self.reason = Some(reason);
    }

    /// Closes the choice when its request has ended. Text that waited for more is appended to `text` where the output
    /// counts as it is.
    pub fn close(mut self, finish: FinishReason, text: &mut String) -> ChoiceEnd {
        let counts = match finish {
            FinishReason::Stop | FinishReason::Length | FinishReason::KvExhausted => true,
            FinishReason::Aborted | FinishReason::Failed => false,
        };
        if counts && self.reason.is_none() {
            text.push_str(self.stream.end(StopReason::Length).0);
        }
        let stop = self.reason.filter(|_| counts);
        let error = self.error.filter(|_| finish == FinishReason::Failed);
        ChoiceEnd { stop, is_nan: self.is_nan && error.is_some(), error }
    }
}

impl ChoiceSpec {
    /// Checks every field against a model of `vocab` tokens, and the tokens of the prompt.
    ///
    /// # Errors
    /// A parameter out of its range, or a token that the model does not have.
    pub fn validate(&self, prompt: &[u32], vocab: usize) -> Result<(), Error> {
        self.params.validate(vocab)?;
        self.stop.validate(vocab)?;
        match prompt.iter().copied().find(|id| *id as usize >= vocab) {
            Some(id) => {
                let out_of_range = l2_model::BatchError::TokenOutOfRange { id, vocab };
                Err(l2_model::Error::from(out_of_range).into())
            }
            None => Ok(()),
        }
    }
}

/// Makes the text stream of a choice.
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

/// A stream for a choice without text.
fn silent() -> AnswerStream {
    let stream = AnswerStream::answering(&StopRules::default(), None);
    stream.expect("without stop strings a stream needs no tokenizer")
}

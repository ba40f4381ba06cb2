//! Where one answer is in its grammar: one token forward, some back.

use std::fmt;
use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{TokenParser, panic_utils};

use super::compiled::{Compiled, allowed, cannot_say};
use super::{GuideError, first_line};
use crate::TokenMask;

/// Where one answer is in its grammar. A clone goes its own way; it shares nothing that the other could use up or break.
pub struct Guide {
    parser: TokenParser,
    /// The grammar at its beginning, for the way back when the parser knows none.
    origin: Arc<Compiled>,
    /// Tokens of the answer's text, from its beginning.
    tokens: Vec<u32>,
    /// End tokens behind them. The parser knows nothing of these.
    ended: usize,
    /// Why the parser is of no use any more.
    lost: Option<String>,
}

impl Guide {
    pub(super) fn new(origin: &Arc<Compiled>) -> Self {
        Self {
            parser: origin.parser(),
            origin: Arc::clone(origin),
            tokens: Vec::new(),
            ended: 0,
            lost: None,
        }
    }

    /// About how many bytes its lexer takes, which grows as texts are followed. Costs nothing to ask.
    pub fn lexer_bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }

    /// What is allowed next; where the answer is complete, its end tokens too. Behind an end token there is nothing but
    /// end tokens.
    ///
    /// Where the grammar leaves no choice about the text, only the token is allowed which the tokenizer would write it
    /// with. ([`Guide::advance`] also takes another token that spells a part of it: models do.)
    ///
    /// # Errors
    /// [`GuideError::TooComplex`], [`GuideError::DeadEnd`].
    pub fn mask(&mut self, mask: &mut TokenMask) -> Result<(), GuideError> {
        // exercise l4.guide
        if self.is_finished() {
            mask.copy_from(self.origin.only_ends().words());
            return Ok(());
        }
        let mut tokens = self.text_tokens()?;
        let complete = self.is_complete();
        for &end in self.origin.ends() {
            tokens.set(end as usize, complete);
        }
        if tokens.is_zero() {
            return Err(GuideError::DeadEnd { after: self.followed() });
        }
        // llguidance's sets have room for one token more than there are.
        mask.copy_from(&tokens.as_slice()[..self.origin.vocab().div_ceil(32)]);
        Ok(())
        // end of exercise
    }

    /// The masks at each position of a draft: entry `i` is what is allowed after `draft[..i]`. Ends early, behind the
    /// first token that is refused. The guide itself does not move.
    ///
    /// # Errors
    /// [`GuideError::TooComplex`], [`GuideError::DeadEnd`]; then there are no masks, and the guide has not moved.
    pub fn masks_along(
        &mut self,
        draft: &[u32],
        masks: &mut Vec<TokenMask>,
    ) -> Result<(), GuideError> {
        let before = self.followed();
        let walked = self.walk(draft, masks);
        let back = self.rollback(self.followed() - before);
        match walked.and_then(|n| back.map(|()| n)) {
            Ok(n) => {
                masks.truncate(n);
                Ok(())
            }
            Err(error) => {
                masks.clear();
                Err(error)
            }
        }
    }

    /// Follow a draft as far as it is allowed, with a mask before each of its tokens and one behind the last. Says how many
    /// masks that made.
    fn walk(&mut self, draft: &[u32], masks: &mut Vec<TokenMask>) -> Result<usize, GuideError> {
        for n in 0..=draft.len() {
            if masks.len() == n {
                masks.push(TokenMask::default());
            }
            self.mask(&mut masks[n])?;
            let Some(&token) = draft.get(n) else { break };
            match self.advance(token) {
                Ok(()) => {}
                Err(GuideError::Refused { .. }) => return Ok(n + 1),
                Err(error) => return Err(error),
            }
        }
        Ok(draft.len() + 1)
    }

    /// The answer has one more token.
    ///
    /// # Errors
    /// [`GuideError::Refused`]; then the guide has not moved. [`GuideError::TooComplex`]; then nothing but
    /// [`Guide::rollback`] gets it anywhere.
    pub fn advance(&mut self, token: u32) -> Result<(), GuideError> {
        // exercise l4.guide
        let refused = GuideError::Refused { token, after: self.followed() };
        if self.origin.ends().contains(&token) {
            if !self.is_complete() {
                return Err(refused);
            }
            self.ended += 1;
            return Ok(());
        }
        if self.is_finished() || !self.fits(token)? {
            return Err(refused);
        }
        self.consume(token)?;
        self.tokens.push(token);
        Ok(())
        // end of exercise
    }

    /// Take the last `tokens` back, end tokens included.
    ///
    /// # Errors
    /// [`GuideError::TooFarBack`]; then the guide has not moved.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), GuideError> {
        let followed = self.followed();
        if tokens > followed {
            return Err(GuideError::TooFarBack { followed, back: tokens });
        }
        // exercise l4.guide
        let ends = tokens.min(self.ended);
        self.ended -= ends;
        let keep = self.tokens.len() - (tokens - ends);
        self.back_to(keep)
        // end of exercise
    }

    /// Tokens that must come next whatever the model thinks, as the tokenizer would write them. They need not be sampled:
    /// feed them in one step. The guide itself does not move.
    ///
    /// Empty where the tokenizer cannot be trusted to write what it is asked to, and when the guide gave up (which
    /// [`Guide::mask`] reports).
    pub fn forced(&mut self) -> Vec<u32> {
        if self.is_finished() || self.lost.is_some() {
            return Vec::new();
        }
        let (parser, words) = (&mut self.parser, self.origin.words());
        careful(|| match cannot_say(parser, words) {
            Some(_) => Vec::new(),
            None => parser.compute_ff_tokens(),
        })
        .unwrap_or_default()
    }

    /// Whether the answer may end here.
    pub fn is_complete(&mut self) -> bool {
        self.is_finished() || careful(|| self.parser.is_accepting()).unwrap_or(false)
    }

    /// Whether the answer must end here: nothing may follow, or its end was said already.
    pub fn is_finished(&self) -> bool {
        let nothing_more = matches!(
            self.parser.stop_reason(),
            StopReason::NoExtension | StopReason::EndOfSentence
        );
        self.ended > 0 || nothing_more
    }

    /// Tokens followed so far, end tokens included.
    pub fn followed(&self) -> usize {
        self.tokens.len() + self.ended
    }

    /// What llguidance allows here, in a set with room for one token more than the vocabulary has.
    fn text_tokens(&mut self) -> Result<SimpleVob, GuideError> {
        self.not_lost()?;
        allowed(&mut self.parser, self.origin.words()).map_err(|why| self.lose(&why))
    }

    /// Whether the text may go on with this token.
    fn fits(&mut self, token: u32) -> Result<bool, GuideError> {
        if token as usize >= self.origin.vocab() {
            return Ok(false);
        }
        self.not_lost()?;
        let fits = careful(|| self.parser.validate_token(token).map_err(|e| e.to_string()));
        fits.and_then(|fits| fits).map_err(|why| self.lose(&why))
    }

    /// Move the parser by a token that fits.
    fn consume(&mut self, token: u32) -> Result<(), GuideError> {
        let moved = careful(|| {
            let back = self.parser.consume_token(token).map_err(|e| e.to_string())?;
            // Only `stop=` in a grammar does that: what stopped the text would have to be taken out of it again.
            if back > 0 {
                return Err("it takes tokens back; use `suffix=` in place of `stop=`".to_owned());
            }
            // Notices that nothing may follow.
            self.parser.check_stop().map(|_| ()).map_err(|e| e.to_string())
        });
        moved.and_then(|moved| moved).map_err(|why| self.lose(&why))
    }

    /// Move the parser back to the first `keep` tokens of its text.
    fn back_to(&mut self, keep: usize) -> Result<(), GuideError> {
        let back = self.tokens.len() - keep;
        self.tokens.truncate(keep);
        // Also without a step back: a parser that gave up is still to be replaced.
        let healthy = self.lost.is_none() && self.parser.stop_reason().is_ok();
        if back == 0 && healthy {
            return Ok(());
        }
        if healthy && careful(|| self.parser.rollback(back)).is_ok_and(|moved| moved.is_ok()) {
            // The parser keeps its last mask by row and lexer state. After steps back, another text may lead to the same
            // pair by another way, with another mask.
            self.parser.invalidate_bias_cache();
            return Ok(());
        }
        // A parser that gave up does not move any more, and some grammars know no way back (`max_tokens=`). There is
        // always the way from the beginning.
        self.parser = self.origin.parser();
        self.lost = None;
        for i in 0..keep {
            self.consume(self.tokens[i])?;
        }
        Ok(())
    }

    /// Remember that the parser gave up: it may stand anywhere now.
    fn lose(&mut self, why: &str) -> GuideError {
        let why = first_line(why).to_owned();
        self.lost = Some(why.clone());
        GuideError::TooComplex { why }
    }

    fn not_lost(&self) -> Result<(), GuideError> {
        match &self.lost {
            Some(why) => Err(GuideError::TooComplex { why: why.clone() }),
            None => Ok(()),
        }
    }
}

impl Clone for Guide {
    fn clone(&self) -> Self {
        Self {
            parser: self.parser.deep_clone(),
            origin: Arc::clone(&self.origin),
            tokens: self.tokens.clone(),
            ended: self.ended,
            lost: self.lost.clone(),
        }
    }
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide")
            .field("tokens", &self.tokens)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// What `f` returns; if llguidance panics in it, what it said. Nothing is printed then: llguidance's own hook sees to that.
pub(super) fn careful<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| Ok(f())))
        .map_err(|e| first_line(&e.to_string()).to_owned())
}

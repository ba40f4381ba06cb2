//! The position of one output in its grammar.

use std::fmt;
use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{TokenParser, panic_utils};

use super::compiled::{Compiled, allowed, cannot_say};
use super::{GuideError, first_line};
use crate::TokenMask;

/// The position of one output in its grammar. Clones are independent: they share nothing that can be used up or broken.
pub struct Guide {
    parser: TokenParser,
    /// The compiled grammar, to start again if the parser cannot go back.
    origin: Arc<Compiled>,
    /// Tokens of the output's text, from its beginning.
    tokens: Vec<u32>,
    /// End tokens behind them, which the parser does not know.
    ended: usize,
    /// Why the parser cannot be used any more.
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

    /// Approximate size in bytes of its lexer, which grows with the text. Costs nothing to ask.
    pub fn lexer_bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }

    /// Writes the tokens that are allowed next to `mask`; where the output is complete, this includes the end tokens.
    /// Behind an end token only end tokens are allowed.
    ///
    /// Where the grammar leaves no choice about the text, only the token is allowed that the tokenizer would write.
    /// ([`Guide::advance`] also accepts other tokens that spell a part of the text, since models sample them.)
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

    /// Masks at each position of a draft: entry `i` is what is allowed after `draft[..i]`. Ends early, behind the first
    /// token that is not allowed. The guide itself does not move.
    ///
    /// # Errors
    /// [`GuideError::TooComplex`], [`GuideError::DeadEnd`]; there are no masks then, and the guide has not moved.
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

    /// Follows a draft as far as it is allowed, with a mask before each of its tokens and one behind the last. Returns
    /// the number of masks.
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

    /// Follows one more token of the output.
    ///
    /// # Errors
    /// [`GuideError::Refused`]: the guide has not moved. [`GuideError::TooComplex`]: the guide can only be used again
    /// after [`Guide::rollback`].
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

    /// Takes the last `tokens` tokens back, end tokens included.
    ///
    /// # Errors
    /// [`GuideError::TooFarBack`]: the guide has not moved.
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

    /// Tokens that must come next whatever the model predicts, as the tokenizer would write them. They need not be
    /// sampled and can be fed in one step. The guide itself does not move.
    ///
    /// Empty if the tokenizer does not reproduce texts exactly, and after [`GuideError::TooComplex`] (which
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

    /// Whether the output may end here.
    pub fn is_complete(&mut self) -> bool {
        self.is_finished() || careful(|| self.parser.is_accepting()).unwrap_or(false)
    }

    /// Whether the output must end here: nothing may follow, or an end token was followed.
    pub fn is_finished(&self) -> bool {
        let nothing_more = matches!(
            self.parser.stop_reason(),
            StopReason::NoExtension | StopReason::EndOfSentence
        );
        self.ended > 0 || nothing_more
    }

    /// Number of tokens followed, end tokens included.
    pub fn followed(&self) -> usize {
        self.tokens.len() + self.ended
    }

    /// Tokens that llguidance allows here, in a set with room for one token more than the vocabulary has.
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

    /// Moves the parser by a token that is allowed.
    fn consume(&mut self, token: u32) -> Result<(), GuideError> {
        let moved = careful(|| {
            let back = self.parser.consume_token(token).map_err(|e| e.to_string())?;
            // Only `stop=` in a grammar takes tokens back: the stop text would have to be removed from the output.
            if back > 0 {
                return Err("it takes tokens back; use `suffix=` in place of `stop=`".to_owned());
            }
            // Notices that nothing may follow.
            self.parser.check_stop().map(|_| ()).map_err(|e| e.to_string())
        });
        moved.and_then(|moved| moved).map_err(|why| self.lose(&why))
    }

    /// Moves the parser back to the first `keep` tokens of its text.
    fn back_to(&mut self, keep: usize) -> Result<(), GuideError> {
        let back = self.tokens.len() - keep;
        self.tokens.truncate(keep);
        // Even without a step back: a parser that gave up must be replaced.
        let healthy = self.lost.is_none() && self.parser.stop_reason().is_ok();
        if back == 0 && healthy {
            return Ok(());
        }
        if healthy && careful(|| self.parser.rollback(back)).is_ok_and(|moved| moved.is_ok()) {
            // The parser caches its last mask by row and lexer state. After steps back, another text may reach the same
            // pair in another way, with another mask.
            self.parser.invalidate_bias_cache();
            return Ok(());
        }
        // A parser that gave up does not move any more, and some grammars cannot go back (`max_tokens=`). Starting
        // again always works.
        self.parser = self.origin.parser();
        self.lost = None;
        for i in 0..keep {
            self.consume(self.tokens[i])?;
        }
        Ok(())
    }

    /// Records that the parser gave up, so that its position is unknown.
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

/// Result of `f`; if llguidance panics in it, the panic's message, which is not printed.
pub(super) fn careful<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| Ok(f())))
        .map_err(|e| first_line(&e.to_string()).to_owned())
}

//! Answers that must follow a schema, a regular expression or a grammar.
//!
//! Compiling and following grammars is llguidance's work. Here is what surrounds it: the model's tokenizer as it wants
//! to see one, a cache of compiled grammars, masks that are computed while the model runs, tokens that are forced and
//! need not be sampled, and the way back when a draft is rejected.

use std::sync::Arc;

use l2_model::tokenizer::Tokenizer;
use serde_json::Value;

use crate::TokenMask;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum GuideSpec {
    /// JSON, of any shape.
    Json,
    /// JSON that a schema describes. Written compactly unless the schema says otherwise (`x-guidance`).
    JsonSchema(Value),
    /// A regular expression that the whole answer matches.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// A guide that cannot be made or followed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GuideError {
    /// The grammar, schema or expression is not one.
    #[error("this {kind} cannot be compiled: {why}")]
    Compile {
        /// Which kind: "JSON schema", "regular expression", "grammar", "list of choices".
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// No answer can follow it.
    #[error("no answer can follow this {kind}: {why}")]
    Impossible {
        /// Which kind.
        kind: &'static str,
        /// What contradicts what.
        why: String,
    },
    /// A token that the guide does not allow here.
    #[error("the guide does not allow token {token} after {after} tokens")]
    Refused {
        /// The token.
        token: u32,
        /// Tokens followed so far.
        after: usize,
    },
    /// The grammar needs more work at one step than is allowed.
    #[error("the guide gave up: {why}; simplify the grammar")]
    TooComplex {
        /// What llguidance said.
        why: String,
    },
    /// More tokens taken back than were followed.
    #[error("a guide that followed {followed} tokens cannot take {back} back")]
    TooFarBack {
        /// Tokens followed.
        followed: usize,
        /// Tokens to take back.
        back: usize,
    },
}

/// Makes guides for one model: its vocabulary as a trie, and compiled grammars kept for the next request.
pub struct Guides {}

impl Guides {
    /// Guides for `vocab` logits (the embedding may have more rows than the tokenizer words; those are never allowed).
    /// `ends` are the tokens that end an answer: allowed where the guide is complete.
    ///
    /// # Errors
    /// A vocabulary that llguidance does not take.
    pub fn new(tokenizer: &Tokenizer, vocab: usize, ends: &[u32]) -> Result<Self, GuideError> {
        let _ = (tokenizer, vocab, ends);
        todo!()
    }

    /// A guide at its beginning. What was compiled before is not compiled again.
    ///
    /// # Errors
    /// [`GuideError::Compile`], [`GuideError::Impossible`]: before anything was admitted.
    pub fn guide(&self, spec: &GuideSpec) -> Result<Guide, GuideError> {
        let _ = spec;
        todo!()
    }
}

/// Where one answer is in its grammar.
pub struct Guide {
    _shared: Arc<()>,
}

impl Guide {
    /// What is allowed next; where the answer is complete, its end tokens too.
    ///
    /// # Errors
    /// [`GuideError::TooComplex`].
    pub fn mask(&mut self, mask: &mut TokenMask) -> Result<(), GuideError> {
        let _ = mask;
        todo!()
    }

    /// The masks at each position of a draft: entry `i` is what is allowed after `draft[..i]`. Ends early, behind the
    /// first token that is refused. The guide itself does not move.
    ///
    /// # Errors
    /// [`GuideError::TooComplex`].
    pub fn masks_along(
        &mut self,
        draft: &[u32],
        masks: &mut Vec<TokenMask>,
    ) -> Result<(), GuideError> {
        let _ = (draft, masks);
        todo!()
    }

    /// The answer has one more token.
    ///
    /// # Errors
    /// [`GuideError::Refused`]; then the guide has not moved.
    pub fn advance(&mut self, token: u32) -> Result<(), GuideError> {
        let _ = token;
        todo!()
    }

    /// Take the last `tokens` back.
    ///
    /// # Errors
    /// [`GuideError::TooFarBack`].
    pub fn rollback(&mut self, tokens: usize) -> Result<(), GuideError> {
        let _ = tokens;
        todo!()
    }

    /// Tokens that must come next whatever the model thinks, as the tokenizer would write them. They need not be sampled:
    /// feed them in one step. The guide itself does not move.
    pub fn forced(&mut self) -> Vec<u32> {
        todo!()
    }

    /// Whether the answer may end here.
    pub fn is_complete(&mut self) -> bool {
        todo!()
    }

    /// Whether the answer must end here: nothing may follow.
    pub fn is_finished(&self) -> bool {
        todo!()
    }
}

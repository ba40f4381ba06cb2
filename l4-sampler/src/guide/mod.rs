//! Answers that must follow a schema, a regular expression or a grammar.
//!
//! Compiling and following grammars is llguidance's work. Here is what surrounds it: the model's tokenizer as it wants
//! to see one, a cache of compiled grammars, masks that are computed while the model runs ([`MaskAhead`]), tokens that are
//! forced and need not be sampled, and the way back when a draft is rejected.

mod ahead;
mod cache;
mod closed;
mod compiled;
mod env;
mod error;
mod follow;
mod limits;
mod spec;

use std::sync::Arc;

use l2_model::tokenizer::Tokenizer;
use llguidance::ParserFactory;
use llguidance::toktrie::TokEnv;

pub use ahead::{MaskAhead, MaskPending, MaskReady};
pub use cache::CacheStats;
pub use compiled::CompiledGuide;
pub use error::GuideError;
pub use follow::Guide;
pub use spec::{GuideSpec, quoted};

use cache::Cache;
use compiled::Compiled;
use env::Words;

/// Compiled grammars kept, unless told otherwise.
const KEPT: usize = 64;

/// Maximum number of bytes that they take, with their sources.
const KEPT_BYTES: usize = 32 << 20;

/// Makes guides for one model: its vocabulary as a trie, and compiled grammars kept for the next request. Threads share
/// one.
pub struct Guides {
    words: Arc<Words>,
    factory: ParserFactory,
    cache: Cache<Compiled>,
}

impl Guides {
    /// Guides for `vocab` logits (the embedding may have more rows than the tokenizer words; those are never allowed).
    /// `ends` are the tokens that end an answer: allowed where the guide is complete, and nowhere else.
    ///
    /// # Errors
    /// [`GuideError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, vocab: usize, ends: &[u32]) -> Result<Self, GuideError> {
        let words = Arc::new(Words::new(tokenizer, vocab, ends)?);
        let env: TokEnv = words.clone();
        // "Simple" is with slices: sets of words that fit into any JSON string are prepared once and for all.
        let factory =
            follow::careful(|| ParserFactory::new_simple(&env).map_err(|e| e.to_string()));
        let factory = factory.and_then(|factory| factory);
        let mut factory = factory.map_err(|why| GuideError::Vocabulary { why })?;
        // Nothing is written to where llguidance thinks.
        factory.quiet();
        let limits = factory.limits_mut();
        // A grammar comes with a request, from anybody. A step's work is limited to a few milliseconds, and a guide's
        // lexer (1 to 2 kB a state, each guide its own) to some tens of megabytes.
        limits.max_items_in_row = 5_000;
        limits.step_lexer_fuel = 100_000;
        limits.step_max_items = 50_000;
        limits.max_lexer_states = 30_000;
        limits.verbose_errors = false;
        Ok(Self { words, factory, cache: Cache::new(KEPT, KEPT_BYTES, Compiled::bytes) })
    }

    /// The same, with room for `grammars` compiled ones.
    #[must_use]
    pub fn keeping(self, grammars: usize) -> Self {
        Self { cache: Cache::new(grammars, KEPT_BYTES, Compiled::bytes), ..self }
    }

    /// A guide at its beginning: [`Guides::compile`], and [`CompiledGuide::start`].
    ///
    /// # Errors
    /// As [`Guides::compile`].
    pub fn guide(&self, spec: &GuideSpec) -> Result<Guide, GuideError> {
        Ok(self.compile(spec, "")?.start())
    }

    /// Compile a guide. What was compiled before in the same scope is not compiled again: a scope is a tenant's, so that
    /// the time which a guide takes tells nobody what others asked for.
    ///
    /// # Errors
    /// [`GuideError::Compile`], [`GuideError::Impossible`], [`GuideError::TooComplex`]: before anything was admitted.
    pub fn compile(&self, spec: &GuideSpec, scope: &str) -> Result<CompiledGuide, GuideError> {
        spec.check()?;
        let make = || Compiled::new(&self.factory, &self.words, spec);
        self.cache.get(key(spec, scope), make).map(CompiledGuide)
    }

    /// A guide that was compiled before in this scope and is still kept: costs no more than to look at its source.
    pub fn compiled(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        self.cache.peek(&key(spec, scope)).map(CompiledGuide)
    }

    /// What the cache of compiled grammars did.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

/// What a compiled guide is found by.
fn key(spec: &GuideSpec, scope: &str) -> String {
    format!("{}:{scope}{}", scope.len(), spec.key())
}

/// What was said, without the backtrace that may follow.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("it gave no reason")
}

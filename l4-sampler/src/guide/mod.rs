//! Guided decoding: outputs that must follow a schema, a regular expression or a grammar.
//!
//! llguidance compiles and follows grammars. This module adds the model's tokenizer in the form that llguidance needs,
//! a cache of compiled grammars, masks that are computed while the model runs ([`MaskAhead`]), forced tokens that need
//! not be sampled, and rollback for rejected drafts.

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

pub use ahead::{DraftMasks, MaskAhead, MaskPending, MaskReady};
pub use cache::CacheStats;
pub use compiled::CompiledGuide;
pub use error::GuideError;
pub use follow::Guide;
pub use spec::{GuideSpec, quoted};

use cache::Cache;
use compiled::Compiled;
use env::Words;

/// Default number of compiled grammars in the cache.
const KEPT: usize = 64;

/// Maximum number of bytes of compiled grammars in the cache, with their sources.
const KEPT_BYTES: usize = 32 << 20;

/// Compiles guides for one model, and caches what was compiled. It holds the vocabulary as a trie; threads share one.
///
/// # Example
///
/// ```
/// use l2_model::tokenizer::Tokenizer;
/// use l4_sampler::TokenMask;
/// use l4_sampler::guide::{GuideSpec, Guides};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama/tokenizer.json");
/// let tokenizer = Tokenizer::from_file(path)?;
/// let (vocab, end) = (512, 0); // logits of a row, and the end-of-sequence token
/// let guides = Guides::new(&tokenizer, vocab, &[end])?;
///
/// let mut guide = guides.guide(&GuideSpec::Choice(vec!["yes".into(), "no".into()]))?;
/// let mut mask = TokenMask::none(vocab);
/// for token in tokenizer.encode("no", false)? {
///     guide.mask(&mut mask)?;
///     assert!(mask.allows(token) && !mask.allows(end));
///     guide.advance(token)?;
/// }
/// guide.mask(&mut mask)?;
/// assert!(mask.allows(end) && mask.count() == 1, "`no` is complete: only its end is allowed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Guides {
    words: Arc<Words>,
    factory: ParserFactory,
    cache: Cache<Compiled>,
}

impl Guides {
    /// Creates guides for rows of `vocab` logits. (The embedding may have more rows than the tokenizer has tokens;
    /// those are never allowed.) `ends` are the tokens that end an output: allowed only where the guide is complete.
    ///
    /// # Errors
    /// [`GuideError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, vocab: usize, ends: &[u32]) -> Result<Self, GuideError> {
        let words = Arc::new(Words::new(tokenizer, vocab, ends)?);
        let env: TokEnv = words.clone();
        // "Simple" is with slices: sets of tokens that fit into any JSON string are prepared once.
        let factory =
            follow::careful(|| ParserFactory::new_simple(&env).map_err(|e| e.to_string()));
        let factory = factory.and_then(|factory| factory);
        let mut factory = factory.map_err(|why| GuideError::Vocabulary { why })?;
        // llguidance must not write to stderr.
        factory.quiet();
        let limits = factory.limits_mut();
        // A grammar comes with a request, from any client. The work of a step is limited to a few milliseconds, and a
        // guide's lexer (1 to 2 kB a state, one for each guide) to some tens of megabytes.
        limits.max_items_in_row = 5_000;
        limits.step_lexer_fuel = 100_000;
        limits.step_max_items = 50_000;
        limits.max_lexer_states = 30_000;
        limits.verbose_errors = false;
        Ok(Self { words, factory, cache: Cache::new(KEPT, KEPT_BYTES, Compiled::bytes) })
    }

    /// Sets the number of compiled grammars in the cache.
    #[must_use]
    pub fn with_cache_capacity(self, grammars: usize) -> Self {
        Self { cache: Cache::new(grammars, KEPT_BYTES, Compiled::bytes), ..self }
    }

    /// Compiles a guide and starts it: [`Guides::compile`] and [`CompiledGuide::start`].
    ///
    /// # Errors
    /// As [`Guides::compile`].
    pub fn guide(&self, spec: &GuideSpec) -> Result<Guide, GuideError> {
        Ok(self.compile(spec, "")?.start())
    }

    /// Compiles a guide, or returns a cached one of the same scope. A scope is a tenant's, so that the time which a
    /// guide takes does not reveal what other tenants asked for.
    ///
    /// # Errors
    /// [`GuideError::Compile`], [`GuideError::Impossible`], [`GuideError::TooComplex`], all before the request is
    /// admitted.
    pub fn compile(&self, spec: &GuideSpec, scope: &str) -> Result<CompiledGuide, GuideError> {
        spec.check()?;
        let make = || Compiled::new(&self.factory, &self.words, spec);
        self.cache.get(key(spec, scope), make).map(CompiledGuide)
    }

    /// Returns a cached guide of this scope; costs no more than reading its source.
    pub fn compiled(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        self.cache.peek(&key(spec, scope)).map(CompiledGuide)
    }

    /// Statistics of the cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

/// Key of a compiled guide in the cache.
fn key(spec: &GuideSpec, scope: &str) -> String {
    format!("{}:{scope}{}", scope.len(), spec.key())
}

/// The first line of a message, without the backtrace that may follow.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("it gave no reason")
}

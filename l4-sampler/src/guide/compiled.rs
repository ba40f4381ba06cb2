//! Compiled grammars.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::StopReason;
use llguidance::toktrie::{INVALID_TOKEN, Recognizer, SimpleVob, TokenizerEnv};
use llguidance::{ParserFactory, TokenParser};

use super::env::Words;
use super::follow::careful;
use super::{Guide, GuideError, GuideSpec, first_line, limits};
use crate::TokenMask;

/// A compiled grammar at its start, with its first mask computed.
pub(super) struct Compiled {
    /// Only ever cloned.
    parser: Mutex<TokenParser>,
    words: Arc<Words>,
    vocab: usize,
    ends: Vec<u32>,
    only_ends: TokenMask,
}

/// A compiled guide, which any number of responses can follow. Clones share it.
#[derive(Clone)]
pub struct CompiledGuide(pub(super) Arc<Compiled>);

impl CompiledGuide {
    /// Approximate size in bytes of the lexer of each guide at its start.
    pub fn lexer_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Starts a guide, with a parser of its own.
    pub fn start(&self) -> Guide {
        Guide::new(&self.0)
    }
}

/// Equal if one is a clone of the other.
impl PartialEq for CompiledGuide {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for CompiledGuide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGuide").finish_non_exhaustive()
    }
}

/// Stack of the compiler's thread, in bytes: compilers recurse along nesting and chains of references.
const STACK: usize = 256 << 20;

impl Compiled {
    /// Compiles on a thread of its own, whose stack suffices for all that [`GuideSpec::check`] accepts. (Only the
    /// memory that is used is ever committed.)
    pub(super) fn new(
        factory: &ParserFactory,
        words: &Arc<Words>,
        spec: &GuideSpec,
    ) -> Result<Self, GuideError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let made = thread.spawn_scoped(scope, || Self::compile(factory, words, spec));
            let made = made.map_err(|e| spec.broken(&format!("no thread to do it: {e}")))?;
            made.join().unwrap_or_else(|_| Err(spec.broken("the compiler failed")))
        })
    }

    fn compile(
        factory: &ParserFactory,
        words: &Arc<Words>,
        spec: &GuideSpec,
    ) -> Result<Self, GuideError> {
        let grammar = spec.grammar()?;
        let parser = careful(|| factory.create_parser(grammar).map_err(|e| format!("{e:#}")));
        let mut parser = match parser.and_then(|parser| parser) {
            Ok(parser) => parser,
            // llguidance has no public type for this error.
            Err(why) if why.contains("Unsatisfiable schema") => {
                return Err(spec.impossible(&tidy(&why)));
            }
            Err(why) => return Err(spec.broken(&tidy(&why))),
        };
        careful(|| parser.start_without_prompt()).map_err(|why| spec.broken(&why))?;
        careful(|| limits::enforce(&mut parser)).map_err(|why| spec.broken(&why))?;
        something_to_say(&mut parser, words, spec)?;

        let trie = factory.tok_env().tok_trie();
        let vocab = trie.vocab_size();
        // Without end tokens the trie lists one that does not exist.
        let ends = trie.eos_tokens().iter().copied().filter(|&end| end != INVALID_TOKEN);
        let ends: Vec<u32> = ends.collect();
        let mut only_ends = TokenMask::none(vocab);
        ends.iter().for_each(|&end| only_ends.allow(end));
        Ok(Self { parser: Mutex::new(parser), words: Arc::clone(words), vocab, ends, only_ends })
    }

    /// A parser at the start, which shares no state with others. (A plain clone would share its lexer: behind a lock,
    /// with the limits that others used up, and broken for all if one breaks it.)
    pub(super) fn parser(&self) -> TokenParser {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    /// Approximate size in bytes of the lexer.
    pub(super) fn bytes(&self) -> usize {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        parser.parser.lexer_stats().num_bytes
    }

    /// The vocabulary.
    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Logits of a row.
    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Tokens that end the output.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Mask of the end tokens alone.
    pub(super) fn only_ends(&self) -> &TokenMask {
        &self.only_ends
    }
}

/// Tokens that a parser allows next, perhaps including end tokens; none if the grammar goes on and no token of the
/// vocabulary does.
pub(super) fn allowed(parser: &mut TokenParser, words: &Words) -> Result<SimpleVob, String> {
    let computed = careful(|| {
        // llguidance takes a forced text to be what its tokens spell. If they cannot spell it, the allowed tokens are
        // computed here.
        match cannot_say(parser, words) {
            Some(forced) => Ok(words.beginnings(&forced)),
            None => parser.compute_mask().map_err(|e| e.to_string()),
        }
    });
    match computed.and_then(|allowed| allowed) {
        Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => {
            Ok(words.tok_trie().alloc_token_set())
        }
        other => other,
    }
}

/// The text that a grammar forces here, if the vocabulary cannot spell it.
pub(super) fn cannot_say(parser: &mut TokenParser, words: &Words) -> Option<Vec<u8>> {
    if words.can_say_all() {
        return None;
    }
    let forced = parser.force_bytes();
    (!words.can_say(&forced)).then_some(forced)
}

/// Checks that an output can begin, because an error at the request's first token would be too late.
fn something_to_say(
    parser: &mut TokenParser,
    words: &Words,
    spec: &GuideSpec,
) -> Result<(), GuideError> {
    let gave_up = |why: String| GuideError::TooComplex { why: first_line(&why).to_owned() };
    let mut first = allowed(parser, words).map_err(gave_up)?;
    // There may be a mask all the same: that of a forced text without end.
    if careful(|| parser.parser.get_error().is_some()).unwrap_or(true) {
        return Err(gave_up("its first step takes more work than is allowed".to_owned()));
    }
    first.sub(&words.tok_trie().eos_token_set());
    if !first.is_zero() {
        return Ok(());
    }
    if careful(|| parser.is_accepting()).unwrap_or(false) {
        return Err(spec.impossible("it allows nothing but an empty answer"));
    }
    Err(no_first_token(parser, spec))
}

/// Why no token can come first: the grammar has no text, or no token spells its beginning.
fn no_first_token(parser: &mut TokenParser, spec: &GuideSpec) -> GuideError {
    let wanted = careful(|| {
        if let Some(&byte) = parser.force_bytes().first() {
            return Some(byte);
        }
        parser.parser.with_recognizer(|grammar| {
            grammar.trie_started("first byte");
            let wanted = (0..=u8::MAX).find(|&byte| grammar.byte_allowed(byte));
            grammar.trie_finished();
            wanted
        })
    });
    match wanted {
        Ok(Some(byte)) => spec.impossible(&format!(
            "no token of the vocabulary spells its beginning, such as {:?} (byte {byte:#04x})",
            char::from(byte)
        )),
        _ => spec.impossible("there is no text that it describes"),
    }
}

/// Removes what llguidance adds for its own developers.
fn tidy(why: &str) -> String {
    let end = why.find("\n<").unwrap_or(why.len());
    why[..end].trim().to_owned()
}

//! A grammar, compiled and looked at once: whether anything can be said in it at all.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::StopReason;
use llguidance::toktrie::{INVALID_TOKEN, Recognizer, SimpleVob, TokenizerEnv};
use llguidance::{ParserFactory, TokenParser};

use super::env::Words;
use super::follow::careful;
use super::{Guide, GuideError, GuideSpec, first_line, limits};
use crate::TokenMask;

/// A compiled grammar at its beginning, with its first mask computed.
pub(super) struct Compiled {
    /// Only ever cloned.
    parser: Mutex<TokenParser>,
    words: Arc<Words>,
    vocab: usize,
    ends: Vec<u32>,
    only_ends: TokenMask,
}

/// A grammar that was compiled and can be followed by any number of answers. Clones share it.
#[derive(Clone)]
pub struct CompiledGuide(pub(super) Arc<Compiled>);

impl CompiledGuide {
    /// About how many bytes the lexer of each guide takes at its beginning.
    pub fn lexer_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// A guide at its beginning. It has a parser of its own.
    pub fn start(&self) -> Guide {
        Guide::new(&self.0)
    }
}

/// Two are equal when they are clones of each other.
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

/// Compilers of grammars recurse, along nesting and chains of references.
const STACK: usize = 256 << 20;

impl Compiled {
    /// Compile, on a thread of its own with a stack that suffices for all that [`GuideSpec::check`] lets pass. (Of its
    /// memory only what is used is ever taken.)
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
            // llguidance has a type for this, which it does not show.
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

    /// A parser at the beginning, which shares no state with others. (A plain clone would share its lexer: behind a lock,
    /// with what others used of its limits, and broken for all if one breaks it.)
    pub(super) fn parser(&self) -> TokenParser {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    /// About how many bytes its lexer takes.
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

    /// The tokens that end an answer.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The mask of the end tokens alone.
    pub(super) fn only_ends(&self) -> &TokenMask {
        &self.only_ends
    }
}

/// What a parser allows next, end tokens perhaps included; nothing where the grammar goes on and the vocabulary cannot.
pub(super) fn allowed(parser: &mut TokenParser, words: &Words) -> Result<SimpleVob, String> {
    let computed = careful(|| {
        // llguidance takes a forced text to be what its tokens spell. Where they cannot, it is up to us.
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

/// Check that an answer can begin. What fails here would fail at the request's first token, when it is too late.
fn something_to_say(
    parser: &mut TokenParser,
    words: &Words,
    spec: &GuideSpec,
) -> Result<(), GuideError> {
    let gave_up = |why: String| GuideError::TooComplex { why: first_line(&why).to_owned() };
    let mut first = allowed(parser, words).map_err(gave_up)?;
    // A mask may be there all the same: that of a text which is forced, and goes on for ever.
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

/// Why no token can come first: the grammar has no text, or the vocabulary no word for it.
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

/// Without what llguidance adds for its own developers.
fn tidy(why: &str) -> String {
    let end = why.find("\n<").unwrap_or(why.len());
    why[..end].trim().to_owned()
}

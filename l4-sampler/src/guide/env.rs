//! The model's tokenizer, as llguidance wants to see one: all words in a trie, and texts cut into tokens.

use l2_model::tokenizer::Tokenizer;
use llguidance::panic_utils;
use llguidance::toktrie::{INVALID_TOKEN, SimpleVob, TokRxInfo, TokTrie, TokenizerEnv};

use super::GuideError;

/// Characters that seldom stand beside anything in a token. Behind one, a text is cut as it is in the middle of another.
const SENTINELS: [&str; 4] = ["\u{2}", "\u{1}", "\n", "`"];

/// Texts of the kind that grammars force. A tokenizer that spells these to the letter is trusted with the others.
const PROBES: [&str; 8] =
    ["{\"", "\":", "{\"name\":\"", "true", " and then", "\n  ", "[1,2.5e-3]", "start(x) := y;"];

/// The longest word: toktrie counts the steps back to the root in ten bits. Longer ones are left out, so no guide allows
/// them; what they spell can be said in parts.
const LONGEST_WORD: usize = 1000;

/// A tokenizer and its vocabulary as a trie.
pub(super) struct Words {
    tokenizer: Tokenizer,
    trie: TokTrie,
    sentinel: Option<(&'static str, Vec<u32>)>,
    canonical: bool,
    /// Whether each byte that a text may have is a token of its own.
    all_bytes: bool,
}

impl Words {
    /// The words of `vocab` logits. `ends` are the tokens that end an answer.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        vocab: usize,
        ends: &[u32],
    ) -> Result<Self, GuideError> {
        let size = check(vocab, ends)?;
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(tokenizer, id, ends)).collect();
        let eos = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let trie = panic_utils::catch_unwind(|| {
            let trie = TokTrie::from(&TokRxInfo::new(size, eos), &words);
            Ok(if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) })
        });
        let trie = trie.map_err(|e| bad(super::first_line(&e.to_string())))?;

        // The bytes left out are in no UTF-8 text.
        let in_text = |byte: &u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        let is_word = |byte: u8| trie.token_id_at_bytes(&[byte]).is_some();
        let all_bytes = (0..=u8::MAX).filter(in_text).all(is_word);

        let tokenizer = tokenizer.clone();
        let mut words = Self { tokenizer, trie, sentinel: None, canonical: false, all_bytes };
        words.sentinel = SENTINELS.iter().find_map(|&text| words.try_sentinel(text));
        words.canonical = PROBES.iter().all(|text| words.spell(text).is_some());
        Ok(words)
    }

    /// Whether every text can be said. A vocabulary may lack a control character or two; SmolLM2's does.
    pub(super) fn can_say_all(&self) -> bool {
        self.all_bytes
    }

    /// Whether these bytes can be said.
    pub(super) fn can_say(&self, bytes: &[u8]) -> bool {
        self.all_bytes || self.spelled(&self.trie.greedy_tokenize(bytes)).eq(bytes.iter().copied())
    }

    /// The tokens that `bytes` may begin with.
    pub(super) fn beginnings(&self, bytes: &[u8]) -> SimpleVob {
        let mut tokens = self.trie.alloc_token_set();
        self.trie.all_prefixes(bytes).into_iter().for_each(|token| tokens.allow_token(token));
        tokens
    }

    /// The tokens of a sentinel, if they stay what they are whatever follows.
    fn try_sentinel(&self, sentinel: &'static str) -> Option<(&'static str, Vec<u32>)> {
        let alone = self.tokenizer.encode(sentinel, false).ok()?;
        let stays = |probe: &&str| {
            let both = self.tokenizer.encode(&format!("{sentinel}{probe}"), false);
            both.is_ok_and(|ids| {
                ids.strip_prefix(&alone[..]).is_some_and(|rest| self.spells(rest, probe))
            })
        };
        (!alone.is_empty() && PROBES.iter().all(stays)).then_some((sentinel, alone))
    }

    /// Whether these tokens are this text, to the byte. A special token never is: its word in the trie begins with a byte
    /// that no text has.
    fn spells(&self, ids: &[u32], text: &str) -> bool {
        self.spelled(ids).eq(text.bytes())
    }

    fn spelled<'a>(&'a self, ids: &'a [u32]) -> impl Iterator<Item = u8> + 'a {
        ids.iter().flat_map(|&id| self.trie.token(id)).copied()
    }

    /// The tokens that the tokenizer writes for a text in the middle of another, if they are that text.
    fn spell(&self, text: &str) -> Option<Vec<u32>> {
        // exercise l4.guide
        let ids = self.tokenizer.encode(text, false).ok()?;
        if self.spells(&ids, text) {
            return Some(ids);
        }
        // SentencePiece puts a space before a text, but not into the middle of one: begin with something else, and take
        // its tokens off again.
        let (sentinel, before) = self.sentinel.as_ref()?;
        let ids = self.tokenizer.encode(&format!("{sentinel}{text}"), false).ok()?;
        let ids = ids.strip_prefix(&before[..])?;
        self.spells(ids, text).then(|| ids.to_vec())
        // end of exercise
    }
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The tokens for a text that a grammar forces: as the tokenizer would write it, where it keeps to the letter; else
    /// the longest words first. (A text that spells a special token is such a case: the tokenizer would make it that
    /// token, and it must stay text.)
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| self.spell(text))
            .unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    /// Whether forced texts may become forced tokens.
    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}

fn check(vocab: usize, ends: &[u32]) -> Result<u32, GuideError> {
    // toktrie keeps token ids in 24 bits, and one of them means "none".
    let size = u32::try_from(vocab).ok().filter(|&n| n > 0 && n < 0x00ff_ffff);
    let Some(size) = size else {
        return Err(bad(&format!("it has {vocab} tokens; 1 to {} are possible", 0x00ff_fffe)));
    };
    match ends.iter().find(|&&end| end >= size) {
        Some(end) => Err(bad(&format!("the end token {end} is not among its {vocab} tokens"))),
        None => Ok(size),
    }
}

fn bad(why: &str) -> GuideError {
    GuideError::Vocabulary { why: why.to_owned() }
}

/// What a token says. Rows of the embedding that no token uses say nothing, and nothing is never allowed. Special tokens,
/// and those that end an answer whatever they look like, get a first byte that no text has.
fn word(tokenizer: &Tokenizer, id: u32, ends: &[u32]) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    if tokenizer.is_special(id) || ends.contains(&id) {
        let mut word = vec![marker];
        match bytes {
            [] => word.extend_from_slice(format!("<|token {id}|>").as_bytes()),
            name => word.extend_from_slice(name),
        }
        return word;
    }
    match bytes {
        bytes if bytes.len() > LONGEST_WORD => Vec::new(),
        // The byte 0xFF alone is what toktrie knows to be part of no text. Longer words must not look special.
        [first, _, ..] if *first == marker => Vec::new(),
        bytes => bytes.to_vec(),
    }
}

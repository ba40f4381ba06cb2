//! The model's tokenizer for llguidance: all tokens in a trie, and texts cut into tokens.

use l2_model::tokenizer::Tokenizer;
use llguidance::panic_utils;
use llguidance::toktrie::{INVALID_TOKEN, SimpleVob, TokRxInfo, TokTrie, TokenizerEnv};

use super::GuideError;

/// Characters that are seldom part of a longer token. Behind one, a text is tokenized as in the middle of another text.
const SENTINELS: [&str; 4] = ["\u{2}", "\u{1}", "\n", "`"];

/// Texts of the kind that grammars force. A tokenizer that reproduces these exactly is trusted with others.
const PROBES: [&str; 8] =
    ["{\"", "\":", "{\"name\":\"", "true", " and then", "\n  ", "[1,2.5e-3]", "start(x) := y;"];

/// Maximum length of a token's text: toktrie counts the steps back to the root in ten bits. No guide allows longer
/// tokens; their text can be spelled by several others.
const LONGEST_WORD: usize = 1000;

/// A tokenizer, and its vocabulary as a trie.
pub(super) struct Words {
    tokenizer: Tokenizer,
    trie: TokTrie,
    sentinel: Option<(&'static str, Vec<u32>)>,
    canonical: bool,
    /// Whether each byte that a text may have is a token of its own.
    all_bytes: bool,
}

impl Words {
    /// Creates the trie of a vocabulary of `vocab` logits. `ends` are the tokens that end an output.
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

        // The other bytes are in no UTF-8 text.
        let in_text = |byte: &u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        let is_word = |byte: u8| trie.token_id_at_bytes(&[byte]).is_some();
        let all_bytes = (0..=u8::MAX).filter(in_text).all(is_word);

        let tokenizer = tokenizer.clone();
        let mut words = Self { tokenizer, trie, sentinel: None, canonical: false, all_bytes };
        words.sentinel = SENTINELS.iter().find_map(|&text| words.try_sentinel(text));
        words.canonical = PROBES.iter().all(|text| words.spell(text).is_some());
        Ok(words)
    }

    /// Whether every text can be spelled. A vocabulary may lack a control character or two; SmolLM2's does.
    pub(super) fn can_say_all(&self) -> bool {
        self.all_bytes
    }

    /// Whether these bytes can be spelled.
    pub(super) fn can_say(&self, bytes: &[u8]) -> bool {
        self.all_bytes || self.spelled(&self.trie.greedy_tokenize(bytes)).eq(bytes.iter().copied())
    }

    /// Tokens with which `bytes` may begin.
    pub(super) fn beginnings(&self, bytes: &[u8]) -> SimpleVob {
        let mut tokens = self.trie.alloc_token_set();
        self.trie.all_prefixes(bytes).into_iter().for_each(|token| tokens.allow_token(token));
        tokens
    }

    /// Tokens of a sentinel, if they are the same whatever follows.
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

    /// Whether these tokens spell this text exactly. A special token never does: its entry in the trie begins with a
    /// byte that no text has.
    fn spells(&self, ids: &[u32], text: &str) -> bool {
        self.spelled(ids).eq(text.bytes())
    }

    fn spelled<'a>(&'a self, ids: &'a [u32]) -> impl Iterator<Item = u8> + 'a {
        ids.iter().flat_map(|&id| self.trie.token(id)).copied()
    }

    /// Tokens of a text in the middle of another, if they spell it exactly.
    fn spell(&self, text: &str) -> Option<Vec<u32>> {
        // exercise l4.guide
        let ids = self.tokenizer.encode(text, false).ok()?;
        if self.spells(&ids, text) {
            return Some(ids);
        }
        // SentencePiece puts a space before a text, but not into the middle of one: put a sentinel in front, and remove
        // its tokens again.
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

    /// Tokens of a text that a grammar forces: as the tokenizer would write it, if it reproduces the text; else the
    /// longest tokens first. (A text that spells a special token is such a case: the tokenizer would make it that
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
    // toktrie stores token ids in 24 bits, and reserves one of them.
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

/// Text of a token in the trie. Rows of the embedding without a token have no text, and are never allowed. Special
/// tokens, and those that end an output whatever their text, get a first byte that no text has.
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
        // toktrie treats the byte 0xFF alone as part of no text. Longer entries must not look special.
        [first, _, ..] if *first == marker => Vec::new(),
        bytes => bytes.to_vec(),
    }
}

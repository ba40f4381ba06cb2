//! Tokenizers, guides over them, and texts that are pushed through guides.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::TokenMask;
use l4_sampler::guide::{Guide, GuideError, GuideSpec, Guides};
use serde_json::Value;

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// Names of tokenizers: byte-level BPE with several pre-tokenizers, and SentencePiece (`llama`).
pub const TOKENIZERS: [&str; 6] = ["default", "gpt-2", "llama", "llama-bpe", "qwen2", "smollm"];

pub fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_file(fixtures().join(format!("tokenizers/{name}.tokenizer.json"))).unwrap()
}

/// Rows of logits beyond the tokenizer's words, as embeddings are padded.
pub const PADDING: usize = 27;

/// A tokenizer with guides over it. All special tokens but the first are ends, if there are several.
pub struct World {
    pub name: &'static str,
    pub tokenizer: Tokenizer,
    pub vocab: usize,
    pub ends: Vec<u32>,
    pub guides: Guides,
}

impl World {
    pub fn new(name: &'static str) -> Self {
        let tokenizer = tokenizer(name);
        let words = tokenizer.vocab_size();
        let specials: Vec<u32> = (0..words as u32).filter(|&id| tokenizer.is_special(id)).collect();
        let ends = if specials.len() > 1 { specials[1..].to_vec() } else { specials };
        assert!(!ends.is_empty(), "{name} has special tokens");
        let vocab = words + PADDING;
        let guides = Guides::new(&tokenizer, vocab, &ends).unwrap();
        Self { name, tokenizer, vocab, ends, guides }
    }

    pub fn guide(&self, spec: &GuideSpec) -> Guide {
        self.guides.guide(spec).unwrap_or_else(|e| panic!("{} over {}: {e}", key(spec), self.name))
    }

    pub fn bytes(&self, token: u32) -> &[u8] {
        self.tokenizer.token_bytes(token).unwrap_or_default()
    }

    /// The token that spells just this.
    pub fn vocab_of(&self, text: &str) -> u32 {
        let spells = |&id: &u32| self.bytes(id) == text.as_bytes();
        let ids = 0..self.tokenizer.vocab_size() as u32;
        ids.filter(|id| !self.tokenizer.is_special(*id)).find(spells).unwrap()
    }

    /// What tokens spell, end tokens left out.
    pub fn text(&self, tokens: &[u32]) -> String {
        let text = tokens.iter().filter(|t| !self.ends.contains(t)).flat_map(|&t| self.bytes(t));
        String::from_utf8(text.copied().collect()).unwrap()
    }
}

/// One world for all tests that need no other.
pub fn llama() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| World::new("llama-bpe"))
}

/// Every tokenizer's world.
pub fn worlds() -> &'static [World] {
    static WORLDS: OnceLock<Vec<World>> = OnceLock::new();
    WORLDS.get_or_init(|| TOKENIZERS.iter().map(|name| World::new(name)).collect())
}

pub fn key(spec: &GuideSpec) -> String {
    format!("{spec:?}").chars().take(200).collect()
}

pub fn schema(text: &str) -> GuideSpec {
    GuideSpec::JsonSchema(serde_json::from_str::<Value>(text).unwrap())
}

pub fn regex(text: &str) -> GuideSpec {
    GuideSpec::Regex(text.to_owned())
}

pub fn choice(choices: &[&str]) -> GuideSpec {
    GuideSpec::Choice(choices.iter().map(|c| (*c).to_owned()).collect())
}

/// The mask, as the tokens it allows.
pub fn allowed(guide: &mut Guide, vocab: usize) -> Vec<u32> {
    let mut mask = TokenMask::default();
    guide.mask(&mut mask).unwrap();
    ids(&mask, vocab)
}

pub fn ids(mask: &TokenMask, vocab: usize) -> Vec<u32> {
    assert_eq!(mask.words().len(), vocab.div_ceil(32), "words of a mask for {vocab} tokens");
    let ids: Vec<u32> = (0..mask.words().len() as u32 * 32).filter(|&t| mask.allows(t)).collect();
    let beyond: Vec<u32> = ids.iter().copied().filter(|&id| id as usize >= vocab).collect();
    assert_eq!(beyond, [0_u32; 0], "allowed tokens beyond the vocabulary of {vocab}");
    ids
}

/// Push a text through a guide, always by the longest token that is allowed and that the text goes on with. Says how far it
/// came: the tokens, and the bytes they spell.
pub fn push(world: &World, guide: &mut Guide, text: &str) -> (Vec<u32>, usize) {
    let (mut tokens, mut done) = (Vec::new(), 0);
    while done < text.len() {
        let rest = &text.as_bytes()[done..];
        let fitting = |&t: &u32| {
            let bytes = world.bytes(t);
            !world.ends.contains(&t) && !bytes.is_empty() && rest.starts_with(bytes)
        };
        let mut mask = TokenMask::default();
        match guide.mask(&mut mask) {
            Err(GuideError::DeadEnd { .. }) => break,
            outcome => outcome.unwrap(),
        }
        let best = ids(&mask, world.vocab)
            .into_iter()
            .filter(fitting)
            .max_by_key(|&t| world.bytes(t).len());
        let Some(token) = best else { break };
        guide.advance(token).unwrap();
        tokens.push(token);
        done += world.bytes(token).len();
    }
    (tokens, done)
}

/// Whether a guide takes a text and lets the answer end behind it.
pub fn accepts(world: &World, spec: &GuideSpec, text: &str) -> bool {
    let mut guide = world.guide(spec);
    let (_, done) = push(world, &mut guide, text);
    done == text.len() && guide.is_complete()
}

/// Why there is no guide.
pub fn refusal(world: &World, spec: &GuideSpec) -> GuideError {
    match world.guides.guide(spec) {
        Ok(_) => panic!("{} became a guide over {}", key(spec), world.name),
        Err(error) => error,
    }
}

/// A small random generator (xorshift64*), so that a test's walk is the same everywhere.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        (bits as usize * n) >> 31
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

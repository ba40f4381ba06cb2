//! Text to token ids and back.
//!
//! A model reads and writes ids: rows of its embedding. The text of each id is fixed before training, and a
//! serving engine must reproduce it exactly: with one different id the model gets another prompt. Hugging
//! Face's `tokenizers` crate cuts and merges; it is the library that the models were trained with. This
//! module reads the two kinds of files ([`Tokenizer::from_hf_dir`], [`Tokenizer::from_gguf`]), and turns ids
//! back to text, whole ([`Tokenizer::decode`]) or as it streams ([`Detokenizer`]).

mod error;
mod from_gguf;
mod held;
mod hf_dir;
mod incremental;
mod json;
mod pieces;
mod pre;
mod spm;
mod to_json;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokenizers::Tokenizer as Pipeline;

pub use error::TokenizerError;
pub use from_gguf::GgufVocab;
pub use incremental::Detokenizer;

use error::Result;
use pieces::{DecodeRule, Pieces};

/// A model's tokenizer. Immutable and `Sync`: one serves all threads.
///
/// ```
/// # use std::path::Path;
/// use l2_model::tokenizer::Tokenizer;
///
/// # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama"));
/// let tokenizer = Tokenizer::from_hf_dir(path)?;
/// let ids = tokenizer.encode("Hello, world", false)?;
/// assert_eq!(tokenizer.decode(&ids, true)?, "Hello, world");
/// assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
/// # Ok::<(), l2_model::tokenizer::TokenizerError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pipeline: Arc<Pipeline>,
    pieces: Arc<Pieces>,
    rule: DecodeRule,
    affixes: Affixes,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    chat_templates: BTreeMap<String, String>,
}

/// Ids before and after a text on its own.
#[derive(Debug, Clone, Default)]
struct Affixes {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// Checked contents of a file, before the id table is built.
struct Parts {
    pipeline: Pipeline,
    rule: DecodeRule,
    affixes: Affixes,
    /// One more than the model's highest id; added tokens may have higher ids.
    model_ids: usize,
}

impl Tokenizer {
    fn assemble(parts: Parts) -> Result<Self> {
        let Parts { pipeline, rule, affixes, model_ids } = parts;
        let added = pipeline.get_added_vocabulary();
        let above = added.get_added_tokens_decoder().keys().max().map_or(0, |&id| id as usize + 1);
        let pieces = Pieces::build(rule.clone(), model_ids.max(above), |id| {
            let text = pipeline.id_to_token(id)?;
            let special = added.is_special_token(&text);
            Some((text, special))
        });
        if let Some(&id) =
            affixes.before.iter().chain(&affixes.after).find(|&&id| id as usize >= pieces.len())
        {
            return Err(TokenizerError::IdOutOfRange { id, vocab_size: pieces.len() });
        }
        Ok(Self {
            pieces: Arc::new(pieces),
            pipeline: Arc::new(pipeline),
            rule,
            affixes,
            bos: None,
            eos: None,
            eot: None,
            unk: None,
            pad: None,
            chat_templates: BTreeMap::new(),
        })
    }

    /// Returns the token ids of `text`. Special tokens written out in the text (`<|im_end|>`) become their ids,
    /// as Hugging Face does by default; the caller that builds a chat prompt must check the text of users for
    /// them.
    ///
    /// `add_special` adds the special tokens that the model expects around a text, usually BOS before it. A
    /// rendered chat template already contains its BOS: encode it without `add_special`, or BOS is doubled.
    ///
    /// Characters and bytes that the vocabulary cannot spell become the unknown token, or are dropped where
    /// there is none.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the `tokenizers` library reports a failure.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        // `encode_fast` does not track where in the text each token came from.
        let encoding = self
            .pipeline
            .encode_fast(text, false)
            .map_err(|e| TokenizerError::Encode(e.to_string()))?;
        if !add_special {
            return Ok(encoding.get_ids().to_vec());
        }
        let Affixes { before, after } = &self.affixes;
        Ok(before.iter().chain(encoding.get_ids()).chain(after).copied().collect())
    }

    /// Returns the text of `ids`. With `skip_special`, special tokens are left out.
    ///
    /// Equal to Hugging Face's `decode` with `clean_up_tokenization_spaces=False`, except that an unknown id
    /// is an error here. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut whole = self.detokenizer(skip_special);
        for &id in ids {
            whole.take(id)?;
        }
        whole.end();
        Ok(whole.into_text())
    }

    /// Returns an incremental decoder, which takes one token id at a time.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.pieces), skip_special)
    }

    /// Returns the raw bytes of one token, without the rules that depend on its neighbours (a leading space
    /// is kept). They need not be UTF-8: `é` may be two tokens. Empty for an unused id.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        self.pieces.bytes(id)
    }

    /// Number of token ids: every valid id is below it. The embedding of a model may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// The id of a token in the vocabulary's own spelling (`Ġthe`, `▁the`, `<|im_end|>`).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.pipeline.token_to_id(token)
    }

    /// The vocabulary's own spelling of `id`.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.pipeline.id_to_token(id)
    }

    /// Whether decoding with `skip_special` leaves out `id`.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.is_special(id)
    }

    /// Begin of sequence, if the checkpoint names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of sequence, if the checkpoint names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// End of turn, if the checkpoint (GGUF only) names one apart from [`Self::eos`].
    pub fn eot(&self) -> Option<u32> {
        self.eot
    }

    /// The unknown token, if the checkpoint names one.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// The padding token, if the checkpoint names one.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Ids that [`Self::encode`] puts before a text with `add_special`.
    pub fn prefix(&self) -> &[u32] {
        &self.affixes.before
    }

    /// The source of the chat template, if the checkpoint has one; see [`mod@crate::chat_template`].
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template_named("default")
    }

    /// The source of a named chat template: some models have another one for prompts with tools, `tool_use`.
    pub fn chat_template_named(&self, name: &str) -> Option<&str> {
        self.chat_templates.get(name).map(String::as_str)
    }
}

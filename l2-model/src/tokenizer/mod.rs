//! Text to token ids and back.
//!
//! A model reads and writes ids: rows of its embedding. Which text an id stands for is fixed before training, and a
//! serving engine has to reproduce it to the letter: one different id and the model sees a text it was not asked
//! about. The cutting and merging is done by Hugging Face's `tokenizers` crate, the library the models were trained
//! with. Here is what surrounds it: reading the two kinds of files ([`Tokenizer::from_hf_dir`],
//! [`Tokenizer::from_gguf`]), and the way back from ids to text, whole ([`Tokenizer::decode`]) or as it streams
//! ([`Detokenizer`]).

mod error;
mod from_gguf;
mod held;
mod hf_dir;
mod incremental;
mod json;
mod pieces;
mod pre;
mod spm;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokenizers::Tokenizer as Pipeline;

pub use error::TokenizerError;
pub use from_gguf::GgufVocab;
pub use incremental::Detokenizer;

use error::Result;
use pieces::{DecodeRule, Pieces};

/// A model's tokenizer. Immutable and `Sync`: one serves all threads.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pipeline: Arc<Pipeline>,
    pieces: Arc<Pieces>,
    affixes: Affixes,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    chat_templates: BTreeMap<String, String>,
}

/// What goes before and after a text that stands for itself.
#[derive(Debug, Clone, Default)]
struct Affixes {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// What a file says, checked, before the id table is made.
struct Parts {
    pipeline: Pipeline,
    rule: DecodeRule,
    affixes: Affixes,
    /// One more than the model's highest id; added tokens may lie above.
    model_ids: usize,
}

impl Tokenizer {
    fn assemble(parts: Parts) -> Result<Self> {
        let Parts { pipeline, rule, affixes, model_ids } = parts;
        let added = pipeline.get_added_vocabulary();
        let above = added.get_added_tokens_decoder().keys().max().map_or(0, |&id| id as usize + 1);
        let pieces = Pieces::build(rule, model_ids.max(above), |id| {
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
            affixes,
            bos: None,
            eos: None,
            eot: None,
            unk: None,
            pad: None,
            chat_templates: BTreeMap::new(),
        })
    }

    /// The ids of `text`. Special tokens written out in the text (`<|im_end|>`) become their ids, as Hugging Face
    /// does by default; text that comes from users of a chat must be checked for them by who builds the prompt.
    ///
    /// `add_special` puts around it what the model expects around a text of its own, usually BOS before it. A
    /// rendered chat template already contains its BOS: encode it without, or it is doubled.
    ///
    /// Characters and bytes the vocabulary cannot spell become the unknown token, or vanish where there is none.
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

    /// The text of `ids`. With `skip_special`, special tokens leave nothing behind.
    ///
    /// Equal to Hugging Face's `decode` with `clean_up_tokenization_spaces=False`, but that unknown ids are an error
    /// there is no silence about. Bytes that are not UTF-8 become U+FFFD.
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

    /// A decoder that is given one id at a time.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.pieces), skip_special)
    }

    /// The raw bytes one token stands for, without the rules that look at its neighbours (a leading space is kept).
    /// They need not be UTF-8: `é` may be two tokens. Empty for an id that no token uses.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        self.pieces.bytes(id)
    }

    /// Number of ids: every valid one is below it. The embedding of a model may have more rows than that.
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

    /// Whether decoding with `skip_special` passes over `id`.
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

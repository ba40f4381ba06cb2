//! A tokenizer out of GGUF metadata.
//!
//! GGUF has the vocabulary as flat arrays and only *names* the rest: the algorithm (`tokenizer.ggml.model`)
//! and the pre-tokenizer (`tokenizer.ggml.pre`, see [`super::pre`]). The pipeline built here gives the same
//! ids as the model's own tokenizer.json.
//!
//! The format loses two things: whether a control token was declared special in tokenizer.json (llama.cpp's
//! converter marks everything of the form `<|this|>` as control), and how a SentencePiece model treats the
//! space before its text (Llama 2's rule is used: always one, also after a special token; `add_space_prefix =
//! false` turns it off).

use tokenizers::models::bpe::Vocab;
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};
use tokenizers::{AddedToken, Tokenizer as Pipeline};

use crate::checkpoint::GgufFile;
use crate::checkpoint::gguf::Metadata;

use super::error::{Result, TokenizerError, invalid};
use super::json::{BpeParts, split_merge};
use super::pieces::DecodeRule;
use super::pre::pre_kind;
use super::spm::merges_from_scores;
use super::{Affixes, Parts, Tokenizer};

/// The tokenizer part of a GGUF file's metadata, in the file's own terms.
///
/// Token types (`tokenizer.ggml.token_type`, llama.cpp's `llama_token_type`): 1 normal, 2 unknown, 3 control,
/// 4 user-defined, 5 unused, 6 byte.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is cut before BPE. Only looked at for `gpt2`; empty means `default`.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the spelling of every id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: parallel to `tokens`, or empty if all are normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.scores`: parallel to `tokens`; SentencePiece only.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.merges`: `"left right"`, best first. May be empty for `llama`, which has scores
    /// instead.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: end of a turn, where that is not EOS.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`. Absent: yes for `llama` and Llama 3, no for the rest.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`. Absent: no.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`. Absent: yes for `llama`; byte-level vocabularies have no such rule.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

impl GgufVocab {
    /// Copies the tokenizer keys out of a file's metadata.
    ///
    /// # Errors
    /// [`TokenizerError::Gguf`] naming the key that is missing or of the wrong type.
    pub fn from_metadata(file: &GgufFile<'_>) -> Result<Self> {
        let metadata = file.metadata();
        let owned = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
        let text = |key: &str| metadata.optional(key, |m, key| m.str(key).map(str::to_owned));
        let flag = |key: &str| metadata.optional(key, Metadata::bool);
        let id = |key: &str| -> Result<Option<u32>> {
            let id = metadata.optional(key, Metadata::u64)?;
            let fits = |id| u32::try_from(id).map_err(|_| invalid(format!("{key} is {id}")));
            id.map(fits).transpose()
        };
        Ok(Self {
            model: metadata.str("tokenizer.ggml.model")?.to_owned(),
            pre: text("tokenizer.ggml.pre")?.unwrap_or_default(),
            tokens: owned(metadata.str_array("tokenizer.ggml.tokens")?),
            token_types: metadata
                .optional("tokenizer.ggml.token_type", Metadata::i32_array)?
                .unwrap_or_default(),
            scores: metadata.optional("tokenizer.ggml.scores", Metadata::f32_array)?,
            merges: metadata
                .optional("tokenizer.ggml.merges", Metadata::str_array)?
                .map(owned)
                .unwrap_or_default(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            unk: id("tokenizer.ggml.unknown_token_id")?,
            pad: id("tokenizer.ggml.padding_token_id")?,
            add_bos: flag("tokenizer.ggml.add_bos_token")?,
            add_eos: flag("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
        })
    }

    fn token_type(&self, id: usize) -> i32 {
        self.token_types.get(id).copied().unwrap_or(1)
    }

    /// Checks that arrays run in parallel and ids exist.
    fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(invalid("tokenizer.ggml.tokens is empty"));
        }
        if !self.token_types.is_empty() && self.token_types.len() != count {
            let types = self.token_types.len();
            return Err(invalid(format!(
                "tokenizer.ggml.token_type has {types} entries for {count} tokens"
            )));
        }
        if let Some(scores) = self.scores.as_ref().filter(|scores| scores.len() != count) {
            return Err(invalid(format!(
                "tokenizer.ggml.scores has {} entries for {count} tokens",
                scores.len()
            )));
        }
        let named = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("unknown", self.unk),
            ("padding", self.pad),
        ];
        for (name, id) in named {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return Err(invalid(format!(
                    "tokenizer.ggml.{name}_token_id is {id}, but there are {count} tokens"
                )));
            }
        }
        Ok(())
    }

    /// Control tokens become special tokens, user-defined ones plain added tokens: both are matched in the
    /// text before the other steps of the pipeline.
    fn added_tokens(&self) -> Vec<AddedToken> {
        self.tokens
            .iter()
            .enumerate()
            .filter_map(|(id, token)| match self.token_type(id) {
                CONTROL => Some(AddedToken::from(token.as_str(), true)),
                USER_DEFINED => Some(AddedToken::from(token.as_str(), false).normalized(false)),
                // SentencePiece's <unk> is special in Llama's tokenizer.json.
                UNKNOWN if self.model == "llama" => Some(AddedToken::from(token.as_str(), true)),
                _ => None,
            })
            .collect()
    }

    fn explicit_merges(&self) -> Result<Vec<(String, String)>> {
        self.merges
            .iter()
            .map(|merge| match split_merge(merge) {
                Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
                None => Err(invalid(format!("tokenizer.ggml.merges: `{merge}` is not two tokens"))),
            })
            .collect()
    }

    /// Vocabulary in the form of the pipeline; `keep` selects by token type.
    fn vocab(&self, keep: impl Fn(i32) -> bool) -> Vocab {
        let mut vocab = Vocab::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            if keep(self.token_type(id)) {
                vocab.insert(token.clone(), id as u32);
            }
        }
        vocab
    }

    fn byte_level(&self) -> Result<(Pipeline, DecodeRule, bool)> {
        let pre = pre_kind(if self.pre.is_empty() { "default" } else { &self.pre })?;
        if self.merges.is_empty() {
            return Err(invalid("a byte-level vocabulary needs tokenizer.ggml.merges"));
        }
        let mut pipeline = Pipeline::new(
            BpeParts {
                // Unused entries only pad the embedding's rows ("[PAD151669]"); tokenizer.json has none of
                // them.
                vocab: self.vocab(|kind| kind != UNUSED),
                merges: self.explicit_merges()?,
                unk: None,
                fuse_unk: false,
                byte_fallback: false,
                ignore_merges: pre.ignore_merges,
            }
            .build()?,
        );
        if pre.normalizer.is_some() {
            pipeline.with_normalizer(pre.normalizer).map_err(invalid)?;
        }
        pipeline.with_pre_tokenizer(Some(pre.pre_tokenizer));
        Ok((pipeline, DecodeRule::byte_level(), pre.add_bos))
    }

    fn sentencepiece(&self) -> Result<(Pipeline, DecodeRule, bool)> {
        let merges = match self.merges.as_slice() {
            [] => merges_from_scores(&self.tokens, self.scores.as_deref()),
            _ => self.explicit_merges()?,
        };
        let mut pipeline = Pipeline::new(
            BpeParts {
                vocab: self.vocab(|_| true),
                merges,
                unk: self.unk.map(|id| self.tokens[id as usize].clone()),
                fuse_unk: true,
                byte_fallback: true,
                ignore_merges: false,
            }
            .build()?,
        );
        let prefix_space = self.add_space_prefix.unwrap_or(true);
        let mut steps: Vec<NormalizerWrapper> = Vec::new();
        if prefix_space {
            steps.push(Prepend::new("▁".to_owned()).into());
        }
        steps.push(Replace::new(" ", "▁").map_err(invalid)?.into());
        pipeline.with_normalizer(Some(Sequence::new(steps))).map_err(invalid)?;
        Ok((pipeline, DecodeRule::sentencepiece(prefix_space), true))
    }
}

impl Tokenizer {
    /// Builds the tokenizer that `vocab` describes.
    ///
    /// # Errors
    /// [`TokenizerError::Unsupported`] for a model or pre-tokenizer other than those listed in it,
    /// [`TokenizerError::Invalid`] if the arrays contradict each other.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self> {
        vocab.check()?;
        let (mut pipeline, rule, add_bos) = match vocab.model.as_str() {
            "gpt2" => vocab.byte_level()?,
            "llama" => vocab.sentencepiece()?,
            other => {
                return Err(TokenizerError::Unsupported {
                    part: "tokenizer.ggml.model",
                    found: other.to_owned(),
                    supported: "gpt2, llama",
                });
            }
        };
        // All at once: the crate rebuilds its search automaton on every call.
        pipeline.add_tokens(vocab.added_tokens()).map_err(invalid)?;
        let wanted =
            |flag: Option<bool>, default, id: Option<u32>| id.filter(|_| flag.unwrap_or(default));
        let affixes = Affixes {
            before: wanted(vocab.add_bos, add_bos, vocab.bos).into_iter().collect(),
            after: wanted(vocab.add_eos, false, vocab.eos).into_iter().collect(),
        };
        let mut tokenizer =
            Self::assemble(Parts { pipeline, rule, affixes, model_ids: vocab.tokens.len() })?;
        tokenizer.bos = vocab.bos;
        tokenizer.eos = vocab.eos;
        tokenizer.eot = vocab.eot;
        tokenizer.unk = vocab.unk;
        tokenizer.pad = vocab.pad;
        tokenizer
            .chat_templates
            .extend(vocab.chat_template.map(|template| ("default".to_owned(), template)));
        Ok(tokenizer)
    }
}

//! Reading Hugging Face's `tokenizer.json`.
//!
//! The file describes a pipeline: normalizer -> pre-tokenizer -> model -> post-processor, and a decoder for
//! the reverse direction. The `tokenizers` crate can load it whole, but does not check it: a merge longer
//! than any token or a truncated decoder makes it panic. So the parts are read here, checked, and passed to
//! the crate one by one. Post-processing (which ids go before and after a text) and decoding are implemented
//! here.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, Tokenizer as Pipeline};

use super::error::{Result, TokenizerError, invalid};
use super::pieces::DecodeRule;
use super::{Affixes, Parts};

/// Ids at or above this are rejected: a table has an entry for each id, and no vocabulary is near it.
const MOST_IDS: u32 = 1 << 24;

/// All but the model, which is read in a second pass once its type is known.
#[derive(Deserialize)]
struct Outline {
    model: ModelType,
    #[serde(default)]
    added_tokens: Vec<AddedEntry>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct ModelType {
    /// Absent from files of the format's first year, all of which are BPE if they have merges.
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct AddedEntry {
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
struct WithModel {
    model: BpeJson,
}

#[derive(Deserialize)]
struct BpeJson {
    vocab: Vocab,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// A merge is `["a", "b"]`, or `"a b"` in files older than tokenizers 0.20.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge, [\"left\", \"right\"] or \"left right\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                let (left, right) = split_merge(text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Merge(left.to_owned(), right.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let left =
                    seq.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
                let right =
                    seq.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &self))?;
                match seq.next_element::<de::IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(de::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

/// `"left right"` at the first space that leaves a left part, so that a merge of spaces still splits.
pub(super) fn split_merge(text: &str) -> Option<(&str, &str)> {
    let after_first = text.chars().next()?.len_utf8();
    let space = after_first + text[after_first..].find(' ')?;
    Some((&text[..space], &text[space + 1..]))
}

/// Contents of a tokenizer's model, from either kind of file.
pub(super) struct BpeParts {
    pub vocab: Vocab,
    pub merges: Vec<(String, String)>,
    pub unk: Option<String>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

impl BpeParts {
    /// Builds the model.
    ///
    /// # Errors
    /// [`TokenizerError::Invalid`] if a merge names tokens that do not exist.
    pub fn build(self) -> Result<BPE> {
        // The crate joins each pair in a buffer as long as the longest token, without a check.
        let longest = self.vocab.keys().map(String::len).max().unwrap_or(0);
        if let Some((left, right)) =
            self.merges.iter().find(|(left, right)| left.len() + right.len() > longest)
        {
            return Err(invalid(format!(
                "merge `{left} {right}` makes a token that is not in the vocabulary"
            )));
        }
        if let Some(unk) = self.unk.as_ref().filter(|unk| !self.vocab.contains_key(*unk)) {
            return Err(invalid(format!("the unknown token `{unk}` is not in the vocabulary")));
        }
        let mut builder = BPE::builder()
            .vocab_and_merges(self.vocab, self.merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(unk) = self.unk {
            builder = builder.unk_token(unk);
        }
        builder.build().map_err(|e| invalid(format!("merges: {e}")))
    }
}

/// Reads a whole tokenizer.json. `file` is its name in messages.
pub(super) fn parse(bytes: &[u8], file: &str) -> Result<Parts> {
    let json = |source| TokenizerError::Json { file: file.to_owned(), source };
    let outline: Outline = serde_json::from_slice(bytes).map_err(json)?;
    if let Some(kind) = outline.model.kind.filter(|kind| kind != "BPE") {
        return Err(TokenizerError::Unsupported { part: "model", found: kind, supported: "BPE" });
    }
    let model = serde_json::from_slice::<WithModel>(bytes).map_err(json)?.model;
    for (part, affix) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(found) = affix.clone().filter(|affix| !affix.is_empty()) {
            return Err(TokenizerError::Unsupported { part, found, supported: "none" });
        }
    }
    let most = model.vocab.values().max().copied().unwrap_or(0);
    if most >= MOST_IDS {
        return Err(invalid(format!(
            "token id {most} in the vocabulary; at most {MOST_IDS} ids are supported"
        )));
    }
    let affixes = affixes(&outline.post_processor)?;
    let rule = DecodeRule::from_json(&outline.decoder)?;
    let mut pipeline = Pipeline::new(
        BpeParts {
            vocab: model.vocab,
            merges: model.merges.into_iter().map(|Merge(left, right)| (left, right)).collect(),
            unk: model.unk_token,
            fuse_unk: model.fuse_unk,
            byte_fallback: model.byte_fallback,
            ignore_merges: model.ignore_merges,
        }
        .build()?,
    );
    if !outline.normalizer.is_null() {
        refuse_charsmap(&outline.normalizer)?;
        let normalizer: NormalizerWrapper =
            serde_json::from_value(outline.normalizer).map_err(json)?;
        pipeline.with_normalizer(Some(normalizer)).map_err(invalid)?;
    }
    if !outline.pre_tokenizer.is_null() {
        let pre_tokenizer: PreTokenizerWrapper =
            serde_json::from_value(outline.pre_tokenizer).map_err(json)?;
        pipeline.with_pre_tokenizer(Some(pre_tokenizer));
    }
    pipeline
        .add_tokens(outline.added_tokens.into_iter().map(|entry| entry.token))
        .map_err(invalid)?;
    Ok(Parts { pipeline, rule, affixes, model_ids: most as usize + 1 })
}

/// A precompiled character map belongs to SentencePiece Unigram models; the crate panics on an invalid one.
fn refuse_charsmap(normalizer: &Value) -> Result<()> {
    let steps =
        normalizer.get("normalizers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for step in std::iter::once(normalizer).chain(steps) {
        if step.get("type").and_then(Value::as_str) == Some("Precompiled") {
            return Err(TokenizerError::Unsupported {
                part: "normalizer",
                found: "Precompiled".into(),
                supported: "NFC, NFKC, Prepend, Replace and the other plain ones",
            });
        }
    }
    steps.iter().try_for_each(refuse_charsmap)
}

/// Ids that `post_processor` puts around a single text.
fn affixes(post_processor: &Value) -> Result<Affixes> {
    let mut all = Affixes::default();
    let kind = post_processor.get("type").and_then(Value::as_str).unwrap_or("none");
    match kind {
        // ByteLevel only trims offsets, which are not used here.
        _ if post_processor.is_null() => {}
        "ByteLevel" => {}
        "Sequence" => {
            for step in
                post_processor.get("processors").and_then(Value::as_array).into_iter().flatten()
            {
                let step = affixes(step)?;
                // A later step wraps what the earlier ones made.
                all.before.splice(0..0, step.before);
                all.after.extend(step.after);
            }
        }
        "TemplateProcessing" => {
            let mut seen_text = false;
            for item in post_processor.get("single").and_then(Value::as_array).into_iter().flatten()
            {
                if item.get("Sequence").is_some() {
                    seen_text = true;
                    continue;
                }
                let name =
                    item.pointer("/SpecialToken/id").and_then(Value::as_str).unwrap_or_default();
                let ids = post_processor
                    .get("special_tokens")
                    .and_then(|t| t.get(name))
                    .and_then(|t| t.get("ids"));
                let ids = ids.and_then(Value::as_array).ok_or_else(|| {
                    invalid(format!(
                        "post_processor: special token `{name}` is used but not defined"
                    ))
                })?;
                let list = if seen_text { &mut all.after } else { &mut all.before };
                for id in ids {
                    let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                    list.push(
                        id.ok_or_else(|| invalid(format!("post_processor: bad id for `{name}`")))?,
                    );
                }
            }
        }
        other => {
            return Err(TokenizerError::Unsupported {
                part: "post_processor",
                found: other.to_owned(),
                supported: "ByteLevel, TemplateProcessing, Sequence of these",
            });
        }
    }
    Ok(all)
}

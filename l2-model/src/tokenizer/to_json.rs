//! Writing Hugging Face's `tokenizer.json`: the inverse of [`super::json`].
//!
//! The pipeline of the `tokenizers` crate writes itself. Decoding and the ids around a text are implemented here, so
//! their steps are put into it first: the ones that [`super::json`] reads back, and that transformers runs.

use serde_json::{Map, Value, json};
use tokenizers::Tokenizer as Pipeline;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::processors::PostProcessorWrapper;

use super::error::{Result, invalid};
use super::pieces::{DecodeRule, Joining};
use super::{Affixes, Tokenizer};

impl Tokenizer {
    /// The text of a `tokenizer.json` with the same vocabulary, merges, added tokens and rules. It has no names of
    /// special tokens (BOS, EOS, ...) and no chat template, which Hugging Face keeps in `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Invalid`](super::TokenizerError::Invalid) if the `tokenizers` library refuses to write it.
    pub fn to_json(&self) -> Result<String> {
        let mut pipeline = Pipeline::clone(&self.pipeline);
        let decoder: DecoderWrapper =
            serde_json::from_value(decoder(&self.rule)).map_err(invalid)?;
        pipeline.with_decoder(Some(decoder));
        let around: Option<PostProcessorWrapper> =
            self.post_processor()?.map(serde_json::from_value).transpose().map_err(invalid)?;
        pipeline.with_post_processor(around);
        pipeline.to_string(true).map_err(invalid)
    }

    /// A template with the ids before and after a text; `None` if there are none. The second text of a pair, which no
    /// decoder-only model is given, gets the same ones.
    fn post_processor(&self) -> Result<Option<Value>> {
        let Affixes { before, after } = &self.affixes;
        let mut used = Map::new();
        let mut pieces = |ids: &[u32], text: u8| -> Result<Vec<Value>> {
            let piece = |id: &u32| {
                let missing = || invalid(format!("token {id} has no spelling"));
                let name = self.id_to_token(*id).ok_or_else(missing)?;
                used.insert(name.clone(), json!({"id": name, "ids": [id], "tokens": [name]}));
                Ok(json!({"SpecialToken": {"id": name, "type_id": text}}))
            };
            ids.iter().map(piece).collect()
        };
        let mut around = |name: &str, text: u8| -> Result<Vec<Value>> {
            let sequence = json!({"Sequence": {"id": name, "type_id": text}});
            Ok([pieces(before, text)?, vec![sequence], pieces(after, text)?].concat())
        };
        let (single, second) = (around("A", 0)?, around("B", 1)?);
        if before.is_empty() && after.is_empty() {
            return Ok(None);
        }
        let pair = [single.clone(), second].concat();
        let kind = "TemplateProcessing";
        Ok(Some(json!({"type": kind, "single": single, "pair": pair, "special_tokens": used})))
    }
}

/// The `decoder` entry that [`DecodeRule::from_json`] reads as this rule.
fn decoder(rule: &DecodeRule) -> Value {
    let Joining::Pieces { byte_fallback, strip } = &rule.joining else {
        return json!({
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        });
    };
    let replace = rule
        .replace
        .iter()
        .map(|(from, to)| json!({"type": "Replace", "pattern": {"String": from}, "content": to}));
    let mut steps: Vec<Value> = replace.collect();
    if *byte_fallback {
        steps.push(json!({"type": "ByteFallback"}));
    }
    steps.push(json!({"type": "Fuse"}));
    if let Some((what, count)) = strip {
        steps.push(json!({"type": "Strip", "content": what, "start": count, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

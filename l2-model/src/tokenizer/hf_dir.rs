//! Loading a tokenizer from a Hugging Face model directory.
//!
//! `tokenizer.json` is the pipeline. Other files are optional:
//!
//! * `tokenizer_config.json`: which strings are BOS, EOS, ..., tokens added after training, and the chat template, as
//!   one string or as a list of `{"name", "template"}`;
//! * `special_tokens_map.json`: the same names in older repositories;
//! * `chat_template.jinja`: the chat template in a file of its own, which has precedence;
//!   `additional_chat_templates/NAME.jinja`.
//!
//! `add_bos_token` in the config is ignored, as in transformers (`PreTrainedTokenizerBase._from_pretrained`):
//! the post-processor of tokenizer.json decides, and the flag is for slow tokenizers that have none.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;
use tokenizers::AddedToken;

use super::error::{Result, TokenizerError, invalid};
use super::{Tokenizer, json};

impl Tokenizer {
    /// Reads `tokenizer.json` alone. It has no names of special tokens and no chat template.
    ///
    /// # Errors
    /// [`TokenizerError::Missing`] if there is no such file, else the error in it.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = read(path)?.ok_or_else(|| TokenizerError::Missing { path: path.to_owned() })?;
        Self::assemble(json::parse(&bytes, &path.display().to_string())?)
    }

    /// Reads the tokenizer of a model directory: `tokenizer.json` and the files beside it.
    ///
    /// # Errors
    /// [`TokenizerError::Missing`] if there is no tokenizer.json, else the error, with the name of the file.
    pub fn from_hf_dir(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let path = dir.join("tokenizer.json");
        let bytes = read(&path)?.ok_or_else(|| TokenizerError::Missing { path: path.clone() })?;
        let mut parts = json::parse(&bytes, &path.display().to_string())?;
        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let map = read_json(&dir.join("special_tokens_map.json"))?;

        let named = |name: &str| {
            config.get(name).and_then(added_token).or_else(|| map.get(name).and_then(added_token))
        };
        let [bos, eos, unk, pad] = ["bos_token", "eos_token", "unk_token", "pad_token"].map(named);
        let mut late: Vec<AddedToken> = config_tokens(&config);
        late.extend(
            [&bos, &eos, &unk, &pad].into_iter().flatten().map(|t| t.clone().special(true)),
        );
        parts.pipeline.add_tokens(late).map_err(invalid)?;

        let mut tokenizer = Self::assemble(parts)?;
        let id =
            |token: Option<AddedToken>| token.and_then(|token| tokenizer.token_id(&token.content));
        let (bos, eos, unk, pad) = (id(bos), id(eos), id(unk), id(pad));
        tokenizer.bos = bos;
        tokenizer.eos = eos;
        tokenizer.unk = unk;
        tokenizer.pad = pad;
        tokenizer.chat_templates = chat_templates(dir, &config)?;
        Ok(tokenizer)
    }
}

/// The file's bytes, or `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerError::Read { path: path.to_owned(), source }),
    }
}

/// The file as JSON; an absent file is an empty object.
fn read_json(path: &Path) -> Result<Value> {
    match read(path)? {
        None => Ok(Value::Object(serde_json::Map::new())),
        Some(bytes) => serde_json::from_slice(&bytes)
            .map_err(|source| TokenizerError::Json { file: path.display().to_string(), source }),
    }
}

/// A token in a config: its text, or an object with the text and the options of its match.
fn added_token(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(text) => Some(AddedToken::from(text.as_str(), true)),
        Value::Object(fields) => {
            let flag =
                |name: &str, default| fields.get(name).and_then(Value::as_bool).unwrap_or(default);
            let special = flag("special", true);
            let token = AddedToken::from(fields.get("content")?.as_str()?, special);
            Some(
                token
                    .lstrip(flag("lstrip", false))
                    .rstrip(flag("rstrip", false))
                    .single_word(flag("single_word", false))
                    .normalized(flag("normalized", !special)),
            )
        }
        _ => None,
    }
}

/// `added_tokens_decoder`, by id, so that tokens new to tokenizer.json get their ids in that order.
fn config_tokens(config: &Value) -> Vec<AddedToken> {
    let entries =
        config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let by_id: BTreeMap<u32, AddedToken> =
        entries.filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?))).collect();
    by_id.into_values().collect()
}

fn chat_templates(dir: &Path, config: &Value) -> Result<BTreeMap<String, String>> {
    let mut templates = BTreeMap::new();
    let text = |path: &Path| -> Result<Option<String>> {
        let Some(bytes) = read(path)? else { return Ok(None) };
        let not_text = |_| invalid(format!("{} is not UTF-8", path.display()));
        String::from_utf8(bytes).map(Some).map_err(not_text)
    };
    templates.extend(
        text(&dir.join("chat_template.jinja"))?.map(|template| ("default".to_owned(), template)),
    );
    // The directory is optional, and so is each file in it.
    for entry in fs::read_dir(dir.join("additional_chat_templates")).into_iter().flatten().flatten()
    {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "jinja")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            templates.extend(text(&path)?.map(|template| (name.to_owned(), template)));
        }
    }
    if !templates.is_empty() {
        return Ok(templates);
    }
    match config.get("chat_template") {
        None | Some(Value::Null) => {}
        Some(Value::String(template)) => {
            templates.insert("default".to_owned(), template.clone());
        }
        Some(Value::Array(list)) => {
            for entry in list {
                match (
                    entry.get("name").and_then(Value::as_str),
                    entry.get("template").and_then(Value::as_str),
                ) {
                    (Some(name), Some(template)) => {
                        templates.insert(name.to_owned(), template.to_owned())
                    }
                    _ => {
                        return Err(invalid(
                            "tokenizer_config.json: chat_template entries need a name and a template",
                        ));
                    }
                };
            }
        }
        Some(_) => {
            return Err(invalid("tokenizer_config.json: chat_template is neither text nor a list"));
        }
    }
    Ok(templates)
}

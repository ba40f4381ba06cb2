//! The output directory: made or emptied before the weights are written, and given the texts beside them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{CONFIG, QuantizeError};

type Result<T> = std::result::Result<T, QuantizeError>;

/// Files of a model beside its weights and its config. With those of an earlier model the output would have a
/// tokenizer, a chat template or end tokens that are not its own. Other texts may be the user's.
const TEXTS_OF_MODELS: [&str; 12] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

pub(super) fn io(path: &Path, reason: std::io::Error) -> QuantizeError {
    QuantizeError::Io { path: path.into(), reason }
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<()> {
    remove(path)?;
    std::fs::write(path, format!("{value:#}\n")).map_err(|e| io(path, e))
}

/// Removes what a file will be written in place of. A link that is there, to the input for example, must not be written
/// through.
pub(super) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io(path, e)),
        _ => Ok(()),
    }
}

/// Makes the output directory, or empties it of the model that is there.
pub(super) fn prepare(input: &Path, output: &Path, force: bool) -> Result<()> {
    let not_made = |reason| QuantizeError::OutputNotMade { path: output.into(), reason };
    std::fs::create_dir_all(output).map_err(not_made)?;
    let real = |path: &Path| path.canonicalize().map_err(|e| io(path, e));
    let real_output = real(output)?;
    if real(input)? == real_output {
        return Err(QuantizeError::SameDirectory { path: output.into() });
    }
    // Before anything is deleted.
    let inside = |file: &PathBuf| passes_through(file, &real_output);
    if let Some(file) = inputs(input)?.into_iter().find(inside) {
        return Err(QuantizeError::InputInOutput { file, path: output.into() });
    }
    for path in files_in(output)? {
        if !force {
            return Err(QuantizeError::OutputNotEmpty { path: output.into() });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_weights(&name) || name == CONFIG || TEXTS_OF_MODELS.contains(&name.as_str()) {
            std::fs::remove_file(&path).map_err(|e| io(&path, e))?;
        }
    }
    Ok(())
}

/// Whether a path is in a directory, or any of the links behind it is. `dir` is canonical. A link alone counts: the
/// input cannot be read through it when it is deleted.
fn passes_through(path: &Path, dir: &Path) -> bool {
    let mut path = path.to_path_buf();
    // As many links as Linux follows; with more of them no file can be read.
    for _ in 0..=40 {
        let parent = match path.parent() {
            Some(parent) if parent == Path::new("") => Path::new("."),
            Some(parent) => parent,
            None => return false,
        };
        if parent.canonicalize().is_ok_and(|parent| parent == dir) {
            return true;
        }
        let Ok(target) = std::fs::read_link(&path) else { return false };
        path = parent.join(target);
    }
    false
}

/// What is in a directory, by name.
fn files_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).and_then(|entries| {
        entries.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>()
    });
    let mut paths = entries.map_err(|e| io(dir, e))?;
    paths.sort();
    Ok(paths)
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

/// Whether a file is copied: all small text files are but the config.
fn is_text(name: &str) -> bool {
    let text =
        ["json", "jinja", "txt", "model"].iter().any(|ext| name.ends_with(&format!(".{ext}")));
    text && !is_weights(name) && name != CONFIG
}

/// Files of the input that may be read or copied: the GGUF file, or those of a directory.
fn inputs(input: &Path) -> Result<Vec<PathBuf>> {
    if !input.is_dir() {
        return Ok(vec![input.into()]);
    }
    let is_input = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        is_weights(&name) || is_text(&name) || name == CONFIG
    };
    Ok(files_in(input)?.into_iter().filter(is_input).collect())
}

/// Copies tokenizer, chat template and generation config.
pub(super) fn copy_others(input: &Path, output: &Path) -> Result<()> {
    for path in files_in(input)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.is_file() && is_text(name) {
            let to = output.join(name);
            remove(&to)?;
            std::fs::copy(&path, to).map_err(|e| io(&path, e))?;
        }
    }
    Ok(())
}

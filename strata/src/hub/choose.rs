//! Chooses the files of a repository that make a model.

use super::HubError;
use super::spec::{HubId, Pick};

/// File name of weights in one file.
pub(super) const SINGLE: &str = "model.safetensors";
/// File name of the index of weights in several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Further files of a safetensors model, each if the repository has it.
const COMPANIONS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// The files to fetch for a model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// A directory as transformers writes it. The index names the shards, once it is downloaded.
    Safetensors {
        /// config.json, the tokenizer, and the weights or their index.
        files: Vec<String>,
        /// Whether the weights are in several files.
        sharded: bool,
    },
    /// One GGUF file, which holds everything.
    Gguf(String),
}

/// Chooses among the files of a repository. Safetensors win over GGUF, as they are what GGUF files are made from.
pub(super) fn choose(id: &HubId, files: &[&str]) -> Result<Choice, HubError> {
    let has = |name: &str| files.contains(&name);
    if id.pick == Pick::Any && has("config.json") && (has(SINGLE) || has(INDEX)) {
        let weights = if has(SINGLE) { SINGLE } else { INDEX };
        let companions = COMPANIONS.into_iter().filter(|name| has(name));
        let files = companions.chain([weights]).map(String::from).collect();
        return Ok(Choice::Safetensors { files, sharded: weights == INDEX });
    }
    let error = match gguf(files.iter().copied(), &id.pick) {
        Ok(file) => return Ok(Choice::Gguf(file.to_string())),
        Err(candidates) => candidates,
    };
    let repo = id.repo.clone();
    let names = error.join(", ");
    Err(match &id.pick {
        Pick::File(file) => HubError::FileNotFound {
            id: repo,
            revision: id.revision().to_string(),
            file: file.clone(),
        },
        _ if names.is_empty() => HubError::NoWeights { id: repo, files: some_of(files) },
        Pick::Quant(wanted) => {
            HubError::NoSuchQuant { id: repo, wanted: wanted.clone(), files: names }
        }
        Pick::Any => HubError::AmbiguousGguf { id: repo, files: names },
    })
}

/// The GGUF file among `files` that `pick` selects, or else all GGUF files.
pub(super) fn gguf<'a>(
    files: impl Iterator<Item = &'a str>,
    pick: &Pick,
) -> Result<&'a str, Vec<&'a str>> {
    let all: Vec<&str> = files.filter(|name| name.ends_with(".gguf")).collect();
    let selected: Vec<&str> = match pick {
        Pick::Any => all.clone(),
        Pick::Quant(quant) => all.iter().copied().filter(|name| is_quant(name, quant)).collect(),
        Pick::File(file) => all.iter().copied().filter(|name| name == file).collect(),
    };
    match selected[..] {
        [one] => Ok(one),
        _ => Err(all),
    }
}

/// Returns whether a name ends in `.QUANT.gguf` or `-QUANT.gguf`: `Q4_K` must not find `Q4_K_M`, nor `Q4_0` find
/// `IQ4_0`.
fn is_quant(name: &str, quant: &str) -> bool {
    let stem = name.strip_suffix(".gguf").unwrap_or(name).to_ascii_lowercase();
    let before = stem.strip_suffix(&quant.to_ascii_lowercase());
    before.is_some_and(|before| before.is_empty() || before.ends_with(['.', '-', '_', '/']))
}

fn some_of(files: &[&str]) -> String {
    const SHOWN: usize = 8;
    let mut text = files.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match files.len() {
        0 => text.push_str("nothing"),
        n if n > SHOWN => text.push_str(&format!(" and {} more", n - SHOWN)),
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(id: &str, files: &[&str]) -> Result<Choice, HubError> {
        choose(&HubId::parse(id).unwrap(), files)
    }

    #[test]
    fn safetensors_win_and_bring_what_belongs_to_them() {
        let files = [
            "README.md",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "onnx/model.onnx",
            "m.gguf",
        ];
        let Choice::Safetensors { files, sharded: false } = chosen("o/n", &files).unwrap() else {
            panic!()
        };
        assert_eq!(files, ["config.json", "tokenizer.json", "model.safetensors"]);
        let Choice::Safetensors { sharded, .. } = chosen("o/n", &["config.json", INDEX]).unwrap()
        else {
            panic!()
        };
        assert!(sharded);
    }

    #[test]
    fn a_quantisation_is_matched_whole() {
        let files = ["m.Q4_K.gguf", "m.Q4_K_M.gguf", "m-IQ4_0.gguf", "m-q4_0.gguf"];
        assert_eq!(chosen("o/n:Q4_K", &files).unwrap(), Choice::Gguf("m.Q4_K.gguf".into()));
        assert_eq!(chosen("o/n:Q4_0", &files).unwrap(), Choice::Gguf("m-q4_0.gguf".into()));
        assert!(matches!(chosen("o/n:Q8_0", &files), Err(HubError::NoSuchQuant { .. })));
        assert!(matches!(chosen("o/n", &files), Err(HubError::AmbiguousGguf { .. })));
        assert!(matches!(chosen("o/n/x.gguf", &files), Err(HubError::FileNotFound { .. })));
        assert_eq!(chosen("o/n", &files[..1]).unwrap(), Choice::Gguf("m.Q4_K.gguf".into()));
    }

    #[test]
    fn a_repository_without_readable_weights_says_what_it_holds() {
        let error = chosen("o/n", &["config.json", "pytorch_model.bin"]).unwrap_err();
        assert!(
            matches!(&error, HubError::NoWeights { files, .. } if files.contains("pytorch_model.bin")),
            "{error}"
        );
    }
}

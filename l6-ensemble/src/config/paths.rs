//! Paths of the ensemble file, which are relative to its directory.

use std::path::Path;

use super::EnsembleConfig;
use crate::router::ClassifierSource;

impl EnsembleConfig {
    /// Makes the paths of the file relative to `directory`, which has the file, instead of the current directory: the
    /// classifier, models that begin with `./` or `../` or exist there, and draft models and heads. Other models keep
    /// their names.
    pub fn set_directory(&mut self, directory: &Path) {
        if let ClassifierSource::File(path) = &mut self.router.classifier {
            *path = directory.join(&*path);
        }
        for specialist in &mut self.specialists {
            let model = specialist.model.as_str();
            let path = directory.join(model);
            let written_as_path = model.starts_with("./") || model.starts_with("../");
            let exists = !model.is_empty() && path.exists();
            // A name of its own, whatever is in the directory.
            if (written_as_path || exists) && !model.eq_ignore_ascii_case("smollm2") {
                specialist.model = path.display().to_string();
            }
            if let Some(draft) =
                specialist.speculative_config.as_mut().and_then(|s| s.model.as_mut())
            {
                *draft = directory.join(&*draft).display().to_string();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_directory_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        std::fs::create_dir(at("here")).unwrap();
        std::fs::create_dir(at("smollm2")).unwrap();
        let models = ["here", "./gone", "org/name", "smollm2", "/models/x"];
        let mut text = "[router]\nclassifier = \"own.bin\"\n".to_owned();
        for (i, model) in models.iter().enumerate() {
            text += &format!("[[specialist]]\nname = \"s{i}\"\nmodel = \"{model}\"\n");
        }
        text += r#"speculative_config = { method = "eagle", num_speculative_tokens = 3, model = "head" }"#;
        let mut config = EnsembleConfig::parse(&text).unwrap();
        config.set_directory(directory.path());
        let found: Vec<&str> = config.specialists.iter().map(|own| own.model.as_str()).collect();
        assert_eq!(found, [&at("here"), &at("./gone"), "org/name", "smollm2", "/models/x"]);
        assert_eq!(config.router.classifier, ClassifierSource::File(at("own.bin").into()));
        let draft = config.specialists[4].speculative_config.as_ref().unwrap();
        assert_eq!(draft.model.as_deref(), Some(&*at("head")));

        let mut builtin =
            EnsembleConfig::parse("[[specialist]]\nname = \"a\"\nmodel = \"m\"").unwrap();
        builtin.set_directory(directory.path());
        assert_eq!(builtin.router.classifier, ClassifierSource::Builtin);
    }
}

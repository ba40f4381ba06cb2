//! Whether a draft model or head fits the model, before any weights are read.

use std::fmt::Display;
use std::path::Path;

use l2_model::draft_head::{DraftHeadFiles, DraftHeadKind, EagleKind};
use l2_model::tokenizer::Tokenizer;
use l2_model::{ModelConfig, ModelFiles};

use super::{DraftMethod, SpeculationError, SpeculativeConfig};

impl SpeculativeConfig {
    /// Checks the files of [`model`](Self::model) beside config and tokenizer of the model that is drafted for. An
    /// engine makes the same checks when it starts, and reads the weights, too.
    ///
    /// # Errors
    /// [`SpeculationError`]: files that cannot be read, another vocabulary, a head of another model or method.
    pub fn check_files(
        &self,
        target: &ModelConfig,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(), SpeculationError> {
        let Some(path) = self.model.as_deref().map(Path::new) else { return Ok(()) };
        if self.method == DraftMethod::DraftModel {
            let draft = ModelFiles::open(path)
                .map_err(|e| SpeculationError::unreadable_model(path, target, e))?;
            let own = draft.tokenizer().ok();
            return check_vocabulary((draft.config(), own.as_ref()), (target, tokenizer));
        }
        self.open_head(path, target).map(drop)
    }

    /// Opens the files of a head for a model of config `target`, and checks that it is of the configured method and
    /// makes as many drafts as are wanted.
    pub(crate) fn open_head(
        &self,
        path: &Path,
        target: &ModelConfig,
    ) -> Result<DraftHeadFiles, SpeculationError> {
        let files = DraftHeadFiles::open(path, target)
            .map_err(|e| SpeculationError::unreadable_head(path, e))?;
        self.check_head(path, files.kind())?;
        Ok(files)
    }

    /// Checks that a head is of the configured method, and makes as many drafts as are wanted.
    fn check_head(&self, path: &Path, kind: DraftHeadKind) -> Result<(), SpeculationError> {
        let (found, path) = (method_of(kind), path.display());
        if found != self.method {
            let (found, method) = (found.name(), self.method.name());
            return Err(SpeculationError::Head(format!(
                "{path} is of method {found}, and the method is {method}: set method to {found}"
            )));
        }
        let got = self.num_drafts();
        match kind {
            DraftHeadKind::Medusa(most) if got > most => Err(SpeculationError::Head(format!(
                "{path} has a head for each of {most} drafts: set num_speculative_tokens to at most {most}, got {got}"
            ))),
            _ => Ok(()),
        }
    }
}

/// Method of a draft head.
fn method_of(kind: DraftHeadKind) -> DraftMethod {
    match kind {
        DraftHeadKind::Eagle(EagleKind::Eagle1) => DraftMethod::Eagle,
        DraftHeadKind::Eagle(EagleKind::Eagle3) => DraftMethod::Eagle3,
        DraftHeadKind::Medusa(_) => DraftMethod::Medusa,
    }
}

impl SpeculationError {
    /// A draft head that cannot be read.
    pub(crate) fn unreadable_head(path: &Path, e: impl Display) -> Self {
        Self::unreadable(path, "the path of a directory", e)
    }

    /// A draft model or head that cannot be read. The error names the field, since the model itself has a path, too.
    fn unreadable(path: &Path, expected: &str, e: impl Display) -> Self {
        if path.exists() {
            return Self::Model(e.to_string());
        }
        let path = path.display();
        Self::Model(format!(
            "{path} does not exist here: give {expected} (`strata fetch` downloads a repository of the hub and prints \
             its path)"
        ))
    }

    /// A draft model that cannot be read for a target of this config.
    pub(crate) fn unreadable_model(path: &Path, target: &ModelConfig, e: impl Display) -> Self {
        match DraftHeadFiles::open(path, target) {
            Ok(files) => Self::Head(format!(
                "{} is a draft head, and the method is draft_model: set method to {}",
                path.display(),
                method_of(files.kind()).name()
            )),
            Err(_) => Self::unreadable(path, "the path of a directory or of a .gguf file", e),
        }
    }
}

/// Checks that a draft model has the vocabulary of the model whose tokens it drafts: config and tokenizer of both. A
/// model without a tokenizer has no text of tokens to compare.
///
/// # Errors
/// [`SpeculationError::DraftModel`].
pub(crate) fn check_vocabulary(
    draft: (&ModelConfig, Option<&Tokenizer>),
    target: (&ModelConfig, Option<&Tokenizer>),
) -> Result<(), SpeculationError> {
    let differ = |why: String| {
        let why = format!("{why}; use a smaller model of the same family, with the same tokenizer");
        Err(SpeculationError::DraftModel(why))
    };
    let (own, vocab) = (draft.0.vocab, target.0.vocab);
    if own != vocab {
        return differ(format!("it has {own} tokens, and the model has {vocab}"));
    }
    if let (Some(own), Some(other)) = (draft.1, target.1) {
        let differs = |id: &u32| own.token_bytes(*id).ok() != other.token_bytes(*id).ok();
        if let Some(id) = (0..vocab as u32).find(differs) {
            return differ(format!("token {id} is not the same text in both models"));
        }
    }
    Ok(())
}

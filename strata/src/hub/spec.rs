//! Parses the value of `--model`: an alias, a path, or a hub id.

use std::fmt;
use std::path::{Path, PathBuf};

use super::HubError;

/// Parsed name of a model. Only the existence of a path was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    /// `smollm2`, the default model.
    SmolLm2,
    /// A path on this disk.
    Local(PathBuf),
    /// A model on the hub.
    Hub(HubId),
}

/// A model on the hub: `org/name`, then perhaps `:QUANT` or `/FILE`, then perhaps `@REVISION`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`.
    pub repo: String,
    /// Branch, tag or commit; `None` is the branch `main`.
    pub revision: Option<String>,
    /// Selection among the repository's weights.
    pub pick: Pick,
}

/// Selection among the weights of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pick {
    /// The safetensors, or else the only GGUF file.
    Any,
    /// The GGUF file whose name ends in this quantisation, such as `Q4_1`; case does not matter.
    Quant(String),
    /// This GGUF file, by its path in the repository.
    File(String),
}

impl Spec {
    /// Parses the value of `--model`.
    ///
    /// A path that exists takes precedence over a hub id of the same spelling, as in every Hugging Face tool; the alias
    /// takes precedence over both, so that files of the current directory cannot change the default.
    ///
    /// # Errors
    /// [`HubError::PathNotFound`] for a path that does not exist, [`HubError::InvalidHubId`],
    /// [`HubError::UnknownModel`] for any other value.
    pub fn parse(spec: &str) -> Result<Self, HubError> {
        if spec.eq_ignore_ascii_case("smollm2") {
            return Ok(Spec::SmolLm2);
        }
        let path = Path::new(spec);
        if !spec.is_empty() && path.exists() {
            return Ok(Spec::Local(path.to_path_buf()));
        }
        if written_like_a_path(spec) {
            return Err(HubError::PathNotFound { path: path.to_path_buf() });
        }
        if !spec.contains('/') {
            return Err(HubError::UnknownModel { spec: spec.to_string() });
        }
        HubId::parse(spec).map(Spec::Hub)
    }
}

/// Returns whether a name cannot be a hub id.
fn written_like_a_path(spec: &str) -> bool {
    let drive = spec.as_bytes().get(1) == Some(&b':') && spec.as_bytes()[0].is_ascii_alphabetic();
    // `org/name/file.gguf` may be a file on the hub; with fewer parts it is a missing file.
    let missing_file = spec.ends_with(".gguf") && spec.matches('/').count() < 2;
    spec.starts_with(['/', '.', '~'])
        || spec.ends_with('/')
        || spec.contains('\\')
        || drive
        || missing_file
}

impl HubId {
    /// Parses a hub id.
    ///
    /// # Errors
    /// [`HubError::InvalidHubId`] naming the part that is wrong.
    pub fn parse(spec: &str) -> Result<Self, HubError> {
        let invalid = |reason| HubError::InvalidHubId { spec: spec.to_string(), reason };
        let (left, revision) = match spec.split_once('@') {
            Some((left, revision)) if safe_path(revision) => (left, Some(revision.to_string())),
            Some(_) => {
                return Err(invalid("the revision after the @ is empty or has odd characters"));
            }
            None => (spec, None),
        };
        let mut parts = left.splitn(3, '/');
        let (org, name, file) =
            (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next());
        let (name, quant) = match name.split_once(':') {
            Some((name, quant)) => (name, Some(quant)),
            None => (name, None),
        };
        if !safe_name(org) || !safe_name(name) {
            return Err(invalid(
                "an organisation and a name are letters, digits, `-`, `_` and `.`",
            ));
        }
        let pick = match (quant, file) {
            (None, None) => Pick::Any,
            (Some(quant), None) if safe_name(quant) => Pick::Quant(quant.to_string()),
            (None, Some(file)) if file.ends_with(".gguf") && safe_path(file) => {
                Pick::File(file.to_string())
            }
            (_, Some(_)) => {
                return Err(invalid("the part after org/name is not the path of a .gguf file"));
            }
            (Some(_), None) => {
                return Err(invalid("the quantisation after the : is empty or has odd characters"));
            }
        };
        Ok(HubId { repo: format!("{org}/{name}"), revision, pick })
    }

    /// The revision to ask for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        match &self.pick {
            Pick::Any => {}
            Pick::Quant(quant) => write!(f, ":{quant}")?,
            Pick::File(file) => write!(f, "/{file}")?,
        }
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

/// Returns whether a component is valid in an address and in a directory's name.
pub(super) fn safe_name(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !part.is_empty() && part.len() <= 255 && !part.starts_with('.') && part.bytes().all(plain)
}

/// A relative path of such components. Names of a server must not leave a directory.
pub(super) fn safe_path(path: &str) -> bool {
    path.split('/').all(safe_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(spec: &str) -> (String, Option<String>, Pick) {
        let id = HubId::parse(spec).unwrap();
        assert_eq!(id.to_string(), spec, "an id prints as it was written");
        (id.repo, id.revision, id.pick)
    }

    #[test]
    fn hub_ids_take_a_revision_a_quantisation_and_a_file() {
        let repo = || "org/na.me-1".to_string();
        assert_eq!(hub("org/na.me-1"), (repo(), None, Pick::Any));
        assert_eq!(hub("org/na.me-1@v1"), (repo(), Some("v1".into()), Pick::Any));
        assert_eq!(hub("org/na.me-1:Q4_1"), (repo(), None, Pick::Quant("Q4_1".into())));
        assert_eq!(
            hub("org/na.me-1/sub/a.Q8_0.gguf@refs/pr/3"),
            (repo(), Some("refs/pr/3".into()), Pick::File("sub/a.Q8_0.gguf".into()))
        );
    }

    #[test]
    fn ids_that_could_leave_their_directory_or_address_are_refused() {
        for bad in [
            "org/../x.gguf",
            "org/name@../../x",
            "org/name@",
            "org/na me",
            "org/",
            "org/n:",
            "org/n/README.md",
            "a/b?c=d",
            "a/b/../c.gguf",
        ] {
            assert!(matches!(HubId::parse(bad), Err(HubError::InvalidHubId { .. })), "{bad}");
        }
    }

    #[test]
    fn the_error_of_a_missing_path_says_so() {
        for path in [
            "/nowhere/model",
            "./model",
            "../m",
            "~/m",
            "model.gguf",
            "sub/model.gguf",
            "a\\b",
            "C:/m",
            "models/x/",
        ] {
            assert!(matches!(Spec::parse(path), Err(HubError::PathNotFound { .. })), "{path}");
        }
    }

    #[test]
    fn the_error_of_an_unknown_name_lists_what_is_accepted() {
        for name in ["gpt2", "", "smol lm"] {
            let error = Spec::parse(name).unwrap_err();
            assert!(matches!(error, HubError::UnknownModel { .. }), "{name}");
            let text = error.to_string();
            assert!(
                text.contains("smollm2") && text.contains("org/name") && text.contains(".gguf"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_alias_is_known_in_any_case() {
        assert_eq!(Spec::parse("SmolLM2").unwrap(), Spec::SmolLm2);
    }
}

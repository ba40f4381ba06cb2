//! Options of the hub: the environment, read once.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HubError;

/// Directories, addresses and limits that [`resolve`](super::resolve) and [`fetch`](super::fetch) work with.
///
/// Environment variables belong to the whole process, so they are read in one place, [`Options::from_env`], and
/// passed on as a value. Tests build their own and never touch the environment.
#[derive(Clone)]
pub struct Options {
    /// Strata's own cache, where the default model goes: `STRATA_CACHE`, else the platform's cache directory. `None`:
    /// the user has no home. See [`Options::cache_dir`].
    pub cache_dir: Option<PathBuf>,
    /// The hub cache shared with every other Hugging Face tool: `HF_HUB_CACHE`, else `$HF_HOME/hub`. `None`: the user
    /// has no home. See [`Options::hf_cache`].
    pub hf_cache: Option<PathBuf>,
    /// The hub's address without a trailing slash: `HF_ENDPOINT`, else the public hub.
    pub endpoint: String,
    /// Sent as `Authorization: Bearer`: `HF_TOKEN`, else the file that `hf auth login` writes.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: use the cache only, download nothing.
    pub offline: bool,
    /// Whether to print nothing to stderr.
    pub quiet: bool,
    /// Maximum time to resolve a name, and to open a connection.
    pub connect_timeout: Duration,
    /// Maximum time until a response begins, and between two parts of it.
    pub read_timeout: Duration,
    /// Python interpreters, tried in order, whose pip is the last source of the default model (`-I -m pip`).
    pub python: Vec<String>,
}

impl Options {
    /// Reads the environment of this process.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Reads an environment given as a function from a variable's name to its value. Empty values count as unset.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Self {
        Self::with_home(get, std::env::home_dir())
    }

    /// As [`Options::from_vars`], with the home that the system reports if no variable names one.
    fn with_home(get: impl Fn(&str) -> Option<String>, home: Option<PathBuf>) -> Self {
        let var = |name: &str| get(name).filter(|v| !v.trim().is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        // Without a home there is no cache: all users can put models into a directory for temporary files.
        let home = path(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).or(home);
        let below_home = |dir: &str| home.as_ref().map(|home| home.join(dir));
        // The XDG rules say that a relative path here is to be ignored.
        let xdg_cache = path("XDG_CACHE_HOME").filter(|p| p.is_absolute());

        let cache_dir = path("STRATA_CACHE").or_else(|| {
            let caches = if cfg!(target_os = "macos") {
                below_home("Library/Caches")
            } else if cfg!(windows) {
                path("LOCALAPPDATA").or_else(|| below_home("AppData/Local"))
            } else {
                xdg_cache.clone().or_else(|| below_home(".cache"))
            };
            Some(caches?.join("strata"))
        });
        // Hugging Face tools use ~/.cache on every platform.
        let hf_home = path("HF_HOME").or_else(|| {
            let caches = xdg_cache.or_else(|| below_home(".cache"))?;
            Some(caches.join("huggingface"))
        });
        let below_hf_home = |name: &str| hf_home.as_ref().map(|dir| dir.join(name));
        let token_file = path("HF_TOKEN_PATH").or_else(|| below_hf_home("token"));
        let token = var("HF_TOKEN")
            .or_else(|| fs::read_to_string(token_file?).ok())
            .map(|t| t.trim().to_string())
            .filter(|t| !t.is_empty());
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string());
        let offline = var("HF_HUB_OFFLINE").is_some_and(|v| {
            matches!(v.trim().to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true")
        });

        Options {
            cache_dir,
            hf_cache: path("HF_HUB_CACHE").or_else(|| below_hf_home("hub")),
            endpoint: endpoint.trim().trim_end_matches('/').to_string(),
            token,
            offline,
            quiet: false,
            connect_timeout: Duration::from_secs(4),
            read_timeout: Duration::from_secs(20),
            python: ["python3", "python"].map(String::from).to_vec(),
        }
    }

    /// Strata's own cache, to which other users cannot write.
    ///
    /// # Errors
    /// [`HubError::NoCache`], [`HubError::WorldWritableCache`].
    pub fn cache_dir(&self) -> Result<&Path, HubError> {
        own(self.cache_dir.as_deref(), "STRATA_CACHE")
    }

    /// The hub cache, to which other users cannot write.
    ///
    /// # Errors
    /// [`HubError::NoCache`], [`HubError::WorldWritableCache`].
    pub fn hf_cache(&self) -> Result<&Path, HubError> {
        own(self.hf_cache.as_deref(), "HF_HOME")
    }
}

/// Checks that there is a cache, or can be one, and that other users cannot write to it. `variable` names another one.
fn own<'a>(dir: Option<&'a Path>, variable: &'static str) -> Result<&'a Path, HubError> {
    let dir = dir.ok_or(HubError::NoCache { variable })?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        const OTHERS_WRITE: u32 = 0o002;
        // A missing cache is created with the permissions of this user.
        if fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & OTHERS_WRITE != 0) {
            return Err(HubError::WorldWritableCache { dir: dir.to_path_buf(), variable });
        }
    }
    Ok(dir)
}

/// A token is a password: it is never printed.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("cache_dir", &self.cache_dir)
            .field("hf_cache", &self.hf_cache)
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(vars: &[(&str, &str)]) -> Options {
        Options::from_vars(|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    #[cfg(all(unix, not(target_os = "macos")))]
    fn caches_follow_the_most_specific_variable() {
        let home = ("HOME", "/home/ada");
        let o = options(&[home]);
        assert_eq!(o.cache_dir().unwrap(), Path::new("/home/ada/.cache/strata"));
        assert_eq!(o.hf_cache().unwrap(), Path::new("/home/ada/.cache/huggingface/hub"));

        let o = options(&[home, ("XDG_CACHE_HOME", "/xdg")]);
        assert_eq!(o.cache_dir().unwrap(), Path::new("/xdg/strata"));
        assert_eq!(o.hf_cache().unwrap(), Path::new("/xdg/huggingface/hub"));

        let o = options(&[
            home,
            ("XDG_CACHE_HOME", "/xdg"),
            ("STRATA_CACHE", "/s"),
            ("HF_HOME", "/hf"),
        ]);
        assert_eq!(o.cache_dir().unwrap(), Path::new("/s"));
        assert_eq!(o.hf_cache().unwrap(), Path::new("/hf/hub"));
        let o = options(&[home, ("HF_HUB_CACHE", "/c"), ("HF_HOME", "/hf")]);
        assert_eq!(o.hf_cache().unwrap(), Path::new("/c"));
    }

    #[test]
    fn without_a_home_there_is_no_cache_and_the_error_names_the_variable() {
        let o = Options::with_home(|_| None, None);
        for (result, variable) in [(o.cache_dir(), "STRATA_CACHE"), (o.hf_cache(), "HF_HOME")] {
            let error = result.unwrap_err();
            assert!(matches!(error, HubError::NoCache { .. }), "{error}");
            assert!(error.to_string().contains(variable), "{error}");
        }
        let given = |name: &str| (name == "STRATA_CACHE").then(|| "/s".to_owned());
        assert_eq!(Options::with_home(given, None).cache_dir().unwrap(), Path::new("/s"));
    }

    #[test]
    #[cfg(unix)]
    fn a_cache_in_which_every_user_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let o = options(&[("STRATA_CACHE", dir.path().to_str().unwrap())]);
        for mode in [0o777, 0o1777] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = o.cache_dir().unwrap_err();
            assert!(matches!(error, HubError::WorldWritableCache { .. }), "{error}");
            assert!(error.to_string().contains("chmod o-w"), "{error}");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o775)).unwrap();
        assert_eq!(o.cache_dir().unwrap(), dir.path());
    }

    #[test]
    fn an_endpoint_loses_its_trailing_slash() {
        assert_eq!(
            options(&[("HF_ENDPOINT", "http://mirror.test:8080/")]).endpoint,
            "http://mirror.test:8080"
        );
        assert_eq!(options(&[("HF_ENDPOINT", "")]).endpoint, "https://huggingface.co");
    }

    #[test]
    fn the_token_comes_from_the_variable_else_from_the_login_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let home = dir.path().to_str().unwrap();
        assert_eq!(options(&[("HF_HOME", home)]).token.as_deref(), Some("hf_file"));
        assert_eq!(
            options(&[("HF_HOME", home), ("HF_TOKEN", " hf_env ")]).token.as_deref(),
            Some("hf_env")
        );
    }

    #[test]
    fn debug_output_hides_the_token() {
        let shown = format!("{:?}", options(&[("HF_TOKEN", "hf_secret")]));
        assert!(shown.contains("(set)") && !shown.contains("hf_secret"), "{shown}");
    }
}

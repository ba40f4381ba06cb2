//! Where to look and whom to ask: the environment, read once, as a value.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Directories, addresses and limits that [`resolve`](super::resolve) and [`fetch`](super::fetch) work with.
///
/// Environment variables belong to the whole process, so they are read in one place, [`Options::from_env`], and
/// passed on as a value. Tests build their own and never touch the environment.
#[derive(Clone)]
pub struct Options {
    /// Strata's own cache, where the default model goes: `STRATA_CACHE`, else the platform's cache directory.
    pub cache_dir: PathBuf,
    /// The hub cache shared with every other Hugging Face tool: `HF_HUB_CACHE`, else `$HF_HOME/hub`.
    pub hf_cache: PathBuf,
    /// The hub's address without a trailing slash: `HF_ENDPOINT`, else the public hub.
    pub endpoint: String,
    /// Sent as `Authorization: Bearer`: `HF_TOKEN`, else the file that `hf auth login` writes.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: use what is here, fetch nothing.
    pub offline: bool,
    /// Say nothing on stderr.
    pub quiet: bool,
    /// Longest wait for a name to resolve and for a connection to stand (each).
    pub connect_timeout: Duration,
    /// Longest wait for an answer to begin, and longest silence in the middle of one.
    pub read_timeout: Duration,
    /// Python interpreters to try, in order, as the way of last resort to the default model (through `-I -m pip`).
    pub python: Vec<String>,
}

impl Options {
    /// Reads the environment of this process.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Reads an environment given as a function from a variable's name to its value. Empty values count as unset.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| get(name).filter(|v| !v.trim().is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        // Without any home there is still a place that can be written; files are checked by hash wherever they lie.
        let home = path(if cfg!(windows) { "USERPROFILE" } else { "HOME" })
            .or_else(std::env::home_dir)
            .unwrap_or_else(std::env::temp_dir);
        // The XDG rules say that a relative path here is to be ignored.
        let xdg_cache = path("XDG_CACHE_HOME").filter(|p| p.is_absolute());

        let cache_dir = path("STRATA_CACHE").unwrap_or_else(|| {
            if cfg!(target_os = "macos") {
                home.join("Library/Caches/strata")
            } else if cfg!(windows) {
                path("LOCALAPPDATA").unwrap_or_else(|| home.join("AppData/Local")).join("strata")
            } else {
                xdg_cache.clone().unwrap_or_else(|| home.join(".cache")).join("strata")
            }
        });
        // Hugging Face tools use ~/.cache on every platform.
        let hf_home = path("HF_HOME").unwrap_or_else(|| {
            xdg_cache.unwrap_or_else(|| home.join(".cache")).join("huggingface")
        });
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let token = var("HF_TOKEN")
            .or_else(|| fs::read_to_string(token_file).ok())
            .map(|t| t.trim().to_string())
            .filter(|t| !t.is_empty());
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string());
        let offline = var("HF_HUB_OFFLINE").is_some_and(|v| {
            matches!(v.trim().to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true")
        });

        Options {
            cache_dir,
            hf_cache: path("HF_HUB_CACHE").unwrap_or_else(|| hf_home.join("hub")),
            endpoint: endpoint.trim().trim_end_matches('/').to_string(),
            token,
            offline,
            quiet: false,
            connect_timeout: Duration::from_secs(4),
            read_timeout: Duration::from_secs(20),
            python: ["python3", "python"].map(String::from).to_vec(),
        }
    }
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
        assert_eq!(o.cache_dir, PathBuf::from("/home/ada/.cache/strata"));
        assert_eq!(o.hf_cache, PathBuf::from("/home/ada/.cache/huggingface/hub"));

        let o = options(&[home, ("XDG_CACHE_HOME", "/xdg")]);
        assert_eq!(o.cache_dir, PathBuf::from("/xdg/strata"));
        assert_eq!(o.hf_cache, PathBuf::from("/xdg/huggingface/hub"));

        let o = options(&[
            home,
            ("XDG_CACHE_HOME", "/xdg"),
            ("STRATA_CACHE", "/s"),
            ("HF_HOME", "/hf"),
        ]);
        assert_eq!(o.cache_dir, PathBuf::from("/s"));
        assert_eq!(o.hf_cache, PathBuf::from("/hf/hub"));
        assert_eq!(
            options(&[home, ("HF_HUB_CACHE", "/c"), ("HF_HOME", "/hf")]).hf_cache,
            PathBuf::from("/c")
        );
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

//! Replicas of a specialist that are servers on other machines: `remotes` of the ensemble file.

use toml::Table;

use super::ConfigError;
use super::reader::Reader;

/// Maximum number of remote replicas of a specialist.
pub(super) const MAX_REMOTES: usize = 64;

/// Maximum number of requests that one of them gets at once.
const MAX_SEATS: usize = 1 << 16;

/// Requests that a remote replica gets at once, unless the file says otherwise.
const DEFAULT_SEATS: usize = 16;

/// Seconds that a remote replica may be silent, unless the file says otherwise.
const DEFAULT_TIMEOUT_SECONDS: f64 = 120.0;

/// Fields of a remote replica.
const FIELDS: [&str; 6] = ["url", "api", "model", "api_key_env", "max_num_seqs", "timeout_seconds"];

/// API of a remote replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteApi {
    /// OpenAI's completions with token ids: vLLM and `strata`.
    #[default]
    OpenAi,
    /// `POST /completion` of llama.cpp's llama-server.
    LlamaServer,
}

impl RemoteApi {
    const ALL: [Self; 2] = [Self::OpenAi, Self::LlamaServer];

    /// Name in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::LlamaServer => "llama-server",
        }
    }
}

impl std::str::FromStr for RemoteApi {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|api| api.as_str() == s);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("must be one of {names}, got `{s}`")
        })
    }
}

/// A replica that is a server on another machine: vLLM, another `strata`, or llama-server.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteConfig {
    /// Base URL of its API without a slash at the end, as in `http://host:8000/v1`.
    pub url: String,
    /// What it speaks.
    pub api: RemoteApi,
    /// Name of the model there.
    pub model: String,
    /// Name of the environment variable that has its API key. The key itself is never in the file.
    pub api_key_env: Option<String>,
    /// Maximum number of requests that it gets at once.
    pub max_num_seqs: usize,
    /// Maximum number of seconds before the first byte of a response, and between two parts of it.
    pub timeout_seconds: f64,
}

/// Reads the remote replicas of a specialist, whose reader this is.
pub(super) fn read_all(reader: &mut Reader<'_>) -> Vec<RemoteConfig> {
    let tables = reader.tables("remotes").unwrap_or_default();
    if tables.len() > MAX_REMOTES {
        reader.error("remotes", format_args!("has more than {MAX_REMOTES} entries"));
    }
    let mut remotes: Vec<RemoteConfig> = Vec::new();
    for (at, table) in tables.into_iter().take(MAX_REMOTES).enumerate() {
        let path = reader.path(&format!("remotes[{at}]"));
        let remote = read(path.clone(), table, reader.errors());
        let same = |own: &&RemoteConfig| (&own.url, &own.model) == (&remote.url, &remote.model);
        if !remote.url.is_empty() && remotes.iter().any(|own| same(&own)) {
            let what =
                "has url and model of an earlier entry: raise its `max_num_seqs` instead".into();
            reader.errors().push(ConfigError { path, what });
        }
        remotes.push(remote);
    }
    remotes
}

fn read(path: String, table: Table, errors: &mut Vec<ConfigError>) -> RemoteConfig {
    let mut reader = Reader::new(path, table, errors);
    let url = reader.required_string("url");
    if let Err(why) = check_url(&url)
        && !url.is_empty()
    {
        reader.error("url", format_args!("{why}, as in http://host:8000/v1"));
    }
    let api_key_env = reader.string("api_key_env");
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if api_key_env.as_ref().is_some_and(|name| name.is_empty() || !name.chars().all(valid)) {
        let what = "must be the name of an environment variable, of A-Z, a-z, 0-9 and _: the key itself \
                    is never in this file";
        reader.error("api_key_env", what);
    }
    let remote = RemoteConfig {
        url: url.trim_end_matches('/').to_owned(),
        api: reader.parsed("api").unwrap_or_default(),
        model: reader.required_string("model"),
        api_key_env,
        max_num_seqs: reader.count("max_num_seqs", 1, MAX_SEATS).unwrap_or(DEFAULT_SEATS),
        timeout_seconds: reader
            .number("timeout_seconds", 0.1, 3600.0)
            .unwrap_or(DEFAULT_TIMEOUT_SECONDS),
    };
    reader.end(&FIELDS);
    remote
}

/// Checks the syntax of a base URL.
fn check_url(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let Some(rest) = rest else { return Err("must begin with http:// or https://") };
    if !url.chars().all(|c| c.is_ascii_graphic()) || url.contains(['"', '<', '>', '\\', '^', '`']) {
        return Err("must have printable ASCII characters of URLs only");
    }
    if rest.contains(['?', '#']) {
        return Err("must have no query and no fragment");
    }
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err("must have no user and no password: give `api_key_env`");
    }
    // The port follows the last colon; an IPv6 address has colons of its own, in brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let brackets = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    if host.is_empty() || (host.contains([':', '[', ']']) && !brackets) {
        return Err("must have a host");
    }
    if port.is_some_and(|port| port.parse::<u16>().map_or(true, |port| port == 0)) {
        return Err("must have a port from 1 to 65535");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_scheme_host_and_port_and_no_secrets() {
        for good in [
            "http://host:8000/v1",
            "https://api.example.com/openai/v1",
            "http://127.0.0.1:1",
            "http://[::1]:8000/v1",
            "http://[::1]",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for (bad, part) in [
            ("host:8000", "begin with"),
            ("ftp://host", "begin with"),
            ("http://", "host"),
            ("http://:80", "host"),
            ("http:///v1", "host"),
            ("http://[]:1", "host"),
            ("http://a:b:1", "host"),
            ("http://host:0", "port"),
            ("http://host:65536/v1", "port"),
            ("http://host:/v1", "port"),
            ("http://me:secret@host/v1", "api_key_env"),
            ("http://host/v1?x=1", "query"),
            ("http://ho st/v1", "printable"),
            ("http://host/v1\r\nx: y", "printable"),
        ] {
            let why = check_url(bad).expect_err(bad);
            assert!(why.contains(part), "{bad}: {why}");
        }
    }
}

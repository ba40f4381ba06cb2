//! LMCache's settings: which of them are flags of this server, and what becomes of the others.
//!
//! They are read for vLLM's connector `LMCacheConnectorV1` only, as LMCache itself is. A setting has one name in three
//! places: `chunk_size` in the YAML of `LMCACHE_CONFIG_FILE`, `LMCACHE_CHUNK_SIZE` in the environment, and
//! `lmcache.chunk_size` in `kv_connector_extra_config`. (Names, defaults and units: LMCache's `lmcache/v1/config.py` and
//! its page "Configuring LMCache". A size is a number of GB of 2^30 bytes.)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::kv_transfer::Flag;
use super::layers::{Layers, Source};
use crate::cli::error::CliError;

/// Prefix of LMCache's variables.
const PREFIX: &str = "LMCACHE_";

/// The variable that names a file with all settings.
const FILE: &str = "LMCACHE_CONFIG_FILE";

/// LMCache's size of the host's memory, in GB.
const DEFAULT_CPU_GB: &str = "5.0";

/// Bytes of LMCache's GB.
const GB: f64 = (1u64 << 30) as f64;

/// Settings that change nothing here, and why. They are reported.
const NO_EFFECT: [(&str, &str); 12] = [
    ("blocking_timeout_secs", "an operation of a tier has 2 seconds"),
    ("enable_async_loading", "no step waits for a load"),
    ("lmcache_instance_id", "chunks have no owner"),
    ("log_level", "use RUST_LOG"),
    ("lookup_timeout_ms", "a lookup has 0.1 seconds"),
    ("numa_mode", "memory is not bound to nodes"),
    ("pre_caching_hash_algorithm", "hashes are sha256_cbor"),
    ("py_enable_gc", "there is no Python"),
    ("save_decode_cache", "chunks of outputs are stored as those of prompts are"),
    ("track_usage", "usage is not reported"),
    ("use_experimental", "there is one version"),
    ("use_layerwise", "chunks are loaded between steps, with all layers"),
];

/// Settings that can only have one value here: name, value, what another one would mean.
const ONLY: [(&str, &str, &str); 10] = [
    ("cache_policy", "lru", "another order of eviction"),
    ("enable_blending", "false", "reuse of text that is not a prefix"),
    ("enable_controller", "false", "a controller of several engines"),
    ("enable_nixl", "false", "transfers between servers"),
    ("enable_p2p", "false", "chunks of other engines' memories; use --kv-tier-redis"),
    ("enable_pd", "false", "prefill and decode on different servers"),
    ("enable_xpyd", "false", "prefill and decode on different servers"),
    ("local_cpu_use_hugepages", "false", "memory in huge pages"),
    ("remote_serde", "naive", "chunks that are compressed with loss"),
    ("save_unfull_chunk", "false", "chunks that are not full"),
];

/// A setting of LMCache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as in the YAML file.
    name: String,
    value: String,
    source: Source,
}

impl Setting {
    /// The setting as its source writes it.
    fn shown(&self) -> String {
        match &self.source {
            Source::Environment(variable) => variable.clone(),
            Source::File(path) => format!("{}: {}", path.display(), self.name),
            _ => format!("kv_connector_extra_config.lmcache.{}", self.name),
        }
    }

    fn error(&self, what: &str) -> CliError {
        CliError::Usage(format!("{}={}: {what}", self.shown(), self.value_without_password()))
    }

    /// The value; of a URL without its user and password, which have no place on a screen.
    fn value_without_password(&self) -> String {
        let url = self.value.split_once("://");
        match url.and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
            Some((scheme, host)) => format!("{scheme}://***@{host}"),
            None => self.value.clone(),
        }
    }

    fn is_true(&self) -> Result<bool, CliError> {
        match self.value.to_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(self.error("use true or false")),
        }
    }

    /// A size in bytes.
    fn bytes(&self) -> Result<u64, CliError> {
        let gb = self.value.parse().ok().filter(|gb: &f64| (0.0..1e9).contains(gb));
        let gb = gb.ok_or_else(|| self.error("use a number of GB, such as 5.0"))?;
        Ok((gb * GB) as u64)
    }

    fn flag(&self, id: &'static str, value: String) -> Flag {
        Flag { id, value, source: self.source.clone(), name: self.shown() }
    }
}

/// LMCache's variables that are set.
pub fn variables(environment: impl IntoIterator<Item = (String, String)>) -> Vec<Setting> {
    let of_lmcache = environment.into_iter().filter_map(|(variable, value)| {
        let name = variable.strip_prefix(PREFIX)?.to_lowercase();
        Some(Setting { name, value, source: Source::Environment(variable) })
    });
    let mut all: Vec<_> = of_lmcache.filter(|setting| !setting.value.is_empty()).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Warnings about variables where the connector is not LMCache's: they have no effect there.
pub fn without_connector(variables: &[Setting]) -> Vec<String> {
    let warning = |setting: &Setting| {
        let flag = match setting.name.as_str() {
            "chunk_size" => "--kv-tier-chunk",
            "local_cpu" | "max_local_cpu_size" => "--kv-tier-dram",
            "local_disk" => "--kv-tier-disk",
            "max_local_disk_size" => "--kv-tier-disk-size",
            "remote_url" => "--kv-tier-redis",
            _ => "the --kv-tier flags",
        };
        format!(
            "{} has no effect without --kv-transfer-config '{{\"kv_connector\": \"LMCacheConnectorV1\", \"kv_role\": \
             \"kv_both\"}}': give that, or use {flag}",
            setting.shown()
        )
    };
    variables.iter().map(warning).collect()
}

/// Settings in `kv_connector_extra_config`.
///
/// # Errors
/// A key that is none.
pub fn settings_of(extra: Map<String, Value>) -> Result<Vec<Setting>, String> {
    let setting = |(key, value): (String, Value)| {
        let name = key.strip_prefix("lmcache.").ok_or_else(|| {
            format!("`kv_connector_extra_config.{key}` has no counterpart here: leave it out")
        })?;
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Ok(Setting { name: name.to_owned(), value, source: Source::KvTransferConfig })
    };
    extra.into_iter().map(setting).collect()
}

/// The flags that LMCache's settings ask for, and warnings. `layers` has the server's own flags.
///
/// # Errors
/// [`CliError::Usage`]: a setting that has no counterpart, an invalid value, or a contradiction.
pub fn flags(
    layers: &Layers,
    of_json: Vec<Setting>,
    variables: Vec<Setting>,
) -> Result<(Vec<Flag>, Vec<String>), CliError> {
    let mut warnings = Vec::new();
    let mut settings: BTreeMap<String, Setting> = BTreeMap::new();
    for setting in of_json.into_iter().chain(with_file(variables)?) {
        if let Some(other) = settings.get(&setting.name) {
            let what = format!("{} and {} set the same: keep one", other.shown(), setting.shown());
            return Err(CliError::Usage(what));
        }
        settings.insert(setting.name.clone(), setting);
    }
    let mut take = |name: &str| settings.remove(name);
    let mut flags = Vec::new();
    if let Some(chunk) = take("chunk_size") {
        flags.push(chunk.flag("kv_tier_chunk", chunk.value.clone()));
    }
    let (local, size) = (take("local_cpu"), take("max_local_cpu_size"));
    let default = Setting {
        name: "max_local_cpu_size".into(),
        value: DEFAULT_CPU_GB.into(),
        source: Source::KvTransferConfig,
    };
    match (local.as_ref().map_or(Ok(true), Setting::is_true)?, size) {
        (true, Some(size)) => flags.push(size.flag("kv_tier_dram", size.bytes()?.to_string())),
        (true, None) => {
            let flag = default.flag("kv_tier_dram", default.bytes()?.to_string());
            flags.push(Flag { name: String::new(), ..flag });
        }
        // LMCache moves all chunks through this memory; a tier here has a queue of its own.
        (false, Some(size)) => {
            warnings.push(format!("{} has no effect: local_cpu is false", size.shown()));
        }
        (false, None) => {}
    }
    match (take("local_disk"), take("max_local_disk_size")) {
        (Some(disk), size) => {
            let path = disk.value.strip_prefix("file://").unwrap_or(&disk.value);
            if path.is_empty() || path.contains(',') {
                return Err(disk.error("use one directory, such as file:///var/cache/kv/"));
            }
            let path = if path == "/" { path } else { path.trim_end_matches('/') };
            flags.push(disk.flag("kv_tier_disk", path.to_owned()));
            let bytes = size.as_ref().map_or(Ok(0), Setting::bytes)?;
            match size.filter(|_| bytes > 0) {
                Some(size) => flags.push(size.flag("kv_tier_disk_size", bytes.to_string())),
                None if layers.get("kv_tier_disk_size").is_some() => {}
                None => {
                    return Err(disk.error(
                        "LMCache's default of max_local_disk_size is 0: set it, or --kv-tier-disk-size",
                    ));
                }
            }
        }
        (None, Some(size)) => {
            warnings.push(format!("{} has no effect: local_disk is not set", size.shown()));
        }
        (None, None) => {}
    }
    if let Some(url) = take("remote_url") {
        flags.push(url.flag("kv_tier_redis", redis(&url)?));
    }
    for setting in settings.into_values() {
        warnings.extend(other(&setting)?);
    }
    let tiers = ["kv_tier_dram", "kv_tier_disk", "kv_tier_redis"];
    let is_there = |id: &&str| layers.get(id).is_some() || flags.iter().any(|flag| flag.id == *id);
    match tiers.iter().any(is_there) {
        true => Ok((flags, warnings)),
        false => Err(CliError::Usage(
            "--kv-transfer-config: local_cpu is false, and there is neither local_disk nor remote_url: no memory is left"
                .into(),
        )),
    }
}

/// Warnings about a setting that is no flag.
fn other(setting: &Setting) -> Result<Option<String>, CliError> {
    let name = setting.name.as_str();
    if let Some((_, why)) = NO_EFFECT.iter().find(|(own, _)| *own == name) {
        return Ok(Some(format!("{} has no effect: {why}", setting.shown())));
    }
    match ONLY.iter().find(|(own, ..)| *own == name) {
        Some((_, only, _)) if setting.value.to_lowercase() == *only => Ok(None),
        Some((_, only, meaning)) => {
            Err(setting.error(&format!("{meaning} is not supported: unset it, or use {only}")))
        }
        None => Err(setting.error("this setting of LMCache has no counterpart here: unset it")),
    }
}

/// Address of a `remote_url`.
fn redis(url: &Setting) -> Result<String, CliError> {
    let (scheme, rest) = url.value.split_once("://").unwrap_or(("", &url.value));
    let address = rest.trim_end_matches('/');
    match scheme {
        "redis" | "valkey" if address.contains('@') => {
            Err(url.error("a user or a password is not supported"))
        }
        "redis" | "valkey" if address.contains([',', '/', '?']) => {
            Err(url.error("use one server and its database 0, as redis://host:port"))
        }
        "redis" | "valkey" => Ok(address.to_owned()),
        "rediss" => Err(url.error("TLS is not supported: use redis://host:port")),
        "lm" => Err(url.error(
            "the protocol of LMCache's own server (lm://) is not supported: use redis://host:port or --kv-tier-redis",
        )),
        _ => Err(url.error("this kind of storage is not supported: use redis://host:port, --kv-tier-redis or --kv-tier-disk")),
    }
}

/// The settings of the file, if the variables name one, or else the variables.
fn with_file(mut variables: Vec<Setting>) -> Result<Vec<Setting>, CliError> {
    let at = variables.iter().position(|setting| setting.shown() == FILE);
    let Some(file) = at.map(|at| variables.remove(at)) else { return Ok(variables) };
    // They are not settings of the file.
    let is_other = |setting: &Setting| {
        !["log_level", "track_usage", "use_experimental"].contains(&&*setting.name)
    };
    if let Some(other) = variables.iter().find(|setting| is_other(setting)) {
        let what = format!(
            "{FILE} and {} are set, and LMCache reads only the file then: unset one",
            other.shown()
        );
        return Err(CliError::Usage(what));
    }
    let path = PathBuf::from(&file.value);
    let text = std::fs::read_to_string(&path)
        .map_err(|reason| CliError::Input { what: path.display().to_string(), reason })?;
    variables.extend(yaml(&path, &text)?);
    Ok(variables)
}

/// Settings of a YAML file that has a name and a value on each line. LMCache's files have no more, but for lists and maps of
/// settings that have no counterpart here.
fn yaml(path: &Path, text: &str) -> Result<Vec<Setting>, CliError> {
    let mut settings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let content = without_comment(line).trim_end();
        if content.is_empty() || content == "---" {
            continue;
        }
        let bad = || {
            CliError::Usage(format!(
                "{}, line {number}: each line must be `name: value`, without lists and maps: {content}",
                path.display()
            ))
        };
        let (name, value) = content.split_once(':').ok_or_else(bad)?;
        let is_name =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
        if !is_name
            || quoted.is_none()
                && (value.is_empty()
                    || value.starts_with(['[', '{', '-', '|', '>', '&', '*', '!', '"', '\'']))
        {
            return Err(bad());
        }
        if quoted.is_none() && ["null", "~"].contains(&value) {
            continue;
        }
        let value = quoted.unwrap_or(value).to_owned();
        settings.push(Setting {
            name: name.to_owned(),
            value,
            source: Source::File(path.to_owned()),
        });
    }
    Ok(settings)
}

/// A line up to its comment, which begins with `#` at its start or behind a space.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '#' && before.is_whitespace() => return &line[..at],
            None if (c == '"' || c == '\'') && before.is_whitespace() => quote = Some(c),
            None => {}
        }
        before = c;
    }
    line
}

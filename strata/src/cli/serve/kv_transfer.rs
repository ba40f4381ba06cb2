//! vLLM's `--kv-transfer-config`, and what it asks for in flags of this server.
//!
//! Connectors that keep keys and values of one engine in other memories are the tiers of this server. Connectors between
//! servers, as for disaggregated prefill, have no counterpart. What has none is refused by its name, and never ignored
//! silently. (Keys: `KVTransferConfig` of vLLM, and its guide "KV Offloading Usage".)

use serde_json::{Map, Value};

use super::layers::{Layers, Source};
use super::lmcache::{self, Setting};
use crate::cli::error::CliError;

/// The flag of the JSON.
const ID: &str = "kv_transfer_config";

/// Policy of the connectors, which store the chunks of every request; another one that is given stays.
const POLICY: &str = "lmcache";

/// Adds the flags that `--kv-transfer-config` and the variables of LMCache ask for, below those of the server itself.
/// `environment` has all variables. Returns warnings about what has no effect.
///
/// # Errors
/// [`CliError::Usage`]: a key or a variable that has no counterpart, or a contradiction.
pub fn add_layer(
    layers: &mut Layers,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<String>, CliError> {
    let variables = lmcache::variables(environment);
    let Some(given) = layers.get(ID).and_then(|(values, _)| values.first()) else {
        return Ok(lmcache::without_connector(&variables));
    };
    let text = given.to_str().unwrap_or_default();
    let asked = Asked::parse(text).map_err(|why| usage(&why))?;
    let mut warnings = asked.warnings;
    let (flags, more) = match asked.connector {
        Connector::LmCache(settings) => lmcache::flags(layers, settings, variables)?,
        Connector::Offloading(flags) => (flags, lmcache::without_connector(&variables)),
    };
    warnings.extend(more);
    for Flag { id, value, source, name } in flags {
        let Some((_, own)) = layers.get(id) else {
            layers.add_below(id, value, source);
            continue;
        };
        let own = format!("--{} ({own})", id.replace('_', "-"));
        match source {
            Source::KvTransferConfig if !name.is_empty() => {
                return Err(usage(&format!("`{name}` and {own} set the same: keep one")));
            }
            // A default of the connector.
            Source::KvTransferConfig => {}
            _ => warnings.push(format!("{name} has no effect: {own} overrides it")),
        }
    }
    if layers.get("policy").is_none() {
        layers.add_below("policy", POLICY.to_owned(), Source::KvTransferConfig);
    }
    Ok(warnings)
}

/// A flag that something asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Flag {
    /// Id of the flag.
    pub id: &'static str,
    /// Its value.
    pub value: String,
    /// Where it is from.
    pub source: Source,
    /// Variable or key; empty for a default.
    pub name: String,
}

fn usage(why: &str) -> CliError {
    CliError::Usage(format!("--kv-transfer-config: {why}"))
}

/// What the JSON asks for.
struct Asked {
    connector: Connector,
    warnings: Vec<String>,
}

enum Connector {
    /// LMCache, with the settings of the JSON.
    LmCache(Vec<Setting>),
    /// vLLM's own offloading to the host's memory.
    Offloading(Vec<Flag>),
}

impl Asked {
    fn parse(text: &str) -> Result<Self, String> {
        let example = "use an object, such as {\"kv_connector\": \"LMCacheConnectorV1\", \"kv_role\": \"kv_both\"}";
        let value: Value = serde_json::from_str(text).map_err(|why| format!("{why}: {example}"))?;
        let Value::Object(mut object) = value else { return Err(example.to_owned()) };
        // As vLLM, a key that is null is not set.
        object.retain(|_, value| !value.is_null());
        let name = object.remove("kv_connector").ok_or("`kv_connector` is missing")?;
        match object.remove("kv_role") {
            Some(Value::String(role)) if role == "kv_both" => {}
            None => return Err("`kv_role` is missing: use kv_both".to_owned()),
            Some(role) => {
                return Err(format!(
                    "`kv_role` {role}: prefill and decode on different servers are not supported: use kv_both"
                ));
            }
        }
        let extra = match object.remove("kv_connector_extra_config") {
            None => Map::new(),
            Some(Value::Object(extra)) => extra,
            Some(_) => return Err("`kv_connector_extra_config` must be an object".to_owned()),
        };
        let mut warnings = Vec::new();
        for (key, value) in object {
            match (key.as_str(), &value) {
                ("engine_id", _) => {
                    warnings.push(format!(
                        "--kv-transfer-config: `{key}` has no effect: chunks have no owner"
                    ));
                }
                ("kv_load_failure_policy", Value::String(policy)) if policy == "recompute" => {}
                ("kv_load_failure_policy", _) => {
                    return Err(format!(
                        "`{key}`: what cannot be loaded is computed: use recompute"
                    ));
                }
                ("enable_permute_local_kv", Value::Bool(false)) => {}
                (
                    "kv_buffer_device" | "kv_buffer_size" | "kv_rank" | "kv_parallel_size"
                    | "kv_ip" | "kv_port",
                    _,
                ) => {
                    return Err(format!("`{key}` is for connectors between servers: leave it out"));
                }
                _ => return Err(format!("`{key}` has no counterpart here: leave it out")),
            }
        }
        let connector = match name.as_str() {
            Some("LMCacheConnectorV1") => Connector::LmCache(lmcache::settings_of(extra)?),
            Some("OffloadingConnector") => Connector::Offloading(offloading(extra)?),
            _ => {
                return Err(format!(
                    "`kv_connector` {name} is not supported: use LMCacheConnectorV1 or OffloadingConnector, or --kv-tier-dram, \
                     --kv-tier-disk and --kv-tier-redis"
                ));
            }
        };
        Ok(Self { connector, warnings })
    }
}

/// Flags of `OffloadingConnector`.
fn offloading(extra: Map<String, Value>) -> Result<Vec<Flag>, String> {
    let mut flags = Vec::new();
    let mut add = |id, value: String, key: &str| {
        let name = format!("kv_connector_extra_config.{key}");
        flags.push(Flag { id, value, source: Source::KvTransferConfig, name });
    };
    for (key, value) in extra {
        match (key.as_str(), &value) {
            ("cpu_bytes_to_use", value) => {
                let bytes = value.as_f64().filter(|bytes| (1.0..1e18).contains(bytes));
                let bytes = bytes
                    .ok_or_else(|| format!("`{key}` must be a number of bytes, got {value}"))?;
                add("kv_tier_dram", (bytes as u64).to_string(), &key);
            }
            ("block_size", Value::Number(tokens)) => add("kv_tier_chunk", tokens.to_string(), &key),
            ("spec_name", Value::String(name)) if name == "CPUOffloadingSpec" => {}
            ("spec_name", _) => {
                return Err(format!(
                    "`{key}` {value} is not supported: use CPUOffloadingSpec, and --kv-tier-disk for a second tier"
                ));
            }
            ("eviction_policy", Value::String(policy)) if policy == "lru" => {}
            ("eviction_policy", _) => {
                return Err(format!(
                    "`{key}`: the chunk that was used longest ago is evicted: use lru"
                ));
            }
            ("num_cpu_blocks", _) => {
                return Err(format!("`{key}`: give the memory in bytes, as cpu_bytes_to_use"));
            }
            _ => {
                return Err(format!(
                    "`kv_connector_extra_config.{key}` has no counterpart here: leave it out"
                ));
            }
        }
    }
    if !flags.iter().any(|flag| flag.id == "kv_tier_dram") {
        return Err("`kv_connector_extra_config.cpu_bytes_to_use` is missing".to_owned());
    }
    Ok(flags)
}

#[cfg(test)]
#[path = "kv_transfer_tests.rs"]
mod tests;

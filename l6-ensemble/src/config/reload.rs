//! Which changes of an ensemble file a running server can make.
//!
//! Router, intents, fallbacks, thresholds, targets and the defaults of requests are read anew for each request. What an
//! engine was started with is not: another model, another pool or another policy needs another engine.

use std::fmt;

use l5_scheduler::speculation::SpeculativeConfig;

use super::{EnsembleConfig, RemoteConfig, SpecialistConfig};

/// A change that needs other engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineChange {
    /// Path of the field, as in `specialist.template.replicas`.
    pub path: String,
    /// What changes.
    pub what: String,
}

impl fmt::Display for EngineChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.path, self.what)
    }
}

/// Every change of a file that needs other engines; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NeedsRestart(pub Vec<EngineChange>);

impl fmt::Display for NeedsRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these changes need other engines, so restart the server for them:")?;
        self.0.iter().try_for_each(|change| write!(f, "\n{change}"))
    }
}

impl EnsembleConfig {
    /// The configuration of a file that is read again while the engines of this one run: `new`, with its specialists in
    /// the order of this one, by which lanes are numbered.
    ///
    /// # Errors
    /// [`NeedsRestart`] with every change that needs other engines.
    ///
    /// # Example
    ///
    /// ```
    /// use l6_ensemble::EnsembleConfig;
    ///
    /// let file = |lines: &str| {
    ///     EnsembleConfig::parse(&format!("model = \"smollm2\"\n[[specialist]]\nname = \"stl\"\n{lines}"))
    /// };
    /// let running = file("")?;
    /// assert!(running.reloaded(file("system_prompt = \"Be brief.\"")?).is_ok());
    ///
    /// let refused = running.reloaded(file("replicas = 2\nblock_size = 8")?).unwrap_err();
    /// assert_eq!(refused.0[0].to_string(), "`specialist.stl.replicas` changes from 1 to 2");
    /// assert_eq!(refused.0[1].path, "specialist.stl.block_size");
    /// # Ok::<(), l6_ensemble::ConfigErrors>(())
    /// ```
    pub fn reloaded(&self, mut new: Self) -> Result<Self, NeedsRestart> {
        let mut changes = Vec::new();
        let mut change = |path: String, what: String| changes.push(EngineChange { path, what });
        if self.kv_memory != new.kv_memory {
            let (from, to) = (self.kv_memory.bytes(), new.kv_memory.bytes());
            change("kv_memory".to_owned(), format!("changes from {from} to {to}"));
        }
        let (from, to) = (self.shadow.max_in_flight, new.shadow.max_in_flight);
        if from != to {
            change("shadow.max_in_flight".to_owned(), format!("changes from {from} to {to}"));
        }
        for old in &self.specialists {
            if new.index(&old.name).is_none() {
                change(format!("specialist.{}", old.name), "is removed".to_owned());
            }
        }
        for own in &new.specialists {
            if self.index(&own.name).is_none() {
                change(format!("specialist.{}", own.name), "is added".to_owned());
            }
        }
        // With other specialists, the memory that none of them claims is divided otherwise: no change of their own.
        let same_names = changes.iter().all(|change| !change.path.starts_with("specialist."));
        for old in &self.specialists {
            let Some(own) = new.index(&old.name).map(|at| &new.specialists[at]) else { continue };
            let path = |field: &str| format!("specialist.{}.{field}", old.name);
            for (field, from, to) in engine_fields(old, own, same_names) {
                if from != to {
                    let what = format!("changes from {from} to {to}");
                    changes.push(EngineChange { path: path(field), what });
                }
            }
        }
        if !changes.is_empty() {
            return Err(NeedsRestart(changes));
        }
        new.specialists.sort_by_key(|own| self.index(&own.name));
        Ok(new)
    }
}

/// Fields with which engines are started: name, value before, value after.
fn engine_fields(
    old: &SpecialistConfig,
    new: &SpecialistConfig,
    shares: bool,
) -> Vec<(&'static str, String, String)> {
    // A field that is added must be listed here, if it changes the engine.
    let SpecialistConfig {
        name: _,
        description: _,
        model,
        replicas,
        remotes,
        block_size,
        kv_share,
        policy,
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        speculative_config,
        slo: _,
        fallback: _,
        classes: _,
        intents: _,
        system_prompt: _,
        decoding_policy: _,
    } = new;
    let count = |count: Option<usize>| count.map_or("the default".to_owned(), |n| n.to_string());
    let mut fields = vec![
        ("model", old.model.clone(), model.clone()),
        ("replicas", old.replicas.to_string(), replicas.to_string()),
        ("remotes", described(&old.remotes), described(remotes)),
        ("block_size", old.block_size.to_string(), block_size.to_string()),
        ("policy", old.policy.to_string(), policy.to_string()),
        ("max_num_seqs", count(old.max_num_seqs), count(*max_num_seqs)),
        (
            "max_num_batched_tokens",
            count(old.max_num_batched_tokens),
            count(*max_num_batched_tokens),
        ),
        ("max_model_len", count(old.max_model_len), count(*max_model_len)),
        (
            "speculative_config",
            speculation(old.speculative_config.as_ref()),
            speculation(speculative_config.as_ref()),
        ),
    ];
    // What is left is divided, so the sum and its rounding depend on the order of the specialists.
    if shares && (old.kv_share - kv_share).abs() > 1e-9 {
        fields.push(("kv_share", old.kv_share.to_string(), kv_share.to_string()));
    }
    fields
}

/// A configuration of speculation as JSON.
fn speculation(config: Option<&SpeculativeConfig>) -> String {
    let json = |config| serde_json::to_string(config).unwrap_or_default();
    config.map_or("none".to_owned(), json)
}

/// Remote replicas with all that their connections depend on.
fn described(remotes: &[RemoteConfig]) -> String {
    let one = |own: &RemoteConfig| {
        let RemoteConfig { url, api, model, api_key_env, max_num_seqs, timeout_seconds } = own;
        let key = api_key_env.as_deref().unwrap_or("no key");
        let api = api.as_str();
        format!("{url} ({api}, {model}, {key}, {max_num_seqs} requests, {timeout_seconds} s)")
    };
    let all: Vec<String> = remotes.iter().map(one).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

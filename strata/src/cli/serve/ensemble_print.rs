//! An ensemble with every value in force, as JSON and as text. Names are those of the file's fields.

use std::fmt::Write;

use l6_ensemble::router::Tripwire;
use l6_ensemble::{EnsembleConfig, RemoteConfig, SpecialistConfig};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::flags::Flags;
use server::words::count;

/// Maximum number of characters of a system prompt in the text.
const PROMPT: usize = 60;

/// Defaults of specialists that flags give.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlagDefaults {
    max_num_seqs: Option<usize>,
    max_num_batched_tokens: Option<usize>,
    max_model_len: Option<usize>,
}

impl Flags {
    /// Defaults of specialists that these flags give.
    pub fn specialist_defaults(&self) -> FlagDefaults {
        let limits = &self.scheduler.limits;
        FlagDefaults {
            max_num_seqs: limits.max_num_seqs,
            max_num_batched_tokens: limits.max_num_batched_tokens,
            max_model_len: limits.max_model_len.and_then(|length| length.0),
        }
    }
}

/// The ensemble as comments, for `--print-config`.
pub fn comments(config: &EnsembleConfig, defaults: FlagDefaults) -> String {
    let lines = text(&value(config, defaults));
    let line = |text: String, line: &str| text + format!("# {line}").trim_end() + "\n";
    lines.lines().fold("\n".to_owned(), line)
}

/// The ensemble as one JSON object, in the order of the file. `null` is what nothing sets.
pub fn value(config: &EnsembleConfig, defaults: FlagDefaults) -> Value {
    // Every field of the file is printed: one that is added must be added here.
    let EnsembleConfig {
        name,
        kv_memory,
        fallback,
        specialists,
        router,
        shadow,
        breaker,
        escalation,
        slo,
    } = config;
    let specialists: Vec<Value> =
        specialists.iter().map(|own| specialist(own, config, defaults)).collect();
    let tripwires: Map<String, Value> = Tripwire::ALL
        .iter()
        .map(|tripwire| {
            let own = router.threshold(*tripwire);
            let mut fields = json!({ "class": own.class, "min_hits": own.min_hits });
            if !tripwire.is_report() {
                fields["min_density"] = json!(own.min_density);
            }
            fields["enabled"] = json!(own.enabled);
            (tripwire.to_string(), fields)
        })
        .collect();
    let mut names = router.intents();
    names.extend(shadow.intents.keys().map(String::as_str));
    let intents: Map<String, Value> = names
        .into_iter()
        .map(|intent| {
            let (class, own) = (router.intent_class(intent), shadow.intent(intent));
            let fields = json!({
                "class": class, "shadow_below": own.shadow_below, "spill_below": own.spill_below
            });
            (intent.to_owned(), fields)
        })
        .collect();
    let mut shadows = section(shadow);
    if let Some(fields) = shadows.as_object_mut() {
        // Thresholds of intents are fields of [intents].
        fields.shift_remove("intents");
    }
    let mut value = json!({
        "name": name,
        "kv_memory": kv_memory.bytes().to_string(),
        "fallback": fallback,
        "specialist": specialists,
        "router": {
            "classifier": router.classifier.to_string(),
            "min_score": router.min_score,
            "margin": router.margin,
            "max_bytes": router.max_bytes,
            "tripwires": tripwires,
        },
        "intents": intents,
        "shadow": shadows,
        "breaker": section(breaker),
        "escalation": section(escalation),
        "slo": section(slo),
    });
    shorten(&mut value);
    value
}

/// Writes numbers that are 32 bits wide in the file's digits: 0.2, not 0.20000000298.
fn shorten(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let Some(wide) = number.as_f64().filter(|_| number.is_f64()) else { return };
            let narrow = wide as f32;
            if f64::from(narrow) == wide
                && let Ok(short) = narrow.to_string().parse::<f64>()
            {
                *value = json!(short);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn section(fields: &impl Serialize) -> Value {
    serde_json::to_value(fields).unwrap_or_default()
}

fn specialist(own: &SpecialistConfig, config: &EnsembleConfig, defaults: FlagDefaults) -> Value {
    // Every field of a specialist is printed: one that is added must be added here.
    let SpecialistConfig {
        name,
        description,
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
        slo,
        fallback,
        classes,
        intents,
        system_prompt,
        decoding_policy,
    } = own;
    let budget = max_num_batched_tokens.or(defaults.max_num_batched_tokens);
    let seats = max_num_seqs.or(defaults.max_num_seqs);
    // A running request has at least one token in a step.
    let seats = seats.map(|seats| seats.min(budget.unwrap_or(seats)));
    let remotes: Vec<Value> = remotes.iter().map(remote).collect();
    let mut fields = json!({
        "name": name,
        "description": description,
        "model": model,
        "replicas": replicas,
        "remotes": remotes,
        "kv_share": (kv_share * 1e4).round() / 1e4,
        "kv_memory_of_a_replica": own.kv_memory(config.kv_memory).bytes().to_string(),
        "block_size": block_size,
        "policy": policy.to_string(),
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len.or(defaults.max_model_len),
        "speculative_config": speculative_config,
        "slo": section(slo),
        "fallback": fallback,
        "classes": classes,
        "intents": intents,
        "system_prompt": system_prompt,
        "decoding_policy": decoding_policy.map(|policy| policy.as_str()),
    });
    if *replicas == 0
        && let Some(fields) = fields.as_object_mut()
    {
        // No engine here, no memory here.
        fields.retain(|field, _| !field.starts_with("kv_"));
    }
    fields
}

fn remote(own: &RemoteConfig) -> Value {
    let RemoteConfig { url, api, model, api_key_env, max_num_seqs, timeout_seconds } = own;
    json!({
        "url": url, "api": api.as_str(), "model": model, "api_key_env": api_key_env, "max_num_seqs": max_num_seqs,
        "timeout_seconds": timeout_seconds,
    })
}

/// The JSON of an ensemble for a reader.
pub fn text(ensemble: &Value) -> String {
    let mut text = String::new();
    let Some(fields) = ensemble.as_object() else { return text };
    let title = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let specialists = ensemble["specialist"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Writing to a String does not fail.
    let number = count(specialists.len(), "specialist");
    let _ = writeln!(text, "ensemble {}: {number}", title(&ensemble["name"]));
    let own: Vec<(&str, String)> = ["kv_memory", "fallback"]
        .iter()
        .map(|field| (*field, shown(field, &ensemble[*field], true)))
        .collect();
    rows(&mut text, &own);
    for specialist in specialists {
        let _ = writeln!(text, "\n[[specialist]] {}", title(&specialist["name"]));
        let fields = specialist.as_object().into_iter().flatten();
        let fields = fields.filter(|(field, _)| *field != "name");
        let all: Vec<_> =
            fields.map(|(field, value)| (field.as_str(), shown(field, value, false))).collect();
        rows(&mut text, &all);
    }
    for (section, value) in fields {
        let Some(fields) = value.as_object() else { continue };
        let _ = writeln!(text, "\n[{section}]");
        let mut all = Vec::new();
        for (field, value) in fields {
            match (field.as_str(), value) {
                ("tripwires", Value::Object(tripwires)) => {
                    let row =
                        |(name, own): (&String, &Value)| (format!("tripwires.{name}"), inline(own));
                    all.extend(tripwires.iter().map(row));
                }
                ("levels", Value::Array(levels)) => {
                    let numbered = levels.iter().enumerate();
                    all.extend(numbered.map(|(at, own)| (format!("levels[{at}]"), level(at, own))));
                }
                _ => all.push((field.clone(), shown(field, value, false))),
            }
        }
        let all: Vec<_> =
            all.iter().map(|(field, value)| (field.as_str(), value.clone())).collect();
        rows(&mut text, &all);
    }
    text
}

/// Rows of fields and values, in two columns.
fn rows(text: &mut String, rows: &[(&str, String)]) {
    let wide = rows.iter().map(|(field, _)| field.len()).max().unwrap_or_default();
    for (field, value) in rows {
        let _ = writeln!(text, "  {field:wide$}  {value}");
    }
}

/// A value, or what holds where nothing sets it. `whole`: a field of the ensemble, not of a specialist.
fn shown(field: &str, value: &Value, whole: bool) -> String {
    match (field, value) {
        ("max_num_seqs", Value::Null) => "128 on a CPU, 256 on a GPU".to_owned(),
        ("max_num_batched_tokens", Value::Null) => "256 on a CPU, 2048 on a GPU".to_owned(),
        ("max_model_len", Value::Null) => "what model and memory allow".to_owned(),
        ("fallback", Value::Null) if whole => {
            "none: requests that fit no class are rejected".to_owned()
        }
        ("system_prompt", Value::String(prompt)) => match prompt.char_indices().nth(PROMPT) {
            Some((at, _)) => {
                format!("{:?}.. ({} characters)", &prompt[..at], prompt.chars().count())
            }
            None => format!("{prompt:?}"),
        },
        ("decoding_policy", Value::String(name)) => match name
            .parse::<l6_ensemble::DecodingPolicy>()
        {
            Ok(policy) => {
                let (temperature, top_p, typical_p) = policy.sampling();
                format!("{name} (temperature {temperature}, top_p {top_p}, typical_p {typical_p})")
            }
            Err(_) => name.clone(),
        },
        _ => inline(value),
    }
}

/// What a level of escalation does, in words.
fn level(at: usize, own: &Value) -> String {
    format!("{} (level {})", inline(own), at + 1)
}

/// A value in one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) if text.is_empty() => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(inline).collect();
            values.join(if values.iter().any(|value| value.contains(' ')) { "; " } else { ", " })
        }
        Value::Object(fields) if fields.is_empty() => "none".to_owned(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(field, value)| format!("{field} {}", inline(value)));
            fields.collect::<Vec<_>>().join(", ")
        }
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => number.to_string(),
            None => number.to_string(),
        },
        Value::Bool(on) => on.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of all fields, but for those of rules and intents, which are names of their own.
    fn fields(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(own) => {
                for (name, value) in own {
                    found.push(name.clone());
                    match (name.as_str(), value.as_object()) {
                        ("tripwires" | "intents", Some(named)) => {
                            named.values().for_each(|own| fields(own, found));
                        }
                        _ => fields(value, found),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|own| fields(own, found)),
            _ => {}
        }
    }

    #[test]
    fn the_book_has_every_field_of_the_file() {
        let file = r#"
            [[specialist]]
            name = "a"
            model = "m"
            slo = { ttft = "1s", itl = "1s", compile_pass = 0.5 }
            remotes = [{ url = "http://h", model = "m", api_key_env = "KEY" }]
        "#;
        let config = EnsembleConfig::parse(file).unwrap();
        let mut found = Vec::new();
        fields(&value(&config, FlagDefaults::default()), &mut found);
        let page = [
            include_str!("../../../../book/src/operate/ensemble.md"),
            include_str!("../../../../book/src/operate/routing.md"),
            include_str!("../../../../book/src/operate/service-levels.md"),
            include_str!("../../../../book/src/operate/shadows.md"),
            include_str!("../../../../book/src/operate/remotes.md"),
        ]
        .concat();
        found.retain(|field| field != "kv_memory_of_a_replica");
        assert!(found.len() > 60, "{found:?}");
        for field in found {
            let forms = [
                format!("`{field}`"),
                format!("`[{field}]`"),
                format!("`[[{field}]]`"),
                format!("`[router.{field}.NAME]`"),
            ];
            assert!(
                forms.iter().any(|form| page.contains(form)),
                "`{field}` is on no page about ensembles"
            );
        }
    }
}

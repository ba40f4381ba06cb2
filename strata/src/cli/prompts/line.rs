//! A line of a file of prompts. An error has the number of the line and the field, and is reported before anything
//! runs.

use std::path::Path;

use l4_sampler::guide::GuideSpec;
use l4_sampler::{LogprobsOf, LogprobsRequest};
use serde_json::Value;

use super::PromptOptions;
use crate::cli::error::CliError;
use crate::cli::prompt;

/// Maximum number of choices of one prompt, as for `--n`.
const MAX_CHOICES: u64 = 1024;

/// Keys of `sampling`.
const KEYS: &str = "temperature, top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty, \
    frequency_penalty, seed, max_tokens, min_tokens, stop, stop_token_ids, include_stop_str, ignore_eos, n, best_of, \
    logprobs, logprobs_of, json_schema, regex, grammar, choice, priority, cache_salt";

/// A prompt with its options.
pub struct Line {
    /// Number of the line, from 1.
    pub number: usize,
    /// Id of the prompt, or else the number of the line.
    pub id: Value,
    /// The prompt.
    pub text: Text,
    /// Options: the defaults, with the changes of the line.
    pub options: PromptOptions,
}

/// A prompt.
#[derive(Debug, PartialEq)]
pub enum Text {
    /// Text.
    Prompt(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// Reads all lines of a file, or of stdin for `-`. Empty lines are counted and skipped.
///
/// # Errors
/// [`CliError::Input`] for a file that cannot be read, [`CliError::Usage`] for an invalid line.
pub fn read(file: &str, defaults: &PromptOptions) -> Result<Vec<Line>, CliError> {
    let text = if file == "-" {
        prompt::text_of(file)?
    } else {
        let refused = |reason| CliError::Input { what: file.to_owned(), reason };
        std::fs::read_to_string(Path::new(file)).map_err(refused)?
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(i, line)| {
        parse(i + 1, line, defaults)
            .map_err(|why| CliError::Usage(format!("{file} line {}: {why}", i + 1)))
    });
    parsed.collect()
}

fn parse(number: usize, line: &str, defaults: &PromptOptions) -> Result<Line, String> {
    let value: Value = serde_json::from_str(line).map_err(|why| {
        // The parser's line number is that within this line: always 1.
        let what = why.to_string();
        let what = what.split(" at line").next().unwrap_or_default();
        format!(
            "not JSON, at column {}: {what}. Each line is an object: {{\"prompt\": \"..\"}}",
            why.column()
        )
    })?;
    let Value::Object(fields) = value else {
        return Err("must be an object: {\"prompt\": \"..\"}".to_owned());
    };
    let (mut id, mut text, mut options) = (Value::from(number), None, defaults.clone());
    for (key, value) in fields {
        match key.as_str() {
            "id" => id = value,
            "prompt" | "tokens" if text.is_some() => {
                return Err("give prompt or tokens, not both".to_owned());
            }
            "prompt" => text = Some(Text::Prompt(string(&key, value)?)),
            "tokens" => text = Some(Text::Tokens(ids(&key, &value)?)),
            "sampling" => sampling(&mut options, value)?,
            _ => return Err(format!("unknown field `{key}`: use id, prompt or tokens, sampling")),
        }
    }
    let text = text.ok_or("give a prompt, or tokens")?;
    Ok(Line { number, id, text, options })
}

fn sampling(options: &mut PromptOptions, value: Value) -> Result<(), String> {
    let Value::Object(fields) = value else { return Err("sampling must be an object".to_owned()) };
    // A line's guide replaces that of the command line.
    let mut guide = None;
    let mut of = None;
    let PromptOptions { params, stop, .. } = options;
    for (key, value) in fields {
        let key = key.as_str();
        match key {
            "temperature" => params.temperature = number(key, &value)?,
            "top_k" => params.top_k = count(key, &value)?,
            "top_p" => params.top_p = number(key, &value)?,
            "min_p" => params.min_p = number(key, &value)?,
            "typical_p" => params.typical_p = number(key, &value)?,
            "repetition_penalty" => params.repetition_penalty = number(key, &value)?,
            "presence_penalty" => params.presence_penalty = number(key, &value)?,
            "frequency_penalty" => params.frequency_penalty = number(key, &value)?,
            "seed" => options.seed = Some(whole(key, &value)?),
            "max_tokens" => stop.max_tokens = count(key, &value)?,
            "min_tokens" => {
                params.min_tokens = count(key, &value)?;
                stop.min_tokens = params.min_tokens;
            }
            "stop" => stop.strings = strings(key, value)?,
            "stop_token_ids" => stop.token_ids = ids(key, &value)?,
            "include_stop_str" => stop.include_stop_str = yes_or_no(key, &value)?,
            "ignore_eos" => stop.ignore_eos = yes_or_no(key, &value)?,
            "n" => options.n = num_choices(key, &value)?,
            "best_of" => options.best_of = Some(num_choices(key, &value)?),
            "logprobs" => {
                let of = params.logprobs.map_or(LogprobsOf::Raw, |logprobs| logprobs.of);
                params.logprobs = Some(LogprobsRequest { top: count(key, &value)?, of });
            }
            "logprobs_of" => of = Some(which(key, &value)?),
            "json_schema" => put(&mut guide, schema(key, value)?)?,
            "regex" => put(&mut guide, GuideSpec::Regex(string(key, value)?))?,
            "grammar" => put(&mut guide, GuideSpec::Lark(string(key, value)?))?,
            "choice" => put(&mut guide, GuideSpec::Choice(strings(key, value)?))?,
            "priority" => options.priority = integer(key, &value)?,
            "cache_salt" => options.cache_salt = Some(string(key, value)?),
            _ => return Err(format!("sampling: unknown key `{key}`: use {KEYS}")),
        }
    }
    match (&mut params.logprobs, of) {
        (Some(logprobs), Some(of)) => logprobs.of = of,
        (None, Some(_)) => return Err("sampling: logprobs_of needs logprobs".to_owned()),
        (_, None) => {}
    }
    if guide.is_some() {
        options.guide = guide;
    }
    match options.best_of {
        Some(best_of) if best_of < options.n => {
            Err(format!("sampling: best_of {best_of} must be at least n {}", options.n))
        }
        _ => Ok(()),
    }
}

fn put(guide: &mut Option<GuideSpec>, spec: GuideSpec) -> Result<(), String> {
    match guide.replace(spec) {
        None => Ok(()),
        Some(_) => Err("sampling: give one of json_schema, regex, grammar and choice".to_owned()),
    }
}

fn schema(key: &str, value: Value) -> Result<GuideSpec, String> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(GuideSpec::ClosedJsonSchema(value)),
        _ => Err(must(key, "a schema: an object, written out here")),
    }
}

fn must(key: &str, be: &str) -> String {
    format!("{key} must be {be}")
}

fn number(key: &str, value: &Value) -> Result<f32, String> {
    // The sampler checks the range. A number beyond f32 becomes an infinity, which is out of every range.
    value.as_f64().map(|x| x as f32).ok_or_else(|| must(key, "a number"))
}

fn whole(key: &str, value: &Value) -> Result<u64, String> {
    value.as_u64().ok_or_else(|| must(key, "a whole number, 0 or above"))
}

fn count(key: &str, value: &Value) -> Result<usize, String> {
    whole(key, value).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}

fn integer(key: &str, value: &Value) -> Result<i64, String> {
    value.as_i64().ok_or_else(|| must(key, "a whole number"))
}

fn num_choices(key: &str, value: &Value) -> Result<usize, String> {
    let n = value.as_u64().filter(|n| (1..=MAX_CHOICES).contains(n));
    let n = n.ok_or_else(|| must(key, &format!("a whole number from 1 to {MAX_CHOICES}")))?;
    Ok(n as usize)
}

fn yes_or_no(key: &str, value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| must(key, "true or false"))
}

fn string(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(must(key, "a text")),
    }
}

/// A list of texts, or one alone.
fn strings(key: &str, value: Value) -> Result<Vec<String>, String> {
    let what = "a string or a list of strings";
    match value {
        Value::Array(texts) => {
            texts.into_iter().map(|text| string(key, text).map_err(|_| must(key, what))).collect()
        }
        value => string(key, value).map(|text| vec![text]).map_err(|_| must(key, what)),
    }
}

fn ids(key: &str, value: &Value) -> Result<Vec<u32>, String> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = value.as_array().and_then(|ids| ids.iter().map(id).collect());
    ids.ok_or_else(|| must(key, "a list of token ids: [1, 2, 3]"))
}

fn which(key: &str, value: &Value) -> Result<LogprobsOf, String> {
    match value.as_str() {
        Some("raw") => Ok(LogprobsOf::Raw),
        Some("processed") => Ok(LogprobsOf::Processed),
        _ => Err(must(key, "raw or processed")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn defaults() -> PromptOptions {
        PromptOptions {
            params: Default::default(),
            stop: Default::default(),
            seed: Some(3),
            n: 2,
            best_of: None,
            guide: Some(GuideSpec::Regex("a".into())),
            priority: 0,
            cache_salt: None,
        }
    }

    #[test]
    fn a_line_changes_what_it_names_and_nothing_else() {
        let line =
            r#"{"id":"x","tokens":[1,2],"sampling":{"top_p":0.5,"stop":"b","choice":["c"]}}"#;
        let Ok(Line { id, text, options, .. }) = parse(4, line, &defaults()) else { panic!() };
        assert_eq!((id, text), (Value::from("x"), Text::Tokens(vec![1, 2])));
        assert_eq!((options.params.top_p, options.params.temperature), (0.5, 1.0));
        assert_eq!((options.seed, options.n, options.stop.strings), (Some(3), 2, vec!["b".into()]));
        assert_eq!(options.guide, Some(GuideSpec::Choice(vec!["c".into()])));
    }

    #[test]
    fn every_key_that_is_listed_is_known() {
        for key in KEYS.split(", ") {
            let fields = Map::from_iter([(key.trim().to_owned(), Value::Null)]);
            let refused = sampling(&mut defaults(), Value::Object(fields)).unwrap_err();
            assert!(!refused.contains("unknown"), "{key}: {refused}");
        }
    }
}

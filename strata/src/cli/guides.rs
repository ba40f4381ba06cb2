//! Guided decoding: `--json-schema`, `--regex`, `--grammar`, `--choice`.

use std::path::Path;

use l4_sampler::guide::GuideSpec;

use super::error::CliError;
use super::prompt;

/// Guided decoding.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Guides (at most one)")]
pub struct GuideArgs {
    /// Generate JSON that matches this JSON schema; `-` for stdin. An object has only the properties that its schema
    /// declares, unless the schema sets additionalProperties
    #[arg(long, value_name = "FILE", group = "guide")]
    json_schema: Option<String>,
    /// Generate text that matches this regular expression as a whole
    #[arg(long, value_name = "R", group = "guide", allow_hyphen_values = true)]
    regex: Option<String>,
    /// Generate text of this grammar, in llguidance's dialect of Lark; `-` for stdin
    #[arg(long, value_name = "FILE", group = "guide")]
    grammar: Option<String>,
    /// Generate exactly one of these texts, separated by commas
    #[arg(
        long,
        value_name = "A,B",
        group = "guide",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    choice: Option<Vec<String>>,
}

impl GuideArgs {
    /// Whether a guide is read from stdin.
    pub fn reads_stdin(&self) -> bool {
        [&self.json_schema, &self.grammar].into_iter().any(|file| file.as_deref() == Some("-"))
    }

    /// Reads the guide; `None` without one.
    ///
    /// # Errors
    /// [`CliError::Input`] for a file that cannot be read, [`CliError::Usage`] for a schema that is not JSON.
    pub fn spec(&self) -> Result<Option<GuideSpec>, CliError> {
        Ok(Some(if let Some(file) = &self.json_schema {
            let schema = serde_json::from_str(&read(file)?);
            let no_json = |why| CliError::Usage(format!("--json-schema {file} is not JSON: {why}"));
            GuideSpec::ClosedJsonSchema(schema.map_err(no_json)?)
        } else if let Some(expression) = &self.regex {
            GuideSpec::Regex(expression.clone())
        } else if let Some(file) = &self.grammar {
            GuideSpec::Lark(read(file)?)
        } else if let Some(choices) = &self.choice {
            GuideSpec::Choice(choices.clone())
        } else {
            return Ok(None);
        }))
    }
}

/// A file's text, or that of stdin.
fn read(file: &str) -> Result<String, CliError> {
    if file == "-" {
        return prompt::text_of(file);
    }
    let refused = |reason| CliError::Input { what: file.to_owned(), reason };
    std::fs::read_to_string(Path::new(file)).map_err(refused)
}

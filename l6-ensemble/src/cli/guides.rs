//! What an answer must look like: `--json-schema`, `--regex`, `--grammar`, `--choice`.

use std::path::Path;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::guide::{Guide, GuideSpec, Guides};

use super::error::CliError;
use super::prompt;

/// What an answer must look like.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Guides (at most one)")]
pub struct GuideArgs {
    /// Answer in JSON that this schema describes; `-` reads it from stdin. An object whose schema declares properties has
    /// no others, unless the schema says additionalProperties
    #[arg(long, value_name = "FILE", group = "guide")]
    json_schema: Option<String>,
    /// Answer so that the whole answer matches this regular expression
    #[arg(long, value_name = "R", group = "guide", allow_hyphen_values = true)]
    regex: Option<String>,
    /// Answer by this grammar, in llguidance's dialect of Lark; `-` reads it from stdin
    #[arg(long, value_name = "FILE", group = "guide")]
    grammar: Option<String>,
    /// Answer with one of these texts, and nothing else
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
    /// Whether it is stdin that says what the answer must look like.
    pub fn reads_stdin(&self) -> bool {
        [&self.json_schema, &self.grammar].into_iter().any(|file| file.as_deref() == Some("-"))
    }

    /// Reads what was asked for; `None` for any answer at all.
    ///
    /// # Errors
    /// [`CliError::Input`] for a file that cannot be read, [`CliError::Usage`] for a schema that is no JSON.
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

/// A guide for a model's answers.
///
/// # Errors
/// [`CliError::Usage`] for what cannot be compiled or followed, and for a model without a tokenizer.
pub fn guide(
    spec: &GuideSpec,
    tokenizer: Option<&Tokenizer>,
    vocab: usize,
    ends: &[u32],
) -> Result<Guide, CliError> {
    let Some(tokenizer) = tokenizer else {
        let why = format!("a {} guides text, and this model has no tokenizer", spec.kind());
        return Err(CliError::Usage(why));
    };
    let guides = Guides::new(tokenizer, vocab, ends);
    let guide = guides.and_then(|guides| guides.guide(spec));
    guide.map_err(|why| CliError::Usage(why.to_string()))
}

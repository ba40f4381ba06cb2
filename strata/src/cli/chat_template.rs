//! `strata chat-template`: the prompt of a conversation, as the model gets it.

use std::fs;

use l2_model::chat_template::Conversation;

use super::args::ModelArgs;
use super::context::Context;
use super::error::CliError;
use super::{load, out, prompt};

/// Print the prompt that a model's chat template renders from messages
#[derive(Debug, clap::Args)]
pub struct ChatTemplateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// JSON file with a list of {"role", "content"}, or an object with `messages` and further variables such as
    /// `tools`; `-` for stdin
    #[arg(long, value_name = "FILE")]
    messages: String,
    /// Do not add the beginning of an assistant message
    #[arg(long)]
    no_generation_prompt: bool,
}

/// Runs the command. What it prints is the rendered prompt to the byte, without a line end of its own.
///
/// # Errors
/// A file that cannot be read, messages of another shape, a model without a template, a template that refuses.
pub fn run(args: &ChatTemplateArgs, context: &Context) -> anyhow::Result<()> {
    let json = match args.messages.as_str() {
        "-" => prompt::text_of("-")?,
        path => fs::read_to_string(path)
            .map_err(|reason| CliError::Input { what: path.into(), reason })?,
    };
    let Conversation { messages, extra } =
        Conversation::from_json(&json).map_err(l2_model::Error::from)?;
    let tokenizer = load::tokenizer(&args.model, context)?;
    let template = prompt::template(&tokenizer, &args.model.model)?;
    let text = template
        .render(&messages, !args.no_generation_prompt, &extra)
        .map_err(l2_model::Error::from)?;
    Ok(out::text(&text)?)
}

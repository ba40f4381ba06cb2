//! `strata tokenize`: text to ids, and ids to text.

use l2_model::tokenizer::Tokenizer;
use serde::Serialize;

use super::args::{ModelArgs, TokenIds};
use super::context::Context;
use super::error::CliError;
use super::load;
use super::out::{self, Out};
use super::prompt::text_of;

/// Convert text to token ids, or token ids to text
///
/// Reads only the tokenizer, so --model may also name a tokenizer.json, or a directory that contains one.
#[derive(Debug, clap::Args)]
pub struct TokenizeArgs {
    /// Text, or with --decode token ids (1,2,3); `-` for stdin
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    text: String,
    #[command(flatten)]
    model: ModelArgs,
    /// Convert token ids to text
    #[arg(long)]
    decode: bool,
    /// Do not add special tokens; with --decode, leave them out
    #[arg(long)]
    no_special: bool,
    /// Print {"tokens": [..], "text": ".."}, where text is decoded from the tokens
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    tokens: &'a [u32],
    /// The text of the tokens. Of a text that was encoded this is the round trip, which shows what the vocabulary
    /// could not spell, and the special tokens that were added.
    text: &'a str,
}

/// Runs the command.
///
/// # Errors
/// What hub and tokenizer report; ids that are no numbers.
pub fn run(args: &TokenizeArgs, context: &Context) -> anyhow::Result<()> {
    let input = text_of(&args.text)?;
    let ids =
        args.decode.then(|| input.parse::<TokenIds>()).transpose().map_err(CliError::Usage)?;
    let tokenizer = load::tokenizer(&args.model, context)?;
    let (tokens, text) = match ids {
        Some(TokenIds(ids)) => {
            let text = tokenizer.decode(&ids, args.no_special)?;
            (ids, text)
        }
        None => {
            let ids = tokenizer.encode(&input, !args.no_special)?;
            let text = tokenizer.decode(&ids, false)?;
            (ids, text)
        }
    };
    if args.json {
        return Ok(out::json_line(&Answer { tokens: &tokens, text: &text })?);
    }
    if args.decode {
        out::text(&text)?;
        return Ok(Out::end_of_text()?);
    }
    print_table(&tokenizer, &tokens)
}

/// One line for each token: its id and its bytes.
fn print_table(tokenizer: &Tokenizer, tokens: &[u32]) -> anyhow::Result<()> {
    let mut out = Out::new();
    for &id in tokens {
        let bytes = tokenizer.token_bytes(id)?;
        // A token may be a part of a character; then its bytes are shown.
        let piece = match std::str::from_utf8(bytes) {
            Ok(text) => format!("{text:?}"),
            Err(_) => format!("\"{}\"", bytes.escape_ascii()),
        };
        out.text(&format!("{id:>8}  {piece}\n"))?;
    }
    Ok(out.finish()?)
}

//! `strata generate`: continue a prompt, greedily.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use l2_model::chat_template::Message;
use l2_model::generate::{PREFILL_CHUNK, generate};
use l2_model::{GenerateOptions, Generation, SequenceState, Session};
use serde::Serialize;

use super::args::{ModelArgs, RuntimeArgs, TokenIds};
use super::context::{Context, warn};
use super::error::CliError;
use super::kv::{Kv, KvArgs, KvReport, StateKind};
use super::load::Loaded;
use super::out::{self, Out};
use super::prompt::{self, TextStream};
use super::recording::Recording;

/// Continue a prompt
///
/// The text streams to stdout as it comes. At every step the likeliest token is taken, so the same prompt gives the
/// same text.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// The text to continue; `-` reads it from stdin, to the last byte (`printf`, not `echo`)
    #[arg(value_name = "PROMPT", required_unless_present = "tokens")]
    prompt: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    /// The most new tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// Ask instead of continue: put PROMPT into the model's chat format, as the user's message
    #[arg(long)]
    chat: bool,
    /// The system message of the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// The prompt as token ids, as they are: 1,2,3. No BOS is added, no tokenizer is needed
    #[arg(
        long,
        value_name = "IDS",
        conflicts_with_all = ["prompt", "chat"],
        allow_hyphen_values = true
    )]
    tokens: Option<TokenIds>,
    /// Go on past tokens that end an answer
    #[arg(long)]
    ignore_eos: bool,
    /// Print one JSON object when done, instead of streaming text
    #[arg(long)]
    json: bool,
    /// Record what happens to the blocks, for `strata trace blocks`
    #[arg(long, value_name = "FILE")]
    trace_blocks: Option<PathBuf>,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    prompt_tokens: &'a [u32],
    /// The new tokens; the last may be the stop token.
    tokens: &'a [u32],
    /// Their text, without special tokens; empty where there is no tokenizer.
    text: &'a str,
    finish_reason: &'a str,
    usage: Usage,
    timings: Timings,
    kv: KvReport,
}

/// Counts of tokens, named as in OpenAI's API.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

/// Milliseconds.
#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
}

/// Runs the command.
///
/// # Errors
/// What loading and generating report; a model without what the prompt needs (tokenizer, chat template).
pub fn run(args: &GenerateArgs, context: &Context) -> anyhow::Result<()> {
    if args.trace_blocks.is_some() && args.kv.state != StateKind::Paged {
        let why = "--trace-blocks records blocks, and only --state paged has any";
        return Err(CliError::Usage(why.into()).into());
    }
    let text = args.prompt.as_deref().map(prompt::text_of).transpose()?;
    let model = Loaded::open(&args.model, &args.runtime, context)?;
    let (prompt, tokenizer) = match (&args.tokens, text) {
        (Some(ids), _) => (ids.0.clone(), tokenizer_if_any(&model)),
        (None, Some(text)) => {
            let tokenizer = model.tokenizer?;
            (encode(args, &tokenizer, &text)?, Some(tokenizer))
        }
        (None, None) => {
            return Err(CliError::Usage("give a PROMPT, or --tokens".into()).into());
        }
    };
    let mut stream = match args.chat {
        true => TextStream::answering(tokenizer.as_ref()),
        false => TextStream::continuing(tokenizer.as_ref(), &prompt),
    };

    let longest = prompt.len().saturating_add(args.max_tokens);
    let config = model.decoder.config();
    let kv = args.kv.plan(config, &model.rt, 1, longest).with_context(|| {
        format!("{} prompt tokens and up to {} new ones", prompt.len(), args.max_tokens)
    })?;
    kv.explain(&args.kv, context);
    let recording = args.trace_blocks.as_deref().map(Recording::create).transpose()?;
    let state = state(&kv, config, recording.as_ref())?;
    let mut session = Session::with_state(&model.decoder, &model.rt, state, kv.max_len)?;
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        stop_tokens: &model.stop_tokens,
        ignore_eos: args.ignore_eos,
    };
    let mut answer = String::new();
    let mut written = Ok(());
    let mut emit = |text: &str| {
        if args.json {
            answer.push_str(text);
        } else if !text.is_empty() {
            written = out::text(text);
        }
        written.is_ok()
    };
    let generation = generate(&mut session, &prompt, &options, |token| emit(stream.push(token)))?;
    emit(&stream.finish());
    written?;
    let cached_tokens = session.resumed();
    if let Some(recording) = recording {
        // The viewer shows how blocks go back, too.
        session.rollback(0)?;
        recording.finish()?;
    }

    if args.json {
        out::json_line(&Answer {
            prompt_tokens: &prompt,
            tokens: &generation.tokens,
            text: &answer,
            finish_reason: generation.finish_reason.as_str(),
            usage: Usage {
                prompt_tokens: prompt.len(),
                completion_tokens: generation.tokens.len(),
                total_tokens: prompt.len() + generation.tokens.len(),
            },
            timings: Timings {
                load_ms: ms(model.took),
                prefill_ms: ms(generation.prefill),
                decode_ms: ms(generation.decode),
            },
            kv: kv.report(cached_tokens),
        })?;
    } else {
        Out::end_of_text()?;
    }
    context.say(summary(prompt.len(), &generation));
    Ok(())
}

/// The memory of the one sequence, recorded if that was asked for.
fn state(
    kv: &Kv,
    config: &l2_model::ModelConfig,
    recording: Option<&Recording>,
) -> anyhow::Result<Box<dyn SequenceState>> {
    let Some(recording) = recording else { return kv.make(config, PREFILL_CHUNK) };
    let mut state = kv.paged(config, PREFILL_CHUNK)?;
    state.set_observer(Some(recording.observer()))?;
    Ok(Box::new(state))
}

/// With ids for a prompt the tokenizer only serves to show the answer as text: a broken one is worth a word, and an
/// absent one not even that.
fn tokenizer_if_any(model: &Loaded) -> Option<l2_model::tokenizer::Tokenizer> {
    match &model.tokenizer {
        Ok(tokenizer) => Some(tokenizer.clone()),
        Err(l2_model::Error::Tokenizer(l2_model::tokenizer::TokenizerError::Missing {
            ..
        })) => None,
        Err(why) => {
            warn(format_args!("no text, only tokens: {why}"));
            None
        }
    }
}

fn encode(
    args: &GenerateArgs,
    tokenizer: &l2_model::tokenizer::Tokenizer,
    text: &str,
) -> anyhow::Result<Vec<u32>> {
    if !args.chat {
        return Ok(prompt::plain(tokenizer, text)?);
    }
    if text.is_empty() {
        return Err(l2_model::Error::EmptyPrompt.into());
    }
    let template = prompt::template(tokenizer, &args.model.model)?;
    let system = args.system.as_deref().map(|s| Message::new("system", s));
    let messages: Vec<_> = system.into_iter().chain([Message::new("user", text)]).collect();
    Ok(prompt::chat(tokenizer, &template, &messages)?)
}

/// Milliseconds, to the microsecond.
fn ms(d: Duration) -> f64 {
    d.as_micros() as f64 / 1e3
}

/// How fast it was. The first token comes out of the prefill; the others are decode steps.
pub fn summary(prompt: usize, generation: &Generation) -> String {
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let new = generation.tokens.len();
    format!(
        "{prompt} prompt tokens in {:.0} ms ({:.0}/s), {new} new ones in {:.0} ms ({:.1}/s), ended by {}",
        ms(generation.prefill),
        rate(prompt, generation.prefill),
        ms(generation.decode),
        rate(new.saturating_sub(1), generation.decode),
        generation.finish_reason.as_str()
    )
}

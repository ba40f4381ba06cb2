//! `strata chat`: a conversation at the terminal.
//!
//! Every turn renders the whole conversation with the model's chat template, and runs it on the same [`Generator`],
//! which finds the blocks of earlier turns in its prefix cache: only the last turn is computed.

use std::fs;
use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;

use l2_model::chat_template::{ChatTemplate, Message};
use l2_model::tokenizer::Tokenizer;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::generate::{GenerateError, Generator};
use l5_scheduler::{EngineOptions, EngineRequest, RequestAdapter};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor};

use super::adapter::AdapterArgs;
use super::args::{ModelArgs, RuntimeArgs};
use super::context::{Context, warn};
use super::error::print_error;
use super::interrupt::Interruptible;
use super::kv::KvArgs;
use super::load::Loaded;
use super::options::SpeculationOptions;
use super::response::summary;
use super::sampling::SamplingArgs;
use super::serving::{Parts, start_error};
use super::wrap::Wrap;
use super::{out, prompt};

const HELP: &str = "\
/system TEXT  set the system message and start a new conversation (without TEXT: show it)
/reset        start a new conversation with the same system message
/help         show this list
/quit         end the chat, as does Ctrl-D
Ctrl-C        stop the response";

/// Chat with a model
///
/// Each line is a message; a line that begins with / is a command (/help lists them). Ctrl-C stops a response.
#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens of a response
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// Maximum number of tokens of the conversation, for which memory is reserved; at most the model's context length
    #[arg(long, value_name = "N", default_value_t = 8192)]
    context: usize,
    #[command(flatten)]
    adapter: AdapterArgs,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
    #[command(flatten)]
    speculation: SpeculationOptions,
    // Last, because it has its own heading in the help.
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command.
///
/// # Errors
/// What loading reports; a model without a chat template; a stdout that cannot be written to.
pub fn run(args: &ChatArgs, context: &Context) -> anyhow::Result<()> {
    let mut loaded = Loaded::open(&args.model, &args.runtime, context)?;
    let tokenizer = loaded.tokenizer?;
    let template = prompt::template(&tokenizer, &args.model.model)?;
    loaded.tokenizer = Ok(tokenizer.clone());
    let Parts { model, .. } = Parts::new(loaded);
    let config = model.decoder.config();
    let adapter = args.adapter.open(&model.rt, config, context)?;
    // With less memory the conversation has a lower limit.
    let room = args.kv.longest(config, &model.rt)?.unwrap_or(usize::MAX);
    let kv = args.kv.plan_engine(config, &model.rt, 1, args.context.min(room), 0)?;
    kv.explain(&args.kv, context);
    args.sampling.explain(&[], context);
    let max_lora_rank = args.adapter.max_rank();
    let options = EngineOptions { max_lora_rank, ..kv.engine(&args.speculation) };
    let mut chat = Chat {
        generator: Generator::open(model, &options).map_err(start_error)?,
        adapter,
        tokenizer,
        template,
        params: args.sampling.params(),
        stop: StopRules { max_tokens: args.max_tokens, ..StopRules::default() },
        seed: args.sampling.seed(),
        system: args.system.clone(),
        turns: vec![],
    };
    let mut lines = Lines::open(context)?;
    context.say("type a message, or /help");
    while let Some(line) = lines.read()? {
        match Input::of(&line) {
            Input::Nothing => {}
            Input::Quit => break,
            Input::Help => warn(HELP),
            Input::Reset => chat.turns.clear(),
            Input::ShowSystem => match &chat.system {
                Some(text) => warn(text),
                None => warn("no system message; the chat template may add its own"),
            },
            Input::System(text) => {
                chat.system = Some(text.to_owned());
                chat.turns.clear();
            }
            Input::Unknown(word) => {
                warn(format_args!("unknown command {word}; /help lists the commands"));
            }
            Input::Message(text) => match chat.respond(text, lines.columns(), context) {
                Ok(()) => {}
                // A message that is rejected, or a choice that fails, ends that turn only.
                Err(e) if is_of_the_turn(&e) => print_error(&e),
                Err(e) => return Err(e),
            },
        }
    }
    lines.close();
    Ok(())
}

/// Returns whether an error is about one turn, whose message is rejected or whose choice failed, and not about the model.
fn is_of_the_turn(error: &anyhow::Error) -> bool {
    let rejected = error.downcast_ref::<GenerateError>();
    error.is::<l2_model::Error>()
        || matches!(rejected, Some(GenerateError::Refused(_) | GenerateError::Choice(_)))
}

/// A line of input: a command or a message.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Nothing,
    Quit,
    Help,
    Reset,
    ShowSystem,
    System(&'a str),
    Unknown(&'a str),
    Message(&'a str),
}

impl<'a> Input<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word, rest.trim()) {
            ("", _) => Input::Nothing,
            ("/quit" | "/exit", _) => Input::Quit,
            ("/help", _) => Input::Help,
            ("/reset", _) => Input::Reset,
            ("/system", "") => Input::ShowSystem,
            ("/system", text) => Input::System(text),
            (word, _) if word.starts_with('/') => Input::Unknown(word),
            _ => Input::Message(line),
        }
    }
}

struct Chat {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    generator: Generator,
    adapter: Option<RequestAdapter>,
    params: SamplingParams,
    stop: StopRules,
    seed: u64,
    system: Option<String>,
    turns: Vec<Message>,
}

impl Chat {
    /// Prints the response to `text`, in lines of so many columns, and keeps both for the next turn. An error leaves
    /// the conversation unchanged.
    fn respond(
        &mut self,
        text: &str,
        columns: Option<usize>,
        context: &Context,
    ) -> anyhow::Result<()> {
        let turns = self.turns.len();
        self.turns.push(Message::new("user", text));
        match self.generate(columns, context) {
            Ok(response) => {
                self.turns.push(Message::new("assistant", &response));
                Ok(())
            }
            Err(e) => {
                self.turns.truncate(turns);
                Err(e)
            }
        }
    }

    fn generate(&mut self, columns: Option<usize>, context: &Context) -> anyhow::Result<String> {
        let system = self.system.as_deref().map(|text| Message::new("system", text));
        let messages: Vec<_> = system.into_iter().chain(self.turns.iter().cloned()).collect();
        let prompt = prompt::chat(&self.tokenizer, &self.template, &messages)?;
        let request = EngineRequest::new(prompt, self.params.clone(), self.stop.clone());
        let adapter = self.adapter.clone();
        let request = EngineRequest { seed: self.seed, adapter, ..request };
        let mut written = Ok(());
        let mut wrap = columns.map(Wrap::new);
        let work = Interruptible::begin();
        let generation = self.generator.run(&request.into(), |_, text| {
            let wrapped = wrap.as_mut().map(|wrap| wrap.push(text));
            let text = wrapped.as_deref().unwrap_or(text);
            if !text.is_empty() {
                written = out::text(text);
            }
            written.is_ok() && !work.stopped()
        })?;
        let stopped = work.stopped();
        drop(work);
        written?;
        let rest = wrap.as_mut().map(Wrap::finish).unwrap_or_default();
        out::text(&format!("{rest}\n"))?;
        if stopped {
            context.say("stopped");
        } else {
            let speculates = self.generator.scheduler().config().num_speculative_tokens > 0;
            context.say(summary(generation.work.prompt_computed, &generation, speculates));
        }
        Ok(generation.choices.into_iter().map(|choice| choice.text).collect())
    }
}

/// Lines of a terminal, with editing and a history, or of a pipe.
struct Lines {
    editor: Editor<(), DefaultHistory>,
    /// File of the history; `None` for a pipe.
    history: Option<PathBuf>,
}

impl Lines {
    fn open(context: &Context) -> anyhow::Result<Self> {
        let config = Config::builder().auto_add_history(true).build();
        let mut editor = Editor::with_config(config)?;
        // Without a cache, a history lasts as long as its chat.
        let cache = || context.hub().cache_dir().ok().map(|dir| dir.join("chat-history"));
        let history = if stdin().is_terminal() { cache() } else { None };
        if let Some(path) = &history {
            // The first chat on a machine has no history to load.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    /// Number of columns of stdout; `None` if it is not a terminal: text is then not wrapped.
    fn columns(&mut self) -> Option<usize> {
        if !stdout().is_terminal() {
            return None;
        }
        let (columns, _) = self.editor.dimensions()?;
        (columns > 0).then_some(columns.into())
    }

    /// Reads the next line; `None` at the end of the input.
    fn read(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.editor.readline("> ") {
                Ok(line) => return Ok(Some(line)),
                Err(ReadlineError::Eof) => return Ok(None),
                // Ctrl-C at the prompt clears the line, as a shell does.
                Err(ReadlineError::Interrupted) => warn("Ctrl-D or /quit ends the chat"),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Saves the history. A failure is not reported: the history is only a convenience.
    fn close(mut self) {
        if let Some(path) = &self.history {
            let _ = path.parent().map(fs::create_dir_all);
            let _ = self.editor.save_history(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_or_a_message() {
        assert_eq!(Input::of("  "), Input::Nothing);
        assert_eq!(Input::of(" hello there "), Input::Message("hello there"));
        assert_eq!(Input::of("/reset"), Input::Reset);
        assert_eq!(Input::of("/system"), Input::ShowSystem);
        assert_eq!(Input::of("/system  Be brief. "), Input::System("Be brief."));
        assert_eq!(Input::of("/sytem x"), Input::Unknown("/sytem"));
    }
}

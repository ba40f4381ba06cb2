//! `strata chat`: a conversation at the terminal.
//!
//! Every turn renders the whole conversation with the model's own template and hands it to the same [`Generator`],
//! which computes only what differs from the tokens it already holds: a long conversation costs its last turn.

use std::fs;
use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;

use l2_model::chat_template::{ChatTemplate, Message};
use l2_model::generate::PREFILL_CHUNK;
use l2_model::tokenizer::Tokenizer;
use l4_sampler::SamplingParams;
use l4_sampler::generate::{Generator, Request};
use l4_sampler::stop::StopRules;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor};

use super::answer::summary;
use super::args::{ModelArgs, RuntimeArgs};
use super::context::{Context, warn};
use super::error::print_error;
use super::interrupt::Answering;
use super::kv::KvArgs;
use super::load::Loaded;
use super::sampling::SamplingArgs;
use super::wrap::Wrap;
use super::{out, prompt};

const HELP: &str = "\
/system TEXT  give the assistant another system message and begin anew (without TEXT: show it)
/reset        forget the conversation, keep the system message
/help         this list
/quit         leave; Ctrl-D does too
Ctrl-C        stop the answer";

/// Talk with a model
///
/// Lines are messages; a line that begins with / is a command, /help lists them. Ctrl-C stops an answer.
#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The most tokens of one answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// The most tokens of the conversation; memory is set aside for them (at most the model's own limit)
    #[arg(long, value_name = "N", default_value_t = 8192)]
    context: usize,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
    // Last, since it has a heading of its own in the help.
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command.
///
/// # Errors
/// What loading reports, a model without a chat template, a stdout that takes no more.
pub fn run(args: &ChatArgs, context: &Context) -> anyhow::Result<()> {
    let model = Loaded::open(&args.model, &args.runtime, context)?;
    let tokenizer = model.tokenizer?;
    let template = prompt::template(&tokenizer, &args.model.model)?;
    let config = model.decoder.config();
    // A conversation that is given less memory is a shorter conversation.
    let room = args.kv.longest(config, &model.rt)?.unwrap_or(usize::MAX);
    let kv = args.kv.plan(config, &model.rt, 1, args.context.min(room))?;
    kv.explain(&args.kv, context);
    args.sampling.explain(&[], context);
    let state = kv.make(config, PREFILL_CHUNK)?;
    let generator =
        Generator::new(&model.decoder, Some(&tokenizer), &model.rt, state, 1, kv.max_len)?;
    let mut chat = Chat {
        tokenizer,
        template,
        generator: generator.keeping(),
        params: args.sampling.params(),
        stop: StopRules {
            eos: model.stop_tokens.clone(),
            max_tokens: args.max_tokens,
            ..StopRules::default()
        },
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
                None => warn("no system message: the template may have one of its own"),
            },
            Input::System(text) => {
                chat.system = Some(text.to_owned());
                chat.turns.clear();
            }
            Input::Unknown(word) => warn(format_args!("{word} is no command; /help lists them")),
            Input::Message(text) => match chat.answer(text, lines.columns(), context) {
                Ok(()) => {}
                // A message that the template or the context refuses is the end of that turn only.
                Err(e) if is_of_the_turn(&e) => print_error(&e),
                Err(e) => return Err(e),
            },
        }
    }
    lines.close();
    Ok(())
}

/// Whether an error is about one message (the template or the context refuses it) and not about the model.
fn is_of_the_turn(error: &anyhow::Error) -> bool {
    let sampler = error.downcast_ref::<l4_sampler::Error>();
    error.is::<l2_model::Error>() || matches!(sampler, Some(l4_sampler::Error::Model(_)))
}

/// What a line asks for.
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

struct Chat<'m> {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    generator: Generator<'m>,
    params: SamplingParams,
    stop: StopRules,
    seed: u64,
    system: Option<String>,
    turns: Vec<Message>,
}

impl Chat<'_> {
    /// Answers `text` on stdout, in lines of so many columns, and keeps both for the next turn. After an error the
    /// conversation is as before.
    fn answer(
        &mut self,
        text: &str,
        columns: Option<usize>,
        context: &Context,
    ) -> anyhow::Result<()> {
        let said = self.turns.len();
        self.turns.push(Message::new("user", text));
        match self.generate(columns, context) {
            Ok(answer) => {
                self.turns.push(Message::new("assistant", &answer));
                Ok(())
            }
            Err(e) => {
                self.turns.truncate(said);
                Err(e)
            }
        }
    }

    fn generate(&mut self, columns: Option<usize>, context: &Context) -> anyhow::Result<String> {
        let system = self.system.as_deref().map(|text| Message::new("system", text));
        let messages: Vec<_> = system.into_iter().chain(self.turns.iter().cloned()).collect();
        let prompt = prompt::chat(&self.tokenizer, &self.template, &messages)?;
        let request =
            Request { seed: self.seed, ..Request::new(&prompt, &self.params, &self.stop) };
        let mut written = Ok(());
        let mut wrap = columns.map(Wrap::new);
        let answering = Answering::begin();
        let generation = self.generator.run(&request, |_, text| {
            let wrapped = wrap.as_mut().map(|wrap| wrap.push(text));
            let text = wrapped.as_deref().unwrap_or(text);
            if !text.is_empty() {
                written = out::text(text);
            }
            written.is_ok() && !answering.stopped()
        })?;
        let stopped = answering.stopped();
        drop(answering);
        written?;
        let rest = wrap.as_mut().map(Wrap::finish).unwrap_or_default();
        out::text(&format!("{rest}\n"))?;
        if stopped {
            context.say("stopped");
        } else {
            context.say(summary(generation.work.prompt_computed, &generation));
        }
        Ok(generation.choices.into_iter().map(|choice| choice.text).collect())
    }
}

/// Lines from a person, with editing and a history, or from a pipe.
struct Lines {
    editor: Editor<(), DefaultHistory>,
    /// Where the history is kept; pipes have none.
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

    /// Columns of the terminal that stdout is; `None`: it is none, and gets every text as it is.
    fn columns(&mut self) -> Option<usize> {
        if !stdout().is_terminal() {
            return None;
        }
        let (columns, _) = self.editor.dimensions()?;
        (columns > 0).then_some(columns.into())
    }

    /// The next line; `None` at the end of the input.
    fn read(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.editor.readline("> ") {
                Ok(line) => return Ok(Some(line)),
                Err(ReadlineError::Eof) => return Ok(None),
                // Ctrl-C at the prompt clears the line, as a shell does.
                Err(ReadlineError::Interrupted) => warn("Ctrl-D or /quit leaves"),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Keeps the history for the next time. It is a convenience: a disk that does not take it is no error.
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

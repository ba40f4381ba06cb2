//! From flags to a server.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use l1_tensor::{Device, RuntimeOptions};
use l2_model::chat_template::ChatTemplate;
use l2_model::tokenizer::Tokenizer;
use l5_scheduler::engine::{EngineModel, StartError, Startup};
use l5_scheduler::trace::Recorder;
use l5_scheduler::{Engine, EngineOptions};
use tracing_subscriber::EnvFilter;

use super::flags::Flags;
use super::generation;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::interrupt;
use crate::cli::{kv, out};
use crate::hub;
use crate::server::background::Background;
use crate::server::backpressure::Compiling;
use crate::server::chat::prompt::quoted_words;
use crate::server::chat::reasoning::ReasoningFormat;
use crate::server::chat::tools::ToolFormat;
use crate::server::json::shape::ParsedBodies;
use crate::server::life::Life;
use crate::server::listen::shut_down_within;
use crate::server::listen::watchdog::Supervisor;
use crate::server::memory;
use crate::server::metrics::Metrics;
use crate::server::model::{GenerationDefaults, unix_time};
use crate::server::tokenise::LongestToken;
use crate::server::{AccessLog, App, Limits, ServedModel, Server, ServerOptions};

/// Load the model, take the address, serve. `warnings` are about the flags.
///
/// # Errors
/// What device, hub, checkpoint and socket report.
pub fn serve(flags: &Flags, warnings: &[String], context: &Context) -> anyhow::Result<()> {
    memory::give_back_what_is_freed();
    let name = flags.model_name();
    log();
    warnings.iter().for_each(|warning| tracing::warn!(target: LOG, "{warning}"));
    free(SocketAddr::new(flags.server.host, flags.server.port))?;
    let source = hub::resolve(name, &context.hub())?;
    // Before gigabytes are read: what the flags say wrong, and a file that cannot be made.
    let defaults = generation::defaults(&flags.model, source.path())?;
    let recording = flags.scheduler.trace.as_deref().map(|path| record(path, name)).transpose()?;
    let model = EngineModel::open(source.path(), flags.runtime())?;
    let kv_dtype = flags.kv.dtype().unwrap_or(model.rt.activation_dtype());
    let Some(tokenizer) = model.tokenizer.clone() else {
        anyhow::bail!("{name} has no tokenizer: a server needs one");
    };
    let template = flags.template(&tokenizer)?;
    let options = flags.engine(model.rt.device());
    let engine = Engine::new(model, &options).map_err(|why| match why {
        StartError::Config(_) | StartError::Context { .. } => {
            CliError::Usage(why.to_string()).into()
        }
        why => anyhow::Error::from(why),
    })?;
    if let Some((_, recorder)) = &recording {
        engine.handle().observe(recorder.observer())?;
    }
    tell(engine.startup(), &defaults, context);
    let text = template.as_ref().map_or("", |(text, _)| text.as_str());
    let max_model_len = engine.handle().config().max_model_len;
    let model = ServedModel {
        names: flags.names(),
        alias: flags.path_as_alias(),
        root: name.to_owned(),
        tools: flags.model.tool_call_parser.0.unwrap_or_else(|| ToolFormat::detect(text)),
        reasoning: flags.model.reasoning_parser.0.unwrap_or_else(|| ReasoningFormat::detect(text)),
        developer: text.contains("developer"),
        roles: quoted_words(text),
        defaults,
        max_model_len,
        created: unix_time(),
        tokenizer,
        template: template.map(|(_, template)| template),
    };
    let metrics = Metrics::new(engine.handle(), model.name(), kv::name(kv_dtype))?;
    let app = App {
        engine: engine.handle().clone(),
        model,
        options: flags.options(),
        metrics,
        longest_token: LongestToken::default(),
        background: Background::default(),
        compiling: Compiling::default(),
        parsed: ParsedBodies::default(),
        life: Life::default(),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let served = runtime.block_on(async {
        let server = Server::bind(app).await.context("the server cannot start")?;
        interrupt::hand_over();
        let name = server.app().model.name();
        warn_if_open(server.address()?, &server.app().options);
        out::text(&format!("strata: serving {name} at http://{}\n", server.address()?))?;
        let supervisor = Arc::new(Supervisor::from_env());
        supervisor.ready();
        let (watching, engine) = (supervisor.clone(), server.app().engine.clone());
        tokio::spawn(async move { watching.watch(engine).await });
        let served = server.run().await;
        supervisor.stopping();
        anyhow::Ok(served?)
    });
    // What still runs in the background is work for clients that have gone.
    runtime.shutdown_background();
    // Before anything is returned: an engine that is dropped is waited for, however long its step takes.
    let ended = shut_down_within(engine, STEP_PATIENCE);
    served?;
    ended?;
    if let Some((path, recorder)) = recording {
        recorder.finish().map_err(|reason| CliError::Output { path, reason })?;
    }
    Ok(())
}

/// How long the last step may take to end when the server does.
const STEP_PATIENCE: Duration = Duration::from_secs(5);

/// The target of what a server reports of its start and its end, which is logged at `info` by default.
const LOG: &str = crate::server::LOG;

/// Requests at once, and tokens a step, where nobody says how many. On a CPU a step of 2,048 tokens would take a second,
/// and all who decode would wait for it; the weights are read for 256 as well as for more.
const ON_A_CPU: (usize, usize) = (128, 256);
const ON_A_GPU: (usize, usize) = (256, 2048);

/// Threads for sockets, JSON and texts. The engine has its own, so these must not be many; two, so that one request that
/// takes long to read holds up nobody who asks for `/health`.
const WORKERS: usize = 2;

/// Whether the address can be taken: said now, and not when the model has been read. It is taken when there is something
/// to serve; until then whoever connects is refused, which is what load balancers understand.
fn free(address: SocketAddr) -> anyhow::Result<()> {
    TcpListener::bind(address).map(drop).with_context(|| {
        format!(
            "cannot listen on {address}: give another --host or --port (0 takes any that is free)"
        )
    })
}

/// The program's log on stderr: warnings, what a server reports of its start and its end, and what RUST_LOG asks for.
fn log() {
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    // One that is there already is as good.
    let _ = log.with_env_filter(filter(&asked)).try_init();
}

/// What RUST_LOG asks for, else warnings; and events with the target `strata`, unless RUST_LOG names that target itself.
fn filter(asked: &str) -> EnvFilter {
    let named = asked.split(',').any(|part| part.trim().split(['=', '[']).next() == Some(LOG));
    // A default directive would count only where there is no other.
    let rest = if asked.trim().is_empty() { "warn" } else { asked };
    let own = if named { String::new() } else { format!(",{LOG}=info") };
    EnvFilter::builder().parse_lossy(format!("{rest}{own}"))
}

/// Reports device, sizes and sampling defaults: unlike other commands, a server does so in a journal too.
fn tell(startup: &Startup, defaults: &GenerationDefaults, context: &Context) {
    if context.quiet {
        return;
    }
    startup.to_string().lines().for_each(|line| tracing::info!(target: LOG, "{line}"));
    if *defaults != GenerationDefaults::default() {
        tracing::info!(
            target: LOG,
            "sampling defaults of the model: {defaults} (--generation-config vllm ignores them)"
        );
    }
}

/// Warns that other machines can use this server without a key. Also with --quiet: it is about security.
fn warn_if_open(address: SocketAddr, options: &ServerOptions) {
    if options.api_keys.is_empty() && !address.ip().to_canonical().is_loopback() {
        tracing::warn!(
            target: LOG,
            "anyone who can reach {address} can use this server: give --api-key or --host 127.0.0.1"
        );
    }
}

/// The name of a model's directory or of its .gguf file, without that extension.
fn own_name(path: &Path) -> Option<String> {
    let named = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    // `.` and `..` have no name of their own.
    let name = named(path).or_else(|| named(&path.canonicalize().ok()?))?;
    let stem = name.len().checked_sub(".gguf".len()).and_then(|at| name.split_at_checked(at));
    match stem {
        Some((stem, end)) if !stem.is_empty() && end.eq_ignore_ascii_case(".gguf") => {
            Some(stem.to_owned())
        }
        _ => Some(name),
    }
}

fn record(path: &Path, model: &str) -> Result<(PathBuf, Recorder), CliError> {
    let refused = |reason| CliError::Output { path: path.to_owned(), reason };
    let recorder = Recorder::create(path).map_err(refused)?;
    Ok((path.to_owned(), recorder.with_model(model)))
}

impl Flags {
    fn names(&self) -> Vec<String> {
        match self.model.served_model_name.as_slice() {
            [] => {
                let given = self.model_name();
                vec![self.local_model().and_then(|path| own_name(&path)).unwrap_or(given.into())]
            }
            names => names.to_vec(),
        }
    }

    /// The path that `--model` gives, which is vLLM's name for such a model: requests may use it, no list shows it.
    fn path_as_alias(&self) -> Option<String> {
        let unnamed = self.model.served_model_name.is_empty() && self.local_model().is_some();
        unnamed.then(|| self.model_name().to_owned())
    }

    /// The path of a model on this disk.
    fn local_model(&self) -> Option<PathBuf> {
        match hub::Spec::parse(self.model_name()) {
            Ok(hub::Spec::Local(path)) => Some(path),
            _ => None,
        }
    }

    fn runtime(&self) -> RuntimeOptions {
        RuntimeOptions {
            device: self.machine.device,
            precision: self.machine.precision,
            threads: self.machine.threads.map(usize::from),
            isa: None,
            batch_invariant: self.machine.batch_invariant,
        }
    }

    fn engine(&self, device: Device) -> EngineOptions {
        let (scheduler, kv) = (&self.scheduler, &self.kv);
        let (seats, budget) = if device == Device::Cpu { ON_A_CPU } else { ON_A_GPU };
        let budget = scheduler.max_num_batched_tokens.unwrap_or(budget);
        EngineOptions {
            policy: scheduler.policy,
            // More could never run: a step has a token for each.
            max_num_seqs: scheduler.max_num_seqs.unwrap_or(seats).min(budget),
            max_num_batched_tokens: budget,
            long_prefill_token_threshold: scheduler.long_prefill_token_threshold,
            max_model_len: scheduler.max_model_len.and_then(|len| len.0),
            block_size: kv.block_size,
            kv_dtype: kv.dtype(),
            kv_memory: kv.kv_memory,
            memory_utilization: kv.memory_utilization,
            enable_prefix_caching: self.prefix_caching(),
            enable_chunked_prefill: self.chunked_prefill(),
            max_num_waiting: self.limits.max_num_waiting,
            eager: self.machine.eager,
            ..EngineOptions::default()
        }
    }

    fn options(&self) -> ServerOptions {
        let (server, limits) = (&self.server, &self.limits);
        let timeout = limits.request_timeout;
        ServerOptions {
            host: server.host,
            port: server.port,
            api_keys: server.api_key.clone(),
            allowed_hosts: server.allowed_hosts.clone(),
            share_prefix_cache: server.share_prefix_cache,
            disable_additional_properties: self.disable_additional_properties(),
            min_priority: limits.min_client_priority.unwrap_or(i64::MIN),
            allowed_origins: server.allowed_origins.clone(),
            limits: Limits {
                body_bytes: usize::try_from(limits.max_body_size.0).unwrap_or(usize::MAX),
                request_timeout: (!timeout.is_zero()).then_some(timeout),
                connections: limits.max_connections,
                queued_tokens: Some(limits.max_num_queued_tokens).filter(|most| *most > 0),
                default_chat_tokens: Some(limits.default_chat_max_tokens).filter(|most| *most > 0),
                answers: limits.max_num_answers,
                logprobs: limits.max_logprobs,
                ..Limits::default()
            },
            shutdown_grace: server.shutdown_grace,
            access_log: match server.access_log.as_deref() {
                None => AccessLog::Off,
                Some(path) if path == Path::new("-") => AccessLog::Stderr,
                Some(path) => AccessLog::File(path.to_owned()),
            },
        }
    }

    /// The chat template that was given, or the tokenizer's: its text, and what renders it.
    fn template(&self, tokenizer: &Tokenizer) -> anyhow::Result<Option<(String, ChatTemplate)>> {
        let text = match self.model.chat_template.as_deref() {
            None => tokenizer.chat_template().map(str::to_owned),
            // A template has braces, and hardly a file's name.
            Some(jinja) if jinja.contains('{') => Some(jinja.to_owned()),
            Some(path) => Some(std::fs::read_to_string(path).map_err(|reason| {
                CliError::Input { what: format!("--chat-template {path}"), reason }
            })?),
        };
        let Some(text) = text else { return Ok(None) };
        let word = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
        let (bos, eos) = (word(tokenizer.bos()), word(tokenizer.eos()));
        let template = ChatTemplate::new(&text, bos.as_deref(), eos.as_deref());
        let template = template.map_err(l2_model::Error::from)?;
        Ok(Some((text, template)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_on_this_disk_is_named_as_its_directory_or_its_file() {
        for (path, name) in [
            ("/models/tiny", "tiny"),
            ("models/tiny/", "tiny"),
            ("./SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1"),
            ("x.GGUF", "x"),
            (".gguf", ".gguf"),
        ] {
            assert_eq!(own_name(Path::new(path)).as_deref(), Some(name), "{path}");
        }
        let here = std::env::current_dir().unwrap();
        let name = here.file_name().unwrap().to_str();
        assert_eq!(own_name(Path::new(".")).as_deref(), name);
    }

    #[test]
    fn what_a_server_reports_is_logged_unless_rust_log_says_otherwise() {
        for (asked, has) in [
            ("", "strata=info"),
            ("error", "strata=info"),
            ("hyper=debug,l6_ensemble=trace", "strata=info"),
            ("strata=off", "strata=off"),
        ] {
            let filter = filter(asked).to_string();
            assert!(filter.split(',').any(|part| part == has), "{asked}: {filter}");
            assert_eq!(filter.matches("strata=").count(), 1, "{filter}");
        }
        assert!(filter("").to_string().split(',').any(|part| part == "warn"));
    }
}

//! From flags to a server.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use l1_tensor::{Device, RuntimeOptions};
use l2_model::chat_template::ChatTemplate;
use l2_model::tokenizer::Tokenizer;
use l5_scheduler::engine::{EngineModel, StartError, Startup};
use l5_scheduler::trace::Recorder;
use l5_scheduler::{Engine, EngineOptions};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::flags::Flags;
use super::generation;
use crate::cli::context::{Context, warn};
use crate::cli::error::CliError;
use crate::cli::interrupt;
use crate::cli::{kv, out};
use crate::hub;
use crate::server::background::Background;
use crate::server::backpressure::Compiling;
use crate::server::chat::reasoning::ReasoningFormat;
use crate::server::chat::tools::ToolFormat;
use crate::server::json::shape::ParsedBodies;
use crate::server::life::Life;
use crate::server::listen::shut_down_within;
use crate::server::memory;
use crate::server::metrics::Metrics;
use crate::server::model::{GenerationDefaults, unix_time};
use crate::server::tokenise::LongestToken;
use crate::server::{AccessLog, App, Limits, ServedModel, Server, ServerOptions};

/// Load the model, take the address, serve.
///
/// # Errors
/// What device, hub, checkpoint and socket report.
pub fn serve(flags: &Flags, context: &Context) -> anyhow::Result<()> {
    memory::give_back_what_is_freed();
    let name = flags.model_name();
    free(SocketAddr::new(flags.server.host, flags.server.port))?;
    log();
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
        root: name.to_owned(),
        tools: flags.model.tool_call_parser.0.unwrap_or_else(|| ToolFormat::detect(text)),
        reasoning: flags.model.reasoning_parser.0.unwrap_or_else(|| ReasoningFormat::detect(text)),
        developer: text.contains("developer"),
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
        out::text(&format!("strata: serving {name} at http://{}\n", server.address()?))?;
        anyhow::Ok(server.run().await?)
    });
    // What still runs in the background is work for clients that have gone.
    runtime.shutdown_background();
    served?;
    shut_down_within(engine, STEP_PATIENCE)?;
    if let Some((path, recorder)) = recording {
        recorder.finish().map_err(|reason| CliError::Output { path, reason })?;
    }
    Ok(())
}

/// How long the last step may take to end when the server does.
const STEP_PATIENCE: Duration = Duration::from_secs(5);

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

/// What the program says of itself goes to stderr: warnings, or what RUST_LOG asks for.
fn log() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    // One that is there already is as good.
    let _ = log.with_env_filter(filter.from_env_lossy()).try_init();
}

/// How memory came to be shared out, for whoever will wonder: unlike other commands, a server says it to a journal too.
fn tell(startup: &Startup, defaults: &GenerationDefaults, context: &Context) {
    if context.quiet {
        return;
    }
    startup.to_string().lines().for_each(warn);
    if *defaults != GenerationDefaults::default() {
        warn(format_args!("sampling defaults: {defaults:?}; --generation-config vllm has none"));
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
            [] => vec![self.model_name().to_owned()],
            names => names.to_vec(),
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

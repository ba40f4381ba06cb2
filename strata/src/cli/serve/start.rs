//! Starts a server from its flags.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use l1_tensor::Device;
use l2_model::chat_template::ChatTemplate;
use l2_model::tokenizer::Tokenizer;
use l5_scheduler::EngineOptions;
use l5_scheduler::engine::{FLUSH_TIMEOUT, Startup};
use l6_ensemble::calibration::CalibrationConfig;
use tokio::time::{MissedTickBehavior, interval};
use tracing_subscriber::EnvFilter;

use super::ensemble;
use super::flags::Flags;
use super::lanes::{self, Parts, Started};
use super::slo_files::SloFiles;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::interrupt;
use crate::cli::job_history::JobHistoryFile;
use crate::cli::out;
use crate::cli::recording::ServerRecording;
use crate::hub;
use server::background::Background;
use server::calibration::CalibrationStream;
#[cfg(target_os = "linux")]
use server::compile_check::{CompileCheckOptions, CompileChecker};
use server::listen::watchdog::Supervisor;
use server::listen::{ignore_hangups, shut_down_within};
use server::memory;
use server::metrics::Metrics;
use server::model::GenerationDefaults;
use server::overrides::OverridesFile;
#[cfg(target_os = "linux")]
use server::verdicts::CompileChecks;
use server::verdicts::ResponseChecker;
use server::{AccessLog, App, Limits, Server, ServerOptions};

/// Loads the model, binds the address and serves. `warnings` are about the flags.
///
/// # Errors
/// Errors of device, hub, checkpoint and socket.
pub fn serve(flags: &Flags, warnings: &[String], context: &Context) -> anyhow::Result<()> {
    memory::configure_allocator();
    log(context);
    if flags.ensemble.is_some() {
        ignore_hangups();
    }
    warnings.iter().for_each(|warning| tracing::warn!(target: LOG, "{warning}"));
    free(SocketAddr::new(flags.server.host, flags.server.port))?;
    // Before gigabytes are read: a compiler that does not work, and a directory that cannot be written.
    let checker = flags.compile_checker()?;
    let calibration = flags.calibration()?.map(Arc::new);
    let history = flags.scheduler.job_history.as_deref().map(JobHistoryFile::create);
    let history = history.transpose()?.map(Arc::new);
    let options = Arc::new(flags.options());
    let parts = Parts { metrics: Metrics::default(), background: Background::default(), options };
    let Started { lanes, engines, recording } = match flags.ensemble()? {
        Some(ensemble) => {
            let file = flags.ensemble.as_deref().unwrap_or_default();
            let found = ensemble::verified(file, &ensemble, &context.hub())?;
            found
                .warnings
                .iter()
                .for_each(|warning| tracing::warn!(target: LOG, "{file}: {warning}"));
            found.notes.iter().for_each(|note| tracing::info!(target: LOG, "{note}"));
            lanes::ensemble(flags, &ensemble, &parts, context)?
        }
        None => lanes::single(flags, &parts, context)?,
    };
    if let (Some(file), Some(engine)) = (&history, engines.first()) {
        engine.handle().observe(Box::new(file.history().clone()))?;
    }
    let lanes = lanes.with_checker(checker).with_calibration(calibration.clone());
    let Parts { metrics, background, options } = parts;
    let directory = flags.server.state_dir.as_deref();
    let slo_files = directory.map(|directory| SloFiles::open(directory, &lanes)).transpose()?;
    let mut app = App::new(lanes, options, metrics, background);
    if let Some(directory) = directory {
        app = app.with_overrides(OverridesFile::new(directory));
    }
    if let Some(source) = flags.ensemble_source() {
        app = app.with_ensemble_source(source);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let served = runtime.block_on(async {
        let server = Server::bind(app).await.context("the server cannot start")?;
        interrupt::hand_over();
        let lanes = server.app().lanes.now();
        let name = lanes.name();
        warn_if_open(server.address()?, &server.app().options);
        out::text(&format!("strata: serving {name} at http://{}\n", server.address()?))?;
        let supervisor = Arc::new(Supervisor::from_env());
        supervisor.ready();
        let watched = engines.iter().map(|engine| engine.handle().clone()).collect();
        let watching = supervisor.clone();
        tokio::spawn(async move { watching.watch(watched).await });
        if let Some(files) = &slo_files {
            tokio::spawn(files.clone().keep());
        }
        if let Some(file) = &history {
            tokio::spawn(keep(file.clone()));
        }
        let served = server.run().await;
        supervisor.stopping();
        anyhow::Ok(served?)
    });
    // Before anything is returned, as dropping an engine waits for its step, however long that takes.
    let ended = shut_down_within(engines, STEP_PATIENCE + FLUSH_TIMEOUT);
    // Work that still runs in the background is for clients that have disconnected. Not before the engines have ended:
    // a second signal ends the process at once, and a task of the runtime waits for it.
    runtime.shutdown_background();
    if let Some(files) = slo_files {
        files.store();
    }
    // After the last step, also of a server that failed.
    let history = history.map_or(Ok(()), |file| file.store());
    // After the last task that could add a record.
    if let Some(stream) = calibration {
        stream.close();
    }
    // Also of a server that failed, whose last steps say why.
    let recorded = recording.map_or(Ok(()), ServerRecording::finish);
    served?;
    ended?;
    history?;
    Ok(recorded?)
}

/// Interval at which the file of --job-history is replaced.
const JOB_HISTORY_INTERVAL: Duration = Duration::from_secs(10);

/// Replaces the file of --job-history from time to time. An error is reported once, and the next try may work.
async fn keep(file: Arc<JobHistoryFile>) {
    let mut ticks = interval(JOB_HISTORY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failed = false;
    loop {
        ticks.tick().await;
        let own = file.clone();
        match tokio::task::spawn_blocking(move || own.store()).await {
            Ok(Err(why)) if !std::mem::replace(&mut failed, true) => {
                tracing::warn!(target: LOG, "--job-history: {why}");
            }
            Ok(Ok(())) => failed = false,
            _ => {}
        }
    }
}

/// Maximum time to wait for the last step at shutdown; what the tiers write then has a time of its own.
const STEP_PATIENCE: Duration = Duration::from_secs(5);

/// The target of what a server reports of its start and its end, which is logged at `info` by default.
pub(super) const LOG: &str = server::LOG;

/// Default `max_num_seqs` and `max_num_batched_tokens`. On a CPU a step of 2,048 tokens would take about a second, and
/// all decoding requests would wait for it; at 256 tokens the cost of reading the weights is already amortised.
const ON_A_CPU: (usize, usize) = (128, 256);
const ON_A_GPU: (usize, usize) = (256, 2048);

/// Threads for sockets and JSON. The engine has its own, so these must be few; two, so that one slow request does not
/// delay `/health`.
const WORKERS: usize = 2;

/// Checks that the address is free before the model is read. It is bound only when the server is ready; until then
/// connections are refused, which load balancers understand.
fn free(address: SocketAddr) -> anyhow::Result<()> {
    TcpListener::bind(address).map(drop).with_context(|| {
        format!("cannot listen on {address}: choose another --host or --port (0 for any free port)")
    })
}

/// Sets up the log on stderr: warnings, events about the server's start and end, and what RUST_LOG selects. With
/// --quiet, the server's own events are warnings and errors only. A line that cannot be written (its reader has ended, a
/// disk is full) is lost: what was to be logged goes on.
fn log(context: &Context) {
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    // Otherwise the error would be printed to stderr, and a thread that cannot print panics.
    let log = log.log_internal_errors(false);
    // An error means that a log is already set.
    let _ = log.with_env_filter(filter(&directives, context.quiet)).try_init();
}

/// The filter of RUST_LOG, or else warnings; and events with the target `strata`, unless RUST_LOG names that target
/// itself.
fn filter(directives: &str, quiet: bool) -> EnvFilter {
    let named = directives.split(',').any(|part| part.trim().split(['=', '[']).next() == Some(LOG));
    // A default directive would count only where there is no other.
    let rest = if directives.trim().is_empty() { "warn" } else { directives };
    let level = if quiet { "warn" } else { "info" };
    let own = if named { String::new() } else { format!(",{LOG}={level}") };
    EnvFilter::builder().parse_lossy(format!("{rest}{own}"))
}

/// Reports device, sizes and sampling defaults: unlike other commands, a server does so in a journal too.
pub(super) fn log_startup(startup: &Startup, defaults: &GenerationDefaults) {
    startup.to_string().lines().for_each(|line| tracing::info!(target: LOG, "{line}"));
    log_sampling("", defaults);
}

/// Reports sampling defaults that a model has.
pub(super) fn log_sampling(title: &str, defaults: &GenerationDefaults) {
    if *defaults != GenerationDefaults::default() {
        tracing::info!(
            target: LOG,
            "{title}sampling defaults of the model: {defaults} (--generation-config vllm ignores them)"
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

impl Flags {
    pub(super) fn names(&self) -> Vec<String> {
        match self.model.served_model_name.as_slice() {
            [] => {
                let given = self.model_name();
                vec![self.local_model().and_then(|path| own_name(&path)).unwrap_or(given.into())]
            }
            names => names.to_vec(),
        }
    }

    /// The path that `--model` gives, which is vLLM's name for such a model: requests may use it, no list shows it.
    pub(super) fn path_as_alias(&self) -> Option<String> {
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

    /// The checker of code in responses, if it is on. Reports the layers of its sandbox; of a weak one also with
    /// --quiet: it is about security.
    #[cfg(target_os = "linux")]
    fn compile_checker(&self) -> anyhow::Result<Option<Arc<dyn ResponseChecker>>> {
        let Some(compiler) = self.compile_check.compile_check.0.clone() else { return Ok(None) };
        let options = CompileCheckOptions { compiler, ..CompileCheckOptions::default() };
        let checker = CompileChecker::new(&options)?;
        let (program, mode) = (checker.program().display(), checker.mode());
        let share = self.compile_check.compile_check_fraction;
        tracing::info!(target: LOG, "compile check: {program} for {share} of the responses; sandbox: {mode}");
        if !mode.restricts_files() || !mode.restricts_network() {
            tracing::warn!(
                target: LOG,
                "compile check: this machine grants a weak sandbox ({mode}); see the book, \"Checking code that models write\""
            );
        }
        Ok(Some(Arc::new(CompileChecks {
            checker,
            fraction: share,
            salt: server::calibration::fresh_salt(),
        })))
    }

    /// The check needs Linux's sandboxes.
    #[cfg(not(target_os = "linux"))]
    fn compile_checker(&self) -> anyhow::Result<Option<Arc<dyn ResponseChecker>>> {
        match self.compile_check.compile_check.0 {
            None => Ok(None),
            Some(_) => {
                Err(CliError::Usage("--compile-check needs Linux: use --compile-check off".into())
                    .into())
            }
        }
    }

    /// The calibration stream, if it is on.
    fn calibration(&self) -> anyhow::Result<Option<CalibrationStream>> {
        let store_prompts = self.server.store_prompts;
        let Some(directory) = self.server.calibration_dir.as_deref() else {
            let what = "--store-prompts needs --calibration-dir, in which prompts would be stored";
            return if store_prompts { Err(CliError::Usage(what.into()).into()) } else { Ok(None) };
        };
        if self.ensemble.is_none() {
            let what = "--calibration-dir needs --ensemble: one model has no routes to record";
            return Err(CliError::Usage(what.into()).into());
        }
        let config = CalibrationConfig { store_prompts, ..CalibrationConfig::default() };
        let opened = CalibrationStream::open(directory, &config);
        let failed = |reason| CliError::Output { path: directory.to_owned(), reason };
        Ok(Some(opened.map_err(failed)?))
    }

    pub(super) fn engine(&self, device: Device) -> EngineOptions {
        let (seats, budget) = if device == Device::Cpu { ON_A_CPU } else { ON_A_GPU };
        let mut options = EngineOptions {
            max_num_seqs: seats,
            max_num_batched_tokens: budget,
            block_size: self.kv.blocks.block_size,
            kv_dtype: self.kv.memory.kv_dtype.0,
            kv_memory: self.kv.memory.kv_memory,
            memory_utilization: self.kv.memory_utilization,
            enable_prefix_caching: self.kv.prefix_caching.on(),
            max_num_waiting: self.limits.max_num_waiting,
            eager: self.machine.capture.eager,
            speculative: self.scheduler.speculation.speculative_config.clone(),
            tiers: self.kv.tiers.options(),
            max_lora_rank: self.lora.max_rank(),
            ..EngineOptions::default()
        };
        self.scheduler.limits.set(&mut options);
        // More could never run: a step has at least one token for each request.
        options.max_num_seqs = options.max_num_seqs.min(options.max_num_batched_tokens);
        options
    }

    pub(super) fn options(&self) -> ServerOptions {
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
                choices: limits.max_num_answers,
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
    pub(super) fn template(
        &self,
        tokenizer: &Tokenizer,
    ) -> anyhow::Result<Option<(String, ChatTemplate)>> {
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
        for (directives, has) in [
            ("", "strata=info"),
            ("error", "strata=info"),
            ("hyper=debug,server=trace", "strata=info"),
            ("strata=off", "strata=off"),
        ] {
            let filter = filter(directives, false).to_string();
            assert!(filter.split(',').any(|part| part == has), "{directives}: {filter}");
            assert_eq!(filter.matches("strata=").count(), 1, "{filter}");
        }
        assert!(filter("", false).to_string().split(',').any(|part| part == "warn"));
        let quiet = filter("", true).to_string();
        assert!(quiet.split(',').any(|part| part == "strata=warn"), "{quiet}");
        let named = filter("strata=info", true).to_string();
        assert!(named.split(',').any(|part| part == "strata=info"), "RUST_LOG counts: {named}");
    }
}

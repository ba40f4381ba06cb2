//! From flags to a server.

use std::path::Path;

use l1_tensor::RuntimeOptions;
use l2_model::chat_template::ChatTemplate;
use l2_model::tokenizer::Tokenizer;
use l5_scheduler::engine::EngineModel;
use l5_scheduler::{Engine, EngineOptions};

use super::flags::Flags;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::out;
use crate::hub;
use crate::server::chat::reasoning::ReasoningFormat;
use crate::server::chat::tools::ToolFormat;
use crate::server::life::Life;
use crate::server::metrics::Metrics;
use crate::server::model::{GenerationDefaults, unix_time};
use crate::server::tokenise::Tokenising;
use crate::server::{AccessLog, App, Limits, ServedModel, Server, ServerOptions};

/// Load the model, take the address, serve.
///
/// # Errors
/// What device, hub, checkpoint and socket report.
pub fn serve(flags: &Flags, context: &Context) -> anyhow::Result<()> {
    let name = flags.model_name();
    let source = hub::resolve(name, &context.hub())?;
    let model = EngineModel::open(source.path(), flags.runtime())?;
    let Some(tokenizer) = model.tokenizer.clone() else {
        anyhow::bail!("{name} has no tokenizer: a server needs one");
    };
    let engine = Engine::new(model, &flags.engine())?;
    let template = flags.template(&tokenizer)?;
    let text = template.as_ref().map_or("", |(text, _)| text.as_str());
    let max_model_len = engine.handle().config().max_model_len;
    let model = ServedModel {
        names: flags.names(),
        root: name.to_owned(),
        tools: flags.model.tool_call_parser.0.unwrap_or_else(|| ToolFormat::detect(text)),
        reasoning: flags.model.reasoning_parser.0.unwrap_or_else(|| ReasoningFormat::detect(text)),
        developer: text.contains("developer"),
        defaults: GenerationDefaults::default(),
        max_model_len,
        created: unix_time(),
        tokenizer,
        template: template.map(|(_, template)| template),
    };
    let app = App {
        engine: engine.handle().clone(),
        model,
        options: flags.options(),
        metrics: Metrics::default(),
        tokenising: Tokenising::default(),
        life: Life::default(),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::bind(app).await?;
        let name = server.app().model.name();
        out::text(&format!("strata: serving {name} at http://{}\n", server.address()?))?;
        Ok(server.run().await?)
    })
}

impl Flags {
    /// What `--model` or the argument says.
    pub fn model_name(&self) -> &str {
        self.which.as_deref().unwrap_or(&self.model.model)
    }

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

    fn engine(&self) -> EngineOptions {
        let (scheduler, kv) = (&self.scheduler, &self.kv);
        EngineOptions {
            policy: scheduler.policy,
            // More could never run: a step has a token for each.
            max_num_seqs: scheduler.max_num_seqs.min(scheduler.max_num_batched_tokens),
            max_num_batched_tokens: scheduler.max_num_batched_tokens,
            long_prefill_token_threshold: scheduler.long_prefill_token_threshold,
            max_model_len: scheduler.max_model_len.and_then(|len| len.0),
            block_size: kv.block_size,
            kv_dtype: kv.dtype(),
            kv_memory: kv.kv_memory,
            memory_utilization: kv.memory_utilization,
            enable_prefix_caching: kv.enable_prefix_caching && !kv.no_enable_prefix_caching,
            enable_chunked_prefill: scheduler.enable_chunked_prefill
                && !scheduler.no_enable_chunked_prefill,
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
            allowed_origins: server.allowed_origins.clone(),
            limits: Limits {
                body_bytes: usize::try_from(limits.max_body_size.0).unwrap_or(usize::MAX),
                request_timeout: (!timeout.is_zero()).then_some(timeout),
                connections: limits.max_connections,
                queued_tokens: limits.max_num_queued_tokens,
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

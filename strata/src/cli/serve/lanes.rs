//! Starts the engines of a server, and makes lanes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use l1_tensor::{DType, Runtime};
use l2_model::ModelFiles;
use l2_model::chat_template::ChatTemplate;
use l2_model::tokenizer::Tokenizer;
use l4_sampler::output::{ReasoningFormat, ToolFormat};
use l5_scheduler::engine::{EngineModel, ModelFacts, StartError};
use l5_scheduler::{Engine, EngineOptions, Turns};
use l6_ensemble::slo::{SloOptions, SloTargets};
use l6_ensemble::{
    EnsembleConfig, Lane, LaneId, RemoteConfig, Replica, ReplicaId, SpecialistConfig,
};
use server::background::Background;
use server::chat::prompt::quoted_words;
use server::door::Door;
use server::ensemble::Ensemble;
use server::metrics::{Metrics, SharedSlo};
use server::model::{GenerationDefaults, unix_time};
use server::remote::{RemoteLimits, RemoteReplica, RemoteRuntime};
use server::{LaneDefaults, Lanes, ServedLane, ServedModel, ServerOptions};

use super::adapters;
use super::fingerprint::fingerprint;
use super::flags::Flags;
use super::generation;
use super::start::log_startup;
use super::startup_log;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::kv;
use crate::cli::recording::ServerRecording;
use crate::cli::serving::start_error;
use crate::hub;

/// What all lanes of a server share.
pub struct Parts {
    /// Counters, gauges and histograms.
    pub metrics: Metrics,
    /// Threads for slow work.
    pub background: Background,
    /// The operator's settings.
    pub options: Arc<ServerOptions>,
}

/// The running engines, and their lanes.
pub struct Started {
    /// The lanes.
    pub lanes: Lanes,
    /// The engines of all lanes.
    pub engines: Vec<Engine>,
    /// Recording of the engines' steps.
    pub recording: Option<ServerRecording>,
}

/// A model that was read, and what its files say about serving it.
struct Loaded {
    /// The weights; `None`: all its replicas are on other machines.
    model: Option<EngineModel>,
    facts: ModelFacts,
    /// Context length of the model.
    max_context: usize,
    tokenizer: Tokenizer,
    template: Option<(String, Arc<ChatTemplate>)>,
    defaults: GenerationDefaults,
    /// The name that was given: path or repository.
    root: String,
}

/// A lane to start.
struct LanePlan<'a> {
    /// Name of the specialist, in an ensemble.
    title: Option<String>,
    names: Vec<String>,
    alias: Option<String>,
    replicas: usize,
    remotes: &'a [RemoteConfig],
    /// Threads of remote replicas; `None`: there are none.
    runtime: Option<RemoteRuntime>,
    options: EngineOptions,
    defaults: LaneDefaults,
    slo: SharedSlo,
    loaded: &'a Loaded,
}

/// One model on one engine: a lane with one replica, without a router.
///
/// # Errors
/// Errors of device, hub, checkpoint and memory.
pub fn single(flags: &Flags, parts: &Parts, context: &Context) -> anyhow::Result<Started> {
    let name = flags.model_name();
    let source = hub::resolve(name, &context.hub())?;
    // Before gigabytes are read: invalid defaults, and a recording that cannot be created.
    let defaults = generation::defaults(&flags.model, source.path())?;
    let recording = flags.scheduler.trace.recording(name)?;
    let model = EngineModel::open(source.path(), flags.machine.runtime.options())?;
    let device = model.rt.device();
    let loaded = Loaded::new(flags, name, model, defaults)?;
    let plan = LanePlan {
        title: None,
        names: flags.names(),
        alias: flags.path_as_alias(),
        replicas: 1,
        remotes: &[],
        runtime: None,
        options: flags.engine(device),
        defaults: LaneDefaults::default(),
        slo: SharedSlo::new(SloOptions::default(), SloTargets::default()),
        loaded: &loaded,
    };
    // Before the engine, which takes its share of what memory is left.
    let own_names: Vec<&String> = plan.names.iter().chain(&plan.alias).collect();
    let adapters = match &loaded.model {
        Some(model) if flags.lora.on() => Some(adapters::load(flags, model, &own_names, parts)?),
        _ => None,
    };
    let (lane, engines) = plan.start(flags, parts)?;
    if let (Some(recording), Some(engine)) = (&recording, engines.first()) {
        recording.observe(engine.handle())?;
    }
    let recording = recording.map(ServerRecording::Engine);
    let lanes = Lanes::single(lane).with_adapters(adapters);
    Ok(Started { lanes, engines, recording })
}

/// The lanes of an ensemble, on one runtime. A model that several specialists name is read once.
///
/// # Errors
/// As [`single`], for any specialist.
pub fn ensemble(
    flags: &Flags,
    config: &EnsembleConfig,
    parts: &Parts,
    context: &Context,
) -> anyhow::Result<Started> {
    // Names and a recording that cannot be created, before gigabytes.
    let names: Vec<&str> = config.specialists.iter().map(|own| own.name.as_str()).collect();
    let recording = flags.scheduler.trace.ensemble_recording(&config.name, &names)?;
    let mut paths: BTreeMap<&str, PathBuf> = BTreeMap::new();
    for SpecialistConfig { model, .. } in &config.specialists {
        if !paths.contains_key(model.as_str()) {
            paths.insert(model, hub::resolve(model, &context.hub())?.path().to_owned());
        }
    }
    let rt = Runtime::new(flags.machine.runtime.options()).map_err(StartError::from)?;
    let mut models: BTreeMap<&str, Loaded> = BTreeMap::new();
    for (name, path) in &paths {
        let defaults = generation::defaults(&flags.model, path)?;
        let computes = |own: &SpecialistConfig| own.model == *name && own.replicas > 0;
        let loaded = match config.specialists.iter().any(computes) {
            true => Loaded::new(flags, name, EngineModel::open_on(path, &rt)?, defaults)?,
            false => Loaded::without_weights(flags, name, path, defaults)?,
        };
        models.insert(name, loaded);
    }
    let turns = Turns::default();
    let relays = config.specialists.iter().any(|specialist| !specialist.remotes.is_empty());
    let runtime = relays.then(RemoteRuntime::start).transpose()?;
    let (mut lanes, mut engines) = (Vec::new(), Vec::new());
    let mut told: BTreeSet<&str> = BTreeSet::new();
    startup_log::router(config);
    for specialist in &config.specialists {
        let Some(loaded) = models.get(specialist.model.as_str()) else { continue };
        let mut options = flags.engine(rt.device());
        options.policy = specialist.policy;
        options.block_size = specialist.block_size;
        options.speculative = specialist.speculative_config.clone();
        options.kv_memory = Some(specialist.kv_memory(config.kv_memory));
        options.memory_utilization = None;
        options.max_model_len = specialist.max_model_len.or(options.max_model_len);
        let budget = specialist.max_num_batched_tokens.unwrap_or(options.max_num_batched_tokens);
        let seats = specialist.max_num_seqs.unwrap_or(options.max_num_seqs);
        options.max_num_batched_tokens = budget;
        options.max_num_seqs = seats.min(budget);
        options.namespace = Some(specialist.name.clone());
        options.turns = Some(turns.clone());
        options.clock = recording.as_ref().map(|own| own.recorder().began());
        let plan = LanePlan {
            title: Some(specialist.name.clone()),
            names: vec![specialist.name.clone()],
            alias: None,
            replicas: specialist.replicas,
            remotes: &specialist.remotes,
            runtime: runtime.clone(),
            options,
            defaults: specialist.into(),
            slo: SharedSlo::new(config.slo, specialist.slo),
            loaded,
        };
        let started = plan.start(flags, parts);
        let (lane, own) =
            started.map_err(|why| why.context(format!("specialist `{}`", specialist.name)))?;
        if let Some(recording) = &recording {
            // The others relay: they have no steps.
            for (replica, engine) in (0..).zip(own.iter().take(specialist.replicas)) {
                let SpecialistConfig { name, model, .. } = specialist;
                recording.observe(name, replica, model, engine.handle())?;
            }
        }
        if told.insert(specialist.model.as_str()) {
            startup_log::model(&specialist.model, own.first(), &loaded.defaults);
        }
        startup_log::lane(specialist, &own);
        lanes.push(lane);
        engines.extend(own);
    }
    let counters = parts.metrics.routes(names.into_iter());
    let ensemble = Ensemble::new(config.clone(), counters);
    let ensemble = ensemble.map_err(|why| CliError::Usage(why.to_string()))?;
    for (at, specialist) in config.specialists.iter().enumerate() {
        if let Some(path) = paths.get(specialist.model.as_str()) {
            let fingerprint = fingerprint(path).with_context(|| path.display().to_string())?;
            ensemble.set_model_version(at, format!("{}@{fingerprint}", specialist.model));
        }
    }
    let recorder = recording.as_ref().map(|own| own.recorder().clone());
    let lanes = Lanes::ensemble(ensemble, lanes).with_trace(recorder);
    Ok(Started { lanes, engines, recording: recording.map(ServerRecording::Ensemble) })
}

impl Loaded {
    fn new(
        flags: &Flags,
        name: &str,
        model: EngineModel,
        defaults: GenerationDefaults,
    ) -> anyhow::Result<Self> {
        let (facts, max_context) = (model.facts(), model.decoder.config().max_context);
        Self::of(flags, name, (Some(model), facts, max_context), defaults)
    }

    /// What a lane needs of a model that runs on other machines only: tokenizer, template and limits.
    fn without_weights(
        flags: &Flags,
        name: &str,
        path: &Path,
        defaults: GenerationDefaults,
    ) -> anyhow::Result<Self> {
        let files = ModelFiles::open(path)?;
        let (facts, max_context) = (ModelFacts::of_files(&files)?, files.config().max_context);
        Self::of(flags, name, (None, facts, max_context), defaults)
    }

    fn of(
        flags: &Flags,
        name: &str,
        (model, facts, max_context): (Option<EngineModel>, ModelFacts, usize),
        defaults: GenerationDefaults,
    ) -> anyhow::Result<Self> {
        let Some(tokenizer) = facts.tokenizer.clone() else {
            anyhow::bail!("{name} has no tokenizer, which a server needs");
        };
        let template = flags.template(&tokenizer)?;
        let template = template.map(|(text, template)| (text, Arc::new(template)));
        Ok(Self { model, facts, max_context, tokenizer, template, defaults, root: name.to_owned() })
    }
}

impl LanePlan<'_> {
    /// Starts the engines of the lane.
    fn start(self, flags: &Flags, parts: &Parts) -> anyhow::Result<(ServedLane, Vec<Engine>)> {
        let Loaded { model, tokenizer, template, defaults, root, .. } = self.loaded;
        let own_dtype = model.as_ref().map_or(DType::BF16, |model| model.rt.activation_dtype());
        let kv_dtype = self.options.kv_dtype.unwrap_or(own_dtype);
        let mut engines = Vec::new();
        for model in model.iter().flat_map(|model| std::iter::repeat_n(model, self.replicas)) {
            let engine = Engine::new(model.clone(), &self.options).map_err(start_error)?;
            engines.push(engine);
        }
        let own =
            engines.iter().map(|engine| Arc::new(engine.handle().clone()) as Arc<dyn Replica>);
        let mut replicas: Vec<_> = own.collect();
        if let ([first, ..], None) = (engines.as_slice(), &self.title) {
            log_startup(first.startup(), defaults);
        }
        for (replica, engine) in self.remotes(parts, &engines)? {
            replicas.push(Arc::new(replica));
            engines.push(engine);
        }
        let [first, ..] = engines.as_slice() else { anyhow::bail!("a lane has a replica") };
        let text = template.as_ref().map_or("", |(text, _)| text.as_str());
        let served = ServedModel {
            names: self.names,
            alias: self.alias,
            root: root.clone(),
            tools: flags.model.tool_call_parser.0.unwrap_or_else(|| ToolFormat::detect(text)),
            reasoning: flags
                .model
                .reasoning_parser
                .0
                .unwrap_or_else(|| ReasoningFormat::detect(text)),
            developer: text.contains("developer"),
            roles: quoted_words(text),
            defaults: defaults.clone(),
            max_model_len: first.handle().config().max_model_len,
            created: unix_time(),
            tokenizer: tokenizer.clone(),
            template: template.as_ref().map(|(_, template)| template.clone()),
        };
        let numbered = (0..).map(ReplicaId).zip(engines.iter().map(Engine::handle));
        let metrics = parts.metrics.lane(numbered, served.name(), kv::name(kv_dtype), self.slo)?;
        let lane = Lane::new(LaneId(served.name().to_owned()), replicas, served.into())?;
        let Self { options: EngineOptions { policy, max_num_waiting, .. }, defaults, .. } = self;
        let door = Door::new(engines.iter().map(Engine::handle), policy, max_num_waiting);
        let (background, options) = (&parts.background, &parts.options);
        let served = ServedLane::new(lane, defaults, door, metrics, background, options);
        Ok((served, engines))
    }

    /// Starts the relays to the remote replicas, whose numbers follow those of the engines.
    fn remotes(
        &self,
        parts: &Parts,
        engines: &[Engine],
    ) -> anyhow::Result<Vec<(RemoteReplica, Engine)>> {
        let Some(runtime) = &self.runtime else { return Ok(Vec::new()) };
        // All replicas of a lane have the same limits.
        let own = engines.first().map(|engine| engine.handle().config().max_model_len);
        let context = self.loaded.max_context;
        let given = self.options.max_model_len.unwrap_or(context).min(context);
        let name = self.title.as_deref().unwrap_or_default();
        let mut started = Vec::new();
        for (number, remote) in (engines.len() as u32..).zip(self.remotes) {
            let limits = RemoteLimits {
                facts: self.loaded.facts.clone(),
                max_model_len: own.unwrap_or(given),
                max_num_waiting: self.options.max_num_waiting,
                alone: engines.len() + self.remotes.len() == 1,
            };
            let title = format!("{name}: replica {number}");
            let up = parts.metrics.remote_up(name, ReplicaId(number));
            started.push(RemoteReplica::start(remote, limits, runtime, title, up)?);
        }
        Ok(started)
    }
}

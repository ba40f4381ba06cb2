//! Metrics, under vLLM's names where vLLM has the same metric.
//!
//! ```text
//! the engine's thread -> observer -+-> registry -> GET /metrics         for Prometheus, since the start
//! HTTP, queue, tools --------------+-> window ---> GET /strata/state    for people, of the last minute
//! ```

mod adapters;
mod buckets;
mod choices;
mod door;
mod engine;
mod ensemble;
mod http;
mod observer;
mod process;
mod registry;
mod routes;
mod scrape;
mod shadows;
mod slo;
mod speculation;
pub mod state;
mod stream;
mod tiers;
mod window;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use l5_scheduler::{EngineError, EngineHandle};
use l6_ensemble::admission::RefusalCode;
use l6_ensemble::{Lane, ReplicaId};

use super::adapters::Adapters;
use super::error::DoorRefusal;
use super::lanes::{Lanes, ModelLane, ServedLane};
use super::lifecycle::{self, Lifecycle};
use super::model::unix_time;
use super::recent::RecentRequests;
use super::reload::OUTCOMES;
use super::remote::UpGauge;
use adapters::AdaptersInUse;
use choices::ChoiceFamilies;
pub use choices::ChoiceMetrics;
use door::DoorFamilies;
use engine::EngineFamilies;
use http::HttpFamilies;
pub use http::HttpRequestMetrics;
use observer::Watch;
use registry::{Counter, Gauge, Registry};
pub use routes::RouteCounters;
use scrape::ScrapeFamilies;
pub use shadows::ShadowCounters;
pub use slo::SharedSlo;
use slo::SloFamilies;
pub use state::State;
use stream::StreamFamilies;
use tiers::TierFamilies;
use window::SharedWindow;

/// Maximum number of requests in [`State::running`].
pub const MAX_RUNNING_SHOWN: usize = 64;

/// vLLM's reasons to reject a request before it reaches the engine.
const REJECTIONS: [&str; 2] = ["max_num_queued_reqs", "max_num_queued_tokens"];

/// All counters, gauges and histograms of a server. Those of a lane are its [`LaneMetrics`], in the same registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    http: HttpFamilies,
    streams: StreamFamilies,
    connections: Gauge,
    recent: RecentRequests,
    began: Instant,
    /// In seconds since 1970.
    started: u64,
}

/// Counters, gauges and histograms of a lane: their label `model_name` is the name of its model.
#[derive(Debug)]
pub struct LaneMetrics {
    replicas: Vec<ReplicaMetrics>,
    window: SharedWindow,
    slo: SharedSlo,
    slo_families: SloFamilies,
    door: DoorFamilies,
    rejections: [Counter; REJECTIONS.len()],
    /// Whole and streamed choices, each without and with tool calls.
    parsers: [[Counter; 2]; 2],
}

/// Families whose label `engine` is the number of one replica.
#[derive(Debug)]
struct ReplicaMetrics {
    id: ReplicaId,
    watch: Watch,
    scrape: ScrapeFamilies,
    choices: ChoiceFamilies,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Arc::new(Registry::default());
        let build = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        let help = "Version and architecture of the program, as labels.";
        registry.gauge("strata:build_info", help, &build).set(1.0);
        Self {
            http: HttpFamilies::new(&registry),
            streams: StreamFamilies::new(&registry),
            connections: registry.gauge("strata:http_connections", "Open connections.", &[]),
            recent: RecentRequests::default(),
            began: Instant::now(),
            started: unix_time(),
            registry,
        }
    }
}

impl Metrics {
    /// Registers the metrics of a lane and observes its engines. `cache_dtype` is the dtype of the KV cache; `slo` is
    /// where service levels are measured.
    ///
    /// # Errors
    /// [`EngineError`], if an engine has ended.
    pub fn lane<'a>(
        &self,
        engines: impl IntoIterator<Item = (ReplicaId, &'a EngineHandle)>,
        model_name: &str,
        cache_dtype: &str,
        slo: SharedSlo,
    ) -> Result<Arc<LaneMetrics>, EngineError> {
        let registry = &self.registry;
        let window = SharedWindow::new(Instant::now());
        let mut replicas = Vec::new();
        for (id, engine) in engines {
            let (config, label) = (engine.config(), id.to_string());
            let families = EngineFamilies::new(registry, model_name, &label, config, cache_dtype);
            let tiers = engine.tiers().cloned();
            let tiers = tiers.map(|own| TierFamilies::new(registry, model_name, &label, own));
            let watch = Watch::new(families, window.clone(), slo.clone()).with_tiers(tiers);
            engine.observe(Box::new(watch.clone()))?;
            replicas.push(ReplicaMetrics {
                id,
                watch,
                scrape: ScrapeFamilies::new(registry, model_name, &label),
                choices: ChoiceFamilies::new(registry, model_name, &label, config.max_model_len),
            });
        }
        let rejection = |reason| {
            let help =
                "Requests rejected because the queue was full, by the limit that was reached.";
            let labels = [("model_name", model_name), ("reason", reason)];
            registry.counter("vllm:admission_rejections_total", help, &labels)
        };
        let parser = |mode, outcome| {
            let help = "Choices that were parsed for tool calls, by whether they had any.";
            let labels = [
                ("model_name", model_name),
                ("mode", mode),
                ("outcome", outcome),
                ("request_type", "chat_completions"),
            ];
            registry.counter("vllm:tool_call_parser_invocations_total", help, &labels)
        };
        let parsers = ["non_streaming", "streaming"]
            .map(|mode| ["no_tool_call", "tool_call"].map(|outcome| parser(mode, outcome)));
        let rejections = REJECTIONS.map(rejection);
        Ok(Arc::new(LaneMetrics {
            replicas,
            window,
            slo,
            slo_families: SloFamilies::new(registry, model_name),
            door: DoorFamilies::new(registry, model_name),
            rejections,
            parsers,
        }))
    }

    /// Registers counters of routes to lanes of these names.
    pub fn routes<'a>(&self, lanes: impl Iterator<Item = &'a str>) -> RouteCounters {
        RouteCounters::new(&self.registry, lanes)
    }

    /// The last requests of an ensemble.
    pub fn recent(&self) -> &RecentRequests {
        &self.recent
    }

    fn reloads(&self, outcome: &str) -> Counter {
        let help = "Times that the configuration of the ensemble was loaded again, by what came of it: applied, or \
                    refused since the file was unreadable or invalid or a change needs a restart.";
        self.registry.counter("strata:config_reloads_total", help, &[("outcome", outcome)])
    }

    /// Registers the counters of reloads, at 0.
    pub fn register_reloads(&self) {
        OUTCOMES.iter().for_each(|outcome| drop(self.reloads(outcome)));
    }

    /// Counts a reload, by one of [`OUTCOMES`].
    pub fn count_reload(&self, outcome: &str) {
        self.reloads(outcome).inc();
    }

    /// Registers the gauge of a remote replica, and returns what sets it.
    pub fn remote_up(&self, specialist: &str, replica: ReplicaId) -> UpGauge {
        let help = "Whether the server behind a remote replica can be reached.";
        let labels = [("specialist", specialist), ("replica", &*replica.to_string())];
        let gauge = self.registry.gauge("strata:remote_up", help, &labels);
        Box::new(move |up| gauge.set(f64::from(u8::from(up))))
    }

    /// Begins to count an HTTP request. If its client disconnects before the response, its status is `gone`.
    pub fn begin_request(&self, request: &Request, gone: u16) -> HttpRequestMetrics {
        self.http.begin_request(request, gone)
    }

    /// Renders everything in Prometheus' text format.
    pub fn render(&self, lanes: &Lanes, lifecycle: &Lifecycle) -> String {
        // Adapters are those of a server of one lane.
        let waiting = lanes.adapters().map_or(0, Adapters::num_waiting);
        for served in lanes.iter() {
            served.metrics().set_loads(&served.lane, waiting);
            served.metrics().door.set(&served.generation.admission.door().calibration());
        }
        self.streams.set(lanes);
        if let Some(own) = lanes.router() {
            ensemble::set(&self.registry, lanes, own);
        }
        self.connections.set(lifecycle.connections().now() as f64);
        let mut text = self.registry.text();
        adapters::write(&mut text, lanes);
        process::write(&mut text, self.started as f64);
        text
    }

    /// Snapshot of the server and one of its lanes, all replicas of the lane together.
    pub fn state(&self, served: &ServedLane, lifecycle: &Lifecycle) -> State {
        State {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: match lifecycle.state() {
                lifecycle::State::Serving => "serving".to_owned(),
                lifecycle::State::Draining => "draining".to_owned(),
                lifecycle::State::Failed => "failed".to_owned(),
            },
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            http: state::Http {
                connections: lifecycle.connections().now(),
                streams: self.http.streams.get() as usize,
            },
            ..served.metrics().state(&served.lane)
        }
    }
}

impl LaneMetrics {
    /// Counts a choice that was parsed for tool calls.
    pub fn tool_parser(&self, streaming: bool, called: bool) {
        let [whole, streamed] = &self.parsers;
        let [none, some] = if streaming { streamed } else { whole };
        if called { some.inc() } else { none.inc() }
    }

    /// Begins to count the choices of one HTTP request. `samples`: index of each choice among those of its prompt, one
    /// prompt after the other. `None` for a replica without metrics.
    pub fn begin_choices(&self, replica: ReplicaId, samples: Vec<u32>) -> Option<ChoiceMetrics> {
        Some(self.choices_of(replica)?.begin(samples))
    }

    /// Another replica serves these choices, and they are counted there.
    pub fn move_choices(&self, choices: &mut ChoiceMetrics, replica: ReplicaId) {
        if let Some(families) = self.choices_of(replica) {
            choices.move_to(families.clone());
        }
    }

    /// Whether the engine of this replica speculates.
    pub fn speculates(&self, replica: ReplicaId) -> bool {
        let own = self.replicas.iter().find(|own| own.id == replica);
        own.is_some_and(|own| own.watch.families.speculation.is_some())
    }

    fn choices_of(&self, replica: ReplicaId) -> Option<&ChoiceFamilies> {
        self.replicas.iter().find(|own| own.id == replica).map(|own| &own.choices)
    }

    /// Counts a request that was refused before it reached the engine.
    pub fn refused(&self, refusal: &DoorRefusal) {
        let DoorRefusal { code, limit, is_load, .. } = *refusal;
        self.door.refused(code);
        if is_load {
            self.slo.decided(false);
        }
        let known = REJECTIONS.iter().zip(&self.rejections);
        let of_limit = known.filter(|(known, _)| Some(**known) == limit);
        if code == RefusalCode::QueueFull {
            of_limit.for_each(|(_, counter)| counter.inc());
        }
    }

    /// Adapters of the unfinished requests of all replicas.
    fn adapters_in_use(&self) -> AdaptersInUse {
        let mut all = AdaptersInUse::default();
        self.replicas.iter().for_each(|own| own.watch.add_adapters(&mut all));
        all
    }

    /// Service levels of the lane.
    pub fn slo(&self) -> &SharedSlo {
        &self.slo
    }

    /// Sets the gauges that are read from the replicas' loads, and those of service levels. `waiting` requests were not
    /// submitted yet: they count as waiting requests of the first replica.
    fn set_loads<M>(&self, lane: &Lane<M>, mut waiting: usize) {
        self.slo_families.set(&self.slo.report());
        for (id, replica) in lane.replicas() {
            let mut load = replica.load();
            load.waiting += std::mem::take(&mut waiting);
            if let Some(own) = self.replicas.iter().find(|own| own.id == id) {
                let tiers = own.watch.tiers.as_deref();
                tiers.iter().for_each(|tiers| tiers.set());
                let deferred = tiers.map_or(0, TierFamilies::deferred);
                own.scrape.set(&load, deferred, &own.watch.families);
            }
        }
    }

    /// Sum of what each replica has counted.
    fn sum<T: std::iter::Sum>(&self, of: impl Fn(&EngineFamilies) -> T) -> T {
        self.replicas.iter().map(|replica| of(&replica.watch.families)).sum()
    }

    /// Drafts of all replicas; `None`: none of them speculates.
    fn speculation(&self) -> Option<state::Speculation> {
        let mut sum = None;
        for own in self.replicas.iter().filter_map(|own| own.watch.families.speculation.as_ref()) {
            own.add_to(sum.get_or_insert_default());
        }
        sum.map(state::Speculation::with_rates)
    }

    /// The lane's part of a snapshot, all replicas together.
    fn state(&self, lane: &ModelLane) -> State {
        let (load, config, replicas) = (lane.load(), lane.config(), self.replicas.len());
        let share = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
        let finished = self.sum(EngineFamilies::num_ended);
        let running = self.replicas.iter().flat_map(|own| own.watch.running(MAX_RUNNING_SHOWN));
        State {
            model: lane.model.name().to_owned(),
            requests: state::Requests {
                running: load.running,
                waiting: load.waiting,
                max_running: config.seats() * replicas,
                finished,
                rejected: self.rejections.iter().map(Counter::get).sum(),
                preemptions: self.sum(|own| own.preemptions.get()),
                preempted_once: share(self.sum(|own| own.preempted_requests.get()), finished),
            },
            running: running.take(MAX_RUNNING_SHOWN).collect(),
            tokens: state::Tokens {
                queued: load.queued_tokens,
                owed: load.pending_output_tokens,
                prompt: self.sum(|own| own.prompt_tokens.get()),
                cached: self.sum(|own| own.prompt_cached.get()),
                generated: self.sum(|own| own.generation_tokens.get()),
            },
            kv: state::Kv {
                block_size: config.block_size,
                total: config.capacity() * replicas,
                used: self.sum(|own| own.kv_used.get()) as usize,
                free: self.sum(|own| own.kv_free.get()) as usize,
                cached: self.sum(|own| own.kv_cached.get()) as usize,
                // Pools of equal size: the mean is the usage of all of them.
                usage: self.sum(|own| own.kv_usage.get()) / replicas.max(1) as f64,
                hit_rate: share(
                    self.sum(|own| own.prefix_hits.get()),
                    self.sum(|own| own.prefix_queries.get()),
                ),
            },
            speculation: self.speculation(),
            recent: self.window.recent(Instant::now()),
            steps: state::Steps {
                count: load.steps,
                replay_rate: load.replay_rate(),
                prefill_seconds_per_token: load.prefill_seconds_per_token,
                // The width is that of one replica.
                decode_step_seconds: load
                    .decode_step_seconds(load.running.div_ceil(replicas.max(1)).max(1)),
                phases: state::Phases {
                    plan: self.sum(|own| own.phases.plan.get_sample_sum()),
                    turn: self.sum(|own| own.phases.turn.get_sample_sum()),
                    pack: self.sum(|own| own.phases.pack.get_sample_sum()),
                    forward: self.sum(|own| own.phases.forward.get_sample_sum()),
                    sample: self.sum(|own| own.phases.sample.get_sample_sum()),
                    apply: self.sum(|own| own.phases.apply.get_sample_sum()),
                },
            },
            wait_seconds: load.seconds,
            ..State::default()
        }
    }
}

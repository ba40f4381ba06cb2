//! What is counted and timed, under vLLM's names where it has one.
//!
//! ```text
//! the engine's thread -> observer -+-> registry -> GET /metrics         for Prometheus, since the start
//! HTTP, queue, tools --------------+-> window ---> GET /strata/state    for people, of the last minute
//! ```

mod buckets;
mod engine;
mod groups;
mod http;
mod observer;
mod process;
mod registry;
mod scrape;
pub mod state;
mod window;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use l5_scheduler::{EngineError, EngineHandle};

use super::app::App;
use super::life;
use super::model::unix_time;
use engine::EngineFamilies;
use groups::GroupFamilies;
pub use groups::Groups;
pub use http::Asked;
use http::HttpFamilies;
use observer::Watch;
use registry::{Counter, Registry};
use scrape::ScrapeFamilies;
pub use state::State;

/// The most requests that [`State::running`] tells of.
pub const MOST_SHOWN: usize = 64;

/// Why a request may be turned away before it reaches the engine, in vLLM's words.
const REJECTIONS: [&str; 2] = ["max_num_queued_reqs", "max_num_queued_tokens"];

/// All counters, gauges and histograms. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    watch: Watch,
    http: HttpFamilies,
    groups: GroupFamilies,
    scrape: Arc<ScrapeFamilies>,
    rejections: [Counter; REJECTIONS.len()],
    /// Whole and streamed answers, each without and with calls.
    parsers: [[Counter; 2]; 2],
    began: Instant,
    /// In seconds since 1970.
    started: u64,
}

impl Metrics {
    /// Count what an engine does from now on, and what is asked of it. `cache_dtype` is how it keeps keys and values.
    ///
    /// # Errors
    /// [`EngineError`], if there is no engine any more.
    pub fn new(
        engine: &EngineHandle,
        model_name: &str,
        cache_dtype: &str,
    ) -> Result<Self, EngineError> {
        let registry = Arc::new(Registry::default());
        let config = engine.config();
        let families = EngineFamilies::new(&registry, model_name, config, cache_dtype);
        let watch = Watch::new(families);
        engine.observe(Box::new(watch.clone()))?;
        let rejection = |reason| {
            let help =
                "Requests that were told to come back because enough others wait, by which limit.";
            let labels = [("model_name", model_name), ("reason", reason)];
            registry.counter("vllm:admission_rejections_total", help, &labels)
        };
        let parser = |mode, outcome| {
            let help = "Answers that were searched for calls of tools, by whether there were any.";
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
        Ok(Self {
            http: HttpFamilies::new(&registry),
            groups: GroupFamilies::new(&registry, model_name, config.max_model_len),
            scrape: Arc::new(ScrapeFamilies::new(&registry, model_name)),
            rejections: REJECTIONS.map(rejection),
            parsers,
            watch,
            began: Instant::now(),
            started: unix_time(),
            registry,
        })
    }

    /// A parser looked for calls of tools in an answer, and found some or none.
    pub fn tool_parser(&self, streaming: bool, called: bool) {
        let [whole, streamed] = &self.parsers;
        let [none, some] = if streaming { streamed } else { whole };
        if called { some.inc() } else { none.inc() }
    }

    /// A request was turned away before it reached the engine: vLLM's `max_num_queued_reqs` or `max_num_queued_tokens`.
    pub fn rejected(&self, reason: &'static str) {
        let known = REJECTIONS.iter().zip(&self.rejections).find(|(known, _)| **known == reason);
        if let Some((_, counter)) = known {
            counter.inc();
        }
    }

    /// An HTTP request's head is there. A client that goes before it has a response counts as a status of `gone`.
    pub fn asked(&self, request: &Request, gone: u16) -> Asked {
        self.http.asked(request, gone)
    }

    /// Answers to one HTTP request have begun: these samples, of one prompt after the other.
    pub fn groups(&self, samples: Vec<u32>) -> Groups {
        self.groups.begin(samples)
    }

    /// All of it, in Prometheus' text format.
    pub fn render(&self, app: &App) -> String {
        self.scrape.look(app, &self.watch.families);
        let mut text = self.registry.text();
        process::write(&mut text, self.started as f64);
        text
    }

    /// The server at one glance.
    pub fn state(&self, app: &App) -> State {
        let (load, config, counted) =
            (app.engine.load(), app.engine.config(), &self.watch.families);
        let share = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
        let finished = counted.num_ended();
        let phases = &counted.phases;
        State {
            model: app.model.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: match app.life.state() {
                life::State::Serving => "serving".to_owned(),
                life::State::Draining => "draining".to_owned(),
                life::State::Failed => "failed".to_owned(),
            },
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            requests: state::Requests {
                running: load.running,
                waiting: load.waiting,
                max_running: config.seats(),
                finished,
                rejected: self.rejections.iter().map(Counter::get).sum(),
                preemptions: counted.preemptions.get(),
                preempted_once: share(counted.preempted_requests.get(), finished),
            },
            running: self.watch.running(MOST_SHOWN),
            tokens: state::Tokens {
                queued: load.queued_tokens,
                owed: load.owed_tokens,
                prompt: counted.prompt_tokens.get(),
                cached: counted.prompt_cached.get(),
                generated: counted.generation_tokens.get(),
            },
            kv: state::Kv {
                block_size: config.block_size,
                total: config.capacity(),
                used: counted.kv_used.get() as usize,
                free: counted.kv_free.get() as usize,
                cached: counted.kv_cached.get() as usize,
                usage: counted.kv_usage.get(),
                hit_rate: share(counted.prefix_hits.get(), counted.prefix_queries.get()),
            },
            recent: self.watch.recent(),
            steps: state::Steps {
                count: load.steps,
                replay_rate: load.replay_rate(),
                phases: state::Phases {
                    plan: phases.plan.get_sample_sum(),
                    pack: phases.pack.get_sample_sum(),
                    forward: phases.forward.get_sample_sum(),
                    sample: phases.sample.get_sample_sum(),
                    apply: phases.apply.get_sample_sum(),
                },
            },
            wait_seconds: load.seconds,
            http: state::Http {
                connections: app.life.connections().now(),
                streams: self.http.streams.get() as usize,
            },
        }
    }
}

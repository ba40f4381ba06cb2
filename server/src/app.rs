//! Composition of the server, and the parts that handlers and middleware take of it.
//!
//! A handler names what it uses as `State<Part>`, and axum gets the part from [`App`] by `FromRef`: so a handler's
//! signature lists what it can access.

use std::sync::Arc;

use axum::extract::FromRef;
use l6_ensemble::Lane;

use super::background::Background;
use super::backpressure::Admission;
use super::json::BodyReader;
use super::lifecycle::Lifecycle;
use super::metrics::Metrics;
use super::middleware::host::AllowedHosts;
use super::middleware::key::ApiKeys;
use super::model::ServedModel;
use super::options::{Limits, ServerOptions};
use super::request::{Generation, RequestRules};
use super::tokenise::Encoder;

/// The replicas that serve a model, and the model as clients see it.
pub type ModelLane = Lane<Arc<ServedModel>>;

/// Composition of the server: created once, at the start. Clones share everything.
#[derive(Clone)]
pub struct App {
    /// The replicas that serve requests.
    pub lane: Arc<ModelLane>,
    /// The model as clients see it.
    pub model: Arc<ServedModel>,
    /// The operator's settings.
    pub options: Arc<ServerOptions>,
    /// Limits of requests: those of `options`.
    pub limits: Limits,
    /// Whether requests are accepted, and how many are in flight.
    pub lifecycle: Arc<Lifecycle>,
    /// Counters, gauges and histograms.
    pub metrics: Arc<Metrics>,
    /// Threads for slow work.
    pub background: Background,
    /// Reader of request bodies.
    pub bodies: BodyReader,
    /// Tokenizer of requests' texts.
    pub encoder: Encoder,
    /// Admission to the lane's queues.
    pub admission: Admission,
    /// Parts that completions and chats use.
    pub generation: Generation,
    /// Names under which the server may be addressed.
    pub hosts: AllowedHosts,
    /// Keys that clients must present.
    pub keys: ApiKeys,
}

impl App {
    /// Composes the server of one lane.
    pub fn new(lane: ModelLane, options: ServerOptions, metrics: Metrics) -> Self {
        let (lane, metrics) = (Arc::new(lane), Arc::new(metrics));
        let (model, background) = (lane.model.clone(), Background::default());
        let encoder = Encoder::new(model.clone(), background.clone());
        let limits = options.limits;
        let admission = Admission::new(lane.clone(), metrics.clone(), background.clone(), &limits);
        let rules = RequestRules::new(lane.facts().vocab, &options);
        let generation = Generation {
            model: model.clone(),
            rules,
            encoder: encoder.clone(),
            admission: admission.clone(),
        };
        Self {
            bodies: BodyReader::new(background.clone(), &limits),
            hosts: AllowedHosts::new(&options),
            keys: ApiKeys::new(&options),
            lifecycle: Arc::default(),
            options: Arc::new(options),
            lane,
            model,
            limits,
            metrics,
            background,
            encoder,
            admission,
            generation,
        }
    }
}

macro_rules! parts {
    ($($field:ident: $part:ty),+ $(,)?) => {$(
        impl FromRef<App> for $part {
            fn from_ref(app: &App) -> Self {
                app.$field.clone()
            }
        }
    )+};
}

parts! {
    lane: Arc<ModelLane>,
    model: Arc<ServedModel>,
    lifecycle: Arc<Lifecycle>,
    metrics: Arc<Metrics>,
    background: Background,
    bodies: BodyReader,
    encoder: Encoder,
    generation: Generation,
}

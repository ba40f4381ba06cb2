//! Composition of the server, and the parts that handlers and middleware take of it.
//!
//! A handler names what it uses as `State<Part>`, and axum gets the part from [`App`] by `FromRef`: so a handler's
//! signature lists what it can access.

use std::sync::Arc;

use axum::extract::FromRef;

use super::background::Background;
use super::json::BodyReader;
use super::lanes::{Lanes, LiveLanes};
use super::lifecycle::Lifecycle;
use super::metrics::Metrics;
use super::middleware::host::AllowedHosts;
use super::middleware::key::ApiKeys;
use super::options::{Limits, ServerOptions};
use super::overrides::OverridesFile;
use super::reload::{EnsembleSource, Reloader};

/// Composition of the server: created once, at the start. Clones share everything.
#[derive(Clone)]
pub struct App {
    /// The lanes that serve requests.
    pub lanes: LiveLanes,
    /// Loads the configuration of the ensemble again, if there is one.
    pub reloader: Option<Reloader>,
    /// Keeps what operators set for lanes, if there is a directory for it.
    pub overrides: Option<Arc<OverridesFile>>,
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
    /// Names under which the server may be addressed.
    pub hosts: AllowedHosts,
    /// Keys that clients must present.
    pub keys: ApiKeys,
}

impl App {
    /// Composes the server of these lanes, whose slow work is done by `background`.
    pub fn new(
        lanes: Lanes,
        options: Arc<ServerOptions>,
        metrics: Metrics,
        background: Background,
    ) -> Self {
        let limits = options.limits;
        Self {
            bodies: BodyReader::new(background.clone(), &limits),
            hosts: AllowedHosts::new(&options),
            keys: ApiKeys::new(&options),
            lifecycle: Arc::default(),
            metrics: Arc::new(metrics),
            options,
            lanes: LiveLanes::new(lanes),
            reloader: None,
            overrides: None,
            limits,
            background,
        }
    }

    /// Restores what operators have set for lanes from a file, and keeps it there from here on.
    #[must_use]
    pub fn with_overrides(mut self, file: OverridesFile) -> Self {
        if let Some(ensemble) = self.lanes.now().router() {
            file.restore(ensemble);
            self.overrides = Some(Arc::new(file));
        }
        self
    }

    /// The configuration of the ensemble can be loaded again, from where `source` reads it.
    #[must_use]
    pub fn with_ensemble_source(mut self, source: EnsembleSource) -> Self {
        self.reloader = Some(Reloader::new(self.lanes.clone(), self.metrics.clone(), source));
        self
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

/// The lanes in force when the handler begins.
impl FromRef<App> for Lanes {
    fn from_ref(app: &App) -> Self {
        app.lanes.now()
    }
}

parts! {
    lifecycle: Arc<Lifecycle>,
    metrics: Arc<Metrics>,
    background: Background,
    bodies: BodyReader,
}

//! The lanes that the server serves, each with what its requests need.

use std::sync::{Arc, PoisonError, RwLock};

use l5_scheduler::trace::EnsembleRecorder;
use l6_ensemble::quote::LaneWork;
use l6_ensemble::{DecodingPolicy, EnsembleConfig, Lane, ReplicaId, SpecialistConfig};
use serde_json::Map;

use super::adapters::Adapters;
use super::background::Background;
use super::backpressure::Admission;
use super::calibration::CalibrationStream;
use super::door::{Door, LaneRules};
use super::ensemble::{Ensemble, EnsembleError, LaneStates};
use super::error::{ApiError, listed, quoted};
use super::metrics::LaneMetrics;
use super::middleware::RequestContext;
use super::model::ServedModel;
use super::options::ServerOptions;
use super::protocol::chat::{ChatMessage, Content};
use super::request::{Generation, RequestRules};
use super::tokenise::Encoder;
use super::verdicts::ResponseChecker;

/// The replicas that serve a model, and the model as clients see it.
pub type ModelLane = Lane<Arc<ServedModel>>;

/// A lane, and the parts of the server that its requests use. Clones share everything.
#[derive(Clone)]
pub struct ServedLane {
    /// The replicas.
    pub lane: Arc<ModelLane>,
    /// Model, rules, tokenizer and admission of its requests.
    pub generation: Generation,
}

/// Defaults of the requests of a specialist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneDefaults {
    /// System prompt of chats that have none.
    pub system_prompt: Option<String>,
    /// Sampling of requests that do not say how to sample.
    pub decoding_policy: Option<DecodingPolicy>,
}

impl LaneDefaults {
    /// Adds the system prompt to a conversation that has none.
    pub fn add_system_prompt(&self, messages: &mut Vec<ChatMessage>) {
        let Some(prompt) = &self.system_prompt else { return };
        let is_system = |message: &ChatMessage| matches!(&*message.role, "system" | "developer");
        if messages.is_empty() || messages.iter().any(is_system) {
            return;
        }
        let content = Some(Content::Text(prompt.clone()));
        messages.insert(0, ChatMessage { role: "system".into(), content, more: Map::new() });
    }
}

impl From<&SpecialistConfig> for LaneDefaults {
    fn from(specialist: &SpecialistConfig) -> Self {
        Self {
            system_prompt: specialist.system_prompt.clone(),
            decoding_policy: specialist.decoding_policy,
        }
    }
}

impl ServedLane {
    /// A lane whose requests have these defaults.
    pub fn new(
        lane: ModelLane,
        defaults: LaneDefaults,
        door: Door,
        metrics: Arc<LaneMetrics>,
        background: &Background,
        options: &ServerOptions,
    ) -> Self {
        let (model, lane) = (lane.model.clone(), Arc::new(lane));
        let admission =
            Admission::new(lane.clone(), door, metrics, background.clone(), &options.limits);
        let generation = Generation {
            encoder: Encoder::new(model.clone(), background.clone()),
            rules: RequestRules::new(lane.facts().vocab, options),
            model,
            admission,
            defaults: Arc::new(defaults),
            adapter: None,
        };
        Self { lane, generation }
    }

    /// The model as clients see it.
    pub fn model(&self) -> &Arc<ServedModel> {
        &self.generation.model
    }

    /// Counters, gauges and histograms of the lane.
    pub fn metrics(&self) -> &Arc<LaneMetrics> {
        self.generation.admission.metrics()
    }
}

/// What an ensemble says about one of its lanes.
#[derive(Debug)]
struct OwnRules {
    states: LaneStates,
    lane: usize,
    /// All lanes, of which `lane` is the own one.
    all: Vec<(Arc<ModelLane>, Door)>,
}

impl LaneRules for OwnRules {
    fn priority_floor(&self) -> Option<i64> {
        self.states.priority_floor(self.lane)
    }

    fn neighbours(&self, replica: ReplicaId) -> Vec<LaneWork> {
        let own =
            self.all.get(self.lane).and_then(|(lane, _)| lane.replicas().nth(replica.0 as usize));
        if own.is_some_and(|(_, own)| !own.shares_machine()) {
            return Vec::new();
        }
        let all = self.all.iter().enumerate();
        let works = all.flat_map(|(at, (lane, door))| {
            door.work(lane).filter(move |(id, _)| at != self.lane || *id != replica)
        });
        works.map(|(_, work)| work).collect()
    }
}

/// All lanes; at least one. Clones share everything.
#[derive(Clone)]
pub struct Lanes {
    /// Router and breakers. `None`: there is one lane, and no router.
    ensemble: Option<Arc<Ensemble>>,
    all: Arc<[ServedLane]>,
    /// Checks the code of responses, if that is on.
    checker: Option<Arc<dyn ResponseChecker>>,
    /// Calibration stream of an ensemble, if there is one.
    calibration: Option<Arc<CalibrationStream>>,
    /// Recording of the ensemble, if there is one.
    trace: Option<EnsembleRecorder>,
    /// LoRA adapters of the only model, if it takes any.
    adapters: Option<Adapters>,
}

impl Lanes {
    /// One lane without a router.
    pub fn single(lane: ServedLane) -> Self {
        Self {
            ensemble: None,
            all: [lane].into(),
            checker: None,
            calibration: None,
            trace: None,
            adapters: None,
        }
    }

    /// The lanes of an ensemble, in the order of its file.
    pub fn ensemble(ensemble: Ensemble, lanes: Vec<ServedLane>) -> Self {
        let ensemble = Arc::new(ensemble);
        for (at, served) in lanes.iter().enumerate() {
            let door = |lane: &ServedLane| lane.generation.admission.door().clone();
            let all = lanes.iter().map(|own| (own.lane.clone(), door(own))).collect();
            let rules = OwnRules { states: ensemble.states().clone(), lane: at, all };
            served.generation.admission.door().set_rules(Box::new(rules));
        }
        Self {
            ensemble: Some(ensemble),
            all: lanes.into(),
            checker: None,
            calibration: None,
            trace: None,
            adapters: None,
        }
    }

    /// The same lanes with another configuration: see [`EnsembleConfig::reloaded`]. Nothing of it is in force before
    /// [`Self::put_in_force`].
    ///
    /// # Errors
    /// [`EnsembleError`]; without an ensemble the lanes themselves are returned.
    pub fn reloaded(&self, config: EnsembleConfig) -> Result<Self, EnsembleError> {
        let Some(ensemble) = &self.ensemble else { return Ok(self.clone()) };
        let lanes = self.all.iter().zip(&config.specialists).map(|(served, specialist)| {
            let mut served = served.clone();
            served.generation.defaults = Arc::new(specialist.into());
            served
        });
        let all = lanes.collect();
        let ensemble = Some(Arc::new(ensemble.reloaded(config)?));
        Ok(Self { ensemble, all, ..self.clone() })
    }

    /// Gives breakers, escalation and service levels the configuration of these lanes.
    pub fn put_in_force(&self) {
        let Some(ensemble) = &self.ensemble else { return };
        ensemble.configure_states();
        let config = ensemble.config();
        for (served, specialist) in self.all.iter().zip(&config.specialists) {
            served.metrics().slo().configure(config.slo, specialist.slo);
        }
    }

    /// Checks the code of responses.
    #[must_use]
    pub fn with_checker(mut self, checker: Option<Arc<dyn ResponseChecker>>) -> Self {
        self.checker = checker;
        self.learns();
        self
    }

    /// Records routed requests.
    #[must_use]
    pub fn with_calibration(mut self, stream: Option<Arc<CalibrationStream>>) -> Self {
        self.calibration = stream;
        self.learns();
        self
    }

    /// Records the way of each request to its lane.
    #[must_use]
    pub fn with_trace(mut self, recorder: Option<EnsembleRecorder>) -> Self {
        self.trace = recorder;
        self
    }

    /// Takes LoRA adapters. For a server of one model.
    #[must_use]
    pub fn with_adapters(self, adapters: Option<Adapters>) -> Self {
        Self { adapters, ..self }
    }

    /// LoRA adapters of the only model, if it takes any.
    pub fn adapters(&self) -> Option<&Adapters> {
        self.adapters.as_ref()
    }

    /// Whether a model that a request names is an adapter.
    fn is_adapter(&self, name: &str) -> bool {
        self.adapters.as_ref().is_some_and(|own| own.registry().contains(name))
    }

    /// The lane of a request that names an adapter as its model. `None`: it names none. The context has the name of the
    /// adapter from here on.
    ///
    /// # Errors
    /// As [`Adapters::lane`].
    pub fn of_adapter(
        &self,
        name: Option<&str>,
        context: &RequestContext,
    ) -> Result<Option<ServedLane>, ApiError> {
        match name.zip(self.adapters()) {
            Some((name, adapters)) if !self.first().model().is_named(name) => {
                // Also of a request that is refused because of its adapter.
                context.adapted(name);
                adapters.lane(self.first(), name).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Recording of the ensemble.
    pub fn trace(&self) -> Option<&EnsembleRecorder> {
        self.trace.as_ref()
    }

    /// Tells the ensemble whether what shadows show is read.
    fn learns(&self) {
        if let Some(ensemble) = self.ensemble.as_ref()
            && (self.checker.is_some() || self.calibration.is_some())
        {
            ensemble.set_learns();
        }
    }

    /// The calibration stream.
    pub fn calibration(&self) -> Option<&CalibrationStream> {
        self.calibration.as_deref()
    }

    /// What checks the code of responses.
    pub fn checker(&self) -> Option<&Arc<dyn ResponseChecker>> {
        self.checker.as_ref()
    }

    /// Router and breakers of an ensemble.
    pub fn router(&self) -> Option<&Arc<Ensemble>> {
        self.ensemble.as_ref()
    }

    /// Iterates over the lanes.
    pub fn iter(&self) -> impl Iterator<Item = &ServedLane> {
        self.all.iter()
    }

    /// Name of the ensemble, if there is one.
    pub fn ensemble_name(&self) -> Option<&str> {
        self.ensemble.as_deref().map(|own| own.config().name.as_str())
    }

    /// Name under which the server presents itself: that of the ensemble, or of its only model.
    pub fn name(&self) -> &str {
        self.ensemble_name().unwrap_or_else(|| self.first().model().name())
    }

    /// The first lane: the only one without an ensemble.
    pub fn first(&self) -> &ServedLane {
        &self.all[0]
    }

    /// Index of the lane whose model has this name.
    pub fn index_of_model(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|lane| lane.model().is_named(name))
    }

    /// The lane of a request that names a model, an adapter or none. `None`: the router chooses the lane.
    ///
    /// # Errors
    /// OpenAI's 404 for a name that no lane has.
    pub fn of_model(&self, name: Option<&str>) -> Result<Option<usize>, ApiError> {
        let Some(name) = name else { return Ok(self.ensemble.is_none().then_some(0)) };
        if self.ensemble_name() == Some(name) {
            return Ok(None);
        }
        let adapted = || self.is_adapter(name).then_some(0);
        let lane = self.index_of_model(name).or_else(adapted);
        lane.map(Some).ok_or_else(|| self.unknown_model(name))
    }

    /// OpenAI's error for a model that is not served.
    fn unknown_model(&self, name: &str) -> ApiError {
        let served = match self.name() {
            own if self.ensemble.is_none() => {
                let adapters = self.adapters().map(|own| own.registry().list()).unwrap_or_default();
                match adapters.is_empty() {
                    true => format!("This server serves `{own}`."),
                    false => format!(
                        "This server serves `{own}`, and the LoRA adapters {}.",
                        listed(adapters.iter().map(|own| own.name.as_str()))
                    ),
                }
            }
            own => {
                let names = listed(self.iter().map(|lane| lane.model().name()));
                format!("This server serves `{own}`, and the specialists {names}.")
            }
        };
        let message = format!("The model `{}` does not exist. {served}", quoted(name));
        let mut error = ApiError::not_found(message).with_code("model_not_found");
        error.param = Some("model".into());
        error
    }
}

impl std::ops::Index<usize> for Lanes {
    type Output = ServedLane;

    fn index(&self, at: usize) -> &ServedLane {
        &self.all[at]
    }
}

/// The lanes in force. Clones share them.
///
/// A request takes the lanes once, when it arrives, and keeps them: so it sees one version of the configuration from
/// its routing to its end.
#[derive(Clone)]
pub struct LiveLanes(Arc<RwLock<Lanes>>);

impl LiveLanes {
    /// These lanes are in force.
    pub fn new(lanes: Lanes) -> Self {
        Self(Arc::new(RwLock::new(lanes)))
    }

    /// The lanes in force at this moment.
    pub fn now(&self) -> Lanes {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other lanes in force, for all who ask from here on.
    pub fn set(&self, lanes: Lanes) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = lanes;
    }
}

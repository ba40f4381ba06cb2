//! Lines of a recording of an ensemble, which the engines and the router of one server share.
//!
//! ```json
//! {"strata_trace":2,"ensemble":"pair","lanes":["one","two"]}
//! {"event":"engine","model":"tiny-llama","policy":"strict-priority","config":{"block_size":16,..},"lane":"one","replica":0}
//! {"event":"route","route":0,"lane":"one","replica":0,"requests":[0],"arrived_us":10.0,"decided_us":60.2,
//!  "admitted_us":110.0,"by":"classifier","primary":"one","second":"two","score":0.91,"scores":[["one",0.91],["two",0.06]]}
//! {"event":"arrived","id":0,"at_us":108.5,"prompt":8,"max_tokens":4,"priority":0,"lane":"one","replica":0}
//! {"event":"shadow","route":0,"lane":"two","replica":0,"request":0,"at_us":2400.0,"reason":"low_score"}
//! {"event":"dropped","lines":3}
//! ```
//!
//! (A route is one line; it is broken here to fit.) Events of engines are those of a recording of one model, with `lane`
//! and `replica` at their ends; request ids count in each engine for itself. All times are of one clock. Lines are in
//! the order in which they were handed over: the route of a request may come after its first steps.

use serde::{Deserialize, Serialize};

use super::event::TracedConfig;

/// Version of the format of ensembles. A reader of version 1 would take the engines' requests for those of one engine.
pub(super) const ENSEMBLE_VERSION: u32 = 2;

/// Header of a recording of an ensemble: the first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnsembleHeader {
    /// Version of the format.
    pub strata_trace: u32,
    /// Name of the ensemble.
    pub ensemble: String,
    /// Names of the lanes, in the order of its file.
    pub lanes: Vec<String>,
}

/// An event that a recording of one model does not have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum EnsembleEvent {
    /// An engine has started.
    Engine(EngineEvent),
    /// A request was routed.
    Route(RouteEvent),
    /// The shadow of a routed request was submitted.
    Shadow(ShadowEvent),
    /// Lines were dropped, because the file could not keep up.
    Dropped {
        /// Number of lines.
        lines: u64,
    },
}

/// What the header of a recording of one model says of its engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct EngineEvent {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub policy: String,
    pub config: TracedConfig,
}

/// Way of a request through the router and the doors of lanes, from its arrival at the server to an engine's queue or
/// to its refusal. It has no text of the request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteEvent {
    /// Number of the request at the server, from 0.
    pub route: u64,
    /// Lane that serves the request, or the last one that refused it. `None`: no lane was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Replica that serves the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// Its requests in the engine of that replica: one for each prompt and choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<u64>,
    /// Time at which the request's head was at the server.
    pub arrived_us: f64,
    /// Time at which its lane was decided: the body has been read and parsed by then.
    pub decided_us: f64,
    /// Time at which the server had its responses' streams: an engine may have begun before. `None`: it was refused, or its client has disconnected before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted_us: Option<f64>,
    /// What decided, as in the metric `strata:routes_total`: `declared_intent`, `rule`, `classifier`, `rejected`
    /// (no lane was probable enough, so the fallback lane serves it), `unrouted` (no rule decided and there is no
    /// classifier), `specialist` or `model` (the client named it), `fallback`, `spill`. Empty: nothing could decide.
    pub by: String,
    /// Name of the rule that decided, or the intent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// First choice of the router, or the lane that the client named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Second choice of the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<String>,
    /// Calibrated score of the first choice. `None`: the router was not asked, or has no classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
    /// Scores of all lanes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<(String, f32)>,
    /// Refusals, in order: of the first choice and, if the request was to spill, of the second one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedEvent>,
    /// Lane that is to have a shadow of the request, which is submitted when the response is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<String>,
}

/// Refusal of a request by a lane, or by the router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RefusedEvent {
    /// The lane. `None`: the router had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Time of the refusal.
    pub at_us: f64,
    /// Code of the error, as in the response.
    pub code: String,
    /// What the request could have expected, if the door of the lane refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<QuoteEvent>,
}

/// What a request could expect, in microseconds from the refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuoteEvent {
    /// Begin of its first step.
    pub queue_us: f64,
    /// First output token.
    pub first_token_us: f64,
    /// Last output token, for the expected number of output tokens.
    pub done_us: f64,
    /// Last output token, for a number of output tokens that few requests exceed.
    pub done_late_us: f64,
}

/// Shadow of a routed request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowEvent {
    /// Number of the request whose shadow it is: [`RouteEvent::route`].
    pub route: u64,
    /// Lane of the shadow.
    pub lane: String,
    /// Replica that runs it.
    pub replica: u32,
    /// Request id in that engine.
    pub request: u64,
    /// Time of its submission.
    pub at_us: f64,
    /// Why there is a shadow.
    pub reason: String,
}

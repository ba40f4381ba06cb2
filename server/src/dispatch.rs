//! Dispatch of a request to its lane: the first choice, or the second one if the first refuses it for load; and its
//! shadow.
//!
//! The router decides once. The lanes that it names are tried before anything is returned to the client, so that a
//! request has one specialist in its headers, in the access log and in the metrics, however it ends.

use l6_ensemble::calibration::CalibrationRecord;
use l6_ensemble::shadow::{ShadowDecision, ShadowReason};

use super::error::ApiError;
use super::lanes::Lanes;
use super::middleware::RequestContext;
use super::model::unix_time;
use super::routing::Routed;
use super::shadows::{NotDispatched, ShadowPermit};

/// What a shadow depends on, beside the route.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts {
    /// Whether the client flagged it as high-stakes.
    pub high_stakes: bool,
    /// Whether it has tools.
    pub tools: bool,
    /// Number of choices, of all prompts together.
    pub choices: usize,
    /// Whether the client constrains its output: by a guide, or token by token. Then its text is the client's, and says
    /// nothing about the specialist.
    pub guided: bool,
    /// Whether its prompt is text, and short enough to be kept.
    pub may_be_kept: bool,
}

/// The route of a request that is not admitted. It is recorded when this is dropped, also if the client disconnects.
pub struct Dispatch {
    lanes: Lanes,
    context: RequestContext,
    routed: Routed,
    shadow: Result<ShadowReason, &'static str>,
    may_be_kept: bool,
}

/// A shadow that may be dispatched.
pub struct ShadowGrant {
    /// Lane of the shadow.
    pub lane: usize,
    /// Why there is a shadow.
    pub reason: ShadowReason,
    /// Leave to dispatch it.
    pub permit: ShadowPermit,
    /// Number of the request in the recording of the ensemble, if there is one.
    pub route: Option<u64>,
}

/// A request that is admitted: its route, and whether it may have a shadow.
pub struct Dispatched {
    /// The route.
    pub routed: Routed,
    shadow: Result<ShadowReason, &'static str>,
}

impl Dispatch {
    /// The dispatch of a routed request.
    pub fn new(
        lanes: &Lanes,
        context: &RequestContext,
        routed: Routed,
        facts: &RequestFacts,
    ) -> Self {
        let (lanes, context) = (lanes.clone(), context.clone());
        let shadow = match lanes.router().zip(routed.choice.as_deref()) {
            None => Err(""),
            Some((ensemble, choice)) => {
                let decision = ensemble.decide_shadow(&lanes, routed.lane, choice, facts);
                match decision {
                    ShadowDecision::NoShadow(why) => Err(why.name()),
                    ShadowDecision::Shadow(_) if !facts.may_be_kept => {
                        Err(NotDispatched::Unsuitable.name())
                    }
                    ShadowDecision::Shadow(reason) => Ok(reason),
                }
            }
        };
        Self { lanes, context, routed, shadow, may_be_kept: facts.may_be_kept }
    }

    /// The first choice.
    pub fn lane(&self) -> usize {
        self.routed.lane
    }

    /// Whether the request must be kept until it is admitted: for its second choice, or for a shadow.
    pub fn keeps_request(&self) -> bool {
        self.shadow.is_ok() || self.may_spill().is_some()
    }

    /// The second choice, if the router is unsure enough and the lane can serve.
    fn may_spill(&self) -> Option<usize> {
        let (ensemble, choice) = self.lanes.router().zip(self.routed.choice.as_deref())?;
        let lane = choice.spill.filter(|_| self.may_be_kept)?;
        let unsure = choice.score < ensemble.spill_below(self.routed.lane, &choice.intent);
        unsure.then_some(lane)
    }

    /// The lane to which the request spills after its first choice refused it. Nothing spills for another reason than
    /// load.
    pub fn spill_lane(&self, refused: &ApiError) -> Option<usize> {
        refused.refusal.as_ref().filter(|refusal| refusal.code.is_load())?;
        self.may_spill()
    }

    /// The second choice has admitted the request, after the first one refused it.
    pub fn spill(&mut self, lane: usize, refused: &ApiError) {
        let first = &self.lanes[self.routed.lane];
        // The load of the first choice is what it is, although the client gets a response.
        if refused.refusal.as_ref().is_some_and(|refusal| refusal.is_load) {
            first.metrics().slo().decided(false);
        }
        let code = refused.code.unwrap_or_default();
        let (name, why) = (first.model().name(), self.routed.why.take().unwrap_or_default());
        self.routed.why = Some(format!("spill of {name}, which refused it ({code}); {why}"));
        (self.routed.lane, self.routed.by) = (lane, Some("spill"));
        // The other lane is loaded.
        self.shadow = Err("second_lane_busy");
    }

    /// The request is admitted, or `refused` by its first choice and by the second one if there is one.
    pub fn end(self, refused: Option<&ApiError>) -> Dispatched {
        if let Some(refusal) = refused.and_then(|why| why.refusal.as_deref()) {
            self.lanes[self.routed.lane].metrics().refused(refusal);
        }
        Dispatched { routed: self.routed.clone(), shadow: self.shadow }
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        self.context.route(&self.lanes, &self.routed);
        if let (Some(ensemble), Some(by)) = (self.lanes.router(), self.routed.by) {
            ensemble.counters().count(self.routed.lane, by);
        }
    }
}

impl Dispatched {
    /// Leave to dispatch the request's shadow, which the headers and the access log name from here on. Counts it, or
    /// why there is none.
    pub fn grant_shadow(&mut self, lanes: &Lanes, context: &RequestContext) -> Option<ShadowGrant> {
        let (ensemble, choice) = lanes.router().zip(self.routed.choice.as_deref())?;
        let counters = ensemble.counters().shadows();
        let granted = self.shadow.and_then(|reason| {
            let permit = ensemble.shadows().permit().map_err(NotDispatched::name)?;
            let lane = choice.shadow.ok_or(NotDispatched::Unsuitable.name())?;
            Ok(ShadowGrant { lane, reason, permit, route: None })
        });
        match granted {
            Err(why) => {
                counters.skipped(why);
                None
            }
            Ok(grant) => {
                counters.dispatched(grant.lane, grant.reason);
                let name = lanes[grant.lane].model().name();
                self.routed.shadow = Some(name.to_owned());
                context.shadowed(name);
                Some(grant)
            }
        }
    }

    /// The record of the route for the calibration stream, if there is one and the router was asked.
    pub fn record(&self, lanes: &Lanes) -> Option<CalibrationRecord> {
        let (stream, choice) = lanes.calibration().zip(self.routed.choice.as_deref())?;
        let primary = lanes[self.routed.lane].model().name();
        let new = CalibrationRecord::new(
            unix_time() as f64,
            choice.digest,
            &choice.intent,
            primary,
            choice.score,
        );
        Some(CalibrationRecord {
            decided_by: self.routed.decided_by(),
            why: self.routed.why.clone().unwrap_or_default(),
            scores: choice.scores.clone(),
            prompt: choice.prompt.clone().filter(|_| stream.stores_prompts()),
            ..new
        })
    }
}

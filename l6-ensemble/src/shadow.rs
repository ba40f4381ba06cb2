//! Whether a request has a shadow: a duplicate on the second choice, whose response is compared and thrown away.
//!
//! A shadow is the only evidence about a route that was not taken. It costs a whole request, so it runs where it
//! teaches most, at the lowest priority ([`SHADOW_PRIORITY`]), and never where it could change what a client sees.
//!
//! A request has a shadow for the first reason that holds:
//!
//! 1. **High stakes**: the client asked for a second opinion on record. Not sampled.
//! 2. **Demoted**: the second choice is shadow-only, since its breaker is open. Its shadows are the verdicts from which
//!    it recovers. Sampled by [`ShadowConfig::demoted_fraction`].
//! 3. **Low score**: the score of the first choice is below the intent's `shadow_below`. It is high for review, where a
//!    wrong specialist is hard to notice, and low for code generation, where a compiler notices.
//! 4. **Fresh**: the first or the second choice has a new model, adapter or threshold ([`Freshness`]). Sampled by
//!    [`ShadowConfig::fresh_fraction`].
//!
//! It never has one
//!
//! * with **tools**: a call in a duplicate could be executed twice, and the conversation depends on its result;
//! * with **several choices** (`n > 1`): there is no pair of responses to compare, and the cost is multiplied;
//! * with a **guide**: a grammar makes both responses well-formed, so that agreement says less, and compiling it for
//!   the second model's tokenizer takes up to a second;
//! * when the second lane's expected wait is above [`ShadowConfig::max_queue`], or its engines are down;
//! * when the escalation has scaled shadows to 0, whatever the reason. Before that, the scale lowers `shadow_below` and
//!   the fractions.
//!
//! A draw depends on the request's digest only ([`InputDigest::sampled`]), so a decision can be repeated.
//!
//! # Example
//!
//! ```
//! use l6_ensemble::calibration::InputDigest;
//! use l6_ensemble::escalation::Thresholds;
//! use l6_ensemble::shadow::{
//!     ShadowConfig, ShadowDecision, ShadowLane, ShadowReason, ShadowRequest, decide,
//! };
//!
//! let request = ShadowRequest {
//!     score: 0.55,
//!     shadow_below: 0.9,
//!     ..ShadowRequest::new(InputDigest::new(b"salt", ["Review this patch"]))
//! };
//! let lane = ShadowLane::default();
//! let decision =
//!     decide(&request, &lane, Some(&lane), &Thresholds::default(), &ShadowConfig::default());
//! assert_eq!(decision, ShadowDecision::Shadow(ShadowReason::LowScore));
//! ```

mod config;
mod fresh;

#[cfg(test)]
mod tests;

pub use config::{IntentThresholds, ShadowConfig};
pub use fresh::{Freshness, LaneVersion};
use serde::{Deserialize, Serialize};

use crate::breaker::Role;
use crate::calibration::InputDigest;
use crate::escalation::Thresholds;

/// Priority of a shadow: the least urgent one, so that it never goes before a client's request. A priority floor is for
/// clients' requests; [`decide`] is the admission of a shadow.
pub const SHADOW_PRIORITY: i64 = i64::MAX;

/// What the decision needs to know of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShadowRequest {
    /// Digest of its input.
    pub digest: InputDigest,
    /// Calibrated score of the router's first choice.
    pub score: f32,
    /// Score below which it has a shadow: what
    /// [`LaneControl::shadow_below`](crate::control::LaneControl::shadow_below) makes of the intent's threshold, under
    /// the present escalation.
    pub shadow_below: f32,
    /// Whether the client flagged it as high-stakes.
    pub high_stakes: bool,
    /// Whether it has tools.
    pub tools: bool,
    /// Number of choices.
    pub n: u32,
    /// Whether a guide constrains its output.
    pub guided: bool,
}

impl ShadowRequest {
    /// A plain request: one choice, of whose route the router is sure, and which no threshold gives a shadow.
    pub fn new(digest: InputDigest) -> Self {
        Self {
            digest,
            score: 1.0,
            shadow_below: 0.0,
            high_stakes: false,
            tools: false,
            n: 1,
            guided: false,
        }
    }
}

/// What the decision needs to know of a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShadowLane {
    /// What it may do.
    pub role: Role,
    /// Whether it is fresh.
    pub fresh: bool,
    /// Expected wait of a new request of the lowest priority, in seconds.
    pub queue_seconds: f64,
    /// Whether an engine of it lives.
    pub up: bool,
}

impl Default for ShadowLane {
    /// An idle lane in good order.
    fn default() -> Self {
        Self { role: Role::Primary, fresh: false, queue_seconds: 0.0, up: true }
    }
}

/// The decision, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShadowDecision {
    /// The request has a shadow on its second choice.
    Shadow(ShadowReason),
    /// It has none.
    NoShadow(NoShadow),
}

/// Why a request has a shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShadowReason {
    /// The client flagged it.
    HighStakes,
    /// The second choice is demoted and needs verdicts.
    Demoted,
    /// The score is below the threshold.
    LowScore,
    /// The first or the second choice is fresh.
    Fresh,
}

/// Why a request has no shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoShadow {
    /// It has tools.
    Tools,
    /// It asks for several choices.
    SeveralChoices,
    /// A guide constrains its output.
    Guided,
    /// There is no second choice, or no engine of it lives.
    NoSecondLane,
    /// Shadows are off under load.
    Escalation,
    /// There is no reason for one: the score is high and no lane needs verdicts.
    Confident,
    /// There is a reason, and the request is not in the sample.
    NotSampled,
    /// There is a reason, and the second lane is loaded.
    SecondLaneBusy,
}

impl ShadowReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::HighStakes, Self::Demoted, Self::LowScore, Self::Fresh];

    /// Name of the reason, in labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::HighStakes => "high_stakes",
            Self::Demoted => "demoted",
            Self::LowScore => "low_score",
            Self::Fresh => "fresh",
        }
    }
}

impl NoShadow {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Tools,
        Self::SeveralChoices,
        Self::Guided,
        Self::NoSecondLane,
        Self::Escalation,
        Self::Confident,
        Self::NotSampled,
        Self::SecondLaneBusy,
    ];

    /// Name of the reason, in labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::SeveralChoices => "several_choices",
            Self::Guided => "guided",
            Self::NoSecondLane => "no_second_lane",
            Self::Escalation => "escalation",
            Self::Confident => "confident",
            Self::NotSampled => "not_sampled",
            Self::SecondLaneBusy => "second_lane_busy",
        }
    }
}

/// Decides whether a request has a shadow. `primary` is the lane that serves it, `second` the lane that would shadow
/// it: the router's second choice or, if the first choice is demoted and its fallback serves, the demoted lane.
pub fn decide(
    request: &ShadowRequest,
    primary: &ShadowLane,
    second: Option<&ShadowLane>,
    escalation: &Thresholds,
    config: &ShadowConfig,
) -> ShadowDecision {
    let none = ShadowDecision::NoShadow;
    // exercise l6.shadow
    if request.tools {
        return none(NoShadow::Tools);
    }
    if request.n > 1 {
        return none(NoShadow::SeveralChoices);
    }
    if request.guided {
        return none(NoShadow::Guided);
    }
    let Some(second) = second.filter(|lane| lane.up) else {
        return none(NoShadow::NoSecondLane);
    };
    // Also a NaN is no positive scale.
    if escalation.shadow_scale.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        return none(NoShadow::Escalation);
    }
    match reason(request, primary, second, escalation, config) {
        Err(why) => none(why),
        // A wait that is NaN is unknown, and not short.
        Ok(reason) if second.queue_seconds <= config.max_queue.as_secs_f64() => {
            ShadowDecision::Shadow(reason)
        }
        Ok(_) => none(NoShadow::SecondLaneBusy),
    }
    // end of exercise
}

/// The first reason for a shadow that holds.
fn reason(
    request: &ShadowRequest,
    primary: &ShadowLane,
    second: &ShadowLane,
    escalation: &Thresholds,
    config: &ShadowConfig,
) -> Result<ShadowReason, NoShadow> {
    let sampled = |purpose: &str, fraction: f64| {
        request.digest.sampled(purpose, fraction * f64::from(escalation.shadow_scale))
    };
    let demoted = second.role == Role::ShadowOnly;
    let fresh = primary.fresh || second.fresh || primary.role == Role::Probation;
    // exercise l6.shadow
    if request.high_stakes {
        Ok(ShadowReason::HighStakes)
    } else if demoted && sampled("demoted", config.demoted_fraction) {
        Ok(ShadowReason::Demoted)
    } else if request.score < request.shadow_below {
        Ok(ShadowReason::LowScore)
    } else if fresh && sampled("fresh", config.fresh_fraction) {
        Ok(ShadowReason::Fresh)
    } else if demoted || fresh {
        Err(NoShadow::NotSampled)
    } else {
        Err(NoShadow::Confident)
    }
    // end of exercise
}

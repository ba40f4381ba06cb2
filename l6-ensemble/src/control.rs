//! What an operator sees of a lane, and what the operator may change: the types of `GET` and `POST /strata/lanes`.
//!
//! A change is an override: a threshold that holds until it is cleared, or a forced breaker. The configuration and the
//! breaker's own state stay what they are below it, so that every change can be taken back without a deploy.
//!
//! # Example
//!
//! ```
//! use l5_scheduler::Time;
//! use l6_ensemble::breaker::{BreakerConfig, Role};
//! use l6_ensemble::control::{LaneControl, LanePatch};
//!
//! let mut lane = LaneControl::new(BreakerConfig::default());
//! let patch: LanePatch = serde_json::from_str(r#"{"breaker": "open", "priority_floor": 10}"#)?;
//! lane.apply(&patch)?;
//! assert_eq!(lane.role(), Role::ShadowOnly);
//!
//! let back: LanePatch = serde_json::from_str(r#"{"breaker": "auto", "priority_floor": null}"#)?;
//! lane.apply(&back)?;
//! assert_eq!(lane.role(), Role::Primary);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use l5_scheduler::Time;
use serde::{Deserialize, Deserializer, Serialize};

use crate::breaker::{Breaker, BreakerConfig, BreakerState, Role};
use crate::escalation::Thresholds;

#[cfg(test)]
mod tests;

/// How the breaker of a lane is operated, named by the state that it forces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerMode {
    /// The verdicts decide.
    #[default]
    Auto,
    /// The lane is shadow-only, whatever the verdicts are.
    Open,
    /// The lane serves, whatever the verdicts are.
    #[serde(rename = "closed", alias = "close")]
    Close,
}

/// Thresholds that an operator has set for a lane; an absent one is the configured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LaneOverrides {
    /// Score below which a request has a shadow, for all intents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_below: Option<f32>,
    /// Score below which a request may move to its second choice, for all intents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill_below: Option<f32>,
    /// Priority number above which the lane refuses requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_floor: Option<i64>,
}

/// A change of a lane. In JSON, an absent field keeps what is in force, and `null` clears an override.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LanePatch {
    /// Change of [`LaneOverrides::shadow_below`].
    #[serde(deserialize_with = "present")]
    pub shadow_below: Option<Option<f32>>,
    /// Change of [`LaneOverrides::spill_below`].
    #[serde(deserialize_with = "present")]
    pub spill_below: Option<Option<f32>>,
    /// Change of [`LaneOverrides::priority_floor`].
    #[serde(deserialize_with = "present")]
    pub priority_floor: Option<Option<i64>>,
    /// Change of the breaker's mode; `null` is `auto`.
    #[serde(deserialize_with = "present")]
    pub breaker: Option<Option<BreakerMode>>,
}

/// Reads a field that is there, so that `null` differs from an absent field.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// A patch that was not applied. No part of it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the patch of the lane is invalid: {}", .0.join("; "))]
pub struct PatchError(pub Vec<String>);

impl LanePatch {
    /// Checks the patch as a whole.
    ///
    /// # Errors
    /// [`PatchError`] with every error.
    pub fn validate(&self) -> Result<(), PatchError> {
        let mut errors = vec![];
        for (name, change) in
            [("shadow_below", self.shadow_below), ("spill_below", self.spill_below)]
        {
            if let Some(Some(score)) = change
                && !(0.0..=1.0).contains(&score)
            {
                errors.push(format!("`{name}` is {score}: it is a score from 0 to 1, or null"));
            }
        }
        if *self == Self::default() {
            errors.push(
                "it changes nothing: give `shadow_below`, `spill_below`, `priority_floor` or `breaker`".into(),
            );
        }
        if errors.is_empty() { Ok(()) } else { Err(PatchError(errors)) }
    }
}

/// Breaker and overrides of one lane.
#[derive(Clone, Debug)]
pub struct LaneControl {
    breaker: Breaker,
    mode: BreakerMode,
    overrides: LaneOverrides,
}

impl LaneControl {
    /// A lane without overrides, whose breaker is closed.
    pub fn new(breaker: BreakerConfig) -> Self {
        let breaker = Breaker::new(breaker);
        Self { breaker, mode: BreakerMode::Auto, overrides: LaneOverrides::default() }
    }

    /// What the lane may do: what the operator has forced, or else what the breaker says.
    pub fn role(&self) -> Role {
        match self.mode {
            BreakerMode::Auto => self.breaker.role(),
            BreakerMode::Open => Role::ShadowOnly,
            BreakerMode::Close => Role::Primary,
        }
    }

    /// Counts a verdict about a response of the lane. The breaker goes on while another state is forced, so that
    /// [`BreakerMode::Auto`] returns to what the verdicts say.
    pub fn observe(&mut self, pass: bool, now: Time) {
        self.breaker.observe(pass, now);
    }

    /// Takes another configuration of the breaker. Its state and the overrides stay.
    pub fn configure(&mut self, breaker: BreakerConfig) {
        self.breaker.configure(breaker);
    }

    /// Closes the breaker and forgets all verdicts: the lane has another model. Overrides stay.
    pub fn reset(&mut self) {
        self.breaker.reset();
    }

    /// The breaker itself.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// How the breaker is operated.
    pub fn mode(&self) -> BreakerMode {
        self.mode
    }

    /// Thresholds that the operator has set.
    pub fn overrides(&self) -> &LaneOverrides {
        &self.overrides
    }

    /// Applies a patch, all of it or nothing.
    ///
    /// # Errors
    /// [`PatchError`].
    pub fn apply(&mut self, patch: &LanePatch) -> Result<(), PatchError> {
        patch.validate()?;
        let LaneOverrides { shadow_below, spill_below, priority_floor } = &mut self.overrides;
        *shadow_below = patch.shadow_below.unwrap_or(*shadow_below);
        *spill_below = patch.spill_below.unwrap_or(*spill_below);
        *priority_floor = patch.priority_floor.unwrap_or(*priority_floor);
        self.mode = patch.breaker.map_or(self.mode, Option::unwrap_or_default);
        Ok(())
    }

    /// Score below which a request of the lane has a shadow. An override replaces both what is configured and what the
    /// escalation makes of it; only an escalation that has turned shadows off altogether is stronger.
    pub fn shadow_below(&self, configured: f32, escalation: &Thresholds) -> f32 {
        self.overrides.shadow_below.unwrap_or_else(|| escalation.shadow_below(configured))
    }

    /// Score below which a request of the lane may move to its second choice.
    pub fn spill_below(&self, configured: f32, escalation: &Thresholds) -> f32 {
        self.overrides.spill_below.unwrap_or_else(|| escalation.spill_below(configured))
    }

    /// Priority number above which the lane refuses requests: the stricter of the operator's and the escalation's.
    pub fn priority_floor(&self, escalation: &Thresholds) -> Option<i64> {
        escalation.floor_with(self.overrides.priority_floor)
    }

    /// State of the lane, for an operator. `name` is the lane's, `engines` the number of its engines that live.
    pub fn status(
        &self,
        name: &str,
        engines: usize,
        now: Time,
        escalation: &Thresholds,
    ) -> LaneStatus {
        let (pass_rate, samples) = self.breaker.recent(now);
        let (verdicts, since) = match self.breaker.state() {
            BreakerState::Closed => ("closed", None),
            BreakerState::Open { since } => ("open", Some(since)),
            BreakerState::Probation { since } => ("probation", Some(since)),
        };
        let state = match self.mode {
            BreakerMode::Auto => verdicts,
            BreakerMode::Open => "open",
            BreakerMode::Close => "closed",
        };
        LaneStatus {
            lane: name.to_owned(),
            engines,
            role: self.role(),
            breaker: BreakerStatus {
                mode: self.mode,
                state,
                verdicts,
                seconds: since.map(|since| now - since),
                pass_rate,
                samples,
                trips: self.breaker.trips(),
                config: *self.breaker.config(),
            },
            overrides: self.overrides,
            priority_floor: self.priority_floor(escalation),
        }
    }
}

/// State of a lane, as `GET /strata/lanes` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneStatus {
    /// Name of the lane.
    pub lane: String,
    /// Number of its engines that live.
    pub engines: usize,
    /// What the lane may do.
    pub role: Role,
    /// Its breaker.
    pub breaker: BreakerStatus,
    /// Thresholds that the operator has set.
    pub overrides: LaneOverrides,
    /// Priority number above which requests are refused.
    pub priority_floor: Option<i64>,
}

/// State of a breaker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BreakerStatus {
    /// How it is operated.
    pub mode: BreakerMode,
    /// `closed`, `open` or `probation`: the state in force, which is the mode's unless that is `auto`.
    pub state: &'static str,
    /// `closed`, `open` or `probation`: what the verdicts say, and what holds in the mode `auto`.
    pub verdicts: &'static str,
    /// Seconds in what the verdicts say; `null` while that is closed.
    pub seconds: Option<f64>,
    /// Pass rate of the verdicts in the window since the last transition; `null` without one.
    pub pass_rate: Option<f64>,
    /// Number of these verdicts.
    pub samples: u64,
    /// Number of times that the lane was demoted.
    pub trips: u64,
    /// Its levels and times.
    pub config: BreakerConfig,
}

//! Levels of load, and what each level of escalation does.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Thresholds;
use crate::config::ConfigError;
use crate::duration_text;

/// Configuration of an [`Escalation`](super::Escalation).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EscalationConfig {
    /// Levels of the expected wait, in seconds.
    pub queue_seconds: LoadLevels,
    /// Levels of the fraction of refused requests.
    pub refused: LoadLevels,
    /// Levels of the fraction of missed objectives.
    pub slo_missed: LoadLevels,
    /// Time for which an overload must last before the level rises by one.
    #[serde(with = "duration_text")]
    pub dwell_up: Duration,
    /// Time for which a calm must last before the level falls by one.
    #[serde(with = "duration_text")]
    pub dwell_down: Duration,
    /// What each level does, from level 1. Each level is at least as strict as the one before.
    pub levels: Vec<EscalationLevel>,
}

/// Levels of one signal: overload above `up`, calm below `down`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadLevels {
    /// Above it the lane is overloaded.
    pub up: f64,
    /// Below it the lane is calm.
    pub down: f64,
}

/// What one level does; the default of each field changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EscalationLevel {
    /// Factor of `shadow_below` and of the sampled fractions, from 0 to 1.
    pub shadow_scale: f32,
    /// Addition to `spill_below`, from 0 to 1.
    pub spill_raise: f32,
    /// Priority number above which requests are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_floor: Option<i64>,
}

impl Default for EscalationLevel {
    fn default() -> Self {
        let Thresholds { shadow_scale, spill_raise, priority_floor } = Thresholds::default();
        Self { shadow_scale, spill_raise, priority_floor }
    }
}

impl EscalationLevel {
    pub(super) fn thresholds(&self) -> Thresholds {
        let Self { shadow_scale, spill_raise, priority_floor } = *self;
        Thresholds { shadow_scale, spill_raise, priority_floor }
    }
}

impl Default for EscalationConfig {
    /// Half of the shadows, none, then more spill twice, then only requests of priority 0 and more urgent ones. A
    /// request without a priority has 0, so the default floor refuses those that declare themselves less urgent.
    fn default() -> Self {
        let level = |shadow_scale, spill_raise, priority_floor| EscalationLevel {
            shadow_scale,
            spill_raise,
            priority_floor,
        };
        Self {
            queue_seconds: LoadLevels { up: 5.0, down: 1.0 },
            refused: LoadLevels { up: 0.05, down: 0.01 },
            slo_missed: LoadLevels { up: 0.6, down: 0.4 },
            dwell_up: Duration::from_secs(10),
            dwell_down: Duration::from_secs(60),
            levels: vec![
                level(0.5, 0.0, None),
                level(0.0, 0.0, None),
                level(0.0, 0.15, None),
                level(0.0, 0.3, None),
                level(0.0, 0.3, Some(0)),
            ],
        }
    }
}

impl EscalationConfig {
    /// Maximum number of levels.
    pub const MAX_LEVELS: usize = 32;

    /// Every error of the configuration; empty if it is valid.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = vec![];
        let mut error = |field: String, what: String| {
            errors.push(ConfigError::new(format!("escalation.{field}"), what));
        };
        for (name, levels) in [
            ("queue_seconds", self.queue_seconds),
            ("refused", self.refused),
            ("slo_missed", self.slo_missed),
        ] {
            let LoadLevels { up, down } = levels;
            // A lane without load has signals of 0, which must be calm.
            if !(0.0 < down && down < up && up.is_finite()) {
                let what = format!(
                    "must have `down` above 0 and below `up`, got {{ up = {up}, down = {down} }}"
                );
                error(name.to_owned(), what);
            }
        }
        if self.levels.len() > Self::MAX_LEVELS {
            let (most, got) = (Self::MAX_LEVELS, self.levels.len());
            error("levels".to_owned(), format!("must have at most {most} entries, got {got}"));
        }
        let mut before = EscalationLevel::default();
        for (i, level) in self.levels.iter().enumerate() {
            let EscalationLevel { shadow_scale, spill_raise, priority_floor } = *level;
            for (name, value) in [("shadow_scale", shadow_scale), ("spill_raise", spill_raise)] {
                if !(0.0..=1.0).contains(&value) {
                    let what = format!("must be from 0 to 1, got {value}");
                    error(format!("levels[{i}].{name}"), what);
                }
            }
            // None refuses nothing, as the greatest number does.
            let floor = |level: Option<i64>| level.unwrap_or(i64::MAX);
            if shadow_scale > before.shadow_scale
                || spill_raise < before.spill_raise
                || floor(priority_floor) > floor(before.priority_floor)
            {
                let what = "is less strict than the level before: shadow_scale and priority_floor may only fall from \
                            level to level, and spill_raise may only rise";
                error(format!("levels[{i}]"), what.to_owned());
            }
            before = *level;
        }
        errors
    }
}

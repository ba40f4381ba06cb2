//! Changes of lanes and of the escalation, as the log has them: one line for each, with what was and what is.

use std::fmt::Display;

use l6_ensemble::breaker::BreakerState;
use l6_ensemble::control::{BreakerMode, LaneControl, LaneOverrides};
use l6_ensemble::escalation::EscalationStatus;
use serde::Serialize;

use super::LOG;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether clients notice it: a warning.
    pub warns: bool,
    /// What has changed.
    pub message: String,
}

impl Change {
    /// Writes the line.
    pub fn log(&self) {
        if self.warns {
            tracing::warn!(target: LOG, "{}", self.message);
        } else {
            tracing::info!(target: LOG, "{}", self.message);
        }
    }
}

/// What an operator has set for a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LaneSettings {
    /// How the breaker is operated.
    pub breaker: BreakerMode,
    /// Thresholds.
    #[serde(flatten)]
    pub overrides: LaneOverrides,
}

impl From<&LaneControl> for LaneSettings {
    fn from(control: &LaneControl) -> Self {
        Self { breaker: control.mode(), overrides: *control.overrides() }
    }
}

/// The change of a lane by an operator; `None` if nothing differs. `by`: what asked for it. `demotes`: the lane served
/// requests before, and does not any more.
pub fn of_settings(
    (by, lane): (&str, &str),
    [before, after]: [LaneSettings; 2],
    demotes: bool,
) -> Option<Change> {
    let (old, new) = (before.overrides, after.overrides);
    let fields = [
        moved("breaker", [Some(mode(before.breaker)), Some(mode(after.breaker))]),
        moved("shadow_below", [old.shadow_below, new.shadow_below]),
        moved("spill_below", [old.spill_below, new.spill_below]),
        moved("priority_floor", [old.priority_floor, new.priority_floor]),
    ];
    let fields: Vec<String> = fields.into_iter().flatten().collect();
    let message = format!("{by}: lane {lane}: {}", fields.join(", "));
    (!fields.is_empty()).then_some(Change { warns: demotes, message })
}

/// A move of a lane's breaker by its verdicts; `None` if it has not moved.
pub fn of_breaker(
    lane: &str,
    [before, after]: [BreakerState; 2],
    held: BreakerMode,
) -> Option<Change> {
    let [old, new] = [before, after].map(state);
    let (warns, held) = match held {
        BreakerMode::Auto => (new == "open", String::new()),
        forced => (false, format!("; an operator holds it {}", mode(forced))),
    };
    let message = format!("lane {lane}: the verdicts move its breaker: {old} -> {new}{held}");
    (old != new).then_some(Change { warns, message })
}

/// A change of the escalation; `None` if nothing differs. `by`: what asked for it.
pub fn of_escalation(
    by: &str,
    before: &EscalationStatus,
    after: &EscalationStatus,
) -> Option<Change> {
    let fields = [
        moved("level in force", [Some(before.level), Some(after.level)]),
        moved("level by load", [Some(before.automatic_level), Some(after.automatic_level)]),
        moved("level held by an operator", [before.pinned, after.pinned]),
    ];
    let fields: Vec<String> = fields.into_iter().flatten().collect();
    let message = format!("{by}: escalation: {}", fields.join(", "));
    (!fields.is_empty()).then_some(Change { warns: after.level > before.level, message })
}

/// A demoted lane serves because no fallback can, or does not any more.
pub fn of_replacement(lane: &str, serves: bool) -> Change {
    let message = match serves {
        true => format!(
            "lane {lane} is demoted and goes on serving: it has no fallback that is up and not demoted"
        ),
        false => format!(
            "lane {lane} no longer serves while demoted: a fallback does, or it is not demoted any more"
        ),
    };
    Change { warns: serves, message }
}

/// `name old -> new`, if the two differ.
fn moved<T: PartialEq + Display>(name: &str, [old, new]: [Option<T>; 2]) -> Option<String> {
    let shown = |value: &Option<T>| value.as_ref().map_or("none".to_owned(), T::to_string);
    (old != new).then(|| format!("{name} {} -> {}", shown(&old), shown(&new)))
}

fn mode(mode: BreakerMode) -> &'static str {
    match mode {
        BreakerMode::Auto => "auto",
        BreakerMode::Open => "open",
        BreakerMode::Close => "closed",
    }
}

fn state(state: BreakerState) -> &'static str {
    match state {
        BreakerState::Closed => "closed",
        BreakerState::Open { .. } => "open",
        BreakerState::Probation { .. } => "probation",
    }
}

#[cfg(test)]
mod tests {
    use l5_scheduler::Time;
    use l6_ensemble::escalation::Thresholds;

    use super::*;

    #[test]
    fn an_operators_change_has_the_old_and_the_new_value_of_what_differs() {
        let before = LaneSettings::default();
        let overrides = LaneOverrides {
            shadow_below: Some(0.1),
            priority_floor: Some(-3),
            ..LaneOverrides::default()
        };
        let after = LaneSettings { breaker: BreakerMode::Open, overrides };
        let change = of_settings(("POST /strata/lanes", "stl"), [before, after], true);
        let message = "POST /strata/lanes: lane stl: breaker auto -> open, shadow_below none -> 0.1, priority_floor \
                       none -> -3";
        assert_eq!(change, Some(Change { warns: true, message: message.into() }));
        let back = of_settings(("x", "stl"), [after, before], false).unwrap();
        assert!(!back.warns && back.message.contains("shadow_below 0.1 -> none"), "{back:?}");
        assert_eq!(of_settings(("x", "stl"), [after, after], false), None);
    }

    #[test]
    fn a_demotion_by_verdicts_warns_unless_an_operator_holds_the_breaker() {
        let open = BreakerState::Open { since: Time(1.0) };
        let (closed, probation) =
            (BreakerState::Closed, BreakerState::Probation { since: Time(2.0) });
        let demoted = of_breaker("stl", [closed, open], BreakerMode::Auto).unwrap();
        assert!(demoted.warns && demoted.message.ends_with("closed -> open"), "{demoted:?}");
        assert!(!of_breaker("stl", [open, probation], BreakerMode::Auto).unwrap().warns);
        let held = of_breaker("stl", [closed, open], BreakerMode::Close).unwrap();
        assert!(!held.warns && held.message.contains("holds it closed"), "{held:?}");
        let again = BreakerState::Open { since: Time(9.0) };
        assert_eq!(of_breaker("stl", [open, again], BreakerMode::Auto), None);
    }

    #[test]
    fn a_higher_level_in_force_warns_and_a_lower_one_does_not() {
        let at = |automatic_level: usize, pinned: Option<usize>| EscalationStatus {
            level: pinned.unwrap_or(automatic_level),
            max_level: 3,
            automatic_level,
            pinned,
            thresholds: Thresholds::default(),
        };
        let change = |before, after| of_escalation("load", &before, &after);
        let up = change(at(0, None), at(1, None)).unwrap();
        assert!(up.warns && up.message.contains("level in force 0 -> 1"), "{up:?}");
        assert!(!change(at(1, None), at(0, None)).unwrap().warns);
        let held = change(at(0, Some(0)), at(1, Some(0))).unwrap();
        assert!(!held.warns && !held.message.contains("in force"), "{held:?}");
        let pinned = change(at(0, None), at(0, Some(2))).unwrap();
        assert!(pinned.warns && pinned.message.ends_with("held by an operator none -> 2"));
        assert_eq!(change(at(1, None), at(1, None)), None);
    }
}

//! Gauges of an ensemble, set when they are scraped: breakers and escalation.

use l6_ensemble::breaker::Role;

use super::registry::Registry;
use crate::ensemble::Ensemble;
use crate::lanes::Lanes;

/// States of a breaker, with what the lane may do in each.
const STATES: [(&str, Role); 3] =
    [("closed", Role::Primary), ("probation", Role::Probation), ("open", Role::ShadowOnly)];

/// Sets the gauges of an ensemble, and registers them at the first scrape.
pub fn set(registry: &Registry, lanes: &Lanes, ensemble: &Ensemble) {
    for (at, served) in lanes.iter().enumerate() {
        let role = ensemble.role(at);
        for (state, own) in STATES {
            let help = "State of a lane's breaker: 1 for the state that it is in. A state that an operator forces \
                        counts.";
            let labels = [("model_name", served.model().name()), ("state", state)];
            let gauge = registry.gauge("strata:breaker_state", help, &labels);
            gauge.set(f64::from(u8::from(own == role)));
        }
    }
    let status = ensemble.escalation_status();
    let help = "Level of escalation that is in force: 0 without load.";
    registry.gauge("strata:escalation_level", help, &[]).set(status.level as f64);
    let help =
        "Version of the ensemble's configuration: 1 at the start, and one more with each reload.";
    registry.gauge("strata:config_version", help, &[]).set(ensemble.version().version as f64);
}

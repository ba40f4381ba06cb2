//! Patches and what they leave.

use super::*;

fn patch(json: &str) -> LanePatch {
    serde_json::from_str(json).unwrap()
}

fn control() -> LaneControl {
    LaneControl::new(BreakerConfig { min_samples: 10, ..BreakerConfig::default() })
}

#[test]
fn an_absent_field_keeps_an_override_and_null_clears_it() {
    let mut lane = control();
    lane.apply(&patch(r#"{"shadow_below": 0.5, "priority_floor": -3}"#)).unwrap();
    lane.apply(&patch(r#"{"spill_below": 0.25}"#)).unwrap();
    let want = LaneOverrides {
        shadow_below: Some(0.5),
        spill_below: Some(0.25),
        priority_floor: Some(-3),
    };
    assert_eq!(*lane.overrides(), want);
    lane.apply(&patch(r#"{"shadow_below": null}"#)).unwrap();
    assert_eq!(*lane.overrides(), LaneOverrides { shadow_below: None, ..want });
}

#[test]
fn a_patch_is_applied_as_a_whole_or_not_at_all() {
    let mut lane = control();
    let wrong = patch(r#"{"breaker": "open", "shadow_below": 1.5, "spill_below": -1}"#);
    let error = lane.apply(&wrong).unwrap_err();
    assert_eq!(error.0.len(), 2, "{error}");
    assert_eq!((lane.role(), *lane.overrides()), (Role::Primary, LaneOverrides::default()));
    assert!(lane.apply(&LanePatch::default()).is_err(), "an empty patch is a mistake");
    for unknown in [r#"{"shadow": 1}"#, r#"{"breaker": "off"}"#, r#"{"priority_floor": 1.5}"#] {
        assert!(serde_json::from_str::<LanePatch>(unknown).is_err(), "{unknown}");
    }
}

#[test]
fn a_forced_breaker_returns_to_what_the_verdicts_say() {
    let mut lane = control();
    lane.apply(&patch(r#"{"breaker": "close"}"#)).unwrap();
    for _ in 0..10 {
        lane.observe(false, Time(1.0));
    }
    assert_eq!(lane.role(), Role::Primary);
    lane.apply(&patch(r#"{"breaker": null}"#)).unwrap();
    assert_eq!(lane.role(), Role::ShadowOnly);
    lane.reset();
    assert_eq!(lane.role(), Role::Primary);
}

#[test]
fn the_status_has_the_state_in_force_beside_what_the_verdicts_say() {
    let mut lane = control();
    let status = |lane: &LaneControl| {
        let status = lane.status("stl", 1, Time(1.0), &Thresholds::default());
        let breaker = serde_json::to_value(&status).unwrap()["breaker"].clone();
        ["mode", "state", "verdicts"].map(|field| breaker[field].as_str().unwrap().to_owned())
    };
    assert_eq!(status(&lane), ["auto", "closed", "closed"]);
    lane.apply(&patch(r#"{"breaker": "open"}"#)).unwrap();
    assert_eq!(status(&lane), ["open", "open", "closed"]);
    (0..10).for_each(|_| lane.observe(false, Time(1.0)));
    for closed in [r#"{"breaker": "close"}"#, r#"{"breaker": "closed"}"#] {
        lane.apply(&patch(closed)).unwrap();
        assert_eq!(status(&lane), ["closed", "closed", "open"], "both spellings are accepted");
    }
}

#[test]
fn an_operators_threshold_replaces_the_escalations_and_the_stricter_floor_holds() {
    let mut lane = control();
    let under_load = Thresholds { shadow_scale: 0.0, spill_raise: 0.5, priority_floor: Some(0) };
    assert_eq!(lane.shadow_below(0.8, &under_load), 0.0);
    assert_eq!(lane.spill_below(0.8, &under_load), 1.0);
    lane.apply(&patch(r#"{"shadow_below": 0.5, "spill_below": 0.1, "priority_floor": 5}"#))
        .unwrap();
    assert_eq!(lane.shadow_below(0.8, &under_load), 0.5);
    assert_eq!(lane.spill_below(0.8, &under_load), 0.1);
    assert_eq!(lane.priority_floor(&under_load), Some(0));
    assert_eq!(lane.priority_floor(&Thresholds::default()), Some(5));
}

#[test]
fn the_status_shows_state_since_and_evidence() {
    let mut lane = control();
    for _ in 0..10 {
        lane.observe(false, Time(1.0));
    }
    lane.observe(true, Time(31.0));
    let status = lane.status("stl", 2, Time(41.0), &Thresholds::default());
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["lane"], "stl");
    assert_eq!(json["role"], "shadow_only");
    assert_eq!(json["breaker"]["mode"], "auto");
    assert_eq!(json["breaker"]["state"], "open");
    assert_eq!(json["breaker"]["seconds"], 40.0);
    assert_eq!(
        (&json["breaker"]["pass_rate"], &json["breaker"]["samples"]),
        (&1.0.into(), &1.into())
    );
    assert_eq!(json["overrides"], serde_json::json!({}));
}

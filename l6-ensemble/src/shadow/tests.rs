//! Which requests have shadows.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::breaker::BreakerConfig;
use crate::control::{LaneControl, LanePatch};

fn digest(i: u32) -> InputDigest {
    InputDigest::new(b"test", [i.to_string().as_str()])
}

fn request(i: u32) -> ShadowRequest {
    ShadowRequest { score: 0.7, shadow_below: 0.5, ..ShadowRequest::new(digest(i)) }
}

/// The decision with everything else as usual.
fn plain(request: &ShadowRequest) -> ShadowDecision {
    let lane = ShadowLane::default();
    decide(request, &lane, Some(&lane), &Thresholds::default(), &ShadowConfig::default())
}

/// Fraction of requests that have a shadow.
fn fraction(decide: impl Fn(&ShadowRequest) -> ShadowDecision) -> f64 {
    let shadowed = (0..2000).filter(|i| matches!(decide(&request(*i)), ShadowDecision::Shadow(_)));
    shadowed.count() as f64 / 2000.0
}

#[test]
fn a_score_below_the_intents_threshold_has_a_shadow() {
    let config = ShadowConfig::default();
    let at = |intent: &str, score| {
        let shadow_below = config.intent(intent).shadow_below;
        plain(&ShadowRequest { score, shadow_below, ..request(0) })
    };
    assert_eq!(at("review", 0.85), ShadowDecision::Shadow(ShadowReason::LowScore));
    assert_eq!(at("review", 0.9), ShadowDecision::NoShadow(NoShadow::Confident));
    assert_eq!(at("codegen", 0.85), ShadowDecision::NoShadow(NoShadow::Confident));
    assert_eq!(at("codegen", 0.29), ShadowDecision::Shadow(ShadowReason::LowScore));
    assert_eq!(config.intent("refactor"), config.intent("unspecified"));
}

#[test]
fn a_high_stakes_request_has_a_shadow_whatever_its_score() {
    let flagged = ShadowRequest { score: 1.0, high_stakes: true, ..request(0) };
    assert_eq!(plain(&flagged), ShadowDecision::Shadow(ShadowReason::HighStakes));
}

#[test]
fn tools_choices_and_guides_have_none_even_at_high_stakes() {
    let flagged = ShadowRequest { score: 0.0, high_stakes: true, ..request(0) };
    for (request, why) in [
        (ShadowRequest { tools: true, ..flagged }, NoShadow::Tools),
        (ShadowRequest { n: 2, ..flagged }, NoShadow::SeveralChoices),
        (ShadowRequest { guided: true, ..flagged }, NoShadow::Guided),
    ] {
        assert_eq!(plain(&request), ShadowDecision::NoShadow(why));
    }
}

#[test]
fn a_lane_that_is_loaded_or_down_gets_no_shadow() {
    let request = ShadowRequest { score: 0.1, ..request(0) };
    let lane = ShadowLane::default();
    let on = |second: Option<&ShadowLane>| {
        decide(&request, &lane, second, &Thresholds::default(), &ShadowConfig::default())
    };
    let busy = |queue_seconds| ShadowLane { queue_seconds, ..lane };
    assert_eq!(on(Some(&busy(1.0))), ShadowDecision::Shadow(ShadowReason::LowScore));
    for seconds in [1.01, f64::INFINITY, f64::NAN] {
        let decision = on(Some(&busy(seconds)));
        assert_eq!(decision, ShadowDecision::NoShadow(NoShadow::SecondLaneBusy), "{seconds}");
    }
    let down = ShadowLane { up: false, ..lane };
    assert_eq!(on(Some(&down)), ShadowDecision::NoShadow(NoShadow::NoSecondLane));
    assert_eq!(on(None), ShadowDecision::NoShadow(NoShadow::NoSecondLane));
}

#[test]
fn of_several_reasons_the_first_one_is_recorded() {
    let lane = ShadowLane { fresh: true, ..ShadowLane::default() };
    let demoted = ShadowLane { role: Role::ShadowOnly, ..lane };
    let with = |fraction, request: &ShadowRequest, second: &ShadowLane| {
        let config = ShadowConfig {
            fresh_fraction: fraction,
            demoted_fraction: fraction,
            ..ShadowConfig::default()
        };
        decide(request, &lane, Some(second), &Thresholds::default(), &config)
    };
    let unsure = ShadowRequest { score: 0.1, ..request(0) };
    let flagged = ShadowRequest { high_stakes: true, ..unsure };
    let shadow = ShadowDecision::Shadow;
    assert_eq!(with(1.0, &flagged, &demoted), shadow(ShadowReason::HighStakes));
    assert_eq!(with(1.0, &unsure, &demoted), shadow(ShadowReason::Demoted));
    assert_eq!(with(0.0, &unsure, &demoted), shadow(ShadowReason::LowScore), "not in the sample");
    assert_eq!(with(1.0, &unsure, &lane), shadow(ShadowReason::LowScore));
    assert_eq!(with(1.0, &request(0), &lane), shadow(ShadowReason::Fresh));
    assert_eq!(with(0.0, &request(0), &lane), ShadowDecision::NoShadow(NoShadow::NotSampled));
    let (lane, demoted) =
        (ShadowLane::default(), ShadowLane { role: Role::ShadowOnly, ..ShadowLane::default() });
    let config = ShadowConfig { demoted_fraction: 0.0, ..ShadowConfig::default() };
    let out = decide(&request(0), &lane, Some(&demoted), &Thresholds::default(), &config);
    assert_eq!(out, ShadowDecision::NoShadow(NoShadow::NotSampled), "a reason, and not drawn");
}

#[test]
fn an_escalation_that_has_turned_shadows_off_is_stronger_than_any_reason() {
    let lane = ShadowLane::default();
    let flagged = ShadowRequest { high_stakes: true, ..request(0) };
    for (shadow_scale, off) in [(0.0, true), (f32::NAN, true), (-1.0, true), (0.01, false)] {
        let load = Thresholds { shadow_scale, ..Thresholds::default() };
        let decision = decide(&flagged, &lane, Some(&lane), &load, &ShadowConfig::default());
        let none = decision == ShadowDecision::NoShadow(NoShadow::Escalation);
        assert_eq!(none, off, "{shadow_scale}: {decision:?}");
    }
}

#[test]
fn fresh_and_demoted_lanes_have_their_fractions_and_the_load_scales_them() {
    let lane = ShadowLane::default();
    let fresh = ShadowLane { fresh: true, ..lane };
    let probation = ShadowLane { role: Role::Probation, ..lane };
    let demoted = ShadowLane { role: Role::ShadowOnly, ..lane };
    let config =
        ShadowConfig { fresh_fraction: 0.5, demoted_fraction: 0.2, ..ShadowConfig::default() };
    let at = |shadow_scale, primary: &ShadowLane, second: &ShadowLane| {
        let load = Thresholds { shadow_scale, ..Thresholds::default() };
        fraction(|request| decide(request, primary, Some(second), &load, &config))
    };
    assert_eq!(at(1.0, &lane, &lane), 0.0);
    for (got, want) in [
        (at(1.0, &fresh, &lane), 0.5),
        (at(1.0, &lane, &fresh), 0.5),
        (at(1.0, &probation, &lane), 0.5),
        (at(1.0, &lane, &demoted), 0.2),
        (at(0.5, &fresh, &lane), 0.25),
        (at(0.5, &lane, &demoted), 0.1),
    ] {
        // Five standard deviations of 2000 draws.
        assert!(
            (got - want).abs() < 5.0 * (want * (1.0 - want) / 2000.0_f64).sqrt(),
            "{got} {want}"
        );
    }
    assert_eq!(at(0.0, &fresh, &demoted), 0.0);
}

#[test]
fn under_load_fewer_scores_are_low_unless_an_operator_has_set_the_threshold() {
    let load = Thresholds { shadow_scale: 0.5, ..Thresholds::default() };
    let (lane, mut control) = (ShadowLane::default(), LaneControl::new(BreakerConfig::default()));
    let at = |control: &LaneControl| {
        let shadow_below = control.shadow_below(0.5, &load);
        let request = ShadowRequest { score: 0.3, shadow_below, ..request(0) };
        decide(&request, &lane, Some(&lane), &load, &ShadowConfig::default())
    };
    let before = at(&control);
    assert_eq!(before, ShadowDecision::NoShadow(NoShadow::Confident), "0.3 is above 0.25");
    control.apply(&LanePatch { shadow_below: Some(Some(0.4)), ..LanePatch::default() }).unwrap();
    assert_eq!(at(&control), ShadowDecision::Shadow(ShadowReason::LowScore), "0.3 is below 0.4");
}

#[test]
fn a_configuration_reports_all_its_errors() {
    assert_eq!(ShadowConfig::default().errors(), []);
    let config: ShadowConfig = toml::from_str(
        "fresh_fraction = 2\nmax_queue = \"500ms\"\n[intents.review]\nshadow_below = -0.1\nspill_below = nan",
    )
    .unwrap();
    assert_eq!(config.max_queue, Duration::from_millis(500));
    assert_eq!(config.errors().len(), 3, "{:?}", config.errors());
    assert!(toml::from_str::<ShadowConfig>("[intents.review]\nshadow = 0.1").is_err());
}

#[test]
fn freshness_is_stored_and_ends_with_the_last_sample() {
    let version = LaneVersion { model: "stl".into(), ..LaneVersion::default() };
    let mut freshness = Freshness::new(version.clone());
    freshness.verdict();
    assert!(freshness.fresh(2));
    let text = serde_json::to_string(&freshness).unwrap();
    let mut stored: Freshness = serde_json::from_str(&text).unwrap();
    assert!(!stored.update(version.clone()), "the same version");
    stored.verdict();
    assert!(!stored.fresh(2));
    for other in [
        LaneVersion { adapter: Some("a".into()), ..version.clone() },
        LaneVersion { thresholds: "0.5".into(), ..version.clone() },
    ] {
        let mut lane = stored.clone();
        assert!(lane.update(other) && lane.fresh(2));
    }
}

prop_compose! {
    fn any_lane()(role in 0..3, fresh: bool, queue_seconds in 0.0..2.0_f64, up: bool) -> ShadowLane {
        let role = [Role::Primary, Role::Probation, Role::ShadowOnly][role as usize];
        ShadowLane { role, fresh, queue_seconds, up }
    }
}

prop_compose! {
    fn any_request()(
        i: u32, score in 0.0..1.0_f32, shadow_below in 0.0..1.0_f32, high_stakes: bool,
        plain in prop::bool::weighted(0.8), tools: bool, n in 1_u32..3, guided: bool,
    ) -> ShadowRequest {
        let request = ShadowRequest { score, shadow_below, high_stakes, ..ShadowRequest::new(digest(i)) };
        if plain { request } else { ShadowRequest { tools, n, guided, ..request } }
    }
}

proptest! {
    #[test]
    fn more_load_never_gives_a_shadow_that_less_load_does_not(
        request in any_request(), primary in any_lane(), second in any_lane(),
        scale in 0.0..=1.0_f32, lower in 0.0..=1.0_f32, wait in 0.0..2.0_f64,
    ) {
        let config = ShadowConfig::default();
        let at = |shadow_scale, second: &ShadowLane| {
            let load = Thresholds { shadow_scale, ..Thresholds::default() };
            let request = ShadowRequest { shadow_below: load.shadow_below(request.shadow_below), ..request };
            decide(&request, &primary, Some(second), &load, &config)
        };
        let busier = ShadowLane { queue_seconds: second.queue_seconds + wait, ..second };
        let before = matches!(at(scale, &second), ShadowDecision::Shadow(_));
        for after in [at(scale * lower, &second), at(scale, &busier)] {
            prop_assert!(before || matches!(after, ShadowDecision::NoShadow(_)));
        }
        prop_assert_eq!(at(scale, &second), at(scale, &second), "a decision can be repeated");
    }

    #[test]
    fn no_shadow_is_where_a_client_could_notice(
        request in any_request(), primary in any_lane(), second in any_lane(), scale in 0.0..=1.0_f32,
    ) {
        let load = Thresholds { shadow_scale: scale, ..Thresholds::default() };
        let decision = decide(&request, &primary, Some(&second), &load, &ShadowConfig::default());
        if let ShadowDecision::Shadow(_) = decision {
            prop_assert!(!request.tools && request.n == 1 && !request.guided);
            prop_assert!(second.up && second.queue_seconds <= 1.0 && scale > 0.0);
        }
    }
}

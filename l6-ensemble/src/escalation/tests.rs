//! The escalation against the list of all observations, and its promises.

use std::time::Duration;

use l5_scheduler::Time;
use proptest::prelude::*;

use super::*;

/// A signal whose load is a number: overload above 2, calm below 1.
fn config(levels: usize, dwell_up: u64, dwell_down: u64) -> EscalationConfig {
    let scale = |i: usize| 1.0 - (i + 1) as f32 / levels as f32;
    EscalationConfig {
        queue_seconds: LoadLevels { up: 2.0, down: 1.0 },
        dwell_up: Duration::from_secs(dwell_up),
        dwell_down: Duration::from_secs(dwell_down),
        levels: (0..levels)
            .map(|i| EscalationLevel { shadow_scale: scale(i), ..EscalationLevel::default() })
            .collect(),
        ..EscalationConfig::default()
    }
}

fn lane(queue_seconds: f64) -> LaneSignal {
    LaneSignal { queue_seconds, ..LaneSignal::default() }
}

/// Level after a list of observations: at each one, looks back over all of them.
fn naive(config: &EscalationConfig, observations: &[(f64, Vec<f64>)]) -> Vec<usize> {
    let kind = |loads: &[f64]| {
        let most = loads.iter().copied().fold(0.0, f64::max);
        if most > 2.0 { 1 } else { -i32::from(most < 1.0) }
    };
    let (mut levels, mut level, mut last_change) = (vec![], 0, f64::NEG_INFINITY);
    for (i, (now, loads)) in observations.iter().enumerate() {
        let now_kind = kind(loads);
        let first_of_run = observations[..=i]
            .iter()
            .rev()
            .take_while(|(_, loads)| kind(loads) == now_kind)
            .last()
            .map_or(*now, |(at, _)| *at);
        let lasted = now - f64::max(first_of_run, last_change);
        let up =
            now_kind == 1 && level < config.levels.len() && lasted >= config.dwell_up.as_secs_f64();
        let down = now_kind == -1 && level > 0 && lasted >= config.dwell_down.as_secs_f64();
        if up || down {
            level = if up { level + 1 } else { level - 1 };
            last_change = *now;
        }
        levels.push(level);
    }
    levels
}

/// Observations in runs of one load, so that levels rise and fall.
fn observations() -> impl Strategy<Value = Vec<(f64, Vec<f64>)>> {
    let load = prop_oneof![0.0..0.9_f64, 1.1..1.9_f64, 2.1..9.0_f64];
    let run = (proptest::collection::vec(load, 1..4), 1_usize..12, 0.1..9.0_f64);
    proptest::collection::vec(run, 0..20).prop_map(|runs| {
        let mut now = 0.0;
        let each = runs.into_iter().flat_map(|(loads, n, gap)| vec![(gap, loads); n]);
        each.map(|(gap, loads)| {
            now += gap;
            (now, loads)
        })
        .collect()
    })
}

proptest! {
    #[test]
    fn the_level_is_what_the_list_of_all_observations_gives(
        observations in observations(), levels in 0_usize..6, up in 0_u64..20, down in 0_u64..40,
    ) {
        let config = config(levels, up, down);
        let want = naive(&config, &observations);
        let mut escalation = Escalation::new(config);
        for ((now, loads), want) in observations.iter().zip(want) {
            let lanes: Vec<_> = loads.iter().map(|load| lane(*load)).collect();
            escalation.observe(Time(*now), &lanes);
            prop_assert_eq!(escalation.level(), want, "at {}", now);
        }
        let (raised, lowered) = escalation.moves();
        prop_assert_eq!(raised - lowered, escalation.level() as u64);
    }

    #[test]
    fn a_load_between_the_levels_holds_the_level(loads in proptest::collection::vec(1.0..=2.0_f64, 1..100)) {
        let mut escalation = Escalation::new(config(4, 1, 1));
        for now in 0..3 {
            escalation.observe(Time(f64::from(now)), &[lane(3.0)]);
        }
        let level = escalation.level();
        prop_assert!(level > 0);
        for (i, load) in loads.iter().enumerate() {
            escalation.observe(Time(10.0 * i as f64 + 10.0), &[lane(*load)]);
            prop_assert_eq!(escalation.level(), level);
        }
    }

    #[test]
    fn a_pin_changes_the_level_in_force_and_nothing_else(
        observations in observations(), pinned in 0_usize..=4, at in any::<prop::sample::Index>(),
    ) {
        let (mut plain, mut operated) = (Escalation::new(config(4, 5, 5)), Escalation::new(config(4, 5, 5)));
        let at = at.index(observations.len() + 1);
        for (i, (now, loads)) in observations.iter().enumerate() {
            let lanes: Vec<_> = loads.iter().map(|load| lane(*load)).collect();
            if i == at {
                operated.pin(Some(pinned)).unwrap();
            }
            plain.observe(Time(*now), &lanes);
            operated.observe(Time(*now), &lanes);
            prop_assert_eq!(operated.automatic_level(), plain.level());
            prop_assert_eq!(operated.level(), if i >= at { pinned } else { plain.level() });
        }
        operated.pin(None).unwrap();
        prop_assert_eq!(operated.thresholds(), plain.thresholds());
    }
}

#[test]
fn shadows_go_first_then_requests_spill_then_the_floor_rises() {
    let mut escalation = Escalation::new(EscalationConfig::default());
    let mut seen = vec![escalation.thresholds()];
    let mut now = 0.0;
    while escalation.level() < escalation.max_level() && now < 1e4 {
        now += 1.0;
        escalation.observe(Time(now), &[lane(100.0)]);
        if seen.last() != Some(&escalation.thresholds()) {
            seen.push(escalation.thresholds());
        }
    }
    assert_eq!(seen[0], Thresholds::default());
    let first = |of: &dyn Fn(&Thresholds) -> bool| seen.iter().position(of).unwrap();
    let shadows = first(&|t| t.shadow_scale < 1.0);
    let no_shadows = first(&|t| t.shadow_scale == 0.0);
    let spill = first(&|t| t.spill_raise > 0.0);
    let floor = first(&|t| t.priority_floor.is_some());
    assert!(shadows < no_shadows && no_shadows < spill && spill < floor, "{seen:?}");
    assert_eq!(now, 1.0 + 10.0 * 5.0, "one level a dwell");
}

#[test]
fn each_signal_of_any_lane_raises_the_level() {
    for signal in [
        LaneSignal { queue_seconds: 6.0, ..LaneSignal::default() },
        LaneSignal { refused: 0.06, ..LaneSignal::default() },
        LaneSignal { slo_missed: 1.0, ..LaneSignal::default() },
    ] {
        let mut escalation = Escalation::new(EscalationConfig::default());
        for now in [0.0, 10.0] {
            escalation.observe(Time(now), &[LaneSignal::default(), signal]);
        }
        assert_eq!(escalation.level(), 1, "{signal:?}");
        for now in [20.0, 80.0] {
            escalation.observe(Time(now), &[LaneSignal::default(); 2]);
        }
        assert_eq!(escalation.level(), 0, "{signal:?}");
    }
}

#[test]
fn a_signal_that_is_no_number_and_a_clock_that_goes_back_hold_the_level() {
    let mut escalation = Escalation::new(config(4, 0, 0));
    escalation.observe(Time(5.0), &[lane(3.0)]);
    assert_eq!(escalation.level(), 1);
    escalation.observe(Time(6.0), &[lane(f64::NAN)]);
    assert_eq!(escalation.level(), 1);
    let mut escalation = Escalation::new(config(4, 10, 10));
    for now in [100.0, f64::INFINITY, 0.0, f64::NAN, 109.0] {
        escalation.observe(Time(now), &[lane(3.0)]);
        assert_eq!(escalation.level(), 0);
    }
}

#[test]
fn a_load_that_sits_at_a_level_moves_nothing() {
    for load in [1.0, 2.0] {
        let mut escalation = Escalation::new(config(4, 0, 0));
        escalation.observe(Time(0.0), &[lane(3.0)]);
        assert_eq!(escalation.level(), 1);
        escalation.observe(Time(100.0), &[lane(load)]);
        assert_eq!(escalation.level(), 1, "{load}");
    }
}

#[test]
fn one_calm_lane_does_not_calm_the_ensemble() {
    let mut escalation = Escalation::new(config(4, 0, 0));
    escalation.observe(Time(0.0), &[lane(0.0), lane(3.0)]);
    assert_eq!(escalation.level(), 1);
    escalation.observe(Time(100.0), &[lane(0.0), lane(1.5)]);
    assert_eq!(escalation.level(), 1, "the other lane is between the levels");
    escalation.observe(Time(200.0), &[lane(0.0), lane(0.5)]);
    assert_eq!(escalation.level(), 0);
}

#[test]
fn a_level_that_does_not_exist_cannot_be_pinned() {
    let mut escalation = Escalation::new(EscalationConfig::default());
    let error = escalation.pin(Some(6)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no escalation level 6: use a level from 0 to 5, or null to release it"
    );
    assert_eq!(escalation.pinned(), None);
}

#[test]
fn the_stricter_floor_is_in_force() {
    let floor = |priority_floor| Thresholds { priority_floor, ..Thresholds::default() };
    assert_eq!(floor(Some(5)).floor_with(Some(0)), Some(0));
    assert_eq!(floor(Some(-5)).floor_with(Some(0)), Some(-5));
    assert_eq!(floor(None).floor_with(Some(3)), Some(3));
    assert_eq!(floor(None).floor_with(None), None);
}

#[test]
fn a_configuration_reports_all_its_errors() {
    assert_eq!(EscalationConfig::default().errors(), []);
    let config: EscalationConfig = toml::from_str(
        "queue_seconds = { up = 1, down = 2 }\nrefused = { up = 0.1, down = 0 }\n[[levels]]\nshadow_scale = 0.2\n\
         [[levels]]\nshadow_scale = 0.3\n[[levels]]\nspill_raise = 2\nshadow_scale = 0.1",
    )
    .unwrap();
    let errors = config.errors();
    assert_eq!(errors.len(), 4, "{errors:#?}");
    assert_eq!(errors[2].path, "escalation.levels[1]");
    assert_eq!(errors[3].path, "escalation.levels[2].spill_raise");
    let floors = "[[levels]]\npriority_floor = 3\n[[levels]]";
    let config: EscalationConfig = toml::from_str(floors).unwrap();
    assert_eq!(config.errors().len(), 1, "a floor that is gone refuses less");
}

#[test]
fn a_new_configuration_keeps_the_level_as_far_as_it_has_one() {
    let mut escalation = Escalation::new(config(4, 0, 1000));
    (0..4).for_each(|at| escalation.observe(Time(f64::from(at)), &[lane(9.0)]));
    assert_eq!(escalation.level(), 4);
    escalation.pin(Some(3)).unwrap();
    escalation.configure(config(5, 1000, 1000));
    assert_eq!((escalation.level(), escalation.automatic_level()), (3, 4), "both stay");
    assert!((escalation.thresholds().shadow_scale - 0.4).abs() < 1e-6, "of the new level 3 of 5");
    escalation.configure(config(2, 1000, 1000));
    assert_eq!((escalation.level(), escalation.automatic_level()), (2, 2), "the highest one");
    escalation.configure(config(0, 1000, 1000));
    assert_eq!(escalation.thresholds(), Thresholds::default());
}

#[test]
fn refusals_of_a_few_requests_are_no_overload() {
    assert_eq!(refused_fraction(3, 3), 0.0);
    assert_eq!(refused_fraction(0, 0), 0.0);
    assert_eq!(refused_fraction(20, 5), 0.25);
}

//! The breaker against a list of all verdicts, and its promises over any stream.

use std::time::Duration;

use l5_scheduler::Time;
use proptest::prelude::*;

use super::recent::SLOTS;
use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn config() -> BreakerConfig {
    BreakerConfig {
        trip_below: 0.6,
        reset_above: 0.8,
        min_samples: 10,
        window: seconds(600),
        dwell: seconds(60),
        probation: seconds(120),
    }
}

/// A breaker that keeps all verdicts.
struct Naive {
    config: BreakerConfig,
    verdicts: Vec<(Time, bool)>,
    /// State, since when, and the number of verdicts before it.
    history: Vec<(Role, Option<Time>, usize)>,
}

impl Naive {
    fn new(config: BreakerConfig) -> Self {
        Self { config, verdicts: vec![], history: vec![(Role::Primary, None, 0)] }
    }

    fn observe(&mut self, pass: bool, now: Time) {
        let now = self.verdicts.last().map_or(now, |(last, _)| now.max(*last));
        self.verdicts.push((now, pass));
        let (role, since, skip) = *self.history.last().unwrap();
        let slot =
            |at: Time| (at.seconds() / (self.config.window.as_secs_f64() / SLOTS as f64)) as u64;
        let counted: Vec<bool> = self.verdicts[skip..]
            .iter()
            .filter(|(at, _)| slot(*at) + SLOTS > slot(now))
            .map(|(_, pass)| *pass)
            .collect();
        if (counted.len() as u64) < self.config.min_samples
            || since.is_some_and(|since| now - since < self.config.dwell.as_secs_f64())
        {
            return;
        }
        let rate = counted.iter().filter(|pass| **pass).count() as f64 / counted.len() as f64;
        let recovered = rate >= self.config.reset_above;
        let long = since.is_some_and(|s| now - s >= self.config.probation.as_secs_f64());
        let next = match role {
            Role::Primary | Role::Probation if rate < self.config.trip_below => Role::ShadowOnly,
            Role::ShadowOnly if recovered => Role::Probation,
            Role::Probation if recovered && long => Role::Primary,
            _ => return,
        };
        self.history.push((next, Some(now), self.verdicts.len()));
    }
}

fn stream() -> impl Strategy<Value = Vec<(f64, bool)>> {
    // Runs of one pass rate each, so that every state is reached.
    let run = (0.0..=1.0_f64, 1_usize..80, 0.5..30.0_f64);
    proptest::collection::vec(run, 0..8).prop_perturb(|runs, mut rng| {
        let mut stream = vec![];
        let mut now = 0.0;
        for (rate, verdicts, gap) in runs {
            for _ in 0..verdicts {
                // Sometimes the clock goes back.
                now +=
                    if rng.random_ratio(1, 50) { -gap } else { gap * rng.random_range(0.0..2.0) };
                stream.push((f64::max(0.0, now), rng.random_bool(rate)));
            }
        }
        stream
    })
}

proptest! {
    #[test]
    fn the_breaker_decides_as_a_list_of_all_verdicts_does(
        stream in stream(), min_samples in 1_u64..30, window in 30_u64..900, dwell in 0_u64..120,
        probation in 0_u64..400,
    ) {
        let config = BreakerConfig {
            min_samples, window: seconds(window), dwell: seconds(dwell), probation: seconds(probation), ..config()
        };
        let (mut breaker, mut naive) = (Breaker::new(config), Naive::new(config));
        for (now, pass) in stream {
            breaker.observe(pass, Time(now));
            naive.observe(pass, Time(now));
            prop_assert_eq!(breaker.role(), naive.history.last().unwrap().0);
        }
        prop_assert_eq!(breaker.transitions(), naive.history.len() as u64 - 1);
        let trips = naive.history.iter().filter(|(role, ..)| *role == Role::ShadowOnly).count();
        prop_assert_eq!(breaker.trips(), trips as u64);
    }

    #[test]
    fn there_is_at_most_one_transition_a_dwell_whatever_the_verdicts_are(
        verdicts in proptest::collection::vec((0.0..40.0_f64, any::<bool>()), 0..300), dwell in 1_u64..120,
    ) {
        let config = BreakerConfig { min_samples: 1, dwell: seconds(dwell), probation: seconds(0), ..config() };
        let mut breaker = Breaker::new(config);
        let (mut now, mut last) = (0.0, None);
        for (gap, pass) in verdicts {
            now += gap;
            let before = breaker.transitions();
            breaker.observe(pass, Time(now));
            prop_assert!(breaker.transitions() <= before + 1);
            if breaker.transitions() > before {
                prop_assert!(last.is_none_or(|last| now - last >= dwell as f64), "{:?} then {}", last, now);
                last = Some(now);
            }
        }
    }

    #[test]
    fn a_rate_between_the_levels_never_changes_the_state(
        demoted in any::<bool>(), verdicts in 1_usize..2000, gap in 0.1..30.0_f64,
    ) {
        let mut breaker = Breaker::new(config());
        let mut now = 0.0;
        for _ in 0..10 {
            breaker.observe(!demoted, Time(now));
        }
        let transitions = breaker.transitions();
        // 7 of 10, evenly: every 10 or more verdicts in a row pass at a rate of 0.6 to 0.8.
        for i in 0..verdicts {
            now += gap;
            breaker.observe((7 * i) % 10 < 7, Time(now));
        }
        prop_assert_eq!(breaker.transitions(), transitions);
    }
}

#[test]
fn it_trips_with_the_last_sample_that_is_needed() {
    let mut breaker = Breaker::new(config());
    for i in 0..9 {
        breaker.observe(false, Time(f64::from(i)));
        assert_eq!(breaker.role(), Role::Primary, "{i}");
    }
    breaker.observe(false, Time(9.0));
    assert_eq!(breaker.state(), BreakerState::Open { since: Time(9.0) });
    assert_eq!(breaker.recent(Time(9.0)), (None, 0), "verdicts before the transition do not count");
}

#[test]
fn a_sustained_recovery_closes_it_through_probation() {
    let mut breaker = Breaker::new(config());
    for _ in 0..10 {
        breaker.observe(false, Time(0.0));
    }
    let mut now = 0.0;
    let mut roles = vec![breaker.role()];
    while breaker.role() != Role::Primary && now < 10_000.0 {
        now += 5.0;
        breaker.observe(true, Time(now));
        if roles.last() != Some(&breaker.role()) {
            roles.push(breaker.role());
        }
    }
    assert_eq!(roles, [Role::ShadowOnly, Role::Probation, Role::Primary]);
    assert_eq!(now, 60.0 + 120.0, "one dwell, then the probation");
    assert_eq!((breaker.trips(), breaker.transitions()), (1, 3));
}

#[test]
fn it_trips_below_the_lower_level_and_recovers_at_the_upper_one() {
    let after = |passed: u64| {
        let mut breaker = Breaker::new(config());
        (0..10).for_each(|i| breaker.observe(i < passed, Time(0.0)));
        breaker.role()
    };
    assert_eq!(after(6), Role::Primary, "0.6 is not below the level");
    assert_eq!(after(5), Role::ShadowOnly);
    let recovered = |passed: u64| {
        let mut breaker = Breaker::new(config());
        (0..10).for_each(|_| breaker.observe(false, Time(0.0)));
        (0..10).for_each(|i| breaker.observe(i < passed, Time(60.0 + i as f64)));
        breaker.role()
    };
    assert_eq!(recovered(7), Role::ShadowOnly);
    assert_eq!(recovered(8), Role::Probation);
}

#[test]
fn a_relapse_in_probation_demotes_the_lane_again() {
    let mut breaker = Breaker::new(config());
    for (pass, now) in [(false, 0.0), (true, 60.0), (false, 120.0)] {
        for _ in 0..10 {
            breaker.observe(pass, Time(now));
        }
    }
    assert_eq!(breaker.state(), BreakerState::Open { since: Time(120.0) });
    assert_eq!(breaker.trips(), 2);
}

#[test]
fn verdicts_that_have_left_the_window_trip_nothing() {
    let mut breaker = Breaker::new(config());
    for _ in 0..9 {
        breaker.observe(false, Time(0.0));
    }
    assert_eq!(breaker.recent(Time(599.0)), (Some(0.0), 9));
    assert_eq!(breaker.recent(Time(600.0)), (None, 0));
    breaker.observe(false, Time(600.0));
    assert_eq!(breaker.role(), Role::Primary);
}

#[test]
fn a_configuration_reports_all_its_errors() {
    assert_eq!(BreakerConfig::default().errors(), []);
    let config: BreakerConfig = toml::from_str(
        "trip_below = 0.9\nreset_above = 0.8\nmin_samples = 0\nwindow = \"0s\"\ndwell = \"10m\"\nprobation = \"5m\"",
    )
    .unwrap();
    assert_eq!(config.errors().len(), 4, "{:?}", config.errors());
    let config = BreakerConfig { trip_below: f64::NAN, reset_above: 2.0, ..config };
    assert_eq!(config.errors().len(), 5, "{:?}", config.errors());
    assert!(toml::from_str::<BreakerConfig>("trip = 0.9").is_err());
}

#[test]
fn an_invalid_configuration_or_clock_never_panics() {
    let config = BreakerConfig { window: Duration::ZERO, min_samples: 0, ..config() };
    let mut breaker = Breaker::new(config);
    for now in [0.0, f64::NAN, f64::INFINITY, -1.0, 1e300, 2.0] {
        breaker.observe(true, Time(now));
    }
    assert_eq!(breaker.role(), Role::Primary);
}

#[test]
fn a_new_configuration_keeps_state_and_verdicts() {
    let mut breaker = Breaker::new(config());
    let now = |second: u32| Time(f64::from(second));
    (0..20).for_each(|at| breaker.observe(at % 2 == 0, now(at)));
    assert_eq!(breaker.role(), Role::ShadowOnly, "0.5 is below 0.6");
    let trips = breaker.trips();
    // A stricter level, and a window of one minute.
    let strict =
        BreakerConfig { trip_below: 0.9, reset_above: 0.95, window: seconds(60), ..config() };
    breaker.configure(strict);
    assert_eq!((breaker.role(), breaker.trips()), (Role::ShadowOnly, trips));
    let mut closed = Breaker::new(config());
    (0..20).for_each(|at| closed.observe(at % 5 > 0, now(at * 10)));
    assert_eq!(closed.role(), Role::Primary, "0.8 is no less than 0.6");
    let (rate, all) = closed.recent(now(190));
    assert_eq!((rate, all), (Some(0.8), 20));
    closed.configure(strict);
    assert_eq!(closed.role(), Role::Primary, "a configuration makes no transition");
    let (_, within) = closed.recent(now(190));
    assert!((5..=7).contains(&within), "{within} verdicts of the last minute, less one old slot");
    closed.configure(BreakerConfig { min_samples: 5, ..strict });
    closed.observe(false, now(191));
    assert_eq!(closed.role(), Role::ShadowOnly, "the next verdict does");
}

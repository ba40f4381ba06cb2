//! The window against a list of all samples, snapshots, and reports.

use std::time::Duration;

use l5_scheduler::Time;
use proptest::prelude::*;

use super::*;

/// A sample with the minute in which it was counted.
#[derive(Clone, Copy, Debug)]
enum Sample {
    First(f64, f64),
    Between(f64),
    Finished(bool),
    Compiled(bool),
}

/// All samples of a lane, in a list.
#[derive(Default)]
struct Naive {
    samples: Vec<(u64, Sample)>,
    latest: u64,
}

impl Naive {
    fn add(&mut self, seconds: f64, sample: Sample) {
        self.latest = self.latest.max((seconds / 60.0) as u64);
        self.samples.push((self.latest, sample));
    }

    /// Samples of the last `minutes`.
    fn last(&self, seconds: f64, minutes: u64) -> impl Iterator<Item = Sample> {
        let now = self.latest.max((seconds / 60.0) as u64);
        self.samples.iter().filter(move |(m, _)| m + minutes > now).map(|(_, sample)| *sample)
    }

    fn rate(&self, seconds: f64, of: impl Fn(Sample) -> Option<bool>) -> Rate {
        let events: Vec<bool> = self.last(seconds, RATE_WINDOW_MINUTES).filter_map(of).collect();
        Rate::new(events.iter().filter(|event| **event).count() as u64, events.len() as u64)
    }

    /// Exact percentiles, in milliseconds.
    fn latencies(
        &self,
        seconds: f64,
        minutes: u64,
        of: impl Fn(Sample) -> Option<f64>,
    ) -> Percentiles {
        let mut times: Vec<f64> = self.last(seconds, minutes).filter_map(of).collect();
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (percent * times.len()).div_ceil(100).max(1);
            times.get(rank - 1).map(|seconds| seconds * 1e3)
        };
        Percentiles { count: times.len() as u64, p50: at(50), p95: at(95), p99: at(99) }
    }
}

fn near(got: Percentiles, want: Percentiles) {
    assert_eq!(got.count, want.count);
    for (got, want) in [(got.p50, want.p50), (got.p95, want.p95), (got.p99, want.p99)] {
        assert_eq!(got.is_some(), want.is_some());
        if let Some((got, want)) = got.zip(want) {
            assert!((got / want).ln().abs() <= 1.05_f64.ln() / 2.0 + 1e-9, "{got} for {want}");
        }
    }
}

/// Compares a window with the list, whose clock is `offset` ahead.
fn compare(window: &SloWindow, naive: &Naive, now: f64, offset: f64) {
    let listed = now + offset;
    let minutes = window.report(Time(now), &SloTargets::default()).latency_window_seconds / 60;
    near(
        window.ttft(Time(now)),
        naive.latencies(listed, minutes, |sample| match sample {
            Sample::First(arrival, _) => Some(arrival),
            _ => None,
        }),
    );
    near(
        window.admission_to_first_token(Time(now)),
        naive.latencies(listed, minutes, |sample| match sample {
            Sample::First(_, admission) => Some(admission),
            _ => None,
        }),
    );
    near(
        window.itl(Time(now)),
        naive.latencies(listed, minutes, |sample| match sample {
            Sample::Between(seconds) => Some(seconds),
            _ => None,
        }),
    );
    let compiled = naive.rate(listed, |sample| match sample {
        Sample::Compiled(pass) => Some(pass),
        _ => None,
    });
    assert_eq!(window.compile_pass(Time(now)), compiled);
    let preempted = naive.rate(listed, |sample| match sample {
        Sample::Finished(preempted) => Some(preempted),
        _ => None,
    });
    assert_eq!(window.preempted_once(Time(now)), preempted);
}

fn add(window: &mut SloWindow, now: f64, sample: Sample) {
    match sample {
        Sample::First(arrival, admission) => window.first_token(Time(now), arrival, admission),
        Sample::Between(seconds) => window.inter_token(Time(now), seconds),
        Sample::Finished(preempted) => window.finished(Time(now), preempted),
        Sample::Compiled(pass) => window.compile_checked(Time(now), pass),
    }
}

fn samples() -> impl Strategy<Value = Vec<(f64, Sample)>> {
    let seconds = || (-4.9..3.0_f64).prop_map(|exponent| 10_f64.powf(exponent));
    let sample = prop_oneof![
        (seconds(), seconds()).prop_map(|(a, b)| Sample::First(a, b)),
        seconds().prop_map(Sample::Between),
        any::<bool>().prop_map(Sample::Finished),
        any::<bool>().prop_map(Sample::Compiled),
    ];
    // Mostly small gaps, sometimes hours, sometimes a clock that goes back.
    let gap = prop_oneof![8 => 0.0..20.0_f64, 2 => 0.0..600.0_f64, 1 => 0.0..50_000.0_f64, 1 => -90.0..0.0_f64];
    proptest::collection::vec((gap, sample), 0..120)
}

fn options(minutes: u64) -> SloOptions {
    SloOptions { latency_window: Duration::from_secs(60 * minutes), ..SloOptions::default() }
}

proptest! {
    #[test]
    fn the_window_measures_what_a_list_of_all_samples_gives(
        samples in samples(), minutes in 1_u64..60, later in 0.0..100_000.0_f64,
    ) {
        let (mut window, mut naive) = (SloWindow::new(options(minutes)), Naive::default());
        let mut now = 0.0;
        for (gap, sample) in samples {
            now = f64::max(0.0, now + gap);
            add(&mut window, now, sample);
            naive.add(now, sample);
            compare(&window, &naive, now, 0.0);
        }
        compare(&window, &naive, now + later, 0.0);
    }

    #[test]
    fn a_restored_window_goes_on_as_if_the_process_had_never_stopped(
        before in samples(), after in samples(), minutes in 1_u64..60, down in 0_u64..1600,
        restarted_at in 0_u64..3,
    ) {
        let (mut window, mut naive) = (SloWindow::new(options(minutes)), Naive::default());
        let mut now = 0.0;
        for (gap, sample) in before {
            now = f64::max(0.0, now + gap);
            add(&mut window, now, sample);
            naive.add(now, sample);
        }
        let bytes = window.snapshot(Time(now), 1000, "model").unwrap();
        // The new process's clock begins at its start; the wall clock has gone on.
        let mut restored = SloWindow::new(options(minutes));
        let start = (60 * restarted_at) as f64;
        restored.restore(&bytes, Time(start), 1000 + down, "model").unwrap();
        let offset = 60.0 * (naive.latest.max((now / 60.0) as u64) + down) as f64 - start;
        compare(&restored, &naive, start, offset);
        let mut now = start;
        for (gap, sample) in after {
            now = f64::max(start, now + gap);
            add(&mut restored, now, sample);
            naive.add(now + offset, sample);
        }
        compare(&restored, &naive, now, offset);
    }

    #[test]
    fn damaged_snapshots_give_an_error_and_an_empty_window_or_are_valid(
        samples in samples(), flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut window = SloWindow::new(options(5));
        let mut now = 0.0;
        for (gap, sample) in samples {
            now = f64::max(0.0, now + gap);
            add(&mut window, now, sample);
        }
        let bytes = window.snapshot(Time(now), 7, "model").unwrap();
        let mut damaged = bytes.clone();
        for (at, byte) in flips {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        for bytes in [&damaged[..], &bytes[..cut.index(bytes.len())]] {
            let restored = window.restore(bytes, Time(now), 7, "model");
            let report = window.report(Time(now), &SloTargets::default());
            prop_assert!(report.compile_pass.count <= report.compile_pass.total);
            if restored.is_err() {
                let empty = SloWindow::new(options(5)).report(Time(now), &SloTargets::default());
                prop_assert_eq!(report, empty);
            }
        }
    }
}

#[test]
fn an_objective_has_a_verdict_when_it_has_enough_samples() {
    let targets =
        SloTargets { ttft: Some(Duration::from_millis(300)), itl: None, compile_pass: Some(0.9) };
    let mut window = SloWindow::new(SloOptions::default());
    for i in 0..19 {
        window.first_token(Time(f64::from(i)), 0.1, 0.1);
        window.compile_checked(Time(f64::from(i)), i != 0);
    }
    let objectives = window.report(Time(20.0), &targets).objectives;
    assert_eq!((objectives.ttft.met, objectives.ttft.samples), (None, 19));
    assert_eq!(objectives.compile_pass.met, None);
    window.first_token(Time(20.0), 0.1, 0.1);
    window.compile_checked(Time(20.0), true);
    let report = window.report(Time(20.0), &targets);
    assert_eq!(report.objectives.ttft.met, Some(true));
    assert_eq!(report.objectives.compile_pass.met, Some(true));
    assert_eq!(report.objectives.itl, Objective::default());
    assert_eq!(report.missed(), (2, 0));
    for _ in 0..2 {
        window.first_token(Time(21.0), 0.4, 0.1);
        window.compile_checked(Time(21.0), false);
    }
    let report = window.report(Time(21.0), &targets);
    assert_eq!(report.objectives.ttft.met, Some(false), "2 of 22 are more than 5 percent");
    assert_eq!(report.objectives.compile_pass.met, Some(false), "19 of 22");
    assert_eq!(report.missed(), (2, 2));
}

#[test]
fn a_day_later_the_rates_are_empty() {
    let mut window = SloWindow::new(SloOptions::default());
    window.compile_checked(Time(30.0), true);
    let minute = |n: f64| Time(60.0 * n);
    assert_eq!(window.compile_pass(minute(1439.0)).total, 1);
    assert_eq!(window.compile_pass(minute(1440.0)).total, 0);
}

#[test]
fn a_time_that_is_no_number_counts_in_the_latest_minute() {
    let mut window = SloWindow::new(SloOptions::default());
    window.finished(Time(600.0), false);
    for now in [f64::NAN, f64::INFINITY, -5.0] {
        window.finished(Time(now), true);
    }
    assert_eq!(window.preempted_once(Time(600.0)), Rate::new(3, 4));
}

#[test]
fn counts_of_another_model_are_not_restored() {
    let mut window = SloWindow::new(SloOptions::default());
    window.finished(Time(0.0), true);
    let bytes = window.snapshot(Time(0.0), 5, "stl@1").unwrap();
    let error = window.restore(&bytes, Time(0.0), 5, "stl@2").unwrap_err();
    assert!(matches!(error, SnapshotError::OtherModel { .. }), "{error}");
    assert_eq!(window.preempted_once(Time(0.0)).total, 0);
}

#[test]
fn a_snapshot_that_no_window_can_have_is_refused() {
    let snapshot = |rates: &str, latencies: &str| {
        format!(
            r#"{{"version":1,"identity":"m","wall_minute":9,"rates":[{rates}],"latencies":[{latencies}]}}"#
        )
    };
    let mut window = SloWindow::new(SloOptions::default());
    let mut restore = |text: &str| window.restore(text.as_bytes(), Time(0.0), 9, "m");
    restore(&snapshot("[3,1,2,0,1]", r#"{"age":59,"ttft":[[383,1]],"itl":[],"admitted":[]}"#))
        .unwrap();
    for (rates, latencies) in [
        ("[3,3,2,0,1]", ""),
        ("[3,1,2,2,1]", ""),
        ("[1440,1,2,0,1]", ""),
        ("[3,1,2,0,1],[3,1,2,0,1]", ""),
        ("[18446744073709551615,1,2,0,1]", ""),
        ("", r#"{"age":60,"ttft":[],"itl":[],"admitted":[]}"#),
        ("", r#"{"age":0,"ttft":[[384,1]],"itl":[],"admitted":[]}"#),
    ] {
        let error = restore(&snapshot(rates, latencies)).unwrap_err();
        assert!(matches!(error, SnapshotError::Impossible(_)), "{rates} {latencies}: {error}");
    }
    let newer = snapshot("", "").replace("\"version\":1", "\"version\":2");
    assert!(matches!(restore(&newer), Err(SnapshotError::Version(2))));
    assert!(matches!(restore(&"[".repeat(1 << 20)), Err(SnapshotError::Malformed(_))));
    let long = " ".repeat(MAX_SNAPSHOT_BYTES + 1);
    assert!(matches!(restore(&long), Err(SnapshotError::TooLong(_))));
}

#[test]
fn the_largest_snapshot_can_be_read() {
    let mut window = SloWindow::new(options(60));
    for slot in 0..RATE_WINDOW_MINUTES {
        let minute = slot + RATE_WINDOW_MINUTES;
        *window::rate_slot(&mut window.rates, minute) = window::RateMinute {
            minute,
            passed: u32::MAX,
            checked: u32::MAX,
            preempted: u32::MAX,
            finished: u32::MAX,
        };
        let latencies = window::latency_slot(&mut window.latencies, minute);
        for bucket in 0..histogram::NUM_BUCKETS {
            latencies.ttft.add(bucket, u32::MAX);
            latencies.itl.add(bucket, u32::MAX);
            latencies.admitted.add(bucket, u32::MAX);
        }
        window.latest = minute;
    }
    let bytes = window.snapshot(Time(0.0), u64::MAX, "m").unwrap();
    assert!(bytes.len() < MAX_SNAPSHOT_BYTES / 2, "{}", bytes.len());
    let before = window.report(Time(0.0), &SloTargets::default());
    window.restore(&bytes, Time(0.0), u64::MAX, "m").unwrap();
    assert_eq!(window.report(Time(0.0), &SloTargets::default()), before);
    assert_eq!(before.compile_pass.total, 1440 * u64::from(u32::MAX));
}

#[test]
fn targets_are_read_from_toml_and_checked_as_a_whole() {
    let targets: SloTargets = toml::from_str("ttft = \"300ms\"\ncompile_pass = 0.95").unwrap();
    assert_eq!(targets.ttft, Some(Duration::from_millis(300)));
    assert_eq!(targets.errors(), []);
    assert!(toml::from_str::<SloTargets>("tftt = \"300ms\"").is_err());
    let targets: SloTargets = toml::from_str("itl = \"0s\"\ncompile_pass = 95").unwrap();
    assert_eq!(targets.errors().len(), 2);
    let options: SloOptions = toml::from_str("latency_window = \"2h\"").unwrap();
    assert_eq!(options.errors().len(), 1);
    assert_eq!(SloWindow::new(options).latencies.len(), 60);
}

#[test]
fn a_report_is_json_with_milliseconds() {
    let mut window = SloWindow::new(SloOptions::default());
    window.first_token(Time(0.0), 0.2, 0.1);
    let targets = SloTargets { ttft: Some(Duration::from_secs(1)), ..SloTargets::default() };
    let json = serde_json::to_value(window.report(Time(0.0), &targets)).unwrap();
    let ttft = &json["objectives"]["ttft"];
    assert_eq!((&ttft["target"], &ttft["met"]), (&1000.0.into(), &serde_json::Value::Null));
    assert_eq!(json["latency_window_seconds"], 300);
    assert!((json["ttft_ms"]["p50"].as_f64().unwrap() / 200.0 - 1.0).abs() < 0.025);
}

#[test]
fn other_options_keep_what_is_within_the_new_window() {
    let minutes = |n: u64| SloOptions {
        latency_window: Duration::from_secs(60 * n),
        ..SloOptions::default()
    };
    let mut window = SloWindow::new(minutes(5));
    for minute in 0..7_u32 {
        window.first_token(Time(f64::from(minute) * 60.0), 0.1, 0.1);
        window.compile_checked(Time(f64::from(minute) * 60.0), true);
    }
    let now = Time(6.0 * 60.0);
    assert_eq!(window.ttft(now).count, 5);
    window.configure(minutes(3));
    assert_eq!(window.ttft(now).count, 3);
    window.configure(minutes(20));
    assert_eq!(window.ttft(now).count, 3, "what has left a window does not return");
    window.first_token(Time(7.0 * 60.0), 0.1, 0.1);
    assert_eq!(window.ttft(Time(7.0 * 60.0)).count, 4);
    assert_eq!(window.compile_pass(now).total, 7, "rates have their own window");
    let few = SloOptions { min_compile_samples: 7, ..minutes(20) };
    window.configure(few);
    let targets = SloTargets { compile_pass: Some(0.5), ..SloTargets::default() };
    assert_eq!(window.report(now, &targets).objectives.compile_pass.met, Some(true));
}

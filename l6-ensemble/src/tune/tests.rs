//! The tuner on streams whose truth is known.

use std::io::Read;

use proptest::prelude::*;

use super::bins::{STEPS, threshold};
use super::*;
use crate::calibration::{Agreement, InputDigest, Outcome, Response, ShadowResponse};
use crate::shadow::ShadowReason;

const OUTCOMES: [Outcome; 4] =
    [Outcome::Both, Outcome::PrimaryOnly, Outcome::ShadowOnly, Outcome::Neither];

fn record(intent: &str, score: f32, outcome: Option<Outcome>) -> CalibrationRecord {
    let digest = InputDigest::new(b"salt", ["x"]);
    let mut record = CalibrationRecord::new(0.0, digest, intent, "stl", score);
    record.shadow = outcome.map(|outcome| ShadowResponse {
        reason: ShadowReason::LowScore,
        response: Response::default(),
        agreement: Agreement { compiles: Some(outcome), ..Agreement::default() },
    });
    record
}

fn evidence(records: impl IntoIterator<Item = CalibrationRecord>) -> Evidence {
    let mut evidence = Evidence::default();
    for record in records {
        assert!(evidence.add(&record));
    }
    evidence
}

fn line(record: &CalibrationRecord) -> String {
    serde_json::to_string(record).unwrap() + "\n"
}

#[test]
fn a_router_that_errs_below_a_score_gets_that_score_as_its_thresholds() {
    // Below 0.6, every fourth route is an error and none is better than its second choice; above, none is an error, and
    // every tenth is better.
    let records = (0..20_000).map(|i| {
        let score = (i % 1000) as f32 / 1000.0;
        let outcome = match i / 1000 {
            n if score < 0.6 && n % 4 == 0 => Outcome::ShadowOnly,
            n if score >= 0.6 && n % 10 == 0 => Outcome::PrimaryOnly,
            n if n % 2 == 0 => Outcome::Both,
            _ => Outcome::Neither,
        };
        record("review", score, Some(outcome))
    });
    let options = TuneOptions { z: 0.0, ..TuneOptions::default() };
    let report = evidence(records).propose(&options);
    let intent = &report.intents["review"];
    // 2 percent errors above t: 0.25 * (0.6 - t) = 0.02 * (1 - t).
    let shadow_below = intent.shadow_below.value.unwrap();
    assert!((shadow_below - (0.15 - 0.02) / 0.23).abs() < 0.002, "{:?}", intent.shadow_below);
    // Of 1000 t below t, 150 gain and 0.1 (t - 0.6) lose at most a hundredth more.
    assert_eq!(intent.spill_below.value, Some(1.0), "{:?}", intent.spill_below);
    // 10 percent errors above t: 0.25 * (0.6 - t) = 0.1 * (1 - t).
    let min_score = report.router.min_score.value.unwrap();
    assert!((min_score - (0.15 - 0.1) / 0.15).abs() < 0.002, "{:?}", report.router.min_score);
    assert_eq!((intent.records, intent.judged, intent.routing_errors), (20_000, 20_000, 3000));
}

#[test]
fn a_pair_without_the_first_choice_as_its_primary_is_not_judged() {
    let mut own = record("review", 0.5, Some(Outcome::ShadowOnly));
    own.decided_by = DecidedBy::Fallback;
    let report = evidence([own]).propose(&TuneOptions::default());
    let intent = &report.intents["review"];
    assert_eq!((intent.records, intent.judged, intent.routing_errors), (1, 0, 0));
}

#[test]
fn requests_spill_below_the_score_at_which_the_second_choice_becomes_worse() {
    // Below 0.4 both are equally good, above the primary is right and the shadow wrong in half of the cases.
    let records = (0..4000).map(|i| {
        let score = (i % 1000) as f32 / 1000.0;
        let outcome = match i / 1000 {
            0 if score < 0.4 => Outcome::PrimaryOnly,
            1 if score < 0.4 => Outcome::ShadowOnly,
            0 | 1 => Outcome::PrimaryOnly,
            _ => Outcome::Both,
        };
        record("codegen", score, Some(outcome))
    });
    let options = TuneOptions { z: 0.0, ..TuneOptions::default() };
    let spill_below = evidence(records).propose(&options).intents["codegen"].spill_below.value;
    // 0.5 * (t - 0.4) = 0.01 * t.
    assert!((spill_below.unwrap() - 0.2 / 0.49).abs() < 0.002, "{spill_below:?}");
}

#[test]
fn confidence_makes_proposals_more_cautious() {
    let records = || {
        (0..3000).map(|i| {
            let score = (i * 7 % 1000) as f32 / 1000.0;
            let error = score < 0.5 && i % 3 == 0 || i % 100 == 0;
            record("review", score, Some(if error { Outcome::ShadowOnly } else { Outcome::Both }))
        })
    };
    let at = |z| {
        let report = evidence(records()).propose(&TuneOptions { z, ..TuneOptions::default() });
        report.intents["review"].shadow_below.value.unwrap()
    };
    assert!(at(0.0) < at(1.0) && at(1.0) < at(1.645), "{} {} {}", at(0.0), at(1.0), at(1.645));
}

#[test]
fn without_evidence_there_is_no_proposal() {
    let unjudged = (0..1000).map(|_| record("review", 0.5, None));
    let report = evidence(unjudged).propose(&TuneOptions::default());
    let intent = &report.intents["review"];
    assert_eq!((intent.records, intent.judged), (1000, 0));
    assert_eq!((intent.shadow_below.value, intent.spill_below.value), (None, None));
    assert!(
        intent.shadow_below.why.contains("0 judged requests are too few"),
        "{}",
        intent.shadow_below.why
    );
    assert!(intent.curve.iter().all(|point| point.precision.is_none()));
    let errors = (0..1000).map(|_| record("review", 0.5, Some(Outcome::ShadowOnly)));
    let report = evidence(errors).propose(&TuneOptions::default());
    assert_eq!(report.intents["review"].shadow_below.value, None);
    assert!(
        report.intents["review"].shadow_below.why.contains("of all 1000 judged requests, 1000 are")
    );
    let nothing = Evidence::default().propose(&TuneOptions::default());
    assert!(nothing.intents.is_empty() && nothing.router.min_score.value.is_none());
}

#[test]
fn only_the_classifiers_routes_count_for_its_least_score() {
    let records = (0..200).map(|i| CalibrationRecord {
        decided_by: if i < 100 { DecidedBy::Classifier } else { DecidedBy::Intent },
        ..record("debug", 0.5, Some(Outcome::Both))
    });
    let report = evidence(records).propose(&TuneOptions::default());
    assert_eq!((report.router.records, report.intents["debug"].records), (100, 200));
}

#[test]
fn damaged_lines_are_counted_and_cost_no_other_line() {
    let good = line(&record("review", 0.5, Some(Outcome::Both)));
    let newer = good.replace("\"version\":1", "\"version\":2");
    let beyond = good.replace("\"score\":0.5", "\"score\":1.5");
    let torn = &good[..good.len() / 2];
    let stream = format!("{good}\n{torn}\n{good}{newer}{beyond}[]\n\u{7f}\n{good}{torn}");
    let mut evidence = Evidence::default();
    evidence.read(stream.as_bytes()).unwrap();
    // The next file of the stream.
    evidence.read(good.trim_end().as_bytes()).unwrap();
    let lines = evidence.propose(&TuneOptions::default()).lines;
    let first_error = lines.first_error.clone();
    assert!(first_error.as_ref().unwrap().starts_with("line 3: "), "{first_error:?}");
    let want = Lines {
        records: 4,
        malformed: 3,
        torn: 1,
        other_version: 1,
        out_of_range: 1,
        too_long: 0,
        first_error,
    };
    assert_eq!(lines, want);
    assert_eq!(lines.skipped(), 6);
}

#[test]
fn a_line_of_any_length_is_skipped_without_being_kept() {
    let good = line(&record("review", 0.5, None));
    let long = std::io::repeat(b'x').take(3 * MAX_LINE_BYTES);
    let stream = long.chain(b"\n".as_slice()).chain(good.as_bytes());
    let mut evidence = Evidence::default();
    evidence.read(std::io::BufReader::new(stream)).unwrap();
    assert_eq!((evidence.lines.too_long, evidence.lines.records), (1, 1));
}

#[test]
fn intents_beyond_the_limit_are_counted_and_left_out() {
    let mut evidence = Evidence::default();
    for i in 0..2 * MAX_INTENTS {
        assert_eq!(evidence.add(&record(&i.to_string(), 0.5, None)), i < MAX_INTENTS);
    }
    assert!(evidence.add(&record("0", 0.5, None)));
    assert!(!evidence.add(&record("0", f32::NAN, None)));
}

proptest! {
    #[test]
    fn curves_and_proposals_are_those_of_the_list_of_all_records(
        records in proptest::collection::vec((0.0..=1.0_f32, 0_usize..5), 0..300),
        on_steps in any::<bool>(), min_samples in 1_u64..30, max_error in 0.0..0.6_f64,
    ) {
        // Scores that are thresholds show what happens at equality.
        let round = |score: f32| if on_steps { threshold((score * 1000.0) as usize) } else { score };
        let records: Vec<(f32, Option<Outcome>)> =
            records.into_iter().map(|(score, i)| (round(score), OUTCOMES.get(i).copied())).collect();
        let options = TuneOptions { z: 0.0, min_samples, max_error, ..TuneOptions::default() };
        let report = evidence(records.iter().map(|(score, o)| record("review", *score, *o))).propose(&options);
        let Some(intent) = report.intents.get("review") else {
            prop_assert!(records.is_empty());
            return Ok(());
        };
        let count = |of: &dyn Fn(f32, Option<Outcome>) -> bool| {
            records.iter().filter(|(score, outcome)| of(*score, *outcome)).count()
        };
        for point in &intent.curve {
            let t = point.threshold;
            let judged = count(&|score, outcome| score >= t && outcome.is_some());
            let errors = count(&|score, outcome| score >= t && outcome == Some(Outcome::ShadowOnly));
            prop_assert_eq!(point.judged, judged as u64);
            prop_assert_eq!(point.coverage, count(&|score, _| score >= t) as f64 / records.len() as f64);
            prop_assert_eq!(point.precision, (judged > 0).then(|| 1.0 - errors as f64 / judged as f64));
        }
        let least = (0..=STEPS).map(threshold).find(|t| {
            let judged = count(&|score, outcome| score >= *t && outcome.is_some());
            let errors = count(&|score, outcome| score >= *t && outcome == Some(Outcome::ShadowOnly));
            judged as u64 >= min_samples && errors as f64 / judged as f64 <= max_error
        });
        prop_assert_eq!(intent.shadow_below.value, least);
        let greatest = (0..=STEPS).map(threshold).rev().find(|t| {
            let of = |wanted| count(&|score, outcome| score < *t && outcome == Some(wanted)) as f64;
            let judged = count(&|score, outcome| score < *t && outcome.is_some());
            let lost = (of(Outcome::PrimaryOnly) - of(Outcome::ShadowOnly)) / judged as f64;
            judged as u64 >= min_samples && lost <= options.max_loss
        });
        prop_assert_eq!(intent.spill_below.value, greatest);
    }

    #[test]
    fn no_stream_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        Evidence::default().read(bytes.as_slice()).unwrap();
    }
}

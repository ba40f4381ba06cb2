//! What responses and their shadows leave behind: verdicts, and records.

use std::sync::atomic::{AtomicU64, Ordering};

use l6_ensemble::breaker::Role;
use l6_ensemble::calibration::{CalibrationConfig, CalibrationRecord, InputDigest};
use l6_ensemble::shadow::ShadowReason;
use serde_json::Value;

use super::shadows::Pair;
use super::*;
use crate::calibration::CalibrationStream;
use crate::observed::{Completed, Observed};
use crate::verdicts::ResponseChecker;

/// Code is right if it says so, and is checked at once. Requests are in the sample by their names. Counts responses that
/// are not checked.
#[derive(Default)]
struct Says(AtomicU64);

impl ResponseChecker for Says {
    fn samples(&self, request: &str) -> bool {
        request == "sampled"
    }

    fn check(&self, response: String, done: Box<dyn FnOnce(bool) + Send>) {
        match response.as_str() {
            "good" => done(true),
            "bad" => done(false),
            _ => {}
        }
    }

    fn inconclusive(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("inconclusive", self.0.load(Ordering::Relaxed))]
    }
}

fn record() -> Option<CalibrationRecord> {
    let digest = InputDigest::new(b"salt", ["x"]);
    Some(CalibrationRecord::new(0.0, digest, "debug", "one", 0.5))
}

/// A request of `one` with these responses.
fn request(lanes: &Lanes, id: &str, primary: &str, shadow: Option<&str>) {
    let observed = Observed::begin(lanes, 0, shadow.map(|_| 1), record(), Some(id)).unwrap();
    let mut first = observed.primary(None);
    first.push(primary, 3);
    first.end(FinishReason::Stop, None);
    if let Some(text) = shadow {
        let mut second = Completed::default();
        (second.stopped, second.output_tokens) = (true, 2);
        second.push(text);
        observed.shadow(ShadowReason::Demoted, second);
    }
}

/// Records of a directory, each without its first fields.
fn records(directory: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(directory.join("calibration-00000001.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn verdicts_about_both_responses_are_recorded_and_count_where_they_belong() {
    let pair = Pair::new(
        "[breaker]\nmin_samples = 1\ndwell = \"0s\"\nprobation = \"0s\"",
        PolicyKind::Fcfs,
    );
    let directory = tempfile::tempdir().unwrap();
    let stream = CalibrationStream::open(directory.path(), &CalibrationConfig::default());
    let stream = Arc::new(stream.unwrap());
    let lanes = pair.app.lanes.now();
    let lanes =
        lanes.with_checker(Some(Arc::new(Says::default()))).with_calibration(Some(stream.clone()));
    let ensemble = lanes.router().unwrap();
    let role = |lane: usize| ensemble.status(lane, &lanes[lane]).role;
    let checked = |lane: usize| lanes[lane].metrics().slo().report().compile_pass.total;
    // A lane that serves is not judged by its shadows, nor by a primary that is not in the sample.
    request(&lanes, "any", "bad", Some("bad"));
    assert_eq!((role(0), role(1)), (Role::Primary, Role::Primary));
    request(&lanes, "sampled", "good", None);
    assert_eq!((checked(0), checked(1)), (1, 0));
    request(&lanes, "any", "good", Some("bad"));
    assert_eq!(role(1), Role::Primary);
    // A demoted lane recovers by its shadows.
    ensemble.observe(1, false);
    assert_eq!(role(1), Role::ShadowOnly);
    request(&lanes, "any", "no code", Some("good"));
    assert_eq!(role(1), Role::Probation);
    request(&lanes, "any", "good", Some("good"));
    assert_eq!(role(1), Role::Primary);
    assert_eq!((checked(0), checked(1)), (1, 0), "shadows are no part of service levels");
    assert_eq!(ensemble.freshness(0).verdicts, 4, "each verdict about `one`");
    assert_eq!(ensemble.freshness(1).verdicts, 4);
    // A primary whose client has gone.
    drop(Observed::begin(&lanes, 0, Some(1), record(), Some("any")).unwrap().primary(None));
    stream.close();
    let records = records(directory.path());
    let field = |path: &str| -> Vec<Value> {
        records.iter().map(|own| own.pointer(path).cloned().unwrap_or_default()).collect()
    };
    let (null, good, bad) = (Value::Null, Value::Bool(true), Value::Bool(false));
    let primary = [&bad, &good, &good, &null, &good, &null];
    assert_eq!(field("/primary/compiles").iter().collect::<Vec<_>>(), primary);
    let shadow = [&bad, &null, &bad, &good, &good, &null];
    assert_eq!(field("/shadow/compiles").iter().collect::<Vec<_>>(), shadow);
    let words = |words: [&str; 6]| {
        words.map(|word| if word.is_empty() { Value::Null } else { word.into() })
    };
    let outcomes = words(["neither", "", "primary_only", "", "both", ""]);
    assert_eq!(field("/shadow/agreement/compiles"), outcomes);
    assert_eq!(field("/primary/output_tokens")[4..], [3.into(), Value::Null]);
    pair.end();
}

#[test]
fn a_response_that_is_cut_off_or_too_long_is_counted_as_inconclusive() {
    let pair = Pair::new("", PolicyKind::Fcfs);
    let checker: Arc<dyn ResponseChecker> = Arc::new(Says::default());
    let lanes = pair.app.lanes.now().with_checker(Some(checker.clone()));
    let end = |id: &str, text: &str, finish| {
        let mut primary =
            Observed::begin(&lanes, 0, None, record(), Some(id)).unwrap().primary(None);
        primary.push(text, 3);
        primary.end(finish, None);
        checker.counts()[0].1
    };
    assert_eq!(end("sampled", "good", FinishReason::Length), 1);
    assert_eq!(end("sampled", "good", FinishReason::Stop), 1, "it is checked");
    assert_eq!(end("any", "good", FinishReason::Length), 1, "it is not in the sample");
    let long = "x".repeat(crate::observed::MAX_TEXT_BYTES + 1);
    assert_eq!(end("sampled", &long, FinishReason::Stop), 2);
    assert_eq!(lanes[0].metrics().slo().report().compile_pass.total, 1);
    pair.end();
}

#[test]
fn without_a_checker_a_shadow_is_right_if_it_agrees_with_the_primary() {
    let pair = Pair::new("", PolicyKind::Fcfs);
    let lanes = &pair.app.lanes.now();
    let ensemble = lanes.router().unwrap();
    let breaker = || ensemble.status(1, &lanes[1]).breaker;
    let open = serde_json::from_str(r#"{"breaker": "open"}"#).unwrap();
    request(lanes, "any", "int x;", Some("int x;\r\n"));
    assert_eq!((breaker().samples, ensemble.freshness(1).verdicts), (0, 1));
    ensemble.patch(1, &open, "test").unwrap();
    request(lanes, "any", "int x;", Some("int x;\r\n"));
    request(lanes, "any", "int x;", Some("int  x;"));
    assert_eq!((breaker().samples, breaker().pass_rate), (2, Some(0.5)));
    // What is too long to be kept is not compared.
    let long = "x".repeat(crate::observed::MAX_TEXT_BYTES + 1);
    request(lanes, "any", &long, Some(&long));
    assert_eq!(breaker().samples, 2);
    pair.end();
}

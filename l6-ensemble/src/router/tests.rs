//! The router as a whole: what decides, in which order, and what the committed classifier achieves.

mod corpus;
mod model;
mod reports;
mod training;

use super::*;

/// Lanes of the default ensemble.
fn lanes() -> Vec<String> {
    ["template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug"]
        .map(String::from)
        .to_vec()
}

/// A classifier that always gives the same probabilities.
struct Fixed(Vec<String>, Vec<f32>);

impl Fixed {
    fn boxed(scores: &[(&str, f32)]) -> Option<Box<dyn Classifier>> {
        let classes = scores.iter().map(|(class, _)| (*class).to_owned()).collect();
        Some(Box::new(Self(classes, scores.iter().map(|(_, score)| *score).collect())))
    }
}

impl Classifier for Fixed {
    fn classes(&self) -> &[String] {
        &self.0
    }

    fn scores(&self, _: &RouteInput<'_>) -> Vec<f32> {
        self.1.clone()
    }
}

fn router(config: &str, scores: &[(&str, f32)]) -> Router {
    let classifier = if scores.is_empty() { None } else { Fixed::boxed(scores) };
    Router::new(toml::from_str(config).unwrap(), classifier, lanes()).unwrap()
}

fn route(router: &Router, intent: Option<&str>, text: &str) -> Route {
    router.route(&RouteInput { intent, parts: &[Part::user(text)] })
}

const REPORT: &str = "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x6020\n    #0 0x4f in f() a.cpp:3";
const LOCKS: &str =
    "std::mutex m; std::lock_guard<std::mutex> g(m); std::condition_variable cv; // deadlock?";
const PLAIN: &str = "Please write a function for me.";

#[test]
fn a_request_with_a_declared_intent_goes_to_its_lane() {
    let router = router("intents.port.class = 'systems'", &[("stl", 0.9), ("algo", 0.1)]);
    for (intent, lane) in [("debug", "debug"), ("build_fix", "build"), ("port", "systems")] {
        for text in [REPORT, LOCKS, PLAIN] {
            let route = route(&router, Some(intent), text);
            assert_eq!(route.primary.as_deref(), Some(lane), "{text}");
            assert_eq!(route.why, Why::DeclaredIntent { intent: intent.to_owned() });
            assert_eq!(route.second.as_deref(), Some("stl"));
        }
    }
}

#[test]
fn an_intent_without_a_class_or_without_its_lane_decides_nothing() {
    let all = router("", &[("stl", 1.0)]);
    for intent in ["codegen", "review", "unspecified", "never-heard-of"] {
        assert_eq!(route(&all, Some(intent), REPORT).primary.as_deref(), Some("debug"));
        assert_eq!(route(&all, Some(intent), PLAIN).primary.as_deref(), Some("stl"));
    }
    let few =
        Router::new(RouterConfig::default(), Fixed::boxed(&[("stl", 1.0)]), vec!["stl".into()])
            .unwrap();
    let there = route(&few, Some("debug"), REPORT);
    assert_eq!(there.primary.as_deref(), Some("stl"), "neither intent nor tripwire has a lane");
    assert_eq!(there.why, Why::Classifier { score: 1.0 });
}

#[test]
fn an_intent_that_decides_nothing_leaves_a_report_to_its_tripwire() {
    let router = router("", &[("stl", 1.0)]);
    for intent in [None, Some("codegen"), Some("never-heard-of")] {
        let route = route(&router, intent, REPORT);
        assert_eq!(route.primary.as_deref(), Some("debug"), "{intent:?}");
        let Why::Rule { name, evidence } = route.why else { panic!("{}", route.why) };
        assert_eq!(name, Tripwire::SanitizerReport);
        assert!(evidence.contains("AddressSanitizer"), "{evidence}");
    }
}

#[test]
fn intents_and_tripwires_name_classes_and_the_lane_of_the_class_serves() {
    let config = "lanes.memory = 'systems'\ntripwires.sanitizer_report.class = 'memory'\n\
                  intents.leak.class = 'memory'";
    let router = router(config, &[("stl", 1.0)]);
    let report = route(&router, None, REPORT);
    assert_eq!(report.primary.as_deref(), Some("systems"));
    assert_eq!(route(&router, Some("leak"), PLAIN).primary.as_deref(), Some("systems"));
}

#[test]
fn a_report_is_decided_before_a_density() {
    let router = router("", &[]);
    let both = route(&router, None, &format!("{LOCKS}\n{REPORT}"));
    assert!(matches!(both.why, Why::Rule { name: Tripwire::SanitizerReport, .. }), "{}", both.why);
    assert_eq!(
        both.second.as_deref(),
        Some("concurrency"),
        "the next tripwire, without a classifier"
    );
    let locks = route(&router, None, LOCKS);
    assert!(
        matches!(locks.why, Why::Rule { name: Tripwire::ConcurrencyCode, .. }),
        "{}",
        locks.why
    );
    assert_eq!((locks.second, locks.score), (None, None));
}

#[test]
fn densities_that_are_close_leave_the_decision_to_the_classifier() {
    let text = "mutex lock_guard condition_variable malloc realloc unique_ptr and some more words";
    let scores = [("memory", 0.2), ("concurrency", 0.8)];
    let close = route(&router("", &scores), None, text);
    assert_eq!(close.why, Why::Classifier { score: 0.8 });
    let decided =
        route(&router("tripwires.concurrency_code.min_density = 0.5", &scores), None, text);
    assert!(matches!(decided.why, Why::Rule { name: Tripwire::MemoryCode, .. }), "{}", decided.why);
    let one_lane = route(&router("lanes.memory = 'concurrency'", &scores), None, text);
    assert!(
        matches!(one_lane.why, Why::Rule { .. }),
        "the two agree on the lane: {}",
        one_lane.why
    );
}

#[test]
fn a_tripwire_below_its_threshold_or_turned_off_does_not_fire() {
    for config in [
        "tripwires.concurrency_code.enabled = false",
        "tripwires.concurrency_code.min_hits = 100",
        "tripwires.concurrency_code.min_density = 1",
    ] {
        assert_eq!(route(&router(config, &[]), None, LOCKS).why, Why::Fallback, "{config}");
    }
    let twice = "mutex mutex mutex mutex mutex mutex";
    assert_eq!(route(&router("", &[]), None, twice).why, Why::Fallback, "one word is no subject");
}

#[test]
fn only_the_current_turn_trips_a_wire() {
    let router = router("", &[]);
    for kind in [PartKind::System, PartKind::User, PartKind::Assistant] {
        let parts = [Part { kind, text: REPORT, name: None }, Part::user(PLAIN)];
        assert_eq!(
            router.route(&RouteInput { intent: None, parts: &parts }).why,
            Why::Fallback,
            "{kind:?}"
        );
    }
    for kind in [PartKind::Tool, PartKind::Snippet] {
        let parts = [Part { kind, text: REPORT, name: None }, Part::user(PLAIN)];
        let route = router.route(&RouteInput { intent: None, parts: &parts });
        assert_eq!(route.primary.as_deref(), Some("debug"), "{kind:?}");
    }
}

#[test]
fn improbable_text_and_text_that_no_lane_serves_is_rejected() {
    let by = |config: &str, scores: &[(&str, f32)]| route(&router(config, scores), None, PLAIN);
    let sure = [("stl", 0.6), ("algo", 0.1), (REJECT, 0.3)];
    assert_eq!(by("min_score = 0.6", &sure).why, Why::Classifier { score: 0.6 });
    let unsure = by("min_score = 0.61", &sure);
    assert_eq!((unsure.primary, unsure.why), (None, Why::Rejected { score: 0.6 }));
    assert_eq!((unsure.second.as_deref(), unsure.score), (Some("stl"), Some(0.6)));
    let prose = by("min_score = 0.1", &[("stl", 0.3), (REJECT, 0.7)]);
    assert_eq!((prose.primary, prose.why), (None, Why::Rejected { score: 0.3 }));
    let other = by("min_score = 0.1", &[("stl", 0.3), ("poetry", 0.7)]);
    assert_eq!(other.why, Why::Rejected { score: 0.3 }, "a class without a lane is served by none");
    assert_eq!(by("", &[]).why, Why::Fallback);
}

#[test]
fn the_classes_of_a_lane_are_added() {
    let scores = [("stl", 0.4), ("memory", 0.3), ("systems", 0.3)];
    let route = route(&router("lanes.memory = 'systems'", &scores), None, PLAIN);
    assert_eq!(route.primary.as_deref(), Some("systems"));
    assert_eq!((route.score, route.second.as_deref()), (Some(0.6), Some("stl")));
    assert_eq!(route.scores.len(), lanes().len());
}

#[test]
fn a_configuration_with_a_lane_that_does_not_exist_is_rejected_with_everything_else_that_is_wrong()
{
    let config = toml::from_str("min_score = 2\nlanes.stl = 'nowhere'").unwrap();
    let RouterError(errors) = Router::new(config, None, lanes()).unwrap_err();
    let fields: Vec<_> = errors.iter().map(|e| e.field.as_str()).collect();
    assert_eq!(fields, ["min_score", "lanes.stl"]);
    assert!(Router::new(RouterConfig::default(), None, vec![]).is_err());
}

#[test]
fn a_long_request_is_routed_by_its_ends() {
    let config = "max_bytes = 400";
    let filler = "word and word ".repeat(10_000);
    for text in [format!("{REPORT}\n{filler}"), format!("{filler}\n{REPORT}")] {
        assert_eq!(route(&router(config, &[]), None, &text).primary.as_deref(), Some("debug"));
    }
    let hidden = format!("{filler}\n{REPORT}\n{filler}");
    assert_eq!(route(&router(config, &[]), None, &hidden).why, Why::Fallback);
}

#[test]
fn a_diff_is_recognised_and_is_no_class() {
    let router = router("", &[]);
    for diff in [
        "review this\n\n--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n-a\n+b",
        "diff --git a/x b/x\nindex 1..2",
    ] {
        let route = route(&router, None, diff);
        assert!(route.diff);
        assert_eq!(route.why, Why::Fallback);
    }
    assert!(!route(&router, None, "mail me @@ work, the diff is large").diff);
}

#[test]
fn a_route_is_written_as_json_with_its_reason() {
    let route = route(&router("", &[("stl", 0.75), (REJECT, 0.25)]), None, PLAIN);
    let json = serde_json::to_value(&route).unwrap();
    assert_eq!(json["why"], serde_json::json!({"by": "classifier", "score": 0.75}));
    assert_eq!(json["primary"], "stl");
    assert_eq!(route.why.to_string(), "the classifier, with probability 0.75");
}

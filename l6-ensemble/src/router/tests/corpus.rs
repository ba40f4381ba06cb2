//! The committed classifier on committed requests. The bounds are a little below what it achieves, so that a changed
//! pattern may cost a few examples, and a mistake fails.

use super::*;

fn read(name: &str) -> Vec<Example> {
    let path = format!("{}/../fixtures/router/{name}", env!("CARGO_MANIFEST_DIR"));
    read_examples(std::io::BufReader::new(std::fs::File::open(path).unwrap())).unwrap()
}

fn figures(name: &str, rules: bool, classifier: bool) -> Evaluation {
    let mut config = RouterConfig::default();
    if !rules {
        config.disable_rules();
    }
    let builtin = classifier.then(|| Box::new(LinearClassifier::builtin()) as Box<dyn Classifier>);
    evaluate(&Router::new(config, builtin, lanes()).unwrap(), &read(name))
}

#[test]
fn the_committed_classifier_is_whole_and_small() {
    let bytes = include_bytes!("../../../data/router.bin");
    assert!(bytes.len() < 150_000, "{}", bytes.len());
    let mut classes = lanes();
    classes.push(REJECT.to_owned());
    classes.sort();
    assert_eq!(LinearClassifier::builtin().classes(), classes);
}

#[test]
fn hand_written_requests_are_routed_to_their_lane() {
    let both = figures("requests.jsonl", true, true);
    let (rules, classifier) =
        (figures("requests.jsonl", true, false), figures("requests.jsonl", false, true));
    assert!(both.accuracy >= 0.85, "{}", both.accuracy);
    assert!(
        both.accuracy > rules.accuracy && both.accuracy > classifier.accuracy,
        "each adds to the other"
    );
    for label in lanes() {
        let recall = both.classes[&label].recall;
        assert!(recall >= Some(0.6), "{label}: {recall:?}");
    }
}

#[test]
fn a_rule_that_decides_on_a_hand_written_request_is_right() {
    let rules = figures("requests.jsonl", true, false).decided_by;
    let by_rule = rules.iter().filter(|(by, _)| by.starts_with("rule"));
    let (decided, correct) =
        by_rule.fold((0, 0), |sum, (_, r)| (sum.0 + r.decided, sum.1 + r.correct));
    assert!(decided >= 50 && correct * 20 >= decided * 19, "{correct} of {decided}");
}

#[test]
fn requests_of_unseen_packages_are_routed_far_better_than_by_chance() {
    let both = figures("sample.jsonl", true, true);
    assert!(both.balanced_accuracy >= 0.5, "{}", both.balanced_accuracy);
    assert!(both.top_two_accuracy >= 0.65, "{}", both.top_two_accuracy);
    for (by, figures) in &both.decided_by {
        let report = Tripwire::ALL.iter().any(|t| t.is_report() && *by == format!("rule {t}"));
        assert!(!report || figures.correct == figures.decided, "{by}: {figures:?}");
    }
}

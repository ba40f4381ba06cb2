//! The recording of an ensemble: the way of each request, as the server reports it.

use l5_scheduler::trace::{EnsembleRun, RequestAt, Route};

use super::shadows::{Pair, wait};
use super::*;

fn prompt(run: &EnsembleRun, at: RequestAt) -> usize {
    run.engines[at.engine].run.lanes[at.request].prompt
}

fn codes(route: &Route) -> Vec<(Option<&str>, &str)> {
    let refused = route.event.refused.iter();
    refused.map(|refused| (refused.lane.as_deref(), refused.code.as_str())).collect()
}

#[test]
fn a_recording_has_the_way_of_each_request_to_its_engine_and_that_of_its_shadow() {
    let pair = Pair::new("", PolicyKind::StrictPriority);
    let named = pair.ask(r#", "specialist": "two""#);
    assert!(named.starts_with("HTTP/1.1 200"), "{named}");
    pair.shadowed();
    wait(|| pair.ended("completed") == 1);
    let invalid = pair.ask(r#", "temperature": -1.0"#);
    assert!(invalid.starts_with("HTTP/1.1 400"), "{invalid}");
    let unknown = pair.ask(r#", "specialist": "three""#);
    assert!(unknown.starts_with("HTTP/1.1 400"), "{unknown}");
    let run = pair.end();
    assert_eq!((run.header.ensemble.as_str(), run.dropped), ("pair", 0));
    let [named, shadowed, invalid, unknown] = run.routes.as_slice() else {
        panic!("{:?}", run.routes)
    };
    let event = &named.event;
    assert_eq!((event.lane.as_deref(), event.by.as_str()), (Some("two"), "specialist"));
    assert_eq!((event.primary.as_deref(), event.second.as_deref()), (Some("two"), None));
    assert_eq!((event.score, event.scores.len()), (None, 0), "the router was not asked");
    assert!(prompt(&run, named.requests[0]) > 0, "its request in the engine is known");
    let event = &shadowed.event;
    assert_eq!((event.by.as_str(), event.what.as_deref()), ("declared_intent", Some("debug")));
    assert_eq!((event.primary.as_deref(), event.second.as_deref()), (Some("one"), Some("two")));
    assert!(event.score.is_some() && event.scores.len() == 2, "{event:?}");
    assert_eq!((event.replica, event.requests.len()), (Some(0), 1));
    assert!(event.arrived_us <= event.decided_us, "{event:?}");
    assert!(Some(event.decided_us) <= event.admitted_us, "{event:?}");
    let at = shadowed.requests[0];
    let request = &run.engines[at.engine].run.lanes[at.request];
    assert!(request.prompt > 0 && request.arrived as f64 <= event.admitted_us.unwrap() * 1e3);
    assert!(request.arrived as f64 >= event.decided_us * 1e3, "the clocks begin together");
    assert_eq!(event.shadow.as_deref(), Some("two"));
    let (shadow, at) = shadowed.shadow.as_ref().unwrap();
    assert_eq!(
        (shadow.reason.as_str(), run.engines[at.engine].lane.as_str()),
        ("high_stakes", "two")
    );
    assert!(shadow.at_us > event.admitted_us.unwrap(), "after its primary");
    assert!(prompt(&run, *at) > 0);
    assert_eq!(codes(invalid), [(Some("one"), "invalid_request_error")]);
    assert_eq!(codes(unknown), [(None, "specialist_not_found")]);
    assert_eq!(unknown.event.lane, None);
}

#[test]
fn a_recording_says_who_refused_a_request_and_where_it_spilled_to() {
    let pair = Pair::new("", PolicyKind::StrictPriority);
    let clients = pair.fill(0, "one");
    pair.patch(r#"{"spill_below": 0.0}"#);
    assert!(pair.ask("").starts_with("HTTP/1.1 429"));
    pair.patch(r#"{"spill_below": 1.0}"#);
    assert!(pair.ask("").starts_with("HTTP/1.1 200"));
    let others = pair.fill(1, "two");
    assert!(pair.ask("").starts_with("HTTP/1.1 429"));
    let run = pair.end();
    drop((clients, others));
    let asked: Vec<_> =
        run.routes.iter().filter(|route| route.event.what.as_deref() == Some("debug")).collect();
    let [refused, spilled, twice] = asked.as_slice() else { panic!("{asked:?}") };
    let one = (Some("one"), "queue_full");
    assert_eq!((codes(refused), refused.requests.len()), (vec![one], 0));
    assert_eq!((codes(spilled), spilled.event.by.as_str()), (vec![one], "spill"));
    assert_eq!(run.engines[spilled.requests[0].engine].lane, "two");
    assert_eq!(spilled.event.primary.as_deref(), Some("one"));
    assert_eq!(codes(twice), [one, (Some("two"), "queue_full")]);
    assert_eq!(twice.event.admitted_us, None);
}

//! The export for Perfetto, against the rules of the format.

use std::collections::{BTreeSet, HashMap};

use l5_scheduler::{SchedulerConfig, trace};
use serde_json::{Value, json};

use crate::world::{World, crowded, request, run_of, small};

fn exported() -> (Vec<Value>, usize) {
    let (text, results) = crowded().finish();
    (export(&text), results.len())
}

/// The events that a recording becomes.
fn export(text: &str) -> Vec<Value> {
    let mut json = Vec::new();
    trace::write_chrome(&run_of(text), &mut json).unwrap();
    let file: Value = serde_json::from_slice(&json).unwrap();
    file["traceEvents"].as_array().unwrap().clone()
}

fn ns(value: &Value) -> i64 {
    (value.as_f64().expect("a number") * 1000.0).round() as i64
}

#[test]
fn every_event_has_what_its_kind_must_have() {
    let (events, _) = exported();
    let mut kinds = BTreeSet::new();
    for event in &events {
        let kind = event["ph"].as_str().unwrap();
        kinds.insert(kind);
        assert!(event["name"].is_string(), "{event}");
        assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        assert!(ns(&event["ts"]) >= 0, "{event}");
        match kind {
            "X" => assert!(ns(&event["dur"]) >= 0, "{event}"),
            "C" => {
                let values = event["args"].as_object().unwrap();
                assert!(!values.is_empty() && values.values().all(Value::is_u64), "{event}");
            }
            "i" => assert_eq!(event["s"], "t", "{event}"),
            "M" => assert!(event["args"]["name"].is_string(), "{event}"),
            other => panic!("{other} is not written: {event}"),
        }
    }
    assert_eq!(kinds, BTreeSet::from(["C", "M", "X", "i"]), "kinds");
}

#[test]
fn events_come_in_the_order_of_their_moments() {
    let (events, _) = exported();
    let moments: Vec<i64> = events.iter().map(|event| ns(&event["ts"])).collect();
    assert!(moments.is_sorted(), "{moments:?}");
}

#[test]
fn slices_of_a_thread_nest() {
    let (events, _) = exported();
    let mut open: HashMap<(u64, u64), Vec<(i64, i64)>> = HashMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let (start, end) = (ns(&event["ts"]), ns(&event["ts"]) + ns(&event["dur"]));
        let open = open.entry(thread).or_default();
        open.retain(|(_, until)| *until > start);
        for (from, until) in open.iter() {
            assert!(*from <= start && end <= *until, "{event} in a slice from {from} to {until}");
        }
        open.push((start, end));
    }
}

#[test]
fn a_step_is_a_slice_with_its_phases_inside_and_a_request_is_a_thread() {
    let (events, steps) = exported();
    let named = |part: &str| {
        let of = |event: &&Value| event["name"].as_str().is_some_and(|name| name.starts_with(part));
        events.iter().filter(of).collect::<Vec<_>>()
    };
    assert_eq!(named("step ").len(), steps, "steps");
    let (first, forward) = (named("step 0")[0], named("forward")[0]);
    assert!(ns(&first["ts"]) < ns(&forward["ts"]), "the forward pass comes after the plan");
    assert_eq!(ns(&forward["dur"]), 100_000, "what the forward pass took");
    let threads = events.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == 2);
    let threads: Vec<_> = threads.map(|event| event["args"]["name"].as_str().unwrap()).collect();
    let requests = ["request 0", "request 1", "request 2", "request 9", "request 3"];
    assert_eq!(threads, requests, "threads, in the order of arrival");
    assert!(!named("preempted").is_empty(), "preemptions are marked");
    for counter in ["queue", "KV blocks", "tokens a step"] {
        let values = named(counter).iter().filter(|event| event["ph"] == "C").count();
        assert_eq!(values, steps, "values of {counter}");
    }
}

#[test]
fn drafts_are_a_counter_of_runs_that_have_some() {
    let config = SchedulerConfig { num_speculative_tokens: 2, ..small() };
    for (config, expected) in [(config, true), (small(), false)] {
        let mut world = World::new(config);
        world.core.add_request(request(0, 5, 8, 0.0), ()).unwrap();
        let (text, results) = world.finish();
        let events = export(&text);
        let of = |event: &&Value| event["name"] == "drafts a step";
        let values: Vec<_> = events.iter().filter(of).map(|event| &event["args"]).collect();
        let counted = results.iter().map(|result| {
            let rejected = result.draft_tokens - result.accepted_tokens;
            json!({"accepted": result.accepted_tokens, "rejected": rejected})
        });
        let counted: Vec<_> = counted.collect();
        assert_eq!(values.len(), if expected { counted.len() } else { 0 });
        assert!(values.into_iter().eq(counted.iter().filter(|_| expected)));
    }
}

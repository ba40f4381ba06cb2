//! `strata serve --ensemble --trace`: a recording of all engines and of the router, and what is made of it.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ensemble::served;
use crate::served::command;

#[test]
fn an_ensemble_is_recorded_from_the_router_to_the_steps_and_becomes_a_page() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("run.jsonl");
    let mut server = served("", &["--trace", file.to_str().unwrap()]);
    let body = |more: Value| {
        let mut body = json!({"prompt": "a secret prompt", "max_tokens": 5, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for more in [json!({"intent": "debug"}), json!({"specialist": "two", "stream": true, "n": 2})] {
        assert_eq!(server.post("/v1/completions", &body(more)).status, 200);
    }
    let refused = server.post("/v1/completions", &body(json!({"specialist": "three"})));
    assert_eq!(refused.status, 400);
    server.signal("TERM");
    assert!(server.ended(Duration::from_secs(60)).success());

    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("secret"), "no text of requests");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let header = json!({"strata_trace": 2, "ensemble": "pair", "lanes": ["one", "two"]});
    assert_eq!(lines[0], header);
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    assert_eq!(of("engine").len(), 2);
    let routes = of("route");
    let decided: Vec<_> = routes.iter().map(|route| (&route["lane"], &route["by"])).collect();
    let (one, two, null) = (json!("one"), json!("two"), Value::Null);
    let by = [json!("declared_intent"), json!("specialist"), json!("")];
    assert_eq!(decided, [(&one, &by[0]), (&two, &by[1]), (&null, &by[2])]);
    assert_eq!(routes[1]["requests"].as_array().unwrap().len(), 2, "two choices");
    assert_eq!(routes[2]["refused"][0]["code"], "specialist_not_found");
    let arrived = of("arrived");
    assert_eq!(arrived.len(), 3);
    let within = |route: &Value, request: &Value| {
        let (decided, at) = (route["decided_us"].as_f64(), request["at_us"].as_f64());
        decided <= at && at <= route["admitted_us"].as_f64()
    };
    assert!(within(routes[0], arrived[0]), "one clock: {} {}", routes[0], arrived[0]);
    let tokens: u64 = of("ended").iter().map(|end| end["tokens"].as_u64().unwrap()).sum();
    assert_eq!(tokens, 15);

    let trace = |words: &[&str]| {
        let output = command().arg("trace").args(words).arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let summary = trace(&["view", "--summary"]);
    for part in ["ensemble pair\n", "1 declared_intent, 1 specialist", "1 specialist_not_found"] {
        assert!(summary.contains(part), "{part} is not in {summary}");
    }
    assert!(summary.contains("\none, replica 0\n") && summary.contains("\ntwo, replica 0\n"));
    trace(&["view"]);
    trace(&["chrome"]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3, "a page, and events");
}

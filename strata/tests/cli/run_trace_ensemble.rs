//! `strata trace` of an ensemble's recording: the page in a browser, the figures, and Perfetto's events.

use serde_json::Value;

use crate::run_trace::seen;
use crate::strata::strata_reading;

/// Request 0 is sent to `one` by a rule, and has a shadow in `two`. Request 1 is refused by `one` and spills to `two`.
/// Request 2 is refused by both. Request 3 goes to another server. The second step of `one` waits for its turn.
const RECORDING: &str = r#"{"strata_trace":2,"ensemble":"pair","lanes":["one","two"]}
{"event":"engine","model":"tiny","policy":"strict-priority","config":{"block_size":4,"num_gpu_blocks":9,"max_num_seqs":4,"max_num_batched_tokens":12,"long_prefill_token_threshold":0,"enable_chunked_prefill":true,"enable_prefix_caching":true,"max_model_len":32,"watermark":0.0},"lane":"two","replica":0}
{"event":"engine","model":"tiny","policy":"strict-priority","config":{"block_size":4,"num_gpu_blocks":9,"max_num_seqs":4,"max_num_batched_tokens":12,"long_prefill_token_threshold":0,"enable_chunked_prefill":true,"enable_prefix_caching":true,"max_model_len":32,"watermark":0.0},"lane":"one","replica":0}
{"event":"arrived","id":0,"at_us":190.0,"prompt":8,"max_tokens":2,"priority":0,"lane":"one","replica":0}
{"event":"route","route":0,"lane":"one","replica":0,"requests":[0],"arrived_us":100.0,"decided_us":150.0,"admitted_us":200.0,"by":"rule","what":"sanitizer_report","primary":"one","second":"two","score":0.9,"scores":[["one",0.9],["two",0.1]],"shadow":"two"}
{"event":"step","step":0,"at_us":300.0,"rows":[[0,"prefill",8,0,0,1]],"running":1,"waiting":0,"preempted":[],"finished":[],"kv":{"total":8,"free":6,"findable":2,"leased":0},"phases_us":{"plan":2.0,"turn":0.0,"pack":3.0,"forward":300.0,"sample":20.0,"apply":5.0},"lane":"one","replica":0}
{"event":"first_token","id":0,"step":0,"at_us":630.0,"lane":"one","replica":0}
{"event":"arrived","id":0,"at_us":390.0,"prompt":6,"max_tokens":1,"priority":0,"lane":"two","replica":0}
{"event":"route","route":1,"lane":"two","replica":0,"requests":[0],"arrived_us":320.0,"decided_us":350.0,"admitted_us":400.0,"by":"spill","primary":"one","second":"two","score":0.4,"scores":[["one",0.4],["two",0.35]],"refused":[{"lane":"one","at_us":380.0,"code":"would_harm","quote":{"queue_us":10.0,"first_token_us":2000.0,"done_us":5000.0,"done_late_us":9000.0}}]}
{"event":"route","route":2,"lane":"two","arrived_us":330.0,"decided_us":360.0,"by":"classifier","primary":"one","second":"two","score":0.5,"refused":[{"lane":"one","at_us":370.0,"code":"queue_full"},{"lane":"two","at_us":390.0,"code":"queue_full"}]}
{"event":"route","route":3,"lane":"two","replica":1,"requests":[0],"arrived_us":500.0,"decided_us":510.0,"admitted_us":600.0,"by":"specialist","primary":"two"}
{"event":"step","step":0,"at_us":640.0,"rows":[[0,"prefill",6,0,0,1]],"running":1,"waiting":0,"preempted":[],"finished":[[0,"length"]],"kv":{"total":8,"free":6,"findable":2,"leased":0},"shape":"mixed","phases_us":{"plan":2.0,"turn":0.0,"pack":3.0,"forward":300.0,"sample":20.0,"apply":5.0},"lane":"two","replica":0}
{"event":"first_token","id":0,"step":0,"at_us":970.0,"lane":"two","replica":0}
{"event":"ended","id":0,"step":0,"at_us":970.0,"reason":"length","tokens":1,"preemptions":0,"lane":"two","replica":0}
{"event":"step","step":1,"at_us":700.0,"rows":[[0,"decode",1,8,0,1]],"running":1,"waiting":0,"preempted":[],"finished":[[0,"length"]],"kv":{"total":8,"free":6,"findable":2,"leased":0},"phases_us":{"plan":2.0,"turn":270.0,"pack":3.0,"forward":100.0,"sample":20.0,"apply":5.0},"lane":"one","replica":0}
{"event":"ended","id":0,"step":1,"at_us":1100.0,"reason":"length","tokens":2,"preemptions":0,"lane":"one","replica":0}
{"event":"shadow","route":0,"lane":"two","replica":0,"request":1,"at_us":1150.0,"reason":"low_score"}
{"event":"arrived","id":1,"at_us":1150.0,"prompt":8,"max_tokens":2,"priority":9,"lane":"two","replica":0}
{"event":"step","step":1,"at_us":1200.0,"rows":[[1,"prefill",8,0,0,1]],"running":1,"waiting":0,"preempted":[],"finished":[[1,"length"]],"kv":{"total":8,"free":6,"findable":2,"leased":0},"shape":"decode_only","phases_us":{"plan":2.0,"turn":0.0,"pack":3.0,"forward":300.0,"sample":20.0,"apply":5.0},"lane":"two","replica":0}
{"event":"ended","id":1,"step":1,"at_us":1530.0,"reason":"length","tokens":1,"preemptions":0,"lane":"two","replica":0}
{"event":"dropped","lines":3}
"#;

fn page() -> String {
    strata_reading(RECORDING.as_bytes(), ["trace", "view", "-"]).text().to_owned()
}

/// What the page holds.
fn data() -> Value {
    let html = page();
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_page_of_an_ensemble_is_one_file_that_needs_nothing_from_outside() {
    let html = page();
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    assert!(html.contains("<title>stdin · ensemble timeline</title>"));
    assert!(!html.contains("<!--["), "a place that was not filled");
    for outside in ["http:", "https:", "//cdn", " src=", "href=", "url(", "@import", "fetch("] {
        assert!(!html.contains(outside), "`{outside}` in the page");
    }
}

#[test]
fn the_page_has_each_engine_with_its_requests_and_the_way_of_each_request_to_them() {
    let data = data();
    let engines: Vec<_> = data["engines"].as_array().unwrap().iter().collect();
    let names: Vec<_> =
        engines.iter().map(|own| (own["lane"].as_str(), own["replica"].as_u64())).collect();
    let expected = [("one", 0), ("two", 0), ("two", 1)].map(|(lane, n)| (Some(lane), Some(n)));
    assert_eq!(names, expected);
    assert_eq!(engines[2]["recorded"], false);
    // Times of all engines are of one clock, which begins with the first arrival at the server.
    assert_eq!(
        (&engines[0]["lanes"][0]["at"], &engines[1]["steps"]["at"][0]),
        (&90.0.into(), &540.0.into())
    );
    assert_eq!(engines[0]["steps"]["parts"][1], serde_json::json!([0.0, 270.0]), "turns");
    assert_eq!(engines[1]["shapes"], serde_json::json!(["mixed", "decode_only"]));
    assert_eq!(engines[0]["shapes"], Value::Null);
    let routes = &data["routes"];
    assert_eq!(routes[0]["requests"], serde_json::json!([[0, 0]]));
    assert_eq!(routes[0]["shadow"], serde_json::json!([1, 1, 1050.0, "low_score"]));
    assert_eq!(routes[1]["refused"][0]["quote"]["done_late_us"], 9000.0);
    assert_eq!((&routes[2]["admitted"], &routes[2]["lane"]), (&Value::Null, &"two".into()));
    assert_eq!(data["dropped"], 3);
}

#[test]
fn the_summary_of_an_ensemble_counts_routes_and_has_each_engine() {
    let ran = strata_reading(RECORDING.as_bytes(), ["trace", "view", "-", "--summary"]);
    let text = ran.text();
    let head = "\
ensemble pair
routes                4   1 rule, 1 specialist, 1 spill
refused               1   1 queue_full
shadows               1
dropped               3   lines: the file could not keep up

one, replica 0
steps                 2   0 mixed, 0 failed
";
    assert!(text.starts_with(head), "{text}");
    assert!(
        text.ends_with("\ntwo, replica 1\nrequests              1   on another server\n"),
        "{text}"
    );
}

/// What a person would do with the page, and what is then to be seen, as text.
const VISITOR: &str = r#"<script>
addEventListener("load", () => setTimeout(() => {
  const seen = { errors: window.failures };
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const said = (id) => document.getElementById(id).textContent;
  const pixels = (colour) => {
    const [r, g, b] = colours[colour].match(/\d+/g).map(Number);
    const canvas = document.querySelector('#lanes canvas');
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) count += data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255;
    return count;
  };
  seen.painted = Object.fromEntries(["rule", "spill", "refused", "prefill", "decode", "forward", "waits", "ink"].map((name) => [name, pixels(name)]));
  seen.notice = said("notice");
  seen.first = [said("sentence"), said("request")];
  press("s");
  seen.spilled = [said("sentence"), said("request"), document.getElementById("engine").value];
  press("r");
  seen.refused = [said("sentence"), said("request")];
  press("End");
  seen.elsewhere = [said("sentence"), said("request")];
  const box = document.getElementById("lanes").getBoundingClientRect();
  const point = (kind, engine, at) => {
    const own = rows.find((each) => each.kind === kind && each.engine === engine && (kind !== "request" || each.shadow));
    const to = { clientX: scale.x(at) + box.left, clientY: box.top + own.y + own.tall / 2, pointerId: 1, bubbles: true };
    document.getElementById("lanes").dispatchEvent(new PointerEvent("pointermove", to));
    return [said("sentence"), said("request")];
  };
  seen.step = point("steps", 0, 700);
  seen.shaped = point("steps", 1, 1300);
  seen.shadow = point("request", 1, 1300);
  seen.engines = [...document.querySelectorAll('#engines tr')].map((line) => line.textContent);
  seen.width = document.documentElement.scrollWidth - innerWidth;
  const box2 = document.createElement("pre");
  box2.id = "seen";
  box2.textContent = JSON.stringify(seen);
  document.body.append(box2);
}, 0));
</script>"#;

/// Without a browser on this machine it says so, and passes; `STRATA_BROWSER` names one that must work.
#[test]
fn a_browser_shows_a_request_from_the_router_to_its_steps() {
    let Some(seen) = seen(&page(), VISITOR) else { return };
    let says = |what: &str, parts: &[&str]| {
        let text = seen[what].to_string();
        for part in parts {
            assert!(text.contains(part), "{what}: `{part}` in {text}");
        }
    };
    says("notice", &["3 lines of the recording were dropped"]);
    says(
        "first",
        &[
            "Request 0 came to the server 0 µs into the run; the rule sanitizer_report decided for one (score 0.90; second choice two), 50 µs after its arrival",
            "An engine of one had it 90 µs after its arrival",
            "Its shadow (low_score) began 1.05 ms into the run",
            "In one, replica 0: Request 0 arrived at 90 µs",
            "Its steps waited 270 µs for their turns",
        ],
    );
    says(
        "spilled",
        &[
            "one was chosen, and it spilled to two (score 0.40; second choice two)",
            "one refused it 60 µs after its arrival (would_harm: it could expect its first token in 2 ms and its end in 5 ms to 9 ms)",
            "In two, replica 0",
        ],
    );
    assert_eq!(seen["spilled"][2], "1", "the charts are of the engine that serves it");
    says(
        "refused",
        &["one refused it 40 µs", "two refused it 60 µs after its arrival (queue_full)"],
    );
    says("elsewhere", &["its client named the specialist two", "no step is recorded"]);
    says("step", &["Step 1 began", "turn 270 µs", "A step of one, replica 0."]);
    says("shaped", &["It was planned for rows that decode only."]);
    says("shadow", &["Request 0 came", "Shadow in two, replica 0"]);
    assert_eq!(seen["engines"].as_array().unwrap().len(), 3);
    assert!(
        seen["width"].as_i64().unwrap() <= 0,
        "the page is wider than its window by {}",
        seen["width"]
    );
}

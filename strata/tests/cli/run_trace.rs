//! `strata trace view` and `strata trace chrome`: from a recorded run to a page, to figures and to Perfetto.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::strata::{arg, strata, strata_reading};

/// Two requests: the second comes later, gives way once, and both end.
const RECORDING: &str = r#"{"strata_trace":1,"model":"tiny","policy":"fcfs","config":{"block_size":4,"num_gpu_blocks":9,"max_num_seqs":4,"max_num_batched_tokens":12,"long_prefill_token_threshold":0,"enable_chunked_prefill":true,"enable_prefix_caching":true,"max_model_len":32,"watermark":0.0}}
{"event":"arrived","id":0,"at_us":0.0,"prompt":8,"max_tokens":4,"priority":0}
{"event":"step","step":0,"at_us":100.0,"rows":[[0,"prefill",8,0,0,1]],"running":1,"waiting":0,"preempted":[],"finished":[],"kv":{"total":8,"free":6,"findable":2,"leased":0},"phases_us":{"plan":2.0,"pack":3.0,"forward":400.0,"sample":20.0,"apply":5.0}}
{"event":"first_token","id":0,"step":0,"at_us":530.0}
{"event":"arrived","id":1,"at_us":300.0,"prompt":6,"max_tokens":2,"priority":0}
{"event":"step","step":1,"at_us":600.0,"rows":[[0,"decode",1,8,0,1],[1,"prefill",6,0,0,1]],"running":2,"waiting":0,"preempted":[],"finished":[],"kv":{"total":8,"free":3,"findable":3,"leased":0},"phases_us":{"plan":2.0,"pack":3.0,"forward":300.0,"sample":20.0,"apply":5.0}}
{"event":"first_token","id":1,"step":1,"at_us":930.0}
{"event":"step","step":2,"at_us":1000.0,"rows":[[0,"decode",1,9,0,1]],"running":1,"waiting":1,"preempted":[1],"finished":[],"kv":{"total":8,"free":5,"findable":3,"leased":0},"phases_us":{"plan":2.0,"pack":3.0,"forward":100.0,"sample":20.0,"apply":5.0}}
{"event":"step","step":3,"at_us":1200.0,"rows":[[0,"decode",1,10,0,1],[1,"resumed",3,4,4,1]],"running":2,"waiting":0,"preempted":[],"finished":[[0,"length"],[1,"length"]],"kv":{"total":8,"free":3,"findable":3,"leased":0},"phases_us":{"plan":2.0,"pack":3.0,"forward":200.0,"sample":20.0,"apply":5.0}}
{"event":"ended","id":0,"step":3,"at_us":1430.0,"reason":"length","tokens":4,"preemptions":0}
{"event":"ended","id":1,"step":3,"at_us":1430.0,"reason":"length","tokens":2,"preemptions":1}
"#;

const SUMMARY: &str = "\
steps                 4   2 mixed, 0 failed
requests              2   2 length
seconds           0.001
tokens                6   chosen; 14 prefilled, 4 found in the cache, 3 computed again
throughput       4195.8   tokens a second
preemptions           1
at most               2   running, 1 waiting
KV peak           62.5%   of the pool
milliseconds        p50        p95        p99        max
  TTFT            0.530      0.630      0.630      0.630
  ITL             0.300      0.500      0.500      0.500
  E2E             1.130      1.430      1.430      1.430
step time    plan 0.7%   pack 1.1%   forward 89.3%   sample 7.1%   apply 1.8%
";

/// A request whose first recorded step verifies four drafts, and whose second one verifies two.
const DRAFTED: &str = r#"{"strata_trace":1,"model":"tiny","policy":"fcfs","config":{"block_size":4,"num_gpu_blocks":9,"max_num_seqs":4,"max_num_batched_tokens":12,"long_prefill_token_threshold":0,"enable_chunked_prefill":true,"enable_prefix_caching":true,"max_model_len":32,"watermark":0.0}}
{"event":"arrived","id":5,"at_us":0.0,"prompt":8,"max_tokens":9,"priority":0}
{"event":"step","step":7,"at_us":100.0,"rows":[[5,"verify",5,8,0,4]],"drafts":[[0,4,3]],"running":1,"waiting":0,"preempted":[],"finished":[],"kv":{"total":8,"free":4,"findable":2,"leased":0},"phases_us":{"plan":2.0,"pack":3.0,"forward":400.0,"sample":20.0,"apply":5.0}}
{"event":"step","step":8,"at_us":600.0,"rows":[[5,"verify",3,12,0,1]],"drafts":[[0,2,0]],"running":1,"waiting":0,"preempted":[],"finished":[[5,"stop"]],"kv":{"total":8,"free":4,"findable":3,"leased":0},"phases_us":{"plan":2.0,"pack":3.0,"forward":300.0,"sample":20.0,"apply":5.0}}
{"event":"ended","id":5,"step":8,"at_us":930.0,"reason":"stop","tokens":5,"preemptions":0}
"#;

fn page(recording: &str) -> String {
    strata_reading(recording.as_bytes(), ["trace", "view", "-"]).text().to_owned()
}

#[test]
fn a_recorded_run_becomes_a_page_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.jsonl");
    fs::write(&file, RECORDING).unwrap();
    let html = dir.path().join("run.html");
    let ran = strata(["trace", "view", &arg(&file)]);
    assert_eq!(ran.text(), format!("{}\n", html.display()));
    let html = fs::read_to_string(&html).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"), "{html}");
    assert!(html.contains("<title>run · run timeline</title>"), "{html}");
    assert!(!html.contains("<!--["), "a place that was not filled");
    for outside in ["http:", "https:", "//cdn", " src=", "href=", "url(", "@import", "fetch("] {
        assert!(!html.contains(outside), "`{outside}` in the page");
    }
}

#[test]
fn the_summary_says_what_a_run_came_to() {
    let ran = strata_reading(RECORDING.as_bytes(), ["trace", "view", "-", "--summary"]);
    assert_eq!(ran.text(), SUMMARY, "the summary");
}

#[test]
fn the_summary_has_the_drafts_of_a_run_that_speculates() {
    let ran = strata_reading(DRAFTED.as_bytes(), ["trace", "view", "-", "--summary"]);
    let drafts = "drafts                6   verified in 2 rows; 3 accepted (50.0%), mean acceptance length 2.50";
    assert!(ran.text().lines().any(|line| line == drafts), "{}", ran.text());
}

#[test]
fn what_the_recording_says_cannot_break_out_of_the_page() {
    let html = page(&RECORDING.replace("tiny", "</script><script>alert(1)</script>"));
    assert_eq!(html.matches("</script>").count(), 5, "ends of script elements");
}

#[test]
fn a_long_run_is_cut_and_says_so() {
    let ran = strata_reading(RECORDING.as_bytes(), ["trace", "view", "-", "--max-steps", "1"]);
    ran.text();
    let told = "the page shows the first 1 of 4 steps; later ones are left out (--max-steps)\n";
    assert_eq!(ran.stderr, told);
}

#[test]
fn chromes_events_are_written_beside_the_recording() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.jsonl");
    fs::write(&file, RECORDING).unwrap();
    let out = dir.path().join("run.chrome.json");
    assert_eq!(strata(["trace", "chrome", &arg(&file)]).text(), format!("{}\n", out.display()));
    let events: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    assert!(events["traceEvents"].as_array().is_some_and(|events| events.len() > 20), "{events}");
    let piped = strata_reading(RECORDING.as_bytes(), ["trace", "chrome", "-"]).json();
    assert_eq!(piped, events, "the same through pipes");
}

#[test]
fn files_that_are_no_recordings_are_an_error_of_one_line_and_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.jsonl");
    let fails = |text: &str, part: &str| {
        fs::write(&file, text).unwrap();
        for what in ["view", "chrome"] {
            let ran = strata(["trace", what, &arg(&file)]);
            assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
            assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
            assert!(ran.stderr.contains(part), "`{part}` in {}", ran.stderr);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was written");
    };
    fails("", "the recording is empty");
    fails("hello", "not the beginning of a recorded run");
    fails(&RECORDING[..RECORDING.len() - 9], "line 11 breaks off");
    let page = dir.path().join("run.html");
    fs::write(&page, RECORDING).unwrap();
    let ran = strata(["trace", "view", &arg(&page)]);
    assert!(ran.stderr.contains("would be overwritten by its own output"), "{ran:?}");
}

/// What a person would do with the page, and what is then to be seen, as text.
const VISITOR: &str = r#"<script>
addEventListener("load", () => {
  const seen = { errors: window.failures };
  const press = (key, more) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
  const said = (id) => document.getElementById(id).textContent;
  const pixels = (name, like) => {
    const canvas = document.querySelector(`[data-chart=${name}] canvas`);
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) count += like(data.subarray(i, i + 4));
    return count;
  };
  const colours = palette();
  const of = (name) => {
    const [r, g, b] = colours[name].match(/\d+/g).map(Number);
    return (p) => p[0] === r && p[1] === g && p[2] === b && p[3] === 255;
  };
  const shaded = (p) => p[3] > 70 && p[3] < 110;
  seen.painted = {
    "a prefill": pixels("lanes", of("prefill")), "decodes": pixels("lanes", of("decode")),
    "a preemption": pixels("lanes", of("preempted")), "what is computed again": pixels("lanes", of("resumed")),
    "tokens of prompts": pixels("tokens", of("prefill")), "tokens of answers": pixels("tokens", of("decode")),
    "the forward pass": pixels("parts", of("forward")), "running requests": pixels("queue", shaded),
    "used blocks": pixels("kv", shaded),
  };
  seen.first = said("sentence");
  press("ArrowRight");
  seen.second = said("sentence");
  press("p");
  seen.preempted = said("sentence");
  seen.request = said("request");
  press("End");
  seen.last = said("sentence");
  press("t");
  seen.axis = document.querySelector("[name=axis]:checked").value;
  const box = document.querySelector("[data-chart=queue]").getBoundingClientRect();
  const at = (part) => ({ clientX: box.left + 56 + part * (box.width - 56), clientY: box.top + 5, pointerId: 1, bubbles: true });
  document.querySelector("[data-chart=queue]").dispatchEvent(new PointerEvent("pointermove", at(0.3)));
  seen.pointed = said("sentence");
  seen.width = document.documentElement.scrollWidth - innerWidth;
  const box2 = document.createElement("pre");
  box2.id = "seen";
  box2.textContent = JSON.stringify(seen);
  document.body.append(box2);
});
</script>"#;

const WATCH: &str = r#"<script>window.failures = []; addEventListener("error", (e) => failures.push(e.message));</script>"#;

/// A browser: the one that `STRATA_BROWSER` names, or the first of Chromium's names that is there.
fn browser() -> Option<OsString> {
    if let Some(named) = std::env::var_os("STRATA_BROWSER").filter(|name| !name.is_empty()) {
        return Some(named);
    }
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path);
    let found = places.flat_map(|place| names.map(|name| place.join(name))).find(|p| p.is_file());
    found.map(PathBuf::into_os_string)
}

/// The page after a visit.
fn visited(browser: &OsString, html: &Path, profile: &Path) -> String {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--no-first-run", "--window-size=1200,900", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("file://{}", html.display())).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What a visitor's script sees of a page in a browser. No script failed, and all that is to be painted is. `None`
/// where there is no browser, which is said.
pub fn seen(page: &str, visitor: &str) -> Option<Value> {
    let Some(browser) = browser() else {
        eprintln!(
            "there is no Chromium on this machine (STRATA_BROWSER can name one): the page was not opened"
        );
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let html = page.replacen("<head>", &format!("<head>{WATCH}"), 1);
    fs::write(&file, html.replace("</body>", &format!("{visitor}</body>"))).unwrap();
    let dom = visited(&browser, &file, &dir.path().join("profile"));
    let (_, rest) =
        dom.split_once("<pre id=\"seen\">").expect("the page's scripts ran to their end");
    let seen = rest.split_once("</pre>").unwrap().0.replace("&lt;", "<").replace("&amp;", "&");
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["errors"], serde_json::json!([]), "errors of scripts");
    for (what, pixels) in seen["painted"].as_object().unwrap() {
        assert!(pixels.as_u64().unwrap() >= 10, "{what}: {pixels} pixels");
    }
    Some(seen)
}

#[test]
fn a_browser_shows_the_drafts_of_a_step() {
    let Some(browser) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let watched = page(DRAFTED).replacen("<head>", &format!("<head>{WATCH}"), 1);
    let tell = "<script>document.title = failures.join();</script></body>";
    fs::write(&file, watched.replace("</body>", tell)).unwrap();
    let dom = visited(&browser, &file, &dir.path().join("profile"));
    assert!(dom.contains("<title></title>"), "a script failed: {dom}");
    assert!(dom.contains("4 drafts of request 5 verified, 3 accepted and 1 rejected."), "{dom}");
    assert!(dom.contains("<dt>drafts accepted</dt><dd>50% <small>3 of 6</small></dd>"), "{dom}");
    assert!(dom.contains("id=\"drafts-legend\">"), "the legend of drafts is shown: {dom}");
}

/// Without a browser on this machine it says so, and passes; `STRATA_BROWSER` names one that must work.
#[test]
fn a_browser_shows_the_page_and_follows_the_keys() {
    let Some(seen) = seen(&page(RECORDING), VISITOR) else { return };
    let says = |what: &str, parts: &[&str]| {
        let text = seen[what].as_str().unwrap();
        for part in parts {
            assert!(text.contains(part), "{what}: `{part}` in {text}");
        }
    };
    says(
        "first",
        &["Step 0 began 100 µs into the run and took 430 µs", "request 0 prefills tokens 0 to 7"],
    );
    says(
        "second",
        &[
            "Step 1 ",
            "request 1 prefills tokens 0 to 5 and 1 request decodes",
            "5 of 8 blocks in use",
        ],
    );
    says("preempted", &["Step 2 ", "Preempted to make room: request 1."]);
    says(
        "request",
        &[
            "Request 1 (now: preempted)",
            "It was preempted once.",
            "with 2 tokens of at most 2 (length)",
        ],
    );
    says(
        "last",
        &[
            "Step 3 ",
            "request 1 computes again tokens 4 to 6 behind 4 from the cache",
            "Ended: request 0 (length)",
        ],
    );
    assert_eq!(seen["axis"], "step", "the axis after `t`");
    says("pointed", &["Step 1 "]);
    assert!(
        seen["width"].as_i64().unwrap() <= 0,
        "the page is wider than its window by {}",
        seen["width"]
    );
}

//! Tiers of a server: what they keep when it stops, and what it shows of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use l5_scheduler::trace::{self, TransferKind};
use serde_json::{Value, json};

use crate::served::{Served, command, fixture};
use crate::wire::{PATIENCE, until};

/// A server that stores the chunks of every request.
fn server(more: &[&str]) -> Served {
    Served::start("tiny-llama", args(more))
}

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["--policy", "lmcache", "--kv-tier-chunk", "32", "--precision", "f32"][..], more].concat()
}

/// A prompt of 150 tokens, and 20 more: five chunks, as the last token is not computed.
fn body(own: u32) -> Value {
    let prompt: Vec<u32> = (0..150).map(|at| 3 + (at * 7 + own * 31) % 300).collect();
    json!({"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true})
}

/// Number of whole chunks in a directory.
fn chunks(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with(".kv")).count()
}

#[test]
fn what_waits_to_be_written_is_written_before_a_server_ends() {
    let dir = tempfile::tempdir().unwrap();
    let disk = ["--kv-tier-disk", dir.path().to_str().unwrap()];
    let mut first = server(&disk);
    let want = first.post("/v1/completions", &body(1)).json();
    first.signal("TERM");
    assert_eq!(first.ended(PATIENCE).code(), Some(0));
    assert_eq!(chunks(dir.path()), 5);
    let second = server(&disk);
    let response = second.post("/v1/completions", &body(1));
    assert_eq!(response.json()["choices"], want["choices"]);
    assert_eq!(response.header("x-strata-loaded-tokens"), Some("128"));
}

/// The value of one sample of a family with this label.
fn sample(server: &Served, family: &str, label: (&str, &str)) -> f64 {
    let text = server.get("/metrics").text().to_owned();
    let part = format!("{}=\"{}\"", label.0, label.1);
    let mut lines = text.lines().filter(|line| line.starts_with(family) && line.contains(&part));
    let value = lines.next().and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("there is no {family} with {part}"))
}

fn cached(body: &Value) -> u64 {
    body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn what_is_loaded_is_counted_as_cached_and_by_its_source() {
    let dir = tempfile::tempdir().unwrap();
    // A pool of two requests, so that the prompts of the others are evicted.
    let more = ["--kv-memory", "400KiB", "--max-num-seqs", "1", "--kv-tier-dram", "1GiB"];
    let disk = ["--kv-tier-disk", dir.path().to_str().unwrap()];
    let log = tempfile::NamedTempFile::new().unwrap();
    let log_args = ["--access-log", log.path().to_str().unwrap()];
    let server = server(&[&more[..], &disk, &log_args].concat());
    let ask = |own| server.post("/v1/completions", &body(own));
    let first = ask(0).json();
    assert_eq!(cached(&first), 0);
    // Stored chunks of earlier prompts, until the pool has nothing of the first one.
    (1..5).for_each(|own| drop(ask(own).json()));
    let again = ask(0);
    assert_eq!(again.json()["choices"], first["choices"]);
    let loaded: u64 = again.header("x-strata-loaded-tokens").unwrap().parse().unwrap();
    // Four whole chunks of the 150 tokens, but for what is left of them in the pool.
    assert!(loaded > 0 && loaded <= 128, "{loaded}");
    let all = cached(&again.json());
    assert_eq!(again.header("x-strata-cached-tokens"), Some(&*all.to_string()));
    assert!((loaded..=128).contains(&all), "the loaded ones are among the cached: {all}");

    until("the responses are counted", || server.metric("vllm:request_success_total") == 6.0);
    let prompts = 6.0 * 150.0;
    let by = |source| sample(&server, "vllm:prompt_tokens_by_source_total", ("source", source));
    let cached_in =
        |source| sample(&server, "vllm:prompt_tokens_cached_by_source_total", ("source", source));
    assert_eq!(by("external_kv_transfer"), loaded as f64);
    assert_eq!(by("local_cache_hit"), (all - loaded) as f64);
    assert_eq!(by("local_compute"), prompts - all as f64);
    assert_eq!(server.metric("vllm:prompt_tokens_cached_total"), all as f64);
    assert_eq!((cached_in("host"), cached_in("disk")), (loaded as f64, 0.0));
    assert_eq!(cached_in("device"), (all - loaded) as f64);
    assert_eq!(cached_in("external_unspecified"), 0.0);
    // What the pool did not have was asked for.
    let queries = server.metric("vllm:external_prefix_cache_queries_total");
    assert_eq!(queries, prompts - (all - loaded) as f64);
    assert_eq!(server.metric("vllm:external_prefix_cache_hits_total"), loaded as f64);
    assert_eq!(server.metric("vllm:request_prefill_kv_computed_tokens_sum"), prompts - all as f64);
    let lines = std::fs::read_to_string(log.path()).unwrap();
    let line = lines.lines().rfind(|line| line.contains("completions")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["cached_tokens"], &line["loaded_tokens"]), (&json!(all), &json!(loaded)));

    // Each tier has the chunks of five prompts: five of each, as the sixth request has stored nothing new.
    until("the disk has them", || {
        sample(&server, "strata:kv_tier_chunks", ("tier", "disk")) == 25.0
    });
    assert_eq!(chunks(dir.path()), 25);
    let of = |family, tier| sample(&server, family, ("tier", tier));
    assert_eq!(of("strata:kv_tier_chunks", "dram"), 25.0);
    let chunk = of("strata:kv_tier_stored_bytes_total", "dram") / 25.0;
    assert_eq!(of("strata:kv_tier_stored_bytes_total", "disk"), 25.0 * chunk);
    let hits = of("strata:kv_tier_hits_total", "dram");
    assert!((1.0..=4.0).contains(&hits), "{hits}");
    assert_eq!(of("strata:kv_tier_loaded_bytes_total", "dram"), hits * chunk);
    assert_eq!(of("strata:kv_tier_hits_total", "disk"), 0.0, "the faster one had them");
    assert!(of("strata:kv_tier_bytes", "dram") >= 25.0 * chunk);
    for family in [
        "strata:kv_tier_misses_total",
        "strata:kv_tier_corrupt_chunks_total",
        "strata:kv_tier_failed_total",
        "strata:kv_tier_evicted_chunks_total",
    ] {
        assert_eq!(of(family, "disk"), 0.0, "{family}");
    }
    assert_eq!(sample(&server, "strata:kv_tier_breaker_state", ("state", "closed")), 1.0);
    assert_eq!(of("strata:kv_tier_breaker_trips_total", "disk"), 0.0);
}

#[test]
fn damaged_chunks_and_a_tier_that_is_given_up_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let disk = ["--kv-tier-disk", dir.path().to_str().unwrap()];
    let mut first = server(&disk);
    first.post("/v1/completions", &body(1)).json();
    first.signal("TERM");
    assert_eq!(first.ended(PATIENCE).code(), Some(0));
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "kv") {
            let len = std::fs::metadata(&path).unwrap().len();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
        }
    }
    let second = server(&disk);
    let response = second.post("/v1/completions", &body(1));
    assert_eq!(cached(&response.json()), 0);
    assert_eq!(response.header("x-strata-loaded-tokens"), Some("0"));
    let of = |family| sample(&second, family, ("tier", "disk"));
    assert!(of("strata:kv_tier_corrupt_chunks_total") >= 1.0);
    assert_eq!(
        second.metric("vllm:external_prefix_cache_hits_total"),
        128.0,
        "it said that it had them"
    );
    assert_eq!(second.metric("vllm:prompt_tokens_cached_total"), 0.0);

    // Nothing listens here: each operation fails.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let third = server(&["--kv-tier-redis", &nobody]);
    (0..3).for_each(|own| drop(third.post("/v1/completions", &body(own)).json()));
    let trips = || sample(&third, "strata:kv_tier_breaker_trips_total", ("tier", "redis"));
    until("its breaker opens", || trips() >= 1.0);
    let is = |state| sample(&third, "strata:kv_tier_breaker_state", ("state", state));
    assert_eq!(is("closed") + is("open") + is("half_open"), 1.0);
    assert!(sample(&third, "strata:kv_tier_failed_total", ("tier", "redis")) >= 3.0);
}

/// A Redis server that has nothing, and answers a write one byte at a time, for ever.
fn slow_redis() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer_slowly(stream.unwrap()));
        }
    });
    address
}

fn answer_slowly(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let number = |reader: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    loop {
        let parts = number(&mut reader)?;
        let mut name = Vec::new();
        for part in 0..parts {
            let mut bytes = vec![0; number(&mut reader)? + 2];
            reader.read_exact(&mut bytes).ok()?;
            if part == 0 {
                name = bytes;
            }
        }
        if name == b"EXISTS\r\n" {
            stream.write_all(b":0\r\n").ok()?;
            continue;
        }
        stream.write_all(b"+").ok()?;
        // No read of the client times out.
        while stream.write_all(b"O").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        return None;
    }
}

/// A server whose tier never ends a write, stopped after a request.
fn stopped_while_writing() -> Served {
    let redis = slow_redis().to_string();
    let mut command = command();
    command.args(["serve", "--port", "0", "--model"]).arg(fixture("tiny-llama"));
    command.args(args(&["--kv-tier-redis", &redis])).stderr(Stdio::piped());
    let server = Served::run(command);
    server.post("/v1/completions", &body(1)).json();
    server.signal("TERM");
    server
}

#[test]
fn a_tier_that_does_not_write_delays_the_end_by_a_bounded_time_and_what_is_lost_is_reported() {
    let began = Instant::now();
    let mut server = stopped_while_writing();
    assert_eq!(server.ended(PATIENCE).code(), Some(0));
    assert!(began.elapsed() >= Duration::from_secs(5), "it tried");
    let mut log = String::new();
    server.stderr().read_to_string(&mut log).unwrap();
    assert!(log.contains("5 chunks of keys and values were not written within 5s"), "{log}");
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_a_tier() {
    let mut server = stopped_while_writing();
    let mut log = BufReader::new(server.stderr()).lines();
    assert!(log.any(|line| line.unwrap().contains("shut down")), "the responses are sent");
    server.signal("TERM");
    assert_eq!(server.ended(Duration::from_secs(4)).code(), Some(143));
}

#[test]
fn a_recording_of_a_server_has_its_leases_loads_and_stores() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.jsonl");
    let recording = ["--trace", file.to_str().unwrap(), "--kv-tier-dram", "1GiB"];
    let small = ["--kv-memory", "400KiB", "--max-num-seqs", "1"];
    let mut server = server(&[&recording[..], &small].concat());
    let ask = |own: u32| {
        let mut body = body(own);
        body["job_id"] = format!("job {own}").into();
        server.post("/v1/completions", &body).json();
    };
    (0..5).for_each(ask);
    ask(0);
    server.signal("TERM");
    assert_eq!(server.ended(PATIENCE).code(), Some(0));
    let reader = trace::read(BufReader::new(std::fs::File::open(&file).unwrap())).unwrap();
    let run = trace::Run::read(reader, usize::MAX).unwrap();
    assert_eq!(run.holds.len(), 6, "each request is stored");
    for hold in &run.holds {
        assert_eq!((hold.blocks, hold.why.as_deref()), (10, Some("stored")));
        assert_eq!(hold.job, run.lanes[hold.lane].job);
        assert!(hold.job.as_deref().is_some_and(|job| job.starts_with("job ")));
    }
    let of = |kind| run.transfers.iter().filter(move |transfer| transfer.kind == kind);
    assert_eq!(of(TransferKind::Store).count(), 6);
    let loads: Vec<_> = of(TransferKind::Load).collect();
    assert_eq!((loads.len(), loads[0].lane), (1, 5), "the last request loads");
    assert_eq!(loads[0].arrived, Some(loads[0].tokens));
    assert!(run.transfers.iter().all(|own| own.start < own.end), "{:?}", run.transfers);
    // The page has them too.
    let page = dir.path().join("run.html");
    let mut view = command();
    view.args(["trace", "view"]).arg(&file).arg("--out").arg(&page);
    assert!(view.output().unwrap().status.success());
    let html = std::fs::read_to_string(&page).unwrap();
    let data = html.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["holds"].as_array().unwrap().len(), 6);
    assert_eq!(data["jobs"].as_array().unwrap().len(), 5, "both leases of job 0 are on one row");
    assert_eq!(data["transfers"].as_array().unwrap().len(), 7);
}

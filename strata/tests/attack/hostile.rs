//! Every attack of the table against a server, beside a neighbour and a probe, and what was measured against the
//! bounds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Outcome, Scene};
use crate::server::Target;
use crate::table::{Attack, Does, Post, Then, attacks};
use crate::watch::{Reading, Watch};
use crate::{alone, long, say};

/// Memory grows by at most this many times the bytes in flight ...
const TIMES: usize = 8;

/// ... and this: compiled guides that are kept (32 MiB) and those that are being followed (64 MiB for the large ones),
/// and what the allocator keeps of thousands of connections and of each thread (32 MiB).
const ALLOWANCE: usize = 128 << 20;

/// Where not all blocks of the KV cache are touched before: as much again.
const UNTOUCHED: usize = 32 << 20;

/// `/health` answers in this time, in milliseconds ...
const HEALTHY: f64 = 250.0;

/// ... or in so many times what the calm server needed, where the machine itself is slow.
const TIMES_CALM: f64 = 4.0;

/// A neighbour's 99th percentile of time between tokens may double; below this, in milliseconds, it may do as it likes.
const ITL_FLOOR: f64 = 100.0;

/// How long an attack lasts at most.
const LONGEST: Duration = Duration::from_millis(2500);

/// How long a server may take to abort and forget what an attack has left.
const SETTLE: Duration = Duration::from_secs(5);

/// Until a guide is compiled and followed that was asked for after an attack.
const GUIDED: Duration = Duration::from_secs(3);

/// How often an attack is tried whose times were above the bounds: what is the machine's fault does not happen three
/// times.
const TRIES: usize = 3;

/// A server with its measurements, and what they are when it is calm.
struct Arena {
    target: Target,
    watch: Watch,
    calm: Reading,
    files: usize,
}

/// What came of an attack.
struct Report {
    tally: String,
    reading: Reading,
    flight: usize,
    growth: usize,
    /// What is kept when all is over.
    kept: usize,
    took: Duration,
    settled: Duration,
    /// Bounds of memory, of errors and of what is left behind that were broken.
    broken: Vec<String>,
    /// Bounds of time that were broken.
    late: Vec<String>,
    /// Whether the next attack should find another server.
    spoiled: bool,
}

impl Arena {
    fn new(keyed: bool) -> Self {
        let target = Target::start(keyed, &[]);
        warm_up(&target);
        let watch = Watch::start(&target);
        std::thread::sleep(Duration::from_millis(if long() { 200 } else { 50 }));
        let mark = watch.mark();
        std::thread::sleep(Duration::from_millis(if long() { 1000 } else { 100 }));
        let mut calm = watch.since(&mark);
        // What it is when nothing grows: the later measurements are compared with what it is now.
        calm.memory = target.memory();
        let files = target.open_files();
        Self { target, watch, calm, files }
    }

    fn suffer(&self, attack: &Attack, salt: usize) -> Report {
        let prepared = match attack.does {
            Does::Post(post) => (post.bodies)(salt),
            Does::Raw(_) => Vec::new(),
        };
        let authorization = if attack.stranger { "" } else { self.target.authorization };
        let bare = matches!(attack.does, Does::Raw(_));
        let mark = self.watch.mark();
        let began = Instant::now();
        let scene = Scene::new(self.target.served.address(), authorization, LONGEST, bare);
        match attack.does {
            Does::Post(post) => send_all(&scene, &post, &prepared),
            Does::Raw(does) => does(&scene),
        }
        let took = began.elapsed();
        let (tally, mut broken) = scene.told();
        let mut late = Vec::new();
        let target = &self.target;
        let began = Instant::now();
        // The neighbour's request is one that runs.
        let settled = target.until(SETTLE, || target.requests() <= 1.0)
            && target.until(SETTLE, || target.open_files() <= self.files + 4);
        let settle = began.elapsed();
        if !settled && target.lives() {
            let (requests, files) = (target.requests(), target.open_files());
            broken.push(format!(
                "{requests} requests and {files} files (of {}) are left after {settle:.1?}",
                self.files
            ));
        }
        if target.lives() && has_guides(attack) {
            let began = Instant::now();
            let answered = self.guided(salt);
            if !answered || began.elapsed() > GUIDED {
                late.push(format!("a small guide took {:.1?}", began.elapsed()));
            }
        }
        let calm = self.calm.memory + allowance();
        target.until(SETTLE, || target.memory() <= calm);
        let reading = self.watch.since(&mark);
        let kept = target.memory().saturating_sub(self.calm.memory);
        let flight = scene.flight.most();
        let growth = reading.memory.saturating_sub(self.calm.memory);
        if growth > TIMES * flight + allowance() {
            let times = growth as f64 / flight.max(1) as f64;
            broken.push(format!("memory grew by {} for {}: x{times:.1}", mib(growth), mib(flight)));
        }
        if kept > allowance() {
            broken.push(format!("{} are kept afterwards", mib(kept)));
        }
        if !target.lives() {
            broken = vec!["the server has ended".to_owned()];
        }
        let healthy = HEALTHY.max(TIMES_CALM * self.calm.health_p99);
        if reading.health_max > healthy {
            late.push(format!("/health took {:.0} ms", reading.health_max));
        }
        if reading.unhealthy > 0 {
            late.push(format!("/health failed {} times", reading.unhealthy));
        }
        let itl = ITL_FLOOR.max(2.0 * self.calm.itl_p99);
        if reading.itl_p99 > itl {
            let (p99, calm) = (reading.itl_p99, self.calm.itl_p99);
            late.push(format!("the neighbour's ITL p99 was {p99:.1} ms, calm {calm:.1} ms"));
        }
        let spoiled = !settled || kept > allowance() || !target.lives();
        Report {
            tally,
            reading,
            flight,
            growth,
            kept,
            took,
            settled: settle,
            broken,
            late,
            spoiled,
        }
    }

    /// Sends a small request with a guide that no earlier request had.
    fn guided(&self, salt: usize) -> bool {
        let body =
            json!({"prompt": "Once", "max_tokens": 20, "guided_choice": [format!("yes{salt}")]});
        let lasts = Duration::from_secs(20);
        let scene =
            Scene::new(self.target.served.address(), self.target.authorization, lasts, false);
        let Some(mut link) = scene.open() else { return false };
        link.post("/v1/completions", body.to_string().as_bytes());
        matches!(link.response(false), Outcome::Response { status: 200, .. })
    }
}

/// Whether an attack leaves compilers at work.
fn has_guides(attack: &Attack) -> bool {
    ["schema", "expression", "grammar", "choices", "guides"]
        .iter()
        .any(|word| attack.name.contains(word))
}

/// Touch all memory that the server takes once and keeps: blocks, workspaces, threads.
fn warm_up(target: &Target) {
    let lasts = Duration::from_secs(60);
    let scene = Scene::new(target.served.address(), target.authorization, lasts, false);
    let wide = json!({
        "prompt": vec![7; 20], "n": 128, "max_tokens": if long() { 480 } else { 60 },
        "ignore_eos": true, "temperature": 1,
    });
    let chat = json!({
        "messages": [{"role": "user", "content": "Go"}], "max_tokens": 20,
        "tools": [{"type": "function", "function": {"name": "now"}}], "tool_choice": "required",
    });
    for (path, body) in [("/v1/completions", wide), ("/v1/chat/completions", chat)] {
        let mut link = scene.open().unwrap();
        link.post(path, body.to_string().as_bytes());
        let outcome = link.response(false);
        assert!(matches!(outcome, Outcome::Response { status: 200, .. }), "{}", outcome.told());
    }
}

/// Post bodies over several connections at once.
fn send_all(scene: &Scene, post: &Post, bodies: &[Vec<u8>]) {
    let next = AtomicUsize::new(0);
    crate::raw::together(post.connections, || {
        for _ in 0..post.rounds {
            if scene.over() {
                return;
            }
            let body = &bodies[next.fetch_add(1, Ordering::Relaxed) % bodies.len()];
            let Some(mut link) = scene.open() else { return };
            link.post(post.path, body);
            match post.then {
                Then::Read => scene.judge(&link.response(false)),
                Then::ReadAfter(time) => {
                    scene.sleep(time);
                    scene.judge(&link.response(true));
                }
                Then::Vanish => scene.count("vanished"),
            }
        }
    });
}

/// What the server may keep, and grow by whatever is in flight.
fn allowance() -> usize {
    if long() { ALLOWANCE } else { ALLOWANCE + UNTOUCHED }
}

fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn row(name: &str, report: &Report, calm: &Reading) -> String {
    let reading = &report.reading;
    format!(
        "{name:<56} {:>9} {:>9} {:>9} {:>7.0} {:>7.1} {:>6.1} {:>8.0} {:>5} {:>6.1} {:>6.1}  {}",
        mib(report.flight),
        mib(report.growth),
        mib(report.kept),
        reading.health_max,
        reading.itl_p99,
        reading.itl_p99 / calm.itl_p99.max(0.001),
        reading.first_max,
        reading.refused,
        report.took.as_secs_f64(),
        report.settled.as_secs_f64(),
        report.tally,
    )
}

const TITLE: &str = "attack                                                   in flight    growth      kept  health ITL p99  ratio first ms  429s   took settle  responses";

#[test]
fn whatever_a_client_sends_the_server_stays_within_its_bounds() {
    let _alone = alone();
    let chosen = std::env::var("STRATA_ATTACKS").unwrap_or_default();
    let chosen: Vec<&str> = chosen.split(',').filter(|word| !word.is_empty()).collect();
    let wanted = |attack: &Attack| match chosen.as_slice() {
        [] => long() || attack.short,
        words => words.iter().any(|word| attack.name.contains(word)),
    };
    let (mut arenas, mut failures) = ([None, None], Vec::new());
    if long() {
        say(TITLE);
    }
    for (number, attack) in attacks().iter().filter(|attack| wanted(attack)).enumerate() {
        let place = &mut arenas[usize::from(attack.keyed)];
        let mut attempt = 0;
        let (report, calm) = loop {
            let arena = place.take().unwrap_or_else(|| Arena::new(attack.keyed));
            let report = arena.suffer(attack, number * TRIES + attempt);
            let calm = arena.calm;
            if !report.spoiled {
                *place = Some(arena);
            }
            attempt += 1;
            if !long() || report.late.is_empty() || attempt == TRIES || !report.broken.is_empty() {
                break (report, calm);
            }
        };
        let late = if long() { report.late.as_slice() } else { &[] };
        let broken: Vec<_> = report.broken.iter().chain(late).map(String::as_str).collect();
        if long() {
            say(&row(attack.name, &report, &calm));
        }
        if !broken.is_empty() {
            let failure = format!("{}: {}", attack.name, broken.join("; "));
            if long() {
                say(&format!("    BROKEN {failure}"));
            }
            failures.push(failure);
        }
    }
    for Arena { target, watch, .. } in arenas.into_iter().flatten() {
        drop(watch);
        let blocks = || target.metric("vllm:kv_cache_usage_perc") == 0.0;
        if !target.until(SETTLE, || target.requests() == 0.0 && blocks()) {
            failures.push("at the end: requests or blocks are left".to_owned());
        }
    }
    assert!(failures.is_empty(), "{} bounds were broken:\n{}", failures.len(), failures.join("\n"));
}

//! All kinds of clients for a while, and afterwards the books: every request counted once, nothing left, nothing grown.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Link, Outcome, Scene};
use crate::server::Target;
use crate::text::Scrape;
use crate::{alone, bodies, say};

/// Clients at once.
const CLIENTS: usize = 6;

/// Between two requests of one client, at most.
const PAUSE: u64 = 20;

/// Memory may differ by this much between two thirds of the second half.
const FLAT: usize = 16 << 20;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

/// Random numbers that follow from a seed (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What clients know of what they did. Where one leaves before it has a response, the server may or may not have begun
/// it: such a request is counted from 0 to what it asked for.
#[derive(Debug, Default)]
struct Books {
    /// HTTP requests whose head was read for certain, by path.
    http: BTreeMap<&'static str, u64>,
    /// HTTP requests that may not have been read, by path.
    perhaps: BTreeMap<&'static str, u64>,
    /// Answers that were begun for certain.
    answers: u64,
    /// Answers that may have been begun.
    answers_perhaps: u64,
    /// Requests that were rejected with `Retry-After`.
    busy: u64,
    /// Requests that may have been.
    busy_perhaps: u64,
    /// What came back that should not.
    wrong: Vec<String>,
}

/// Seconds of the soak.
fn length() -> Duration {
    let asked = std::env::var("STRATA_SOAK").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(asked.unwrap_or(2.0))
}

#[test]
fn after_a_soak_every_request_is_counted_once_and_nothing_has_grown() {
    let _alone = alone();
    let target = Target::start(false, &["--max-num-seqs", "32", "--max-num-waiting", "48"]);
    let address = target.served.address().to_owned();
    let (length, began) = (length(), Instant::now());
    let files = target.open_files();
    let books = Mutex::new(Books::default());
    let mut memory = Vec::new();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (address, books) = (&address, &books);
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (client as u64 + 1) << 32);
                while began.elapsed() < length {
                    request(address, &mut random, books);
                    thread::sleep(Duration::from_millis(random.below(PAUSE)));
                }
            });
        }
        while began.elapsed() < length {
            memory.push((began.elapsed(), target.memory()));
            thread::sleep(Duration::from_millis(10));
        }
    });
    let books = books.into_inner().unwrap();
    let wrong = &books.wrong[..books.wrong.len().min(10)];
    assert!(wrong.is_empty(), "{} responses, among them {wrong:#?}", books.wrong.len());
    let idle = || target.requests() == 0.0 && target.metric("vllm:kv_cache_usage_perc") == 0.0;
    assert!(target.until(PATIENCE, idle), "{} requests are left", target.requests());
    // The question itself takes one.
    let closed = || target.open_files() <= files + 2;
    assert!(target.until(PATIENCE, closed), "{} files, before {files}", target.open_files());
    check(&target, &books);
    flat(&memory, length);
}

/// What the server counted, beside what its clients know.
fn check(target: &Target, books: &Books) {
    // A response is over for its client before it is counted.
    let all: u64 = books.http.values().sum();
    let counted = |path: &str| {
        let scrape = Scrape::read(target.served.get("/metrics").text());
        let family = scrape.0.get("http_requests_total");
        let samples = family.into_iter().flat_map(|family| &family.samples);
        let own = samples.filter(|sample| sample.labels["handler"] == path);
        own.map(|sample| sample.value as u64).sum::<u64>()
    };
    let there = || books.http.keys().map(|path| counted(path)).sum::<u64>() >= all;
    target.until(Duration::from_secs(10), there);
    for (path, certain) in &books.http {
        let most = certain + books.perhaps.get(path).unwrap_or(&0);
        let counted = counted(path);
        assert!((*certain..=most).contains(&counted), "{path}: {certain} to {most}, not {counted}");
    }
    let scrape = Scrape::read(target.served.get("/metrics").text());
    let ended = scrape.all("vllm:request_success_total") as u64;
    let most = books.answers + books.answers_perhaps;
    let least = books.answers;
    assert!((least..=most).contains(&ended), "answers: {least} to {most}, not {ended}: {books:?}");
    let rejected = scrape.all("vllm:admission_rejections_total") as u64;
    let most = books.busy + books.busy_perhaps;
    assert!((books.busy..=most).contains(&rejected), "429: {books:?}, not {rejected}");
    if std::env::var_os("STRATA_SOAK").is_some() {
        say(&format!(
            "{books:#?}\n{ended} answers ended, {rejected} requests were rejected with Retry-After"
        ));
    }
}

/// Maximum memory of each third of the second half.
fn flat(memory: &[(Duration, usize)], length: Duration) {
    let third = |n: u32| {
        let (from, to) = (length / 2 + length / 6 * n, length / 2 + length / 6 * (n + 1));
        let those = memory.iter().filter(|(at, _)| (from..to).contains(at));
        those.map(|(_, bytes)| *bytes).max().unwrap_or(0)
    };
    let thirds = [third(0), third(1), third(2)].map(|bytes| bytes >> 10);
    if std::env::var_os("STRATA_SOAK").is_some() {
        say(&format!("memory of the thirds of the second half, KiB: {thirds:?}"));
        let grown = thirds[2].saturating_sub(thirds[0]) << 10;
        assert!(grown < FLAT, "memory grows: {thirds:?} KiB");
    }
}

/// One request of some kind.
fn request(address: &str, random: &mut Random, books: &Mutex<Books>) {
    let scene = Scene::new(address, "", PATIENCE, true);
    let seed = random.below(1 << 30);
    let n = 1 + random.below(4);
    let length = if random.below(4) == 0 { 200 } else { 1 + random.below(30) };
    let stream = random.below(2) == 0;
    let mut completion = json!({
        "prompt": format!("Once upon {}", random.below(50)), "max_tokens": length, "n": n,
        "seed": seed, "stream": stream, "temperature": random.below(3),
    });
    let mut chat = json!({
        "messages": [{"role": "user", "content": format!("Say {}", random.below(50))}],
        "max_tokens": length, "n": n, "seed": seed, "stream": stream,
    });
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters": {
        "type": "object", "properties": {"zone": {"enum": ["utc", format!("z{}", random.below(200))]}},
        "required": ["zone"], "additionalProperties": false,
    }}}]);
    match random.below(12) {
        0..3 => whole(&scene, COMPLETIONS, &completion, n, books),
        3..5 => whole(&scene, CHATS, &chat, n, books),
        5 => {
            chat["tools"] = tools;
            chat["tool_choice"] = "required".into();
            whole(&scene, CHATS, &chat, n, books);
        }
        6 => {
            completion["guided_choice"] = json!([format!("yes {}", random.below(300)), "no"]);
            whole(&scene, COMPLETIONS, &completion, n, books);
        }
        7 => {
            completion["max_tokens"] = 400.into();
            completion["ignore_eos"] = true.into();
            completion["stream"] = true.into();
            left(&scene, &completion, n, random, books);
        }
        8 => gone(&scene, &completion, n, random, books),
        9 => half(&scene, &completion, random, books),
        10 => {
            completion["n"] = 40.into();
            whole(&scene, COMPLETIONS, &completion, 40, books);
        }
        _ => hostile(&scene, random, books),
    }
}

fn open<'a>(scene: &'a Scene, books: &Mutex<Books>) -> Option<Link<'a>> {
    let link = scene.open();
    if link.is_none() {
        books.lock().unwrap().wrong.push("no connection".to_owned());
    }
    link
}

/// Ask, and read all of the response.
fn whole(scene: &Scene, path: &'static str, body: &Value, n: u64, books: &Mutex<Books>) {
    let Some(mut link) = open(scene, books) else { return };
    link.post(path, body.to_string().as_bytes());
    let outcome = link.response(false);
    note(path, &outcome, n, books);
}

/// A response has begun, or should have.
fn note(path: &'static str, outcome: &Outcome, n: u64, books: &Mutex<Books>) {
    let mut books = books.lock().unwrap();
    *books.http.entry(path).or_default() += 1;
    match outcome {
        Outcome::Response { status: 200, .. } => books.answers += n,
        Outcome::Response { status: 429, .. } => books.busy += 1,
        other => {
            books.wrong.push(format!("{path}: {}", other.told()));
        }
    }
}

/// Ask for a stream, read some of it, and leave.
fn left(scene: &Scene, body: &Value, n: u64, random: &mut Random, books: &Mutex<Books>) {
    let Some(mut link) = open(scene, books) else { return };
    link.post(COMPLETIONS, body.to_string().as_bytes());
    let mut came = link.read(64);
    let began = String::from_utf8_lossy(&came).into_owned();
    let status = began.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    note(COMPLETIONS, &Outcome::Response { status, body: Vec::new(), bytes: 0 }, n, books);
    for _ in 0..random.below(30) {
        came = link.read(1 + random.below(500) as usize);
        if came.is_empty() {
            break;
        }
    }
}

/// Ask, and leave before there is a response.
fn gone(scene: &Scene, body: &Value, n: u64, random: &mut Random, books: &Mutex<Books>) {
    let Some(mut link) = open(scene, books) else { return };
    link.post(COMPLETIONS, body.to_string().as_bytes());
    if random.below(2) == 0 {
        link.send(b"G");
    }
    thread::sleep(Duration::from_millis(random.below(5)));
    let mut books = books.lock().unwrap();
    *books.perhaps.entry(COMPLETIONS).or_default() += 1;
    books.answers_perhaps += n;
    books.busy_perhaps += 1;
}

/// Send a part of a request, and leave.
fn half(scene: &Scene, body: &Value, random: &mut Random, books: &Mutex<Books>) {
    let Some(mut link) = open(scene, books) else { return };
    let body = body.to_string();
    let request = scene.head(COMPLETIONS, body.len()) + &body;
    let part = random.below(request.len() as u64 - 1) as usize;
    link.send(&request[..part]);
    if part > request.len() - body.len() {
        let mut books = books.lock().unwrap();
        *books.perhaps.entry(COMPLETIONS).or_default() += 1;
    }
}

/// Something that the server refuses.
fn hostile(scene: &Scene, random: &mut Random, books: &Mutex<Books>) {
    let (path, body) = match random.below(6) {
        0 => (COMPLETIONS, bodies::completion("x", &"[".repeat(200_000))),
        1 => (COMPLETIONS, bodies::wide("cache_salt", &bodies::list("7", 100_000))),
        2 => (CHATS, bodies::chat("tool_choice", &bodies::text(300_000))),
        3 => (COMPLETIONS, bodies::with("\"n\": 1", "prompt", &bodies::list("7", 200_000))),
        4 => (CHATS, b"{".to_vec()),
        _ => (COMPLETIONS, bodies::completion("guided_regex", "\"(((\"")),
    };
    let Some(mut link) = open(scene, books) else { return };
    link.post(path, &body);
    let outcome = link.response(false);
    scene.judge(&outcome);
    let mut books = books.lock().unwrap();
    *books.http.entry(path).or_default() += 1;
    let (told, wrong) = scene.told();
    if matches!(outcome, Outcome::Response { status: 429, .. }) {
        // A full queue is an error before a guide is compiled.
        books.busy += 1;
    } else if !wrong.is_empty() || !told.starts_with("400") {
        books.wrong.push(format!("{told}: {wrong:?}"));
    }
}

//! What is measured beside an attack: a neighbour's stream, `/health`, and the server's memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::server::{self, Target};

/// Between two looks at the server's memory.
const LOOK: Duration = Duration::from_millis(5);

/// Between two questions to `/health`.
const PROBE: Duration = Duration::from_millis(20);

/// How long the neighbour and the probe wait for anything.
const PATIENCE: Duration = Duration::from_secs(15);

/// A server with more memory than this is killed: the machine is not its own.
const MOST_MEMORY: usize = 5 << 30;

/// Times in milliseconds, each with the moment at which it began.
type Times = Vec<(Instant, f64)>;

#[derive(Default)]
struct Seen {
    /// Between two events of the neighbour's streams.
    gaps: Times,
    /// The last event of a stream that goes on.
    last_event: Option<Instant>,
    /// From the neighbour's requests to their first events.
    first: Times,
    /// Requests of the neighbour that were refused or broke off.
    refused: Vec<Instant>,
    /// Answers of `/health`.
    health: Times,
    /// A question to `/health` that has no answer yet.
    asked: Option<Instant>,
    /// Questions to `/health` that had no good answer.
    unhealthy: Vec<Instant>,
}

/// Threads that measure until this is dropped.
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    memory: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    pid: u32,
}

/// The beginning of a measurement.
pub struct Mark {
    at: Instant,
    peaks: bool,
}

/// What was measured since a mark. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    pub health_max: f64,
    pub health_p99: f64,
    pub itl_p99: f64,
    pub first_max: f64,
    /// Requests of the neighbour that were refused.
    pub refused: usize,
    /// Questions to `/health` without a good answer.
    pub unhealthy: usize,
    /// The server's most memory.
    pub memory: usize,
}

impl Watch {
    pub fn start(target: &Target) -> Self {
        let (seen, memory, stop) =
            <(Arc<Mutex<Seen>>, Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let address: SocketAddr = target.served.address().parse().unwrap();
        let pid = target.served.pid();
        let authorization = target.authorization;
        let runs = {
            let stop = stop.clone();
            move || !stop.load(Ordering::Relaxed)
        };
        let mut threads = Vec::new();
        threads.push(std::thread::spawn({
            let (seen, runs) = (seen.clone(), runs.clone());
            move || neighbour(address, authorization, &seen, runs)
        }));
        threads.push(std::thread::spawn({
            let (seen, runs) = (seen.clone(), runs.clone());
            move || probe(address, &seen, runs)
        }));
        threads.push(std::thread::spawn({
            let memory = memory.clone();
            move || {
                while runs() {
                    let now = server::memory(pid);
                    memory.fetch_max(now, Ordering::Relaxed);
                    if now > MOST_MEMORY {
                        crate::say(&format!("killed: the server has {} MiB", now >> 20));
                        let mut kill = std::process::Command::new("kill");
                        let _ = kill.args(["-KILL", &pid.to_string()]).status();
                    }
                    std::thread::sleep(LOOK);
                }
            }
        }));
        Self { seen, memory, stop, threads, pid }
    }

    /// Measure from here on.
    pub fn mark(&self) -> Mark {
        let peaks = server::forget_peak(self.pid);
        self.memory.store(server::memory(self.pid), Ordering::Relaxed);
        Mark { at: Instant::now(), peaks }
    }

    /// What was measured since then.
    pub fn since(&self, mark: &Mark) -> Reading {
        let seen = self.seen.lock().unwrap();
        let of = |times: &Times| -> Vec<f64> {
            let times = times.iter().filter(|(at, _)| *at >= mark.at);
            let mut times: Vec<f64> = times.map(|(_, ms)| *ms).collect();
            times.sort_unstable_by(f64::total_cmp);
            times
        };
        let open = |since: Option<Instant>| since.map(|at| milliseconds(at.max(mark.at)));
        let (mut health, mut gaps) = (of(&seen.health), of(&seen.gaps));
        // What has not come yet took at least until now.
        health.extend(open(seen.asked).filter(|ms| health.last().is_some_and(|last| last < ms)));
        gaps.extend(open(seen.last_event).filter(|ms| gaps.last().is_none_or(|last| last < ms)));
        let last = |times: &[f64]| times.last().copied().unwrap_or(0.0);
        let count = |moments: &[Instant]| moments.iter().filter(|at| **at >= mark.at).count();
        let sampled = self.memory.load(Ordering::Relaxed);
        Reading {
            health_max: last(&health),
            health_p99: p99(&health),
            itl_p99: p99(&gaps),
            first_max: last(&of(&seen.first)),
            refused: count(&seen.refused),
            unhealthy: count(&seen.unhealthy),
            memory: if mark.peaks { sampled.max(server::peak(self.pid)) } else { sampled },
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The 99th percentile of sorted times.
fn p99(sorted: &[f64]) -> f64 {
    let at = (sorted.len() * 99).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Stream one completion after another, and note when events come.
fn neighbour(
    address: SocketAddr,
    authorization: &str,
    seen: &Mutex<Seen>,
    runs: impl Fn() -> bool,
) {
    let prompt: Vec<usize> = (0..20).map(|at| 5 + at * 7 % 300).collect();
    let body = serde_json::json!({
        "prompt": prompt, "max_tokens": 450, "ignore_eos": true, "temperature": 0, "stream": true,
    })
    .to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{authorization}Connection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    while runs() {
        let began = Instant::now();
        let served = stream(address, &request, seen, &runs);
        let mut seen = seen.lock().unwrap();
        seen.last_event = None;
        if !served && runs() {
            seen.refused.push(began);
            drop(seen);
            std::thread::sleep(PROBE);
        }
    }
}

/// Read one stream; whether it was one, up to its end.
fn stream(address: SocketAddr, request: &str, seen: &Mutex<Seen>, runs: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    let Some(mut wire) = connect(address) else { return false };
    if wire.write_all(request.as_bytes()).is_err() {
        return false;
    }
    let (mut buffer, mut last, mut is_stream) = (vec![0; 64 << 10], None, false);
    while runs() {
        let Ok(n) = wire.read(&mut buffer) else { return false };
        if n == 0 {
            return is_stream;
        }
        let came = &buffer[..n];
        if !is_stream && !came.starts_with(b"HTTP/1.1 200") {
            return false;
        }
        is_stream = true;
        if !came.windows(6).any(|six| six == b"data: ") {
            continue;
        }
        let now = Instant::now();
        let mut seen = seen.lock().unwrap();
        match last.replace(now) {
            None => seen.first.push((began, milliseconds(began))),
            Some(before) => seen.gaps.push((before, (now - before).as_secs_f64() * 1e3)),
        }
        seen.last_event = Some(now);
    }
    true
}

/// Ask for `/health`, each time on a new connection, as an orchestrator does.
fn probe(address: SocketAddr, seen: &Mutex<Seen>, runs: impl Fn() -> bool) {
    while runs() {
        let began = Instant::now();
        seen.lock().unwrap().asked = Some(began);
        let healthy = asked(address);
        let mut seen = seen.lock().unwrap();
        seen.asked = None;
        seen.health.push((began, milliseconds(began)));
        if !healthy && runs() {
            seen.unhealthy.push(began);
        }
        drop(seen);
        std::thread::sleep(PROBE);
    }
}

fn asked(address: SocketAddr) -> bool {
    let Some(mut wire) = connect(address) else { return false };
    let request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = Vec::new();
    wire.write_all(request).is_ok()
        && wire.read_to_end(&mut answer).is_ok()
        && answer.starts_with(b"HTTP/1.1 200")
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let wire = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    wire.set_read_timeout(Some(PATIENCE)).ok()?;
    wire.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(wire)
}

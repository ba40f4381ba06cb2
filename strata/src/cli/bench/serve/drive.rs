//! The run: sends requests as the load says, until all have ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use super::arrivals::Load;
use super::client::{Client, Record};
use super::progress::Progress;
use crate::cli::interrupt::Interruptible;

/// Interval of the progress display and of the check for Ctrl-C.
const TICK: Duration = Duration::from_millis(200);
/// Interval of `--probe`.
const PROBE: Duration = Duration::from_millis(50);

/// Results of a run.
pub(super) struct Driven {
    /// Requests that ended, in the order of their ends.
    pub records: Vec<Record>,
    /// Number of requests that Ctrl-C ended or prevented.
    pub interrupted: usize,
    /// Latency of each probe in seconds; `None` for a failed one.
    pub probes: Vec<Option<f64>>,
}

/// Send all requests.
///
/// # Errors
/// A task that panicked.
pub(super) async fn drive(
    client: Arc<Client>,
    bodies: &[Bytes],
    load: &Load,
    probe: Option<&str>,
    progress: &Progress,
) -> anyhow::Result<Driven> {
    let mut run = Run {
        client: Arc::clone(&client),
        bodies,
        next: 0,
        running: JoinSet::new(),
        records: Vec::with_capacity(bodies.len()),
    };
    let probes = Probes::default();
    let prober = probe.map(|path| {
        tokio::spawn(probe_repeatedly(Arc::clone(&client), path.to_owned(), Arc::clone(&probes)))
    });
    let work = Interruptible::begin();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !work.stopped() {
        let due = run.start(load);
        if run.running.is_empty() && run.next == bodies.len() {
            break;
        }
        let at = due.map(|due| client.began() + Duration::from_secs_f64(due));
        tokio::select! {
            Some(ended) = run.running.join_next() => {
                run.records.push(ended.context("a request's task")?);
            }
            () = sleep_until(at.unwrap_or_else(std::time::Instant::now).into()), if at.is_some() => {}
            _ = tick.tick() => {
                progress.show(&run.records, run.running.len(), client.chunks(), client.now());
            }
        }
    }
    drop(work);
    if let Some(prober) = prober {
        prober.abort();
    }
    let probes = std::mem::take(&mut *probes.lock().unwrap_or_else(PoisonError::into_inner));
    let interrupted = bodies.len() - run.records.len();
    Ok(Driven { records: run.records, interrupted, probes })
}

struct Run<'a> {
    client: Arc<Client>,
    bodies: &'a [Bytes],
    /// Index of the next request to send.
    next: usize,
    running: JoinSet<Record>,
    records: Vec<Record>,
}

impl Run<'_> {
    /// Sends the requests that are due. Returns the time of the next one, if it has one.
    fn start(&mut self, load: &Load) -> Option<f64> {
        while let Some(body) = self.bodies.get(self.next) {
            let due = match load {
                Load::Open(moments) => {
                    let due = moments.get(self.next).copied().unwrap_or(0.0);
                    if due > self.client.now() {
                        return Some(due);
                    }
                    due
                }
                Load::Closed(limit) if self.running.len() >= *limit => return None,
                Load::Closed(_) => self.client.now(),
            };
            let (client, body, index) = (Arc::clone(&self.client), body.clone(), self.next);
            self.running.spawn(async move { client.send(index, body, due).await });
            self.next += 1;
        }
        None
    }
}

/// Latencies of the probes so far.
type Probes = Arc<Mutex<Vec<Option<f64>>>>;

/// Requests one path again and again.
async fn probe_repeatedly(client: Arc<Client>, path: String, all: Probes) {
    loop {
        let took = client.get(&path).await.map(|took| took.as_secs_f64());
        all.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        sleep(PROBE).await;
    }
}

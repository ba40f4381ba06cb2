//! Conversion of a run of an ensemble to the Trace Event Format.
//!
//! The router is a process; its threads are as many as requests were on their way to an engine at once. Each engine is
//! another process: its first thread has the steps, the others are its requests. An arrow (a flow: `s` to `f`) goes from
//! a request's route to the request in its engine, and another one to its shadow.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::chrome::{Tracks, name, slice, us, write_events};
use super::ensemble_run::{EngineRun, EnsembleRun, RequestAt, Route};
use super::run::ns;

/// Process id of the router.
const ROUTER: u64 = 1;

/// Process id of the first engine. The others follow.
const FIRST_ENGINE: u64 = 2;

/// Writes a run of an ensemble as Chrome trace events, in the order of time.
///
/// # Errors
/// Errors of `out`.
pub fn write_ensemble_chrome(run: &EnsembleRun, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    let mut names =
        vec![name("process_name", ROUTER, 1, format!("router: {}", run.header.ensemble))];
    let mut events = Vec::new();
    let mut flows = Flows::default();
    let mut threads = Vec::new();
    for route in &run.routes {
        let thread = free(&mut threads, ns(route.event.arrived_us), run.left_router(route));
        flows.route(run, route, thread, &mut events);
    }
    for thread in 0..threads.len() as u64 {
        names.push(name("thread_name", ROUTER, thread + 1, format!("requests {}", thread + 1)));
    }
    for (i, engine) in run.engines.iter().enumerate() {
        let EngineRun { lane, replica, run, .. } = engine;
        let tracks = tracks(i);
        let model = run.header.model.as_deref().unwrap_or("another server");
        let title = format!("{lane}, replica {replica}: {model} {}", run.header.policy);
        names.push(name("process_name", tracks.engine, 1, title.trim_end().to_owned()));
        names.push(name("thread_name", tracks.engine, 1, "steps".to_owned()));
        for (k, request) in run.lanes.iter().enumerate() {
            let title = format!("request {}", request.id);
            names.push(name("thread_name", tracks.requests, tracks.thread(k), title));
        }
        events.extend(tracks.slices(run));
    }
    // A slice must come before those nested in it, and before its flows: it was made first, and the sort is stable.
    events.sort_by_key(|(at, _)| *at);
    write_events(&run.header, names, events, out)
}

fn tracks(engine: usize) -> Tracks {
    let process = FIRST_ENGINE + engine as u64;
    Tracks { engine: process, requests: process, first: 2, leases: None }
}

/// A thread that has no slice at `start`, from 1; `threads` has the end of each one's last slice.
fn free(threads: &mut Vec<u64>, start: u64, end: u64) -> u64 {
    let found = threads.iter().position(|until| *until <= start).unwrap_or(threads.len());
    if found == threads.len() {
        threads.push(end);
    }
    threads[found] = end;
    found as u64 + 1
}

/// Flows, each with another id.
#[derive(Default)]
struct Flows(u64);

impl Flows {
    /// A request on its way: decision, doors, and flows to its engine and to its shadow's.
    fn route(
        &mut self,
        run: &EnsembleRun,
        route: &Route,
        thread: u64,
        events: &mut Vec<(u64, Value)>,
    ) {
        let event = &route.event;
        let track = (ROUTER, thread);
        let (arrived, decided) = (ns(event.arrived_us), ns(event.decided_us));
        let left = run.left_router(route);
        let title = match (&event.lane, event.admitted_us) {
            (Some(lane), Some(_)) => format!("to {lane}: {}", event.by),
            (_, None) if !event.refused.is_empty() => "refused".to_owned(),
            _ => "given up".to_owned(),
        };
        let args = serde_json::to_value(event).unwrap_or_default();
        events.push(slice(("route", &title), track, arrived, left, args));
        events.push(slice(("route", "routes"), track, arrived, decided, json!({})));
        events.push(slice(("route", "admits"), track, decided, left, json!({})));
        for at in &route.requests {
            self.flow("route", track, decided, run, *at, events);
        }
        if let Some((_, at)) = &route.shadow {
            self.flow("shadow", track, decided, run, *at, events);
        }
    }

    /// An arrow from a slice of the router to the first slice of a request.
    fn flow(
        &mut self,
        what: &str,
        (pid, tid): (u64, u64),
        start: u64,
        run: &EnsembleRun,
        at: RequestAt,
        events: &mut Vec<(u64, Value)>,
    ) {
        let Some(span) = run.engines[at.engine].run.lanes[at.request].spans.first() else { return };
        let (id, tracks) = (self.0, tracks(at.engine));
        self.0 += 1;
        let begin = json!({
            "ph": "s", "name": what, "cat": "route", "id": id, "pid": pid, "tid": tid, "ts": us(start),
        });
        let end = json!({
            "ph": "f", "bp": "e", "name": what, "cat": "route", "id": id, "pid": tracks.requests,
            "tid": tracks.thread(at.request), "ts": us(span.start.max(start)),
        });
        events.push((start, begin));
        events.push((span.start.max(start), end));
    }
}

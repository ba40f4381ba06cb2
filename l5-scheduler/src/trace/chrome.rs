//! Conversion of a run to the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//!
//! The format is described in Google's document "Trace Event Format" (Duca and Sinclair): an object with `traceEvents`;
//! each event has `ph` (its kind), `pid` and `tid` (its process and thread) and `ts` in microseconds. `X` is a complete
//! slice with a duration `dur`, and slices of one thread must nest; `C` is a counter whose values are `args`; `i` is an
//! instant with a scope `s`; `M` names processes and threads.
//!
//! Here the engine is one process, whose only thread has the steps with their phases nested in them; the requests are
//! another, with a thread each, in which loads are nested; the leases of each job are a third one, with stores nested in
//! them.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::event::PhasesUs;
use super::holds::{TransferKind, rows};
use super::run::{Run, StepSpan};

/// Processes and threads of a run.
#[derive(Clone, Copy)]
pub(super) struct Tracks {
    /// Process of the engine, whose thread 1 has the steps.
    pub engine: u64,
    /// Process of the requests.
    pub requests: u64,
    /// Thread of the first request. The others follow, in the order of arrival.
    pub first: u64,
    /// Process of the leases; `None`: they are left out.
    pub leases: Option<u64>,
}

/// Tracks of a run of one engine: steps, requests and leases are processes of their own.
const ALONE: Tracks = Tracks { engine: 1, requests: 2, first: 1, leases: Some(3) };

/// Writes a run as Chrome trace events, in the order of time.
///
/// # Errors
/// Errors of `out`.
pub fn write_chrome(run: &Run, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    // A slice must come before those nested in it: it was made first, and the sort is stable.
    let mut events = ALONE.slices(run);
    events.sort_by_key(|(at, _)| *at);
    write_events(&run.header, names(run), events, out)
}

/// Writes the names of tracks, and then events in the order of time.
pub(super) fn write_events(
    header: &impl serde::Serialize,
    names: Vec<Value>,
    events: Vec<(u64, Value)>,
    out: &mut (impl Write + ?Sized),
) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(&mut *out, header)?;
    write!(out, ",\"traceEvents\":[")?;
    let events = names.into_iter().chain(events.into_iter().map(|(_, event)| event));
    for (i, event) in events.enumerate() {
        out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &event)?;
    }
    writeln!(out, "\n]}}")
}

pub(super) fn name(what: &str, pid: u64, tid: u64, name: String) -> Value {
    json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}})
}

fn names(run: &Run) -> Vec<Value> {
    let model = run.header.model.as_deref().unwrap_or("model");
    let mut names = vec![
        name("process_name", ALONE.engine, 1, format!("engine: {model}, {}", run.header.policy)),
        name("thread_name", ALONE.engine, 1, "steps".to_owned()),
        name("process_name", ALONE.requests, 0, "requests".to_owned()),
    ];
    if let (Some(leases), false) = (ALONE.leases, run.holds.is_empty()) {
        names.push(name("process_name", leases, 0, "leases".to_owned()));
        let (_, rows) = hold_rows(run);
        for (row, job) in (1..).zip(rows) {
            names.push(name("thread_name", leases, row, format!("job {job}")));
        }
    }
    for (i, lane) in run.lanes.iter().enumerate() {
        let thread = ALONE.thread(i);
        names.push(name("thread_name", ALONE.requests, thread, format!("request {}", lane.id)));
    }
    names
}

/// Row of each lease, and the name of each row: its job.
fn hold_rows(run: &Run) -> (Vec<usize>, Vec<String>) {
    rows(run.holds.iter().map(|hold| (hold.job.as_deref(), hold.start, hold.end)))
}

/// Microseconds, with a fraction.
pub(super) fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// A slice of a thread. `cat` is its category.
pub(super) fn slice(
    (cat, name): (&str, &str),
    (pid, tid): (u64, u64),
    start: u64,
    end: u64,
    args: Value,
) -> (u64, Value) {
    let (ts, dur) = (us(start), us(end.saturating_sub(start)));
    let event = json!({
        "ph": "X", "name": name, "cat": cat,
        "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
    });
    (start, event)
}

impl Tracks {
    /// Thread of a request.
    pub fn thread(&self, lane: usize) -> u64 {
        self.first + lane as u64
    }

    /// Events of a run, with the times at which they begin.
    pub fn slices(&self, run: &Run) -> Vec<(u64, Value)> {
        let mut events = Vec::new();
        let speculates = run.steps.iter().any(|step| step.draft_tokens > 0);
        for step in &run.steps {
            self.step(step, speculates, &mut events);
        }
        for (i, lane) in run.lanes.iter().enumerate() {
            for span in &lane.spans {
                let steps = json!({"steps": span.to - span.from});
                let (what, track) =
                    (("request", span.kind.name()), (self.requests, self.thread(i)));
                events.push(slice(what, track, span.start, span.end, steps));
            }
            if let Some(at) = lane.first_token {
                events.push(self.instant("first token", i, at, json!({})));
            }
            if let Some(end) = &lane.end {
                let mut args = json!({"tokens": lane.tokens, "cached": lane.cached});
                if let (true, Some(args)) = (lane.drafts > 0, args.as_object_mut()) {
                    args.insert("drafts".into(), json!(lane.drafts));
                    args.insert("accepted".into(), json!(lane.accepted));
                }
                let name = if end.rejected { "rejected" } else { "ended" };
                events.push(self.instant(&format!("{name}: {}", end.reason), i, end.at, args));
            }
        }
        self.kv(run, &mut events);
        events
    }

    /// Leases, and loads and stores.
    fn kv(&self, run: &Run, events: &mut Vec<(u64, Value)>) {
        let (placed, _) = hold_rows(run);
        let thread_of: HashMap<usize, u64> =
            run.holds.iter().zip(&placed).map(|(hold, row)| (hold.lane, *row as u64 + 1)).collect();
        if let Some(pid) = self.leases {
            for (hold, row) in run.holds.iter().zip(&placed) {
                let name = format!("request {}", run.lanes[hold.lane].id);
                let args = json!({"lease": hold.lease, "blocks": hold.blocks, "tool": hold.tool, "why": hold.why});
                let track = (pid, *row as u64 + 1);
                events.push(slice(("lease", &name), track, hold.start, hold.end, args));
            }
        }
        for transfer in &run.transfers {
            let track = match (transfer.kind, self.leases, thread_of.get(&transfer.lane)) {
                (TransferKind::Load, ..) => (self.requests, self.thread(transfer.lane)),
                (TransferKind::Store, Some(pid), Some(thread)) => (pid, *thread),
                (TransferKind::Store, ..) => continue,
            };
            let args = json!({"tokens": transfer.tokens, "arrived": transfer.arrived});
            let what = ("transfer", transfer.kind.name());
            events.push(slice(what, track, transfer.start, transfer.end, args));
        }
    }

    fn step(&self, step: &StepSpan, speculates: bool, events: &mut Vec<(u64, Value)>) {
        let name = format!("step {}{}", step.number, if step.abandoned { " (failed)" } else { "" });
        let mut args = json!({
            "tokens": step.tokens(), "prefill": step.prefill_tokens, "resumed": step.resumed_tokens,
            "decode": step.decode_tokens, "new_tokens": step.new_tokens,
        });
        if let (Some(shape), Some(args)) = (step.shape, args.as_object_mut()) {
            args.insert("shape".into(), json!(shape));
        }
        if let (true, Some(args)) = (speculates, args.as_object_mut()) {
            args.insert("drafts".into(), json!(step.draft_tokens));
            args.insert("accepted".into(), json!(step.accepted_tokens));
        }
        let (pid, steps) = (self.engine, (self.engine, 1));
        events.push(slice(("step", &name), steps, step.start, step.end, args));
        let mut at = step.start;
        for (name, part) in PhasesUs::NAMES.iter().zip(step.parts).filter(|(_, part)| *part > 0) {
            // The clock may run slower than the phases were measured: a step ends where the next one begins.
            let end = (at + part).min(step.end);
            events.push(slice(("step", name), steps, at, end, json!({})));
            at = end;
        }
        let counters = [
            ("queue", json!({"running": step.running, "waiting": step.waiting})),
            (
                "KV blocks",
                json!({"used": step.kv.total.saturating_sub(step.kv.free), "leased": step.kv.leased}),
            ),
            (
                "tokens a step",
                json!({"prefill": step.prefill_tokens, "resumed": step.resumed_tokens, "decode": step.decode_tokens}),
            ),
        ];
        let drafts = speculates.then(|| {
            let rejected = step.draft_tokens - step.accepted_tokens;
            ("drafts a step", json!({"accepted": step.accepted_tokens, "rejected": rejected}))
        });
        for (name, args) in counters.into_iter().chain(drafts) {
            let counter = json!({"ph": "C", "name": name, "pid": pid, "tid": 1, "ts": us(step.start), "args": args});
            events.push((step.start, counter));
        }
        for lane in &step.preempted {
            events.push(self.instant("preempted", *lane, step.start, json!({"step": step.number})));
        }
    }

    fn instant(&self, name: &str, lane: usize, at: u64, args: Value) -> (u64, Value) {
        let event = json!({
            "ph": "i", "s": "t", "name": name, "cat": "request", "pid": self.requests,
            "tid": self.thread(lane), "ts": us(at), "args": args,
        });
        (at, event)
    }
}

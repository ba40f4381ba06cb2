//! Conversion of a run to the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//!
//! The format is described in Google's document "Trace Event Format" (Duca and Sinclair): an object with `traceEvents`;
//! each event has `ph` (its kind), `pid` and `tid` (its process and thread) and `ts` in microseconds. `X` is a complete
//! slice with a duration `dur`, and slices of one thread must nest; `C` is a counter whose values are `args`; `i` is an
//! instant with a scope `s`; `M` names processes and threads.
//!
//! Here the engine is one process, whose only thread has the steps with their phases nested in them; the requests are
//! another, with a thread each.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::event::PhasesUs;
use super::run::Run;

/// Process id of the engine.
const ENGINE: u64 = 1;
/// Process id of the requests.
const REQUESTS: u64 = 2;

/// Writes a run as Chrome trace events, in the order of time.
///
/// # Errors
/// Errors of `out`.
pub fn write_chrome(run: &Run, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    // A slice must come before those nested in it: it was made first, and the sort is stable.
    let mut events = slices(run);
    events.sort_by_key(|(at, _)| *at);
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(&mut *out, &run.header)?;
    write!(out, ",\"traceEvents\":[")?;
    let events = names(run).into_iter().chain(events.into_iter().map(|(_, event)| event));
    for (i, event) in events.enumerate() {
        out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &event)?;
    }
    writeln!(out, "\n]}}")
}

fn name(what: &str, pid: u64, tid: u64, name: String) -> Value {
    json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}})
}

fn names(run: &Run) -> Vec<Value> {
    let model = run.header.model.as_deref().unwrap_or("model");
    let mut names = vec![
        name("process_name", ENGINE, 1, format!("engine: {model}, {}", run.header.policy)),
        name("thread_name", ENGINE, 1, "steps".to_owned()),
        name("process_name", REQUESTS, 0, "requests".to_owned()),
    ];
    for (i, lane) in run.lanes.iter().enumerate() {
        names.push(name("thread_name", REQUESTS, thread(i), format!("request {}", lane.id)));
    }
    names
}

/// Thread id of a request: from 1, in the order of arrival.
fn thread(lane: usize) -> u64 {
    lane as u64 + 1
}

/// Microseconds, with a fraction.
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn slice(name: &str, (pid, tid): (u64, u64), start: u64, end: u64, args: Value) -> (u64, Value) {
    let (ts, dur) = (us(start), us(end.saturating_sub(start)));
    let event = json!({
        "ph": "X", "name": name, "cat": if pid == ENGINE { "step" } else { "request" },
        "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
    });
    (start, event)
}

fn slices(run: &Run) -> Vec<(u64, Value)> {
    let mut events = Vec::new();
    for step in &run.steps {
        let name = format!("step {}{}", step.number, if step.abandoned { " (failed)" } else { "" });
        let args = json!({
            "tokens": step.tokens(), "prefill": step.prefill_tokens, "resumed": step.resumed_tokens,
            "decode": step.decode_tokens, "new_tokens": step.new_tokens,
        });
        let steps = (ENGINE, 1);
        events.push(slice(&name, steps, step.start, step.end, args));
        let mut at = step.start;
        for (name, part) in PhasesUs::NAMES.iter().zip(step.parts).filter(|(_, part)| *part > 0) {
            // The clock may run slower than the phases were measured: a step ends where the next one begins.
            let end = (at + part).min(step.end);
            events.push(slice(name, steps, at, end, json!({})));
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
        for (name, args) in counters {
            let counter = json!({"ph": "C", "name": name, "pid": ENGINE, "tid": 1, "ts": us(step.start), "args": args});
            events.push((step.start, counter));
        }
        for lane in &step.preempted {
            events.push(instant("preempted", *lane, step.start, json!({"step": step.number})));
        }
    }
    for (i, lane) in run.lanes.iter().enumerate() {
        for span in &lane.spans {
            let steps = json!({"steps": span.to - span.from});
            events.push(slice(
                span.kind.name(),
                (REQUESTS, thread(i)),
                span.start,
                span.end,
                steps,
            ));
        }
        if let Some(at) = lane.first_token {
            events.push(instant("first token", i, at, json!({})));
        }
        if let Some(end) = &lane.end {
            let args = json!({"tokens": lane.tokens, "cached": lane.cached});
            let name = if end.rejected { "rejected" } else { "ended" };
            events.push(instant(&format!("{name}: {}", end.reason), i, end.at, args));
        }
    }
    events
}

fn instant(name: &str, lane: usize, at: u64, args: Value) -> (u64, Value) {
    let event = json!({
        "ph": "i", "s": "t", "name": name, "cat": "request", "pid": REQUESTS, "tid": thread(lane),
        "ts": us(at), "args": args,
    });
    (at, event)
}

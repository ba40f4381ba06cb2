//! What the timeline's page holds. There may be many steps, so they are columns of numbers; moments are microseconds
//! since the run began.

use std::io::{self, Write};

use l5_scheduler::trace::{
    Header, Hold, Lane, PhasesUs, Run, SpanKind, StepSpan, Summary, TracedShape, TransferKind, rows,
};
use serde::Serialize;

use super::super::template;

/// Data of one engine.
#[derive(Serialize)]
pub(super) struct Page<'a> {
    title: &'a str,
    header: &'a Header,
    summary: Summary,
    left_out: usize,
    kinds: [&'static str; SpanKind::ALL.len()],
    end: f64,
    kv_total: usize,
    steps: Columns,
    /// `[step, lane, kind, tokens, computed before, cached, new]`, of rows that do more than decode.
    rows: Vec<[u64; 7]>,
    /// `[step, lane, drafts, accepted]`, of rows with drafts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drafts: Vec<[usize; 4]>,
    /// `[step, lane]`
    preempted: Vec<[usize; 2]>,
    /// `[step, lane, reason]`
    finished: Vec<(usize, usize, &'a str)>,
    /// Steps that did not count.
    failed: Vec<usize>,
    /// Shapes of the steps; absent where the composer is the default one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shapes: Vec<Option<TracedShape>>,
    lanes: Vec<LaneData<'a>>,
    /// Jobs of the rows on which leases are drawn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holds: Vec<HoldData<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    transfers: Vec<TransferData>,
    /// Steps that began with a copy to a tier, and the number of blocks.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    write_backs: &'a [(usize, usize)],
}

/// A lease.
#[derive(Serialize)]
struct HoldData<'a> {
    row: usize,
    lane: usize,
    blocks: usize,
    tool: Option<&'a str>,
    why: Option<&'a str>,
    /// Step in which its end was seen.
    ended: Option<usize>,
    /// As a span of a lane, with kind 0.
    span: [f64; 5],
}

/// A load or a store.
#[derive(Serialize)]
struct TransferData {
    lane: usize,
    store: bool,
    tokens: usize,
    arrived: Option<usize>,
    /// As a span of a lane, with kind 0.
    span: [f64; 5],
}

#[derive(Default, Serialize)]
struct Columns {
    number: Vec<u64>,
    at: Vec<f64>,
    end: Vec<f64>,
    parts: [Vec<f64>; PhasesUs::COUNT],
    running: Vec<usize>,
    waiting: Vec<usize>,
    used: Vec<usize>,
    findable: Vec<usize>,
    leased: Vec<usize>,
    prefill: Vec<usize>,
    resumed: Vec<usize>,
    decode: Vec<usize>,
    decodes: Vec<usize>,
    chosen: Vec<usize>,
    /// Drafts that were verified, and those that were accepted; absent of a run without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drafts: Vec<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    accepted: Vec<usize>,
}

#[derive(Serialize)]
struct LaneData<'a> {
    id: u64,
    at: f64,
    prompt: usize,
    max_tokens: usize,
    priority: i64,
    cached: usize,
    tokens: usize,
    drafts: usize,
    accepted: usize,
    preemptions: u32,
    first: Option<f64>,
    end: Option<(f64, &'a str, bool)>,
    /// Five numbers a span: kind, start, end, first step, step behind the last.
    spans: Vec<f64>,
}

/// Moments on the page.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// Beginning of the run, in nanoseconds.
    pub began: u64,
}

impl Clock {
    /// Microseconds since the run began, to a tenth: a page shows no more.
    pub fn at(self, ns: u64) -> f64 {
        tenths(ns.saturating_sub(self.began))
    }
}

fn tenths(ns: u64) -> f64 {
    (ns as f64 / 100.0).round() / 10.0
}

/// Writes the page.
///
/// # Errors
/// Those of `out`.
pub fn write(run: &Run, title: &str, mut out: &mut dyn Write) -> io::Result<()> {
    let parts = [
        ("title", template::escaped(title)),
        ("style", include_str!("style.css").to_owned()),
        ("data", template::data(&Page::new(run, title, run.bounds()))?),
        ("scale", include_str!("scale.js").to_owned()),
        ("charts", include_str!("charts.js").to_owned()),
        ("words", include_str!("words.js").to_owned()),
        ("view", include_str!("view.js").to_owned()),
    ];
    template::fill(include_str!("page.html"), &parts, &mut out)
}

impl<'a> Page<'a> {
    /// Data of a run, whose page shows the time from `began` to `ended`.
    pub fn new(run: &'a Run, title: &'a str, (began, ended): (u64, u64)) -> Self {
        let clock = Clock { began };
        let mut page = Self {
            title,
            header: &run.header,
            summary: Summary::of(run),
            left_out: run.left_out,
            kinds: SpanKind::ALL.map(SpanKind::name),
            end: clock.at(ended),
            kv_total: run.steps.iter().map(|step| step.kv.total).max().unwrap_or(0),
            steps: Columns::default(),
            rows: Vec::new(),
            drafts: Vec::new(),
            preempted: Vec::new(),
            finished: Vec::new(),
            failed: Vec::new(),
            shapes: Vec::new(),
            lanes: run.lanes.iter().map(|lane| LaneData::new(lane, clock)).collect(),
            jobs: Vec::new(),
            holds: Vec::new(),
            transfers: Vec::new(),
            write_backs: &[],
        };
        page.add_kv(run, clock);
        page.add_drafts(run);
        if run.steps.iter().any(|step| step.shape.is_some()) {
            page.shapes = run.steps.iter().map(|step| step.shape).collect();
        }
        for (i, step) in run.steps.iter().enumerate() {
            page.steps.push(step, clock);
            page.rows.extend(step.prefills.iter().map(|(lane, row)| {
                let kind = kind(row.phase.into());
                let [tokens, computed, cached, new] =
                    [row.tokens, row.computed, row.cached, row.new].map(|n| n as u64);
                [i as u64, *lane as u64, kind as u64, tokens, computed, cached, new]
            }));
            page.preempted.extend(step.preempted.iter().map(|lane| [i, *lane]));
            page.finished.extend(step.finished.iter().map(|(lane, why)| (i, *lane, why.as_str())));
            if step.abandoned {
                page.failed.push(i);
            }
        }
        page
    }
}

impl<'a> Page<'a> {
    /// Adds drafts, if there are any.
    fn add_drafts(&mut self, run: &Run) {
        if run.steps.iter().all(|step| step.drafts.is_empty()) {
            return;
        }
        self.steps.drafts = run.steps.iter().map(|step| step.draft_tokens).collect();
        self.steps.accepted = run.steps.iter().map(|step| step.accepted_tokens).collect();
        let all = run.steps.iter().enumerate();
        let rows = |(at, step): (usize, &StepSpan)| {
            let row = move |(lane, proposed, accepted): &(usize, usize, usize)| {
                [at, *lane, *proposed, *accepted]
            };
            step.drafts.iter().map(row).collect::<Vec<_>>()
        };
        self.drafts = all.flat_map(rows).collect();
    }

    /// Adds leases, and loads and stores.
    fn add_kv(&mut self, run: &'a Run, clock: Clock) {
        let span = |start, end, from: usize, to: usize| {
            [0.0, clock.at(start), clock.at(end), from as f64, to.max(from + 1) as f64]
        };
        let spans = run.holds.iter().map(|hold| (hold.job.as_deref(), hold.start, hold.end));
        let (placed, jobs) = rows(spans);
        self.jobs = jobs;
        let hold = |(hold, row): (&'a Hold, usize)| HoldData {
            row,
            lane: hold.lane,
            blocks: hold.blocks,
            tool: hold.tool.as_deref(),
            why: hold.why.as_deref(),
            ended: hold.why.as_ref().map(|_| hold.to),
            span: span(hold.start, hold.end, hold.from, hold.to),
        };
        self.holds = run.holds.iter().zip(placed).map(hold).collect();
        let transfers = run.transfers.iter().map(|own| TransferData {
            lane: own.lane,
            store: own.kind == TransferKind::Store,
            tokens: own.tokens,
            arrived: own.arrived,
            span: span(own.start, own.end, own.from, own.to),
        });
        self.transfers = transfers.collect();
        self.write_backs = &run.write_backs;
    }
}

fn kind(kind: SpanKind) -> usize {
    SpanKind::ALL.iter().position(|k| *k == kind).unwrap_or_default()
}

impl Columns {
    fn push(&mut self, step: &StepSpan, clock: Clock) {
        self.number.push(step.number);
        self.at.push(clock.at(step.start));
        self.end.push(clock.at(step.end));
        for (column, part) in self.parts.iter_mut().zip(step.parts) {
            column.push(tenths(part));
        }
        self.running.push(step.running);
        self.waiting.push(step.waiting);
        self.used.push(step.kv.total.saturating_sub(step.kv.free));
        self.findable.push(step.kv.findable);
        self.leased.push(step.kv.leased);
        self.prefill.push(step.prefill_tokens);
        self.resumed.push(step.resumed_tokens);
        self.decode.push(step.decode_tokens);
        self.decodes.push(step.decodes);
        self.chosen.push(step.new_tokens);
    }
}

impl<'a> LaneData<'a> {
    fn new(lane: &'a Lane, clock: Clock) -> Self {
        let span = |span: &l5_scheduler::trace::Span| {
            let steps = [span.from, span.to].map(|step| step as f64);
            let [start, end] = [span.start, span.end].map(|at| clock.at(at));
            [kind(span.kind) as f64, start, end, steps[0], steps[1]]
        };
        Self {
            id: lane.id,
            at: clock.at(lane.arrived),
            prompt: lane.prompt,
            max_tokens: lane.max_tokens,
            priority: lane.priority,
            cached: lane.cached,
            tokens: lane.tokens,
            drafts: lane.drafts,
            accepted: lane.accepted,
            preemptions: lane.preemptions,
            first: lane.first_token.map(|at| clock.at(at)),
            end: lane.end.as_ref().map(|end| (clock.at(end.at), end.reason.as_str(), end.rejected)),
            spans: lane.spans.iter().flat_map(span).collect(),
        }
    }
}

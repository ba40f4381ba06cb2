//! Timelines of a run: when each request was queued, computed or preempted.

use std::collections::HashMap;
use std::io::BufRead;

use super::event::{Event, Header, Kv, PhasesUs, Row, RowDrafts, RowPhase, StepEvent, TracedShape};
use super::holds::{Hold, Open, Transfer};
use super::read::{Reader, TraceError};

/// A recorded run: steps, and a timeline (lane) for each request. Times and durations are nanoseconds.
#[derive(Clone, Debug)]
pub struct Run {
    /// Header of the recording.
    pub header: Header,
    /// Steps, in their order.
    pub steps: Vec<StepSpan>,
    /// Requests, in the order of arrival. Other fields refer to them by their index here.
    pub lanes: Vec<Lane>,
    /// Leases, in the order in which they were recorded.
    pub holds: Vec<Hold>,
    /// Loads and stores, in the order in which they began.
    pub transfers: Vec<Transfer>,
    /// Steps that began with a copy of blocks that they may overwrite (their index), and the number of blocks.
    pub write_backs: Vec<(usize, usize)>,
    /// Times between two output tokens of a request, in no particular order.
    pub gaps: Vec<u64>,
    /// Number of steps of the recording that were left out.
    pub left_out: usize,
}

/// A step.
#[derive(Clone, Debug, Default)]
pub struct StepSpan {
    /// Number of the step.
    pub number: u64,
    /// Time of planning.
    pub start: u64,
    /// Time of its end; at the latest when the next one begins.
    pub end: u64,
    /// Durations of the phases, in the order of [`PhasesUs::NAMES`].
    pub parts: [u64; PhasesUs::COUNT],
    /// Number of running requests.
    pub running: usize,
    /// Number of waiting requests.
    pub waiting: usize,
    /// State of the block pool.
    pub kv: Kv,
    /// Shape that the step was planned with; `None`: the composer is the default one.
    pub shape: Option<TracedShape>,
    /// Rows that do more than decode, with the index of their lane. (Rows that decode are too many to keep.)
    pub prefills: Vec<(usize, Row)>,
    /// Drafts of rows, with the index of their lane: its number of drafts, and of accepted ones.
    pub drafts: Vec<(usize, usize, usize)>,
    /// Number of drafts of all rows, which are among the tokens of rows that decode.
    pub draft_tokens: usize,
    /// Number of drafts that were accepted.
    pub accepted_tokens: usize,
    /// Number of prompt tokens computed.
    pub prefill_tokens: usize,
    /// Number of tokens computed again after a preemption.
    pub resumed_tokens: usize,
    /// Number of tokens of rows that decode, drafts included.
    pub decode_tokens: usize,
    /// Number of rows that decode, with drafts or without.
    pub decodes: usize,
    /// Number of tokens sampled.
    pub new_tokens: usize,
    /// Lanes of the requests that were preempted.
    pub preempted: Vec<usize>,
    /// Lanes of the requests that ended, with their finish reasons.
    pub finished: Vec<(usize, String)>,
    /// Whether the step was abandoned, so that nothing of it counts.
    pub abandoned: bool,
}

impl StepSpan {
    /// Number of tokens computed.
    pub fn tokens(&self) -> usize {
        self.prefill_tokens + self.resumed_tokens + self.decode_tokens
    }
}

/// Timeline of a request.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Request id.
    pub id: u64,
    /// Time of arrival.
    pub arrived: u64,
    /// Number of prompt tokens; 0 if the recording began after the request arrived.
    pub prompt: usize,
    /// Maximum number of output tokens.
    pub max_tokens: usize,
    /// Priority: a lower value runs earlier.
    pub priority: i64,
    /// Job that the request is a step of.
    pub job: Option<String>,
    /// What the request did, without overlaps, in order.
    pub spans: Vec<Span>,
    /// Tokens hit in the cache, at all of its admissions.
    pub cached: usize,
    /// Number of output tokens.
    pub tokens: usize,
    /// Number of drafts that steps verified for it.
    pub drafts: usize,
    /// Number of drafts that were accepted.
    pub accepted: usize,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Time of its first output token.
    pub first_token: Option<u64>,
    /// How it ended, if it did.
    pub end: Option<LaneEnd>,
    /// Time of its last output token.
    last_token: Option<u64>,
}

/// End of a request.
#[derive(Clone, Debug)]
pub struct LaneEnd {
    /// Time of the end.
    pub at: u64,
    /// Finish reason, or code of the rejection.
    pub reason: String,
    /// Whether the request was rejected on arrival.
    pub rejected: bool,
}

/// Part of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What the request did.
    pub kind: SpanKind,
    /// Time of the beginning.
    pub start: u64,
    /// Time of the end.
    pub end: u64,
    /// Index of the first step in [`Run::steps`].
    pub from: usize,
    /// Index behind the last step. Equal to `from` if the request did not wait for a whole step.
    pub to: usize,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Waits for its first admission.
    Queued,
    /// Computes its prompt.
    Prefill,
    /// Decodes.
    Decode,
    /// Was preempted, and waits.
    Preempted,
    /// Computes its tokens again after a preemption.
    Resumed,
}

impl SpanKind {
    /// All kinds.
    pub const ALL: [SpanKind; 5] =
        [Self::Queued, Self::Prefill, Self::Decode, Self::Preempted, Self::Resumed];

    /// Name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Preempted => "preempted",
            Self::Resumed => "resumed",
        }
    }

    fn waits(self) -> bool {
        matches!(self, Self::Queued | Self::Preempted)
    }
}

impl From<RowPhase> for SpanKind {
    fn from(phase: RowPhase) -> Self {
        match phase {
            RowPhase::Prefill => Self::Prefill,
            // A lane shows what its request is about, and a row with drafts is about its output.
            RowPhase::Decode | RowPhase::Verify => Self::Decode,
            RowPhase::Resumed => Self::Resumed,
        }
    }
}

impl Run {
    /// Reads a recording to its end, and keeps its first `most` steps.
    ///
    /// # Errors
    /// [`TraceError`]
    pub fn read(mut reader: Reader<impl BufRead>, most: usize) -> Result<Self, TraceError> {
        let mut fold = Fold::new(reader.header().clone());
        while let Some(event) = reader.next_event()? {
            let step = matches!(event, Event::Step(_));
            if fold.run.left_out > 0 || (step && fold.run.steps.len() >= most) {
                fold.run.left_out += usize::from(step);
            } else {
                fold.event(event);
            }
        }
        Ok(fold.finish())
    }

    /// Times of the first arrival and of the last end.
    pub fn bounds(&self) -> (u64, u64) {
        let starts = self.lanes.iter().map(|lane| lane.arrived);
        let start = starts.chain(self.steps.first().map(|step| step.start)).min().unwrap_or(0);
        let ends = self.lanes.iter().map(|lane| lane.arrived);
        let end = ends.chain(self.steps.last().map(|step| step.end)).max().unwrap_or(0);
        (start, end)
    }
}

/// A run that is being read.
pub(super) struct Fold {
    pub run: Run,
    /// Newest lane of each request id: a request that is rejected because its id is in use has a lane of its own.
    by_id: HashMap<u64, usize>,
    /// Leases and transfers that have not ended.
    pub(super) open: Open,
}

impl Fold {
    pub fn new(header: Header) -> Self {
        let (steps, lanes, gaps) = (Vec::new(), Vec::new(), Vec::new());
        let (holds, transfers) = (Vec::new(), Vec::new());
        let write_backs = Vec::new();
        let run = Run { header, steps, lanes, holds, transfers, write_backs, gaps, left_out: 0 };
        Self { run, by_id: HashMap::new(), open: Open::default() }
    }

    pub fn event(&mut self, event: Event) {
        match event {
            Event::Arrived { id, at_us, prompt, max_tokens, priority, job } => {
                let at = ns(at_us);
                let from = self.run.steps.len();
                let queued = Span { kind: SpanKind::Queued, start: at, end: at, from, to: from };
                let spans = vec![queued];
                let lane = Lane {
                    id,
                    arrived: at,
                    prompt,
                    max_tokens,
                    priority,
                    job,
                    spans,
                    ..Lane::default()
                };
                self.by_id.insert(id, self.run.lanes.len());
                self.run.lanes.push(lane);
            }
            Event::Rejected { id, at_us, reason } => {
                let at = ns(at_us);
                let end = Some(LaneEnd { at, reason, rejected: true });
                self.run.lanes.push(Lane { id, arrived: at, end, ..Lane::default() });
            }
            Event::Step(step) => self.step(step),
            Event::FirstToken { id, at_us, .. } => {
                let lane = self.lane(id, ns(at_us));
                self.run.lanes[lane].first_token = Some(ns(at_us));
            }
            Event::Ended { id, at_us, reason, .. } => {
                let (lane, at, steps) = (self.lane(id, ns(at_us)), ns(at_us), self.run.steps.len());
                let lane = &mut self.run.lanes[lane];
                lane.stop_waiting(at, steps);
                lane.end = Some(LaneEnd { at, reason, rejected: false });
            }
        }
    }

    /// Lane of a request. A recording that began in the middle of a run has requests that never arrived.
    pub fn lane(&mut self, id: u64, now: u64) -> usize {
        let lanes = &mut self.run.lanes;
        *self.by_id.entry(id).or_insert_with(|| {
            lanes.push(Lane { id, arrived: now, ..Lane::default() });
            lanes.len() - 1
        })
    }

    fn step(&mut self, event: StepEvent) {
        let at = self.run.steps.len();
        // A clock that goes backwards cannot be drawn.
        let before = self.run.steps.last().map_or(0, |step| step.start);
        let start = ns(event.at_us).max(before);
        let end = start + ns(event.duration_us());
        if let Some(step) = self.run.steps.last_mut() {
            step.end = step.end.min(start);
        }
        let mut step = StepSpan {
            number: event.step,
            start,
            end,
            parts: event.phases_us.parts().map(ns),
            running: event.running,
            waiting: event.waiting,
            kv: event.kv,
            shape: event.shape,
            abandoned: event.abandoned,
            ..StepSpan::default()
        };
        self.kv_events(event.kv_events, start, event.abandoned);
        for id in event.preempted {
            let lane = self.lane(id, start);
            step.preempted.push(lane);
            let lane = &mut self.run.lanes[lane];
            lane.preemptions += 1;
            lane.spans.push(Span {
                kind: SpanKind::Preempted,
                start,
                end: start,
                from: at,
                to: at,
            });
        }
        // Nothing of an abandoned step was computed.
        for RowDrafts { row, proposed, accepted } in
            event.drafts.into_iter().filter(|_| !event.abandoned)
        {
            let Some(row) = event.rows.get(row) else { continue };
            let lane = self.lane(row.id, start);
            step.drafts.push((lane, proposed, accepted));
            step.draft_tokens = step.draft_tokens.saturating_add(proposed);
            step.accepted_tokens = step.accepted_tokens.saturating_add(accepted);
            let lane = &mut self.run.lanes[lane];
            lane.drafts = lane.drafts.saturating_add(proposed);
            lane.accepted = lane.accepted.saturating_add(accepted);
        }
        for row in event.rows.into_iter().filter(|_| !event.abandoned) {
            let place = self.lane(row.id, start);
            let lane = &mut self.run.lanes[place];
            lane.computes(row.phase.into(), start, end, at);
            lane.cached += row.cached;
            lane.tokens += row.new;
            step.new_tokens += row.new;
            if row.new > 0
                && let Some(last) = lane.last_token.replace(end)
            {
                // Tokens of one step arrive together: the first took the time, the others none.
                self.run.gaps.push(end.saturating_sub(last));
                self.run.gaps.extend(std::iter::repeat_n(0, row.new - 1));
            }
            match row.phase {
                RowPhase::Prefill => step.prefill_tokens += row.tokens,
                RowPhase::Resumed => step.resumed_tokens += row.tokens,
                RowPhase::Decode | RowPhase::Verify => {
                    step.decode_tokens += row.tokens;
                    step.decodes += 1;
                    continue;
                }
            }
            step.prefills.push((place, row));
        }
        for (id, reason) in event.finished {
            step.finished.push((self.lane(id, start), reason));
        }
        self.run.steps.push(step);
    }

    pub fn finish(mut self) -> Run {
        let (_, end) = self.run.bounds();
        self.end_kv(end);
        let steps = self.run.steps.len();
        for lane in self.run.lanes.iter_mut().filter(|lane| lane.end.is_none()) {
            lane.stop_waiting(end, steps);
        }
        self.run
    }
}

impl Lane {
    /// Adds step `at` to the timeline.
    fn computes(&mut self, kind: SpanKind, start: u64, end: u64, at: usize) {
        self.stop_waiting(start, at);
        match self.spans.last_mut() {
            Some(last) if last.kind == kind && last.to == at => (last.end, last.to) = (end, at + 1),
            _ => {
                self.stop(start);
                self.spans.push(Span { kind, start, end, from: at, to: at + 1 });
            }
        }
    }

    /// Ends what the request did: under a clock that runs slower than the phases were measured, steps overlap.
    fn stop(&mut self, now: u64) {
        if let Some(last) = self.spans.last_mut() {
            last.end = last.end.min(now).max(last.start);
        }
    }

    fn stop_waiting(&mut self, now: u64, at: usize) {
        if let Some(last) = self.spans.last_mut().filter(|last| last.kind.waits()) {
            // A request may state a later arrival than the event's.
            last.start = last.start.min(now);
            (last.end, last.to) = (now, at);
        }
    }
}

/// Latest time, in nanoseconds (about 36 years): times up to it can be added without overflow.
const END_OF_TIME: u64 = 1 << 60;

/// Nanoseconds of microseconds. A file may have negative or huge times.
pub(super) fn ns(us: f64) -> u64 {
    ((us * 1000.0).round() as u64).min(END_OF_TIME)
}

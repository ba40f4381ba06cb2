//! From events to lanes: who was queued, computed or preempted from when to when.

use std::collections::HashMap;
use std::io::BufRead;

use super::event::{Event, Header, Kv, Row, RowPhase, StepEvent};
use super::read::{Reader, TraceError};

/// A recorded run, in the shape in which it is looked at: steps on one axis, requests on the other. Moments and durations
/// are nanoseconds.
#[derive(Clone, Debug)]
pub struct Run {
    /// What ran.
    pub header: Header,
    /// The steps, in their order.
    pub steps: Vec<StepSpan>,
    /// The requests, in the order of arrival. Other fields name them by their place here.
    pub lanes: Vec<Lane>,
    /// From each token to the next one of the same request, in no order of interest.
    pub gaps: Vec<u64>,
    /// Steps that the recording has and the run has not.
    pub left_out: usize,
}

/// A step.
#[derive(Clone, Debug, Default)]
pub struct StepSpan {
    /// Its number.
    pub number: u64,
    /// When it was planned.
    pub start: u64,
    /// When it was over; at the latest when the next one began.
    pub end: u64,
    /// What plan, pack, forward, sample and apply took.
    pub parts: [u64; 5],
    /// Requests that ran.
    pub running: usize,
    /// Requests that waited.
    pub waiting: usize,
    /// The pool meanwhile.
    pub kv: Kv,
    /// Rows that do more than decode, with their lanes. (Of those that decode there are too many to keep.)
    pub prefills: Vec<(usize, Row)>,
    /// Tokens of prompts.
    pub prefill_tokens: usize,
    /// Tokens that were computed again.
    pub resumed_tokens: usize,
    /// Tokens of rows that decode.
    pub decode_tokens: usize,
    /// Rows that decode.
    pub decodes: usize,
    /// Tokens that were chosen.
    pub new_tokens: usize,
    /// Lanes of who was preempted.
    pub preempted: Vec<usize>,
    /// Lanes of who ended, and why.
    pub finished: Vec<(usize, String)>,
    /// Whether it failed, so that nothing of it counts.
    pub abandoned: bool,
}

impl StepSpan {
    /// Tokens that were computed.
    pub fn tokens(&self) -> usize {
        self.prefill_tokens + self.resumed_tokens + self.decode_tokens
    }
}

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Its number.
    pub id: u64,
    /// When it came.
    pub arrived: u64,
    /// Tokens of its prompt; 0 if the recording began after it came.
    pub prompt: usize,
    /// The most tokens of its answer.
    pub max_tokens: usize,
    /// How urgent it is.
    pub priority: i64,
    /// What it did, without overlaps, in order.
    pub spans: Vec<Span>,
    /// Tokens found in the cache, at all of its admissions.
    pub cached: usize,
    /// Tokens of its answer.
    pub tokens: usize,
    /// How often it was preempted.
    pub preemptions: u32,
    /// When its first token was there.
    pub first_token: Option<u64>,
    /// How it ended, if it did.
    pub end: Option<LaneEnd>,
    /// When its last token was there.
    last_token: Option<u64>,
}

/// The end of a request.
#[derive(Clone, Debug)]
pub struct LaneEnd {
    /// When.
    pub at: u64,
    /// Why: a finish reason, or that of a refusal.
    pub reason: String,
    /// Whether it was refused on arrival.
    pub rejected: bool,
}

/// A stretch of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it did.
    pub kind: SpanKind,
    /// From when.
    pub start: u64,
    /// To when.
    pub end: u64,
    /// The first step, by its place in [`Run::steps`].
    pub from: usize,
    /// The step behind the last one. May be `from`, for who did not wait for a whole step.
    pub to: usize,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// It has not begun.
    Queued,
    /// It computes its prompt.
    Prefill,
    /// It has tokens chosen.
    Decode,
    /// It gave way to others.
    Preempted,
    /// It computes again what it had.
    Resumed,
}

impl SpanKind {
    /// All of them.
    pub const ALL: [SpanKind; 5] =
        [Self::Queued, Self::Prefill, Self::Decode, Self::Preempted, Self::Resumed];

    /// In a word.
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
            RowPhase::Decode => Self::Decode,
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
        let run = Self {
            header: reader.header().clone(),
            steps: Vec::new(),
            lanes: Vec::new(),
            gaps: Vec::new(),
            left_out: 0,
        };
        let mut fold = Fold { run, by_id: HashMap::new() };
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

    /// The first moment, and the last one.
    pub fn bounds(&self) -> (u64, u64) {
        let starts = self.lanes.iter().map(|lane| lane.arrived);
        let start = starts.chain(self.steps.first().map(|step| step.start)).min().unwrap_or(0);
        let ends = self.lanes.iter().map(|lane| lane.arrived);
        let end = ends.chain(self.steps.last().map(|step| step.end)).max().unwrap_or(0);
        (start, end)
    }
}

/// A run that is being read.
struct Fold {
    run: Run,
    /// The lane that has a name now: who is refused because a name is taken has a lane of its own.
    by_id: HashMap<u64, usize>,
}

impl Fold {
    fn event(&mut self, event: Event) {
        match event {
            Event::Arrived { id, at_us, prompt, max_tokens, priority } => {
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

    /// A request's lane. A recording that began in the middle of a run names some that never arrived.
    fn lane(&mut self, id: u64, now: u64) -> usize {
        let lanes = &mut self.run.lanes;
        *self.by_id.entry(id).or_insert_with(|| {
            lanes.push(Lane { id, arrived: now, ..Lane::default() });
            lanes.len() - 1
        })
    }

    fn step(&mut self, event: StepEvent) {
        let at = self.run.steps.len();
        // A clock that goes backwards draws no picture.
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
            abandoned: event.abandoned,
            ..StepSpan::default()
        };
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
        // Of a step that failed nothing was computed.
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
                // Tokens of one step come together: the first took the time, the others none.
                self.run.gaps.push(end.saturating_sub(last));
                self.run.gaps.extend(std::iter::repeat_n(0, row.new - 1));
            }
            match row.phase {
                RowPhase::Prefill => step.prefill_tokens += row.tokens,
                RowPhase::Resumed => step.resumed_tokens += row.tokens,
                RowPhase::Decode => {
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

    fn finish(mut self) -> Run {
        let (_, end) = self.run.bounds();
        let steps = self.run.steps.len();
        for lane in self.run.lanes.iter_mut().filter(|lane| lane.end.is_none()) {
            lane.stop_waiting(end, steps);
        }
        self.run
    }
}

impl Lane {
    /// It takes part in step `at`.
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

    /// Whatever it did is over by now: under a clock that runs slower than phases are measured, steps overlap.
    fn stop(&mut self, now: u64) {
        if let Some(last) = self.spans.last_mut() {
            last.end = last.end.min(now).max(last.start);
        }
    }

    fn stop_waiting(&mut self, now: u64, at: usize) {
        if let Some(last) = self.spans.last_mut().filter(|last| last.kind.waits()) {
            // A request may say that it came later than it was seen.
            last.start = last.start.min(now);
            (last.end, last.to) = (now, at);
        }
    }
}

/// Some 36 years in nanoseconds: moments below it can be added.
const END_OF_TIME: u64 = 1 << 60;

/// Nanoseconds of microseconds. What a file says may be negative or beyond all clocks.
fn ns(us: f64) -> u64 {
    ((us * 1000.0).round() as u64).min(END_OF_TIME)
}

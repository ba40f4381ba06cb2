//! Writing a recording.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ensemble::{EngineEvent, EnsembleEvent};
use super::event::{Event, Header, Kv, PhasesUs, Row, RowDrafts, RowPhase, StepEvent, VERSION};
use super::kv::KvEvent;
use super::queue::EngineQueue;
use crate::scheduler::num_accepted;
use crate::{
    Admitted, FinishReason, Rejection, RequestId, RequestView, RowView, Scheduler, StepObserver,
    StepResult, StepView, Time,
};

/// Size of the write buffer, in bytes: some hundred steps, so that few steps wait for a disk.
const BUFFER: usize = 256 * 1024;

/// Writes the events of an engine, one JSON object a line.
///
/// A recorder is a handle: clones write to the same file. Give one to the engine and keep one, to call
/// [`finish`](Recorder::finish) at the end of the run.
///
/// ```no_run
/// # use l5_scheduler::{EngineCore, Executor, trace::Recorder};
/// # fn run<E: Executor>(mut core: EngineCore<E>) -> Result<(), Box<dyn std::error::Error>> {
/// let recorder = Recorder::create("run.jsonl")?.with_model("SmolLM2-135M");
/// core.set_observer(Some(recorder.observer()));
/// while core.has_unfinished() {
///     core.step()?;
/// }
/// recorder.finish()?;
/// # Ok(())
/// # }
/// ```
///
/// A full disk does not stop the run: the first error is kept, nothing more is written, and `finish` returns it. The
/// memory used is that of one step and of the unfinished requests.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Recording>>);

/// State that the handles share.
struct Recording {
    out: Out,
    failure: Option<io::Error>,
    model: Option<String>,
    begun: bool,
    line: Vec<u8>,
    /// The step that is planned and not over yet.
    open: Option<StepEvent>,
    /// Drafts of that step, row by row, which are compared with the sampled tokens.
    drafts: Vec<u32>,
    /// The previous step, whose memory is reused.
    spare: StepEvent,
    live: HashMap<RequestId, Live>,
    /// Requests whose end was written before the result that has it, in order.
    told: Vec<RequestId>,
    /// Number of the last step, and when it was over.
    last: (u64, f64),
    /// Number of the next change of leases and loads.
    next_change: u64,
}

/// Where lines go.
enum Out {
    /// To a file of this engine alone.
    File(BufWriter<Box<dyn Write + Send>>),
    /// To a file that the engines of an ensemble share.
    Shared(EngineQueue),
}

/// An unfinished request.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    tokens: usize,
    preemptions: u32,
}

impl Recorder {
    /// Records to a file, which is created or truncated.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(File::create(path)?))
    }

    /// Records to a writer, which need not be buffered.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self::of(Out::File(BufWriter::with_capacity(BUFFER, Box::new(writer))))
    }

    /// Records to a file that several engines share.
    pub(super) fn shared(queue: EngineQueue) -> Self {
        Self::of(Out::Shared(queue))
    }

    fn of(out: Out) -> Self {
        Self(Arc::new(Mutex::new(Recording {
            out,
            failure: None,
            model: None,
            begun: false,
            line: Vec::new(),
            open: None,
            drafts: Vec::new(),
            spare: StepEvent::default(),
            live: HashMap::new(),
            told: Vec::new(),
            last: (0, 0.0),
            next_change: 0,
        })))
    }

    /// Sets the model's name. It is written in the header, so it must be set before the engine gets the recorder.
    #[must_use]
    pub fn with_model(self, name: impl Into<String>) -> Self {
        self.lock().model = Some(name.into());
        self
    }

    /// An observer for [`EngineCore::set_observer`](crate::EngineCore::set_observer).
    pub fn observer(&self) -> Box<dyn StepObserver> {
        Box::new(self.clone())
    }

    /// Writes what is buffered, and returns whether all was written. Afterwards nothing more is recorded.
    ///
    /// # Errors
    /// The first error since the recording began.
    pub fn finish(&self) -> io::Result<()> {
        let mut recording = self.lock();
        recording.close_abandoned();
        let end = match recording.failure.take() {
            Some(failure) => Err(failure),
            None => match &mut recording.out {
                Out::File(writer) => writer.flush(),
                // Its writer goes on for the others.
                Out::Shared(_) => Ok(()),
            },
        };
        recording.failure = Some(io::Error::other("the recording is finished"));
        end
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl StepObserver for Recorder {
    fn attached(&mut self, scheduler: &Scheduler) {
        self.lock().begin(scheduler);
    }

    fn arrived(&mut self, request: RequestView<'_>) {
        let mut recording = self.lock();
        recording.live.insert(request.id(), Live::of(&request));
        recording.write(&Event::Arrived {
            id: request.id().0,
            at_us: us(request.arrival()),
            prompt: request.prompt_len(),
            max_tokens: request.max_tokens(),
            priority: request.priority(),
            job: request.job().map(|job| job.id.clone()),
        });
    }

    fn rejected(&mut self, id: RequestId, arrival: Time, why: &Rejection) {
        let reason = why.code().to_owned();
        self.lock().write(&Event::Rejected { id: id.0, at_us: us(arrival), reason });
    }

    fn ended(&mut self, ended: &[(RequestId, FinishReason)]) {
        // Another request may arrive with such an id before the next result.
        let mut recording = self.lock();
        for (id, why) in ended {
            recording.ended(*id, *why);
            recording.told.push(*id);
        }
    }

    fn lost(&mut self, ended: &[(RequestId, FinishReason)]) {
        let mut recording = self.lock();
        recording.close_abandoned();
        let mut told = std::mem::take(&mut recording.told);
        for (id, why) in ended {
            match told.iter().position(|told| told == id) {
                Some(at) => _ = told.remove(at),
                None => recording.ended(*id, *why),
            }
        }
    }

    fn planned(&mut self, step: &StepView<'_>, scheduler: &Scheduler) {
        self.lock().planned(step, scheduler);
    }

    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler) {
        self.lock().applied(result, scheduler);
    }
}

impl Recording {
    fn begin(&mut self, scheduler: &Scheduler) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let (model, policy) = (self.model.take(), scheduler.policy_name().to_owned());
        let config = scheduler.config().into();
        match self.out {
            Out::File(_) => self.write(&Header { strata_trace: VERSION, model, policy, config }),
            Out::Shared(_) => {
                self.write(&EnsembleEvent::Engine(EngineEvent { model, policy, config }));
            }
        }
    }

    fn planned(&mut self, view: &StepView<'_>, scheduler: &Scheduler) {
        self.begin(scheduler);
        self.close_abandoned();
        let step = view.step();
        let mut event = std::mem::take(&mut self.spare);
        event.step = step.number;
        event.at_us = us(step.now);
        event.rows.clear();
        event.rows.extend(view.rows().map(|row| traced(&row)));
        event.drafts.clear();
        self.drafts.clear();
        for (at, row) in view.rows().enumerate().filter(|(_, row)| !row.drafts.is_empty()) {
            event.drafts.push(RowDrafts { row: at, proposed: row.drafts.len(), accepted: 0 });
            self.drafts.extend_from_slice(row.drafts);
        }
        event.running = scheduler.num_running();
        event.waiting = scheduler.num_waiting();
        event.preempted.clear();
        event.preempted.extend(step.preempted.iter().map(|id| id.0));
        event.finished.clear();
        event.kv = Kv {
            total: scheduler.config().capacity(),
            free: scheduler.blocks().num_free(),
            findable: scheduler.blocks().cache().len(),
            leased: scheduler.leases().blocks(),
        };
        event.kv_events.clear();
        self.take_changes(scheduler, &mut event.kv_events);
        event.kv_events.extend(step.ops.iter().map(KvEvent::of_op));
        // Of the default composer all steps are mixed.
        event.shape = (scheduler.composer_name() != "mixed").then(|| step.shape.into());
        event.phases_us = PhasesUs::default();
        event.abandoned = false;
        for row in view.rows().filter(|row| !row.request.has_ended()) {
            self.live.entry(row.row.id).or_insert_with(|| Live::of(&row.request));
        }
        for id in &step.preempted {
            self.live.entry(*id).or_default().preemptions += 1;
        }
        self.open = Some(event);
    }

    /// Takes what has happened to leases and loads since the last call.
    fn take_changes(&mut self, scheduler: &Scheduler, events: &mut Vec<KvEvent>) {
        for record in scheduler.kv_changes(self.next_change) {
            self.next_change = record.number + 1;
            events.push(KvEvent::of_change(record, us));
        }
    }

    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler) {
        let told = self.told.len().min(result.finished.len());
        self.told.clear();
        // Those whose end was written already come first, and may have successors with their ids.
        let ended = &result.finished[told..];
        let Some(mut event) = self.open.take() else {
            ended.iter().for_each(|(id, why)| self.ended(*id, *why));
            return;
        };
        self.take_changes(scheduler, &mut event.kv_events);
        event.phases_us = result.phases.into();
        if event.at_us < self.last.1 {
            // It was planned ahead, and waited for the step before it.
            let start = us(result.at) + event.phases_us.apply - event.duration_us();
            event.at_us = event.at_us.max(round(start));
        }
        let at_us = round(event.at_us + event.duration_us());
        let step = event.step;
        self.last = (step, at_us);
        // All are in the order of the rows.
        let mut rows = event.rows.iter_mut().enumerate();
        let mut drafted = event.drafts.iter_mut().peekable();
        let mut drafts = self.drafts.as_slice();
        let mut first = Vec::new();
        for (id, tokens) in result.new_tokens() {
            if let Some((at, row)) = rows.find(|(_, row)| row.id == id.0) {
                row.new = tokens.len();
                while let Some(own) = drafted.next_if(|own| own.row <= at) {
                    let (of_row, rest) = drafts.split_at(own.proposed.min(drafts.len()));
                    drafts = rest;
                    if own.row == at {
                        own.accepted = num_accepted(of_row, tokens);
                    }
                }
            }
            let live = self.live.entry(id).or_default();
            if live.tokens == 0 {
                first.push(id.0);
            }
            live.tokens += tokens.len();
        }
        event.finished.extend(ended.iter().map(|(id, why)| (id.0, why.as_str().to_owned())));
        let event = Event::Step(event);
        self.write(&event);
        if let Event::Step(event) = event {
            self.spare = event;
        }
        for id in first {
            self.write(&Event::FirstToken { id, step, at_us });
        }
        ended.iter().for_each(|(id, why)| self.ended(*id, *why));
    }

    /// Writes the end of a request.
    fn ended(&mut self, id: RequestId, why: FinishReason) {
        let Live { tokens, preemptions } = self.live.remove(&id).unwrap_or_default();
        let ((step, at_us), reason) = (self.last, why.as_str().to_owned());
        self.write(&Event::Ended { id: id.0, step, at_us, reason, tokens, preemptions });
    }

    /// Writes a step as abandoned, if it was planned and not applied.
    fn close_abandoned(&mut self) {
        if let Some(mut event) = self.open.take() {
            event.abandoned = true;
            self.last = (event.step, round(event.at_us + event.duration_us()));
            self.write(&Event::Step(event));
        }
    }

    fn write(&mut self, value: &impl serde::Serialize) {
        if self.failure.is_some() {
            return;
        }
        if !self.begun {
            let late =
                "a recording begins with the scheduler: attach the recorder before requests come";
            self.failure = Some(io::Error::other(late));
            return;
        }
        self.line.clear();
        let written =
            serde_json::to_writer(&mut self.line, value).map_err(io::Error::from).and_then(|()| {
                self.line.push(b'\n');
                match &mut self.out {
                    Out::File(writer) => writer.write_all(&self.line),
                    Out::Shared(queue) => {
                        queue.push(&self.line);
                        Ok(())
                    }
                }
            });
        self.failure = written.err();
    }
}

impl Live {
    fn of(request: &RequestView<'_>) -> Self {
        let tokens = request.num_tokens() - request.prompt_len();
        Self { tokens, preemptions: request.preemptions() }
    }
}

fn traced(row: &RowView<'_>) -> Row {
    let request = &row.request;
    let generated = request.num_tokens() > request.prompt_len();
    let last = row.row.computed + 1 == request.num_tokens();
    let phase = if row.row.drafts > 0 {
        RowPhase::Verify
    } else if row.row.admitted == Admitted::Before && generated && last {
        RowPhase::Decode
    } else if request.preemptions() > 0 {
        RowPhase::Resumed
    } else {
        RowPhase::Prefill
    };
    Row {
        id: row.row.id.0,
        phase,
        tokens: row.row.len,
        computed: row.row.computed,
        cached: row.row.cached,
        new: 0,
    }
}

/// A time in microseconds, to the nanosecond. JSON has no infinity: times that are not finite are written as 0.
fn us(time: Time) -> f64 {
    round(time.seconds() * 1e6)
}

fn round(us: f64) -> f64 {
    if us.is_finite() { (us * 1000.0).round() / 1000.0 } else { 0.0 }
}

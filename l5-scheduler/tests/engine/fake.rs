//! An executor without a model, whose steps a test can hold, fail and watch.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::ModelFacts;
use l5_scheduler::{
    BySeat, Caps, ChoiceJob, Engine, EngineCore, EngineRequest, ExecuteError, Executor,
    FinishReason, KvCompletion, LeaseId, OutputEnd, RequestId, Scheduler, SchedulerConfig,
    StepHandle, StepObserver, StepOp, StepOutput, StepResult, StepView, TokenDelta,
};

pub const VOCAB: usize = 1000;

/// Maximum time that a test waits for an engine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a test holds of the executor inside an engine.
#[derive(Clone, Default)]
pub struct Control(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// Whether steps wait until they are let through, and how many may pass.
    held: bool,
    permits: usize,
    /// Steps that wait or have passed.
    begun: usize,
    /// What goes wrong in the steps to come, in their order.
    troubles: Vec<Trouble>,
    /// Who was in each step that ran.
    steps: Vec<Vec<RequestId>>,
    /// Who was told an end, and which.
    ends: Vec<(RequestId, FinishReason)>,
    /// Of whom observers were told that no result will tell of them.
    lost: Vec<(RequestId, FinishReason)>,
    /// Free blocks when each step was over; equal ones count once.
    free: Vec<usize>,
}

/// What can go wrong in a step.
#[derive(Clone, Copy)]
pub enum Trouble {
    None,
    Error,
    Panic,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, no step ends that is not let through.
    pub fn hold(&self) {
        self.lock().held = true;
    }

    /// Wait until a step is held.
    pub fn wait_for_step(&self, number: usize) {
        let state = self.lock();
        drop(self.0.1.wait_while(state, |state| state.begun < number).unwrap());
    }

    /// Let so many steps through.
    pub fn pass(&self, steps: usize) {
        self.lock().permits += steps;
        self.0.1.notify_all();
    }

    /// Hold no step any more.
    pub fn open(&self) {
        self.lock().held = false;
        self.0.1.notify_all();
    }

    /// What goes wrong in the next steps.
    pub fn troubles(&self, troubles: &[Trouble]) {
        self.lock().troubles = troubles.to_vec();
    }

    /// Who was in each step that ran.
    pub fn steps(&self) -> Vec<Vec<RequestId>> {
        self.lock().steps.clone()
    }

    /// Who was told an end, and which.
    pub fn ends(&self) -> Vec<(RequestId, FinishReason)> {
        self.lock().ends.clone()
    }

    /// Of whom observers were told that no result will tell of them.
    pub fn lost(&self) -> Vec<(RequestId, FinishReason)> {
        self.lock().lost.clone()
    }

    /// Waits until the numbers of free blocks, step after step, end like this; equal ones count once.
    pub fn wait_for_free_blocks(&self, last: &[usize]) {
        let state = self.lock();
        let wait = |state: &mut State| !state.free.ends_with(last);
        let (state, waited) = self.0.1.wait_timeout_while(state, TIMEOUT, wait).unwrap();
        assert!(!waited.timed_out(), "free blocks after {TIMEOUT:?}: {:?}", state.free);
    }

    /// Free blocks when the last step was over.
    pub fn free_blocks(&self) -> Option<usize> {
        self.lock().free.last().copied()
    }

    /// A step begins: held until it is let through.
    fn begin(&self, rows: Vec<RequestId>) -> Trouble {
        let mut state = self.lock();
        state.begun += 1;
        self.0.1.notify_all();
        state = self.0.1.wait_while(state, |state| state.held && state.permits == 0).unwrap();
        if state.held {
            state.permits -= 1;
        }
        state.steps.push(rows);
        if state.troubles.is_empty() { Trouble::None } else { state.troubles.remove(0) }
    }
}

/// Answers with tokens that count on from the sum of the prompt: see [`answer`]. What it stores is stored when it has been
/// asked for it a few times.
pub struct Fake {
    control: Control,
    jobs: BySeat<(ChoiceJob, usize)>,
    /// Leases whose blocks are being stored, and the number of polls until they are.
    storing: Vec<(LeaseId, usize)>,
}

/// The first `n` tokens of the answer to a prompt.
pub fn answer(prompt: &[u32], n: usize) -> Vec<u32> {
    (0..n).map(|i| token(prompt, i)).collect()
}

fn token(prompt: &[u32], i: usize) -> u32 {
    (prompt.iter().sum::<u32>() + i as u32) % VOCAB as u32
}

impl Executor for Fake {
    type Job = ChoiceJob;
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        let most = usize::MAX;
        Caps { max_tokens: most, max_seqs: most, can_store: true, ..Caps::default() }
    }

    fn begin(&mut self, id: RequestId, job: ChoiceJob) {
        self.jobs.insert(id, (job, 0));
    }

    fn poll(&mut self, completed: &mut Vec<KvCompletion>) {
        self.storing.retain_mut(|(lease, left)| {
            let stored = *left == 0;
            *left = left.saturating_sub(1);
            if stored {
                completed.push(KvCompletion::Stored { lease: *lease });
            }
            !stored
        });
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        match self.control.begin(step.rows().map(|row| row.row.id).collect()) {
            Trouble::None => {}
            Trouble::Error => return Err(ExecuteError::Malformed("a cable came loose".into())),
            Trouble::Panic => panic!("a wheel came off"),
        }
        for op in &step.step().ops {
            if let StepOp::Store { lease, .. } = op {
                self.storing.push((*lease, 3));
            }
        }
        for (number, row) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            let job = self.jobs.seated(row.row.seat, row.row.id);
            let (job, given) = job.expect("a request with a row has begun");
            let token = token(&job.prompt, *given);
            *given += 1;
            let text = format!("{token} ");
            job.sink.push(&TokenDelta { tokens: &[token], text: &text, logprobs: &[] });
            out.push(number, &[token], None);
        }
        Ok(())
    }

    fn end(&mut self, id: RequestId, reason: FinishReason) {
        self.control.lock().ends.push((id, reason));
        if let Some((mut job, _)) = self.jobs.remove(id) {
            job.sink.end(&OutputEnd::of(reason));
        }
    }
}

/// Looks at the pool after every step, and at who was lost with one.
struct PoolWatch(Control);

impl StepObserver for PoolWatch {
    fn planned(&mut self, _: &StepView<'_>, _: &Scheduler) {}

    fn applied(&mut self, _: &StepResult, scheduler: &Scheduler) {
        self.0.lock().free.push(scheduler.blocks().num_free());
        self.0.lock().free.dedup();
        self.0.0.1.notify_all();
    }

    fn lost(&mut self, ended: &[(RequestId, FinishReason)]) {
        self.0.lock().lost.extend(ended);
    }
}

/// A pool that is large enough for most tests, without a cache so that a free block is a free block.
pub fn limits() -> SchedulerConfig {
    SchedulerConfig { enable_prefix_caching: false, ..SchedulerConfig::new(65, 4) }
}

/// An engine without a model. At most `waiting` requests may wait.
pub fn engine(config: SchedulerConfig, waiting: usize) -> (Engine, Control) {
    engine_of(Scheduler::new(config).unwrap(), waiting)
}

/// An engine without a model, around a scheduler.
pub fn engine_of(scheduler: Scheduler, waiting: usize) -> (Engine, Control) {
    let control = Control::default();
    let fake = Fake { control: control.clone(), jobs: BySeat::default(), storing: Vec::new() };
    let core = EngineCore::new(scheduler, fake);
    let facts = ModelFacts { vocab: VOCAB, tokenizer: None, stop_tokens: Vec::new() };
    let engine = Engine::start(core, facts, waiting).unwrap();
    engine.handle().observe(Box::new(PoolWatch(control.clone()))).unwrap();
    (engine, control)
}

/// A request for so many tokens.
pub fn request(prompt: &[u32], max_tokens: usize) -> EngineRequest {
    let stop = StopRules { max_tokens, ..StopRules::default() };
    EngineRequest::new(prompt, SamplingParams::greedy(), stop)
}

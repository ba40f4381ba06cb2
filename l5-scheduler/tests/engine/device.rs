//! A device without arithmetic: a memory of tokens, and a thread that runs launched steps in their order.
//!
//! A row writes its tokens to the slots of its block table. A row that samples reads all tokens of its request back and
//! samples a token that depends on each of them, so a block that two requests write to, a step that runs too early, or
//! a token that was fed from the wrong seat changes the output.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{
    BySeat, Caps, ChoiceJob, ExecuteError, Executor, FinishReason, OutputEnd, OutputSink,
    RequestId, SchedulerConfig, Seat, StepHandle, StepOutput, StepView, TokenDelta,
};

pub const VOCAB: u32 = 40;

/// What a slot holds that was never written to.
const EMPTY: u32 = u32::MAX;

/// The token behind these.
pub fn next_token(tokens: &[u32]) -> u32 {
    let mix = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3);
    (tokens.iter().fold(0xcbf2_9ce4_8422_2325, mix) >> 32) as u32 % VOCAB
}

/// The output of a request that runs alone: up to a stop token, and at most `max_tokens`.
pub fn alone(prompt: &[u32], stop: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_tokens {
        tokens.push(next_token(&tokens));
        if tokens.last().is_some_and(|token| stop.contains(token)) {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// A row as the device gets it.
struct Row {
    seat: Seat,
    /// Tokens to feed; `None`: the one that this seat has sampled.
    tokens: Option<Vec<u32>>,
    computed: usize,
    blocks: Vec<u32>,
    samples: bool,
}

struct Work {
    step: u64,
    rows: Vec<Row>,
    fails: bool,
}

/// The step, and what each of its rows has sampled. `None`: the step has failed.
type Done = (u64, Option<Vec<Option<u32>>>);

/// What the device has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Largest number of steps that were launched and not collected.
    pub depth: usize,
    /// Rows that awaited their token.
    pub awaited: usize,
    /// Steps that were discarded.
    pub discarded: usize,
    /// Rows that sampled, and whose sample did not count when they were collected.
    pub useless: usize,
    /// Requests that were reported as failing, and those that have ended.
    pub failed: Vec<RequestId>,
    pub ends: Vec<(RequestId, FinishReason)>,
}

/// An executor over the device.
pub struct Device {
    work: Option<Sender<Work>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    jobs: BySeat<ChoiceJob>,
    /// Steps that were launched and not collected, and which of their rows sample.
    running: VecDeque<(u64, Vec<bool>)>,
    /// Numbers of the launches that fail, and of those whose steps fail.
    failing_launches: HashSet<u64>,
    failing_steps: HashSet<u64>,
    launches: u64,
    seen: Arc<Mutex<Seen>>,
}

impl Device {
    /// A device with memory for a scheduler of this configuration.
    pub fn new(config: &SchedulerConfig) -> Self {
        let (work, works) = channel::<Work>();
        let (finished, done) = channel();
        let (blocks, block_size) = (config.num_gpu_blocks, config.block_size);
        let thread = std::thread::spawn(move || run(&works, &finished, blocks, block_size));
        Self {
            work: Some(work),
            done,
            thread: Some(thread),
            jobs: BySeat::default(),
            running: VecDeque::new(),
            failing_launches: HashSet::new(),
            failing_steps: HashSet::new(),
            launches: 0,
            seen: Arc::default(),
        }
    }

    /// Lets these launches fail, by their number from 0, and the steps of those.
    #[must_use]
    pub fn failing(mut self, launches: &[u64], steps: &[u64]) -> Self {
        self.failing_launches.extend(launches);
        self.failing_steps.extend(steps);
        self
    }

    pub fn seen(&self) -> Arc<Mutex<Seen>> {
        self.seen.clone()
    }

    /// Waits for the step that was launched first.
    fn wait(&mut self, handle: &StepHandle) -> (Vec<bool>, Option<Vec<Option<u32>>>) {
        let (step, sampling) = self.running.pop_front().expect("a step that was launched");
        let (ran, sampled) = self.done.recv().expect("a device that runs");
        assert_eq!((handle.step, ran), (step, step), "steps are collected in their order");
        (sampling, sampled)
    }
}

impl Executor for Device {
    type Job = ChoiceJob;
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        let most = usize::MAX;
        Caps { max_tokens: most, max_seqs: most, async_scheduling: true, ..Caps::default() }
    }

    fn begin(&mut self, id: RequestId, job: ChoiceJob) {
        self.jobs.insert(id, job);
    }

    fn launch(&mut self, step: &StepView<'_>) -> Result<StepHandle, ExecuteError> {
        let launch = self.launches;
        self.launches += 1;
        if self.failing_launches.contains(&launch) {
            return Err(ExecuteError::Malformed("the queue is full".into()));
        }
        let number = step.step().number;
        assert!(self.running.back().is_none_or(|(last, _)| *last < number), "steps in order");
        let mut seen = self.seen.lock().unwrap();
        let rows = step.rows().map(|row| {
            assert!(self.jobs.get(row.row.id).is_some(), "a request with a row has begun");
            seen.awaited += usize::from(row.row.awaits);
            Row {
                seat: row.row.seat,
                tokens: (!row.row.awaits).then(|| row.tokens.to_vec()),
                computed: row.row.computed,
                blocks: row.table.blocks().to_vec(),
                samples: row.row.samples,
            }
        });
        let rows: Vec<_> = rows.collect();
        self.running.push_back((number, rows.iter().map(|row| row.samples).collect()));
        seen.depth = seen.depth.max(self.running.len());
        let work = Work { step: number, rows, fails: self.failing_steps.contains(&launch) };
        self.work.as_ref().unwrap().send(work).expect("a device that runs");
        Ok(StepHandle::of(step))
    }

    fn collect(
        &mut self,
        handle: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let (sampling, sampled) = self.wait(&handle);
        let Some(sampled) = sampled else {
            return Err(ExecuteError::Malformed("the device has failed".into()));
        };
        for (i, row) in step.rows().enumerate() {
            if !row.row.samples {
                self.seen.lock().unwrap().useless += usize::from(sampling[i]);
                continue;
            }
            let token = sampled[i].expect("a row that samples has a token");
            let job = self.jobs.seated(row.row.seat, row.row.id).expect("a request that runs");
            job.sink.push(&TokenDelta { tokens: &[token], text: "", logprobs: &[] });
            out.push(i, &[token], None);
        }
        Ok(())
    }

    fn discard(&mut self, handle: StepHandle) {
        let _ = self.wait(&handle);
        self.seen.lock().unwrap().discarded += 1;
    }

    fn fail(&mut self, id: RequestId, _: &ExecuteError) {
        self.seen.lock().unwrap().failed.push(id);
    }

    fn end(&mut self, id: RequestId, reason: FinishReason) {
        self.seen.lock().unwrap().ends.push((id, reason));
        let mut job = self.jobs.remove(id).expect("a request ends once");
        job.sink.end(&OutputEnd::of(reason));
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.work = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the device has panicked");
    }
}

/// The device's thread.
fn run(works: &Receiver<Work>, done: &Sender<Done>, blocks: usize, block_size: usize) {
    let mut memory = vec![EMPTY; blocks * block_size];
    let mut newest: HashMap<Seat, u32> = HashMap::new();
    for Work { step, rows, fails } in works {
        let slot = |row: &Row, position: usize| {
            row.blocks[position / block_size] as usize * block_size + position % block_size
        };
        for row in &rows {
            let awaited = newest.get(&row.seat).copied();
            let tokens = match &row.tokens {
                Some(tokens) => tokens.clone(),
                None => vec![awaited.expect("the seat has sampled")],
            };
            for (position, token) in (row.computed..).zip(tokens) {
                // A step that fails leaves its slots in disorder.
                memory[slot(row, position)] = if fails { token + VOCAB } else { token };
            }
        }
        let mut sampled = Vec::new();
        for row in &rows {
            let fed = row.tokens.as_ref().map_or(1, Vec::len);
            let read = |position| memory[slot(row, position)];
            let tokens: Vec<u32> = (0..row.computed + fed).map(read).collect();
            assert!(!tokens.contains(&EMPTY), "a slot is read that was never written to");
            let token = row.samples.then(|| next_token(&tokens));
            sampled.push(token);
            if let Some(token) = token {
                newest.insert(row.seat, token);
            }
        }
        if done.send((step, (!fails).then_some(sampled))).is_err() {
            return;
        }
    }
}

/// Tokens and end of one request.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<(Vec<u32>, Option<FinishReason>)>>);

impl Output {
    pub fn get(&self) -> (Vec<u32>, Option<FinishReason>) {
        self.0.lock().unwrap().clone()
    }
}

impl OutputSink for Output {
    fn push(&mut self, delta: &TokenDelta<'_>) {
        let mut output = self.0.lock().unwrap();
        assert_eq!(output.1, None, "tokens behind the end");
        output.0.extend(delta.tokens);
    }

    fn end(&mut self, end: &OutputEnd) {
        let before = self.0.lock().unwrap().1.replace(end.finish);
        assert_eq!(before, None, "a request ends once");
    }
}

/// A request, and its output.
pub fn job(prompt: &[u32], stop: &[u32], max_tokens: usize) -> (ChoiceJob, Output) {
    let output = Output::default();
    let rules = StopRules { token_ids: stop.to_vec(), max_tokens, ..StopRules::default() };
    let sink = Box::new(output.clone());
    (ChoiceJob::new(prompt, SamplingParams::greedy(), rules, sink), output)
}

//! A device that runs steps by itself, with a second memory behind its pool, and how busy it is with a step ahead and
//! without:
//!
//! ```text
//! cargo run -p l5-scheduler --example device
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use l3_paged_kv::{BlockHash, TokenChain};
use l5_scheduler::{
    Caps, EngineCore, Executor, FinishReason, KvCompletion, KvConnector, MalformedOutput, Matched,
    Note, PolicyContext, Request, RequestId, RequestView, Retain, Retention, Scheduler,
    SchedulerConfig, Seat, StepHandle, StepOp, StepOutput, StepView,
};

/// Duration of a step on the device, of the host's work between two steps, and of a load or store.
const STEP: Duration = Duration::from_millis(2);
const HOST: Duration = Duration::from_millis(1);
const COPY: Duration = Duration::from_millis(5);

/// The second memory: names of the blocks in it. (A real one has keys and values under each name.)
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<HashSet<BlockHash>>>);

impl KvConnector for Memory {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, from: usize) -> Matched {
        let there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = chain.hashes().iter().skip(from / chain.block_size());
        Matched::Tokens(
            behind.take_while(|hash| there.contains(*hash)).count() * chain.block_size(),
        )
    }
}

/// Moves the blocks of each finished request to the second memory.
struct OffloadAll;

impl Retention for OffloadAll {
    fn retain(&mut self, _: &RequestView<'_>, _: Option<&Note>, _: &PolicyContext<'_>) -> Retain {
        Retain::Offload
    }
}

/// A row as the device gets it: the seat, and its last token unless the device has sampled that itself.
type Row = (Seat, Option<u32>);

/// The host's side of the device. Samples come back for all rows of a step, in their order.
struct Device {
    work: Sender<Vec<Row>>,
    done: Receiver<(Vec<u32>, Duration)>,
    busy: Duration,
    memory: Memory,
    /// Copies that have begun: when each ends, what is reported then, and the blocks that it stores.
    copies: Vec<(Instant, KvCompletion, Vec<BlockHash>)>,
    loaded: usize,
}

impl Device {
    fn new(memory: Memory) -> Self {
        let ((work, works), (finished, done)) = (channel::<Vec<Row>>(), channel());
        spawn(move || {
            let mut newest = HashMap::new();
            for rows in works {
                let began = Instant::now();
                sleep(if rows.is_empty() { Duration::ZERO } else { STEP });
                let samples = rows.into_iter().map(|(seat, token)| {
                    let last = token.or_else(|| newest.get(&seat).copied()).unwrap_or_default();
                    newest.insert(seat, last + 1);
                    last + 1
                });
                if finished.send((samples.collect(), began.elapsed())).is_err() {
                    return;
                }
            }
        });
        Self { work, done, busy: Duration::ZERO, memory, copies: Vec::new(), loaded: 0 }
    }

    fn wait(&mut self) -> Result<Vec<u32>, MalformedOutput> {
        let (samples, busy) = self.done.recv().map_err(|_| "the device has stopped")?;
        self.busy += busy;
        Ok(samples)
    }
}

impl Executor for Device {
    type Job = ();
    type Error = MalformedOutput;

    fn caps(&self) -> Caps {
        Caps { async_scheduling: true, can_store: true, ..Caps::default() }
    }

    fn begin(&mut self, _: RequestId, (): ()) {}

    fn launch(&mut self, step: &StepView<'_>) -> Result<StepHandle, MalformedOutput> {
        let end = Instant::now() + COPY;
        for op in &step.step().ops {
            self.copies.push(match op {
                // Its retention writes nothing back.
                StepOp::WriteBack { .. } => continue,
                StepOp::Load { id, from, to, .. } => {
                    self.loaded += to - from;
                    (end, KvCompletion::Loaded { id: *id, tokens: *to }, Vec::new())
                }
                StepOp::Store { lease, hashes, .. } => {
                    (end, KvCompletion::Stored { lease: *lease }, hashes.clone())
                }
            });
        }
        let rows = step.rows().map(|row| (row.row.seat, row.tokens.last().copied()));
        self.work.send(rows.collect()).map_err(|_| "the device has stopped")?;
        Ok(StepHandle::of(step))
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), MalformedOutput> {
        let samples = self.wait()?;
        // By the index of the row: some that sampled on the device may not count any more.
        for (i, _) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            out.push(i, &[samples[i]], None);
        }
        Ok(())
    }

    fn discard(&mut self, _: StepHandle) {
        _ = self.wait();
    }

    fn poll(&mut self, completed: &mut Vec<KvCompletion>) {
        let now = Instant::now();
        for (_, completion, hashes) in self.copies.extract_if(.., |(end, ..)| *end <= now) {
            self.memory.0.lock().unwrap_or_else(PoisonError::into_inner).extend(hashes);
            completed.push(completion);
        }
    }

    fn end(&mut self, _: RequestId, _: FinishReason) {}
}

/// Outputs of three rounds of four requests: conversations, others that evict their blocks, and the conversations
/// again.
fn run(ahead: bool) -> Result<BTreeMap<RequestId, Vec<u32>>, Box<dyn std::error::Error>> {
    let memory = Memory::default();
    let scheduler = Scheduler::new(SchedulerConfig::new(29, 16))?;
    let scheduler = scheduler.with_retention(Box::new(OffloadAll));
    let scheduler = scheduler.with_kv_connector(Box::new(memory.clone()));
    let mut core = EngineCore::new(scheduler, Device::new(memory));
    core.set_async_scheduling(ahead);
    let (began, mut outputs) = (Instant::now(), BTreeMap::<RequestId, Vec<u32>>::new());
    for (round, first, len) in [(0, 0, 64), (1, 4, 64), (2, 0, 80)] {
        for n in 0..4 {
            let (id, of) = (RequestId(4 * round + n), 1000 * (first + n as u32));
            let prompt = (of..of + len).collect();
            // Every other request ends with a stop token, which a step ahead cannot foresee.
            let stop_token_ids = if n % 2 == 0 { vec![of + len + 15] } else { Vec::new() };
            let request =
                Request { id, prompt, stop_token_ids, max_tokens: 24, ..Request::default() };
            core.add_request(request, ())?;
        }
        while core.has_unfinished() || core.scheduler().leases().is_storing() {
            let result = core.step()?;
            result.new_tokens().for_each(|(id, new)| outputs.entry(id).or_default().extend(new));
            // With nothing to do, wait until a copy can have ended. Else: text, sockets, metrics.
            let idle = result.scheduled == 0 && result.finished.is_empty();
            sleep(core.time_to_deadline().filter(|_| idle).unwrap_or(HOST));
        }
    }
    let (device, wall) = (core.executor(), began.elapsed());
    let busy = 100.0 * device.busy.as_secs_f64() / wall.as_secs_f64();
    println!(
        "async {ahead}: device busy for {busy:.0}% of {wall:.0?}, {} tokens loaded",
        device.loaded
    );
    Ok(outputs)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (off, on) = (run(false)?, run(true)?);
    assert_eq!(off, on, "tokens");
    println!("the same {} tokens", on.values().map(Vec::len).sum::<usize>());
    Ok(())
}

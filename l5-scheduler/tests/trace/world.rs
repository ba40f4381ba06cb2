//! An engine without a model, and a file in memory.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use l5_scheduler::trace::{self, Event, Recorder, Run, StepEvent};
use l5_scheduler::{
    Caps, EngineCore, ExecuteError, Executor, FinishReason, Phases, Request, RequestId, Scheduler,
    SchedulerConfig, StepHandle, StepOutput, StepResult, StepView, Time,
};

/// Says 7 to everybody who may say something, and that it took a while. Fails in the steps it is told to. Guesses that
/// it will say 7 and then 8.
pub struct Sayer {
    pub fails: Vec<u64>,
}

impl Executor for Sayer {
    type Job = ();
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        Caps { async_scheduling: true, ..Caps::default() }
    }

    fn begin(&mut self, _: RequestId, (): ()) {}

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        if self.fails.contains(&step.step().number) {
            return Err(ExecuteError::Malformed("it was told to fail".into()));
        }
        for (i, row) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            let right = row.drafts.iter().take_while(|draft| **draft == 7).count();
            out.push(i, &[7, 7, 7][..=right], None);
            out.propose(i, &[7, 8]);
        }
        let us = Duration::from_micros;
        out.phases = Phases { pack: us(3), forward: us(100), sample: us(20), ..Phases::default() };
        Ok(())
    }

    fn end(&mut self, _: RequestId, _: FinishReason) {}
}

/// A file that can be looked at while it is written.
#[derive(Clone, Default)]
pub struct File(Arc<Mutex<Vec<u8>>>);

impl File {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pool of eight blocks of four tokens, and small steps.
pub fn small() -> SchedulerConfig {
    SchedulerConfig { max_num_seqs: 4, max_num_batched_tokens: 12, ..SchedulerConfig::new(9, 4) }
}

/// Request `id` with a prompt that nobody else has.
pub fn request(id: u64, prompt: u32, max_tokens: usize, arrival: f64) -> Request {
    let first = 1000 * id as u32;
    Request {
        id: RequestId(id),
        prompt: (first..first + prompt).collect(),
        max_tokens,
        arrival: Time(arrival),
        ..Request::default()
    }
}

/// An engine, a recording of it, and a clock of its own: a step a millisecond.
pub struct World {
    pub core: EngineCore<Sayer>,
    pub recorder: Recorder,
    pub file: File,
    pub results: Vec<StepResult>,
    pub steps: u64,
}

impl World {
    pub fn new(config: SchedulerConfig) -> Self {
        Self::of(Scheduler::new(config).unwrap())
    }

    pub fn of(scheduler: Scheduler) -> Self {
        let file = File::default();
        let recorder = Recorder::new(file.clone()).with_model("sayer");
        let mut core = EngineCore::new(scheduler, Sayer { fails: Vec::new() });
        core.set_observer(Some(recorder.observer()));
        Self { core, recorder, file, results: Vec::new(), steps: 0 }
    }

    pub fn step(&mut self) {
        let now = Time(self.steps as f64 * 1e-3);
        self.steps += 1;
        if let Ok(result) = self.core.step_at(now) {
            self.results.push(result.clone());
        }
    }

    /// To the end, and what was recorded.
    pub fn finish(mut self) -> (String, Vec<StepResult>) {
        while self.core.has_unfinished() {
            self.step();
            assert!(self.steps < 1000, "it does not end");
        }
        self.recorder.finish().unwrap();
        (self.file.text(), self.results)
    }
}

/// Three requests that together need twice the pool, one that arrives later, and one that is refused.
pub fn crowded() -> World {
    let mut world = World::new(small());
    for id in 0..3 {
        world.core.add_request(request(id, 8, 12, 0.0), ()).unwrap();
    }
    world.core.add_request(request(9, 0, 4, 0.0), ()).unwrap_err();
    world.step();
    world.step();
    world.core.add_request(request(3, 14, 3, 0.0015), ()).unwrap();
    world
}

pub fn events(text: &str) -> Vec<Event> {
    trace::read(text.as_bytes()).unwrap().map(|event| event.unwrap()).collect()
}

pub fn steps(text: &str) -> Vec<StepEvent> {
    let steps = events(text).into_iter();
    steps
        .filter_map(|event| if let Event::Step(step) = event { Some(step) } else { None })
        .collect()
}

pub fn run_of(text: &str) -> Run {
    Run::read(trace::read(text.as_bytes()).unwrap(), usize::MAX).unwrap()
}

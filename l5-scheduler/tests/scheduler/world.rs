//! A scheduler, and a model that says what it is told to.

use std::collections::BTreeMap;

use l5_scheduler::{
    FinishReason, Rejection, Request, RequestId, Resolved, Scheduler, SchedulerConfig, StepOutput,
    Time,
};

/// Blocks of 4 tokens, `blocks` of them to be handed out, and limits that nobody meets.
pub fn config(blocks: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: 1000,
        ..SchedulerConfig::new(blocks + 1, 4)
    }
}

/// A prompt of `len` tokens that nobody else has, and an answer of 4 at most.
pub fn request(id: u64, len: usize) -> Request {
    let first = 1000 * id as u32;
    Request {
        id: RequestId(id),
        prompt: (first..first + len as u32).collect(),
        max_tokens: 4,
        arrival: Time(id as f64),
        ..Request::default()
    }
}

/// Names and why they ended.
pub type Ends = Vec<(u64, FinishReason)>;

pub struct World {
    pub scheduler: Scheduler,
    /// What the model says instead of its own words, token by token.
    pub script: BTreeMap<u64, Vec<u32>>,
    /// Drafts that the model proposes for a request which has so many output tokens.
    pub proposals: BTreeMap<(u64, usize), Vec<u32>>,
    output: StepOutput,
    pub resolved: Resolved,
}

impl World {
    pub fn new(config: SchedulerConfig) -> Self {
        Self::of(Scheduler::new(config).expect("a configuration that works"))
    }

    pub fn of(scheduler: Scheduler) -> Self {
        Self {
            scheduler,
            script: BTreeMap::new(),
            proposals: BTreeMap::new(),
            output: StepOutput::default(),
            resolved: Resolved::default(),
        }
    }

    pub fn add(&mut self, request: Request) {
        self.try_add(request).expect("a request that is taken");
    }

    pub fn try_add(&mut self, request: Request) -> Result<(), Rejection> {
        self.scheduler.add_request(request)
    }

    /// Plan a step: who takes part, with how many tokens.
    pub fn plan(&mut self) -> Vec<(u64, usize)> {
        let now = Time(self.scheduler.stats().steps as f64);
        self.scheduler.plan(now).rows.iter().map(|row| (row.id.0, row.len)).collect()
    }

    /// Plans a step ahead: its rows, if it is planned.
    pub fn plan_ahead(&mut self) -> Option<Vec<(u64, usize)>> {
        let now = Time(self.scheduler.stats().steps as f64);
        let step = self.scheduler.plan_ahead(now)?;
        Some(step.rows.iter().map(|row| (row.id.0, row.len)).collect())
    }

    /// Who was preempted in the step that is planned.
    pub fn preempted(&self) -> Vec<u64> {
        self.scheduler.view().step().preempted.iter().map(|id| id.0).collect()
    }

    /// Of those who take part: how many tokens were computed before, and how many were found at an admission.
    pub fn computed_and_cached(&self) -> Vec<(u64, usize, usize)> {
        let rows = &self.scheduler.view().step().rows;
        rows.iter().map(|row| (row.id.0, row.computed, row.cached)).collect()
    }

    /// Who is to get a token in the step that is planned.
    pub fn samples(&self) -> Vec<u64> {
        let rows = self.scheduler.view().step().rows.iter();
        rows.filter(|row| row.samples).map(|row| row.id.0).collect()
    }

    /// Runs the step that is due: one token for every row that samples, the next of its script or `100 * id + nth`, and one
    /// more for each draft that equals it. Returns the requests that ended since the last call.
    pub fn run(&mut self) -> Ends {
        self.say();
        let Self { scheduler, output, resolved, .. } = self;
        scheduler.resolve(output, resolved).expect("the output of this step");
        let now = scheduler.due().step().now;
        scheduler.apply(resolved, now);
        self.ended()
    }

    /// Let the model say its tokens for the planned step.
    fn say(&mut self) {
        self.output.clear();
        for (number, row) in self.scheduler.due().rows().enumerate() {
            if !row.row.samples {
                continue;
            }
            let (id, nth) = (row.row.id.0, row.request.num_tokens() - row.request.prompt_len());
            let script = self.script.get(&id);
            let token = |nth: usize| {
                let scripted = script.and_then(|script| script.get(nth));
                scripted.copied().unwrap_or(100 * id as u32 + nth as u32)
            };
            let equal = (nth..).zip(row.drafts).take_while(|(nth, draft)| token(*nth) == **draft);
            let tokens: Vec<u32> = (nth..=nth + equal.count()).map(token).collect();
            self.output.push(number, &tokens, None);
            if let Some(drafts) = self.proposals.get(&(id, nth + tokens.len())) {
                self.output.propose(number, drafts);
            }
        }
    }

    /// Plan and run a step: who took part, and who ended.
    pub fn step(&mut self) -> (Vec<(u64, usize)>, Ends) {
        let rows = self.plan();
        (rows, self.run())
    }

    pub fn ended(&mut self) -> Ends {
        self.scheduler.take_ended().map(|(id, reason)| (id.0, reason)).collect()
    }

    /// Run until nobody is left: every end, in order.
    pub fn run_to_the_end(&mut self) -> Ends {
        let mut ends = self.ended();
        for _ in 0..10_000 {
            if !self.scheduler.has_unfinished() {
                return ends;
            }
            let (_, ended) = self.step();
            ends.extend(ended);
        }
        panic!("after 10,000 steps somebody still waits: {:?}", self.scheduler);
    }

    /// Names of those who run, and of those who wait.
    pub fn lists(&self) -> (Vec<u64>, Vec<u64>) {
        let running = self.scheduler.running().map(|request| request.id().0).collect();
        (running, self.scheduler.waiting().map(|request| request.id().0).collect())
    }

    pub fn free(&self) -> usize {
        self.scheduler.blocks().num_free()
    }

    /// Prompt and answer of a request, and how many of them are computed.
    pub fn tokens(&self, id: u64) -> (Vec<u32>, usize) {
        let request = self.scheduler.request(RequestId(id)).expect("a request that is there");
        (request.tokens().to_vec(), request.num_computed())
    }

    /// Its answer so far.
    pub fn answer(&self, id: u64) -> Vec<u32> {
        let request = self.scheduler.request(RequestId(id)).expect("a request that is there");
        request.tokens()[request.prompt_len()..].to_vec()
    }
}

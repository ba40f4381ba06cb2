//! The engine: plans a step, computes it, gives tokens to the requests whose tokens are all computed.

use crate::ops::argmax;
use crate::{BlockPool, KvMemory, Model, Request, Row, Scheduler};

/// A model, memory for keys and values, and a scheduler.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The model.
    pub model: Model,
    /// Keys and values of all requests.
    pub kv: KvMemory,
    /// The requests.
    pub scheduler: Scheduler,
    /// Tokens that end a response.
    pub stop: Vec<u32>,
}

impl Engine {
    /// An engine with `num_blocks` blocks of `block_size` tokens, and at most `max_batched_tokens` tokens in a step.
    pub fn new(
        model: Model,
        num_blocks: usize,
        block_size: usize,
        max_batched_tokens: usize,
    ) -> Self {
        let kv = model.kv_memory(num_blocks * block_size);
        let scheduler = Scheduler::new(BlockPool::new(num_blocks, block_size), max_batched_tokens);
        Self { model, kv, scheduler, stop: Vec::new() }
    }

    /// Adds a request with a prompt that is not empty. The whole pool must be large enough for it.
    pub fn add(&mut self, request: Request) {
        self.scheduler.waiting.push_back(request);
    }

    /// Runs a step. Returns its rows, and the requests that have ended with it.
    pub fn step(&mut self) -> (Vec<Row>, Vec<Request>) {
        let rows = self.scheduler.plan();
        for row in &rows {
            self.compute(*row);
        }
        let stop = &self.stop;
        let ended = self.scheduler.finish(|request| {
            let last = request.output().last();
            request.output().len() >= request.max_tokens || last.is_some_and(|t| stop.contains(t))
        });
        (rows, ended)
    }

    /// Computes the tokens of a row. If these were the last ones of the request, it gets the token with the largest logit.
    fn compute(&mut self, row: Row) {
        let Self { model, kv, scheduler, .. } = self;
        let Scheduler { running, pool, .. } = scheduler;
        let request = &mut running[row.request];
        // exercise nano.step
        let slots = request.table.slots(request.computed + row.tokens, pool);
        for _ in 0..row.tokens {
            let token = request.tokens[request.computed];
            request.computed += 1;
            let logits = model.forward(token, &slots[..request.computed], kv);
            if request.computed == request.tokens.len() {
                request.tokens.push(argmax(&logits) as u32);
            }
        }
        // end of exercise
    }

    /// Runs steps until all requests have ended. Returns them in the order of their ends.
    pub fn run(&mut self) -> Vec<Request> {
        let mut ended = Vec::new();
        while !self.scheduler.waiting.is_empty() || !self.scheduler.running.is_empty() {
            let (rows, done) = self.step();
            assert!(!rows.is_empty(), "the pool is too small for the first request");
            ended.extend(done);
        }
        ended
    }
}

//! Continuous batching in 70 lines: which requests run in the next step, and how many of their tokens.
//!
//! There is no prefill and no decode. A request has tokens, its prompt and its output so far, and some of them are
//! computed. A step computes more of them, for as many requests as there are tokens in the budget and blocks in the pool.
//! When all tokens of a request are computed, the step gives it a new one. (The idea is Orca's, Yu et al. 2022; without
//! prefill and decode it is that of vLLM's V1 scheduler.)

use std::collections::VecDeque;

use crate::{BlockPool, BlockTable};

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name.
    pub id: usize,
    /// Prompt and output so far.
    pub tokens: Vec<u32>,
    /// Number of tokens of the prompt.
    pub prompt: usize,
    /// Maximum number of output tokens.
    pub max_tokens: usize,
    /// Number of tokens whose keys and values are stored.
    pub computed: usize,
    /// Blocks of its keys and values.
    pub table: BlockTable,
}

impl Request {
    /// A request that has not begun.
    pub fn new(id: usize, prompt: Vec<u32>, max_tokens: usize) -> Self {
        let (len, table) = (prompt.len(), BlockTable::default());
        Self { id, tokens: prompt, prompt: len, max_tokens, computed: 0, table }
    }

    /// The output so far.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }
}

/// A request's part of a step: its next `tokens` tokens are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index of the request among the running ones.
    pub request: usize,
    /// Number of tokens to compute.
    pub tokens: usize,
}

/// The waiting and the running requests, and the pool whose blocks they share.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// Requests that have no blocks, in the order in which they will be admitted.
    pub waiting: VecDeque<Request>,
    /// Requests that have blocks, in the order in which they were admitted.
    pub running: Vec<Request>,
    /// The free blocks.
    pub pool: BlockPool,
    /// Maximum number of tokens of a step (vLLM: `max_num_batched_tokens`).
    pub max_batched_tokens: usize,
    /// Number of times that a request lost its blocks.
    pub preemptions: usize,
}

impl Scheduler {
    /// A scheduler without requests.
    pub fn new(pool: BlockPool, max_batched_tokens: usize) -> Self {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self { waiting, running, pool, max_batched_tokens, preemptions: 0 }
    }

    /// Plans a step: the rows of the running requests first, in their order, then those of waiting requests that are
    /// admitted for it. Their blocks are reserved.
    pub fn plan(&mut self) -> Vec<Row> {
        let (mut rows, mut budget) = (Vec::new(), self.max_batched_tokens);
        let preemptions = self.preemptions;
        self.plan_running(&mut rows, &mut budget);
        // A request that was just preempted is not admitted again in the same step.
        if self.preemptions == preemptions && !self.waiting.is_empty() {
            self.admit(&mut rows, &mut budget);
        }
        rows
    }

    /// Rows of running requests: each computes as many of its tokens as the budget allows. If the pool has no block for
    /// it, the request admitted last is preempted, and it is tried again; a request that is itself the last one is
    /// preempted, and the plan ends.
    fn plan_running(&mut self, rows: &mut Vec<Row>, budget: &mut usize) {
        // exercise nano.running
        let mut i = 0;
        while i < self.running.len() && *budget > 0 {
            let request = &mut self.running[i];
            let tokens = (request.tokens.len() - request.computed).min(*budget);
            if request.table.reserve(request.computed + tokens, &mut self.pool) {
                rows.push(Row { request: i, tokens });
                *budget -= tokens;
                i += 1;
            } else {
                self.preempt_last();
            }
        }
        // end of exercise
    }

    /// The request admitted last loses its blocks and goes to the head of the queue. It keeps its tokens, output
    /// included, and computes all of them again later.
    fn preempt_last(&mut self) {
        // exercise nano.running
        if let Some(mut request) = self.running.pop() {
            request.table.release(&mut self.pool);
            request.computed = 0;
            self.preemptions += 1;
            self.waiting.push_front(request);
        }
        // end of exercise
    }

    /// Admits waiting requests, first come, first served, while there are tokens in the budget and blocks for their rows.
    /// The first request that finds no blocks waits, and all behind it wait too.
    fn admit(&mut self, rows: &mut Vec<Row>, budget: &mut usize) {
        // exercise nano.admit
        while *budget > 0
            && let Some(mut request) = self.waiting.pop_front()
        {
            let tokens = request.tokens.len().min(*budget);
            if !request.table.reserve(tokens, &mut self.pool) {
                self.waiting.push_front(request);
                break;
            }
            rows.push(Row { request: self.running.len(), tokens });
            *budget -= tokens;
            self.running.push(request);
        }
        // end of exercise
    }

    /// Ends the running requests for which `is_done` says so: their blocks are free. Returns them.
    pub fn finish(&mut self, is_done: impl Fn(&Request) -> bool) -> Vec<Request> {
        let (done, running) = std::mem::take(&mut self.running).into_iter().partition(is_done);
        self.running = running;
        let mut done: Vec<Request> = done;
        done.iter_mut().for_each(|request| request.table.release(&mut self.pool));
        done
    }
}

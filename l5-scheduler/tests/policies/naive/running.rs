//! Rows of running requests, their drafts, and preemption of running requests by running ones.

use l5_scheduler::{FinishReason, PolicyKind};

use super::shapes::{Shape, Turn};
use super::{Naive, Row};

impl Naive {
    pub(super) fn plan_running(&mut self) {
        let size = self.config.block_size;
        let mut i = 0;
        'requests: while i < self.running.len() && self.budget > 0 {
            let id = self.running[i].id;
            let request = &self.running[i];
            let fits = match self.shape {
                Shape::Any => true,
                Shape::Decodes => request.decodes(),
                Shape::Prompts(_) => !request.decodes(),
            };
            if !fits || !self.in_turn(request) {
                i += 1;
                continue;
            }
            let computed = request.computed;
            let room = (self.config.max_model_len - 1).saturating_sub(computed);
            let len = (request.tokens.len() - computed).min(self.most).min(self.budget).min(room);
            if len == 0 {
                i += 1;
                continue;
            }
            if self.blocks(computed + len) > self.config.num_gpu_blocks - 1 {
                let mut request = self.running.remove(i);
                self.give_back(&mut request);
                self.end(&request, FinishReason::KvExhausted);
                continue;
            }
            let wanted = self.blocks(self.with_drafts(computed + len));
            if wanted > self.running[i].table.len() + self.free.len() {
                self.take_back_draft_blocks();
            }
            while wanted > self.running[i].table.len() + self.free.len() {
                if self.end_leases(false, |freed| !freed.is_empty()) {
                    continue;
                }
                let victim = self.victim();
                let victim_id = self.running[victim].id;
                self.preempt(victim);
                if victim_id == id && self.strict() {
                    continue 'requests;
                }
                if victim_id == id {
                    break 'requests;
                }
                i = self.running.iter().position(|request| request.id == id).unwrap();
            }
            self.give_row(i, wanted, len, None);
            i += 1;
            let behind = self.running.len() - i;
            let request = &self.running[i - 1];
            if computed + len == request.tokens.len() {
                let most = self.budget.saturating_sub(behind).min(room - len);
                let most = request.drafts.len().min(most);
                let mut drafts = 0;
                while drafts < most {
                    // Free blocks, if there are any, and never those of another request.
                    if computed + len + drafts == self.running[i - 1].table.len() * size {
                        if self.free.is_empty() {
                            break;
                        }
                        let block = self.take();
                        self.running[i - 1].table.push(block);
                    }
                    drafts += 1;
                }
                self.rows.last_mut().unwrap().drafts = drafts;
                self.budget -= drafts;
            }
        }
    }

    /// The running request that is preempted for one that needs blocks.
    fn victim(&self) -> usize {
        if self.config.policy == PolicyKind::Fcfs {
            return self.running.len() - 1;
        }
        let mut worst = 0;
        for i in 1..self.running.len() {
            let (a, b) = (&self.running[i], &self.running[worst]);
            if a.urgency(self.config.policy) > b.urgency(self.config.policy) {
                worst = i;
            }
        }
        worst
    }

    /// Gives the `i`-th running request a row, with a table of so many blocks.
    pub(super) fn give_row(&mut self, i: usize, blocks: usize, len: usize, cached: Option<usize>) {
        let mut request = self.running.remove(i);
        self.grow(&mut request, blocks);
        if let (Turn::First, Some(name)) = (&self.turn, &request.adapter) {
            self.turn = Turn::Of(name.clone());
        }
        let (id, computed) = (request.id, request.computed);
        let pending = self.register(&mut request, computed + len);
        self.rows.push(Row { id, computed, len, drafts: 0, pending, cached });
        self.budget -= len;
        self.running.insert(i, request);
    }

    /// Preempts the `i`-th running request.
    pub(super) fn preempt(&mut self, i: usize) {
        let mut request = self.running.remove(i);
        if let Some(at) = self.rows.iter().position(|row| row.id == request.id) {
            let row = self.rows.remove(at);
            self.budget += row.len + row.drafts;
            self.cached.retain(|(_, block)| !row.pending.contains(block));
        }
        self.give_back(&mut request);
        (request.preempted_now, request.was_preempted) = (true, true);
        self.preempted.push(request.id);
        self.losses += 1;
        self.front -= 1;
        request.ticket = self.front;
        self.waiting.push(request);
        self.sort();
    }
}

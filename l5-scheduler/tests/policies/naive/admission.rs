//! Admission of waiting requests, and preemption of running requests for them.

use l5_scheduler::{FinishReason, PolicyKind};

use super::loads::LookUp;
use super::{LoadEvent, Naive, NaiveRequest};

/// Result of trying to admit a waiting request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Try {
    /// It runs, loads, or has ended: the request behind it is next.
    Done,
    /// It waits for an answer of the second memory. The request behind it may be admitted.
    Asks,
    /// It waits, and so does every request behind it.
    Stays,
}

impl Naive {
    /// Admits waiting requests: first those whose load has arrived, then the others. Behind a request that cannot be
    /// admitted no other one is.
    pub(super) fn plan_waiting(&mut self) {
        let mut stays = None;
        while let Some(id) = self.next_arrived() {
            if self.try_admit(id) == Try::Stays {
                stays = Some(self.rank(&self.waiting[self.waiting_at(id)]));
                break;
            }
        }
        loop {
            let next = self
                .waiting
                .iter()
                .find(|request| request.load.is_none() && !self.asking.contains(&request.id));
            let Some(next) = next else { break };
            if stays.is_some_and(|stays| stays < self.rank(next)) {
                self.saw(LoadEvent::ArrivedHoldsUpOthers);
                break;
            }
            if self.try_admit(next.id) == Try::Stays {
                break;
            }
        }
    }

    fn try_admit(&mut self, id: u64) -> Try {
        let at = self.waiting_at(id);
        let request = &self.waiting[at];
        if self.budget == 0 && !self.strict() {
            return Try::Stays;
        }
        if self.blocks(request.tokens.len()) > self.config.num_gpu_blocks - 1 {
            let request = self.waiting.remove(at);
            self.end(&request, FinishReason::KvExhausted);
            return Try::Done;
        }
        if request.preempted_now {
            return Try::Stays;
        }
        let taken = self.running.len() + self.asking.len();
        if request.load.is_none() && !self.asking.is_empty() && taken >= self.seats() {
            self.saw(LoadEvent::SeatsAreKept);
            return Try::Stays;
        }
        if !self.in_turn(request) {
            return Try::Stays;
        }
        match self.look_up(id) {
            LookUp::Loads => return Try::Done,
            LookUp::Asks => return Try::Asks,
            LookUp::Nothing => {}
        }
        let admitted = self.admit(id, self.budget) || (self.strict() && self.make_room(id));
        if admitted { Try::Done } else { Try::Stays }
    }

    pub(super) fn waiting_at(&self, id: u64) -> usize {
        self.waiting.iter().position(|request| request.id == id).unwrap()
    }

    /// Number of blocks that must be free for a waiting request, whatever its first chunk needs: for all of its tokens
    /// and the lookahead. Only where that is switched off, and it was never preempted or no block is being loaded or
    /// stored, there need be none.
    pub(super) fn whole(&self, request: &NaiveRequest) -> usize {
        let tokens = request.tokens.len();
        let all = self.blocks(self.with_drafts(tokens));
        let storing = self.leases.iter().any(|lease| lease.storing);
        let held = storing || self.waiting.iter().any(NaiveRequest::is_loading);
        match self.config.policy {
            PolicyKind::StrictPriority => {
                all.max(self.blocks(tokens + 1)).min(self.config.num_gpu_blocks - 1)
            }
            _ if self.config.scheduler_reserve_full_isl => all,
            _ if request.was_preempted && held => all,
            _ => 0,
        }
    }

    /// Number of blocks that stay free beside running requests.
    pub(super) fn kept_apart(&self) -> usize {
        match self.running.is_empty() {
            true => 0,
            false => (self.config.watermark * self.config.num_gpu_blocks as f64) as usize,
        }
    }

    /// Number of blocks of a hit that are free, and are not when they are hit.
    pub(super) fn idle(&self, hit: &[usize]) -> usize {
        hit.iter().filter(|block| self.users[**block] == 0).count()
    }

    /// Whether so many blocks are free for a waiting request, after blocks of drafts were taken back and leases ended if
    /// that can help.
    pub(super) fn free_up(&mut self, needed: usize, hit: &[usize]) -> bool {
        if needed <= self.free.len() + self.num_leased() + self.num_draft_blocks()
            && needed > self.free.len()
        {
            self.take_back_draft_blocks();
        }
        let free = self.free.len();
        let enough = |freed: &[usize]| {
            needed + freed.iter().filter(|block| hit.contains(block)).count() <= free + freed.len()
        };
        needed <= free || self.end_leases(true, enough)
    }

    /// Admits a waiting request, with at most so many tokens, if it fits. One whose load has arrived has blocks.
    fn admit(&mut self, id: u64, budget: usize) -> bool {
        let request = &self.waiting[self.waiting_at(id)];
        let (tokens, has) = (request.tokens.len(), request.table.len());
        let (hit, computed, cached) = match &request.load {
            Some(load) => (Vec::new(), request.computed, load.from),
            None => {
                let hit = self.lookup(request);
                let computed = hit.len() * self.config.block_size;
                (hit, computed, computed)
            }
        };
        let mut len = (tokens - computed).min(self.most);
        if budget == 0 || (!self.config.enable_chunked_prefill && len > budget) {
            return false;
        }
        len = len.min(budget);
        if self.running.len() >= self.seats() {
            return false;
        }
        let wanted = self.blocks(self.with_drafts(computed + len));
        let new = wanted.max(self.whole(request)).saturating_sub(has + hit.len());
        if !self.free_up(new + self.idle(&hit) + self.kept_apart(), &hit) {
            return false;
        }
        let arrived = self.next_arrived();
        let mut request = self.waiting.remove(self.waiting_at(id));
        if request.load.take().is_none() {
            self.share(&mut request, hit);
            request.computed = computed;
        } else if arrived == Some(id) && self.waiting.iter().any(|other| other.load.is_none()) {
            self.saw(LoadEvent::ArrivedPrecedesOthers);
        }
        request.asked = None;
        self.cached_tokens += cached as u64;
        self.running.push(request);
        self.give_row(self.running.len() - 1, wanted, len, Some(cached));
        true
    }

    /// Preempts running requests that are less urgent than a waiting one, as few as it takes, tried on a copy; then
    /// admits it.
    fn make_room(&mut self, id: u64) -> bool {
        let priority = self.waiting[self.waiting_at(id)].priority;
        if !self.running.iter().any(|request| request.priority > priority) {
            return false;
        }
        self.take_back_draft_blocks();
        let mut copy = self.clone();
        let mut victims = Vec::new();
        copy.granted = Some(self.named(true));
        // Missing tokens are no reason to preempt a request, so they are looked at last.
        let has_room =
            |copy: &Self| Self { budget: usize::MAX, ..copy.clone() }.admit(id, usize::MAX);
        if has_room(&copy) {
            return false;
        }
        while !has_room(&copy) {
            let worst = copy.running.iter().filter(|request| {
                request.priority > priority && !copy.is_shared_in_this_step(request.id)
            });
            let worst =
                worst.max_by_key(|request| (request.urgency(self.config.policy), request.id));
            let Some(worst) = worst else { return false };
            let victim = worst.id;
            victims.push(victim);
            copy.preempt(copy.running.iter().position(|request| request.id == victim).unwrap());
        }
        if !copy.admit(id, copy.budget) {
            return false;
        }
        self.granted = copy.granted;
        for victim in victims {
            self.preempt(self.running.iter().position(|request| request.id == victim).unwrap());
        }
        assert!(self.admit(id, self.budget));
        self.granted = None;
        true
    }

    /// Whether other requests have hit what a request computes in the step that is being planned.
    fn is_shared_in_this_step(&self, id: u64) -> bool {
        let row = self.rows.iter().find(|row| row.id == id);
        row.is_some_and(|row| row.pending.iter().any(|block| self.users[*block] > 1))
    }
}

//! Admission of waiting requests, after the running ones: as long as there are tokens, seats and blocks.

use l3_paged_kv::{Admission, KvError, PrefixHit, SeqId};

use super::Scheduler;
use super::budget::Budget;
use super::kv::Load;
use crate::{Admit, Admitted, Composed, FinishReason, Rank, RequestView, Status, StepRow};

/// Result of trying to admit a waiting request.
pub(super) enum Outcome {
    /// It has a row in the step, or it has blocks that are being loaded.
    Admitted,
    /// It waits on; the request behind it may be admitted.
    Skipped,
    /// It waits on, and so does every request behind it.
    Blocked,
    /// It waits for a step that takes its adapter, and every request behind it waits, too.
    OutOfTurn,
    /// It has ended: the pool is too small for its next token.
    Ended,
}

impl Scheduler {
    /// Admits waiting requests in the order of the queue. A request that does not fit blocks those behind it, so a
    /// small request never overtakes a large one for good.
    pub(super) fn plan_waiting(&mut self, budget: &mut Budget) {
        self.held_up = false;
        let held_up = self.plan_arrived(budget);
        let mut behind: Option<Rank> = None;
        // Without tokens no request can be admitted, unless a preemption gives tokens of this step back.
        while !self.ahead.is_blocked()
            && (budget.left() > 0 || self.policy.continues_after_preemption())
        {
            let Some((rank, key)) = self.waiting.next(behind) else { break };
            if held_up.is_some_and(|held_up| held_up < rank) {
                break;
            }
            match self.try_admit(key, budget) {
                Outcome::Admitted | Outcome::Ended => {}
                Outcome::Skipped => behind = Some(rank),
                Outcome::Blocked => {
                    self.held_up = true;
                    break;
                }
                Outcome::OutOfTurn => break,
            }
        }
    }

    /// Tries to admit a waiting request.
    pub(super) fn try_admit(&mut self, key: u32, budget: &mut Budget) -> Outcome {
        if self.lookups.contains(&key) {
            // It was skipped, and moved back in the queue when a lease of its job ended. The next plan asks again.
            return Outcome::Skipped;
        }
        let entry = self.requests.at(key);
        let (request, tokens) = (entry.view(), entry.chain.len());
        if self.config.blocks(tokens) > self.config.capacity() {
            // It had grown to the end of the pool when it was preempted.
            self.end_while_planning(key, FinishReason::KvExhausted);
            return Outcome::Ended;
        }
        if request.preempted_now() {
            // It was preempted in this step for other requests, which run first.
            return Outcome::Blocked;
        }
        if entry.status == Status::Waiting && self.seats_are_kept() {
            return Outcome::Blocked;
        }
        if !self.turn.allows(request.adapter()) {
            return Outcome::OutOfTurn;
        }
        let so_far = Composed { requests: self.step.rows.len(), tokens: self.step.tokens };
        if !self.policy.compose(&request, &so_far) {
            return Outcome::Skipped;
        }
        let fits = match self.policy.admit(&request, &self.context()) {
            Admit::StopAdmitting => return Outcome::Blocked,
            Admit::Skip => return Outcome::Skipped,
            Admit::IfBlocksFit(len) => self.must_fit(&request, len),
        };
        match self.begin_loading(key, fits) {
            Load::Begun => return Outcome::Admitted,
            Load::AskAgain => return Outcome::Skipped,
            Load::None => {}
        }
        if self.try_begin(key, fits, budget) {
            return Outcome::Admitted;
        }
        // Running requests may be preempted for it.
        if !self.preempt_for(key, fits, budget) {
            self.granted.clear();
            return Outcome::Blocked;
        }
        let admitted = self.try_begin(key, fits, budget);
        self.granted.clear();
        debug_assert!(admitted, "requests were preempted and the waiting one still does not fit");
        if admitted { Outcome::Admitted } else { Outcome::Blocked }
    }

    /// Number of tokens of a waiting request that must have free blocks, where the policy asks for `len`. A request
    /// that is admitted with less preempts itself when it runs alone, and is admitted again, for ever:
    ///
    /// - A request reserves the lookahead behind its tokens, so it is part of what must fit.
    /// - Blocks that are being stored or loaded cannot be taken back. Until they are free, a request that was preempted
    ///   needs room for all of its tokens, even if the policy asks for less.
    fn must_fit(&self, request: &RequestView<'_>, len: usize) -> usize {
        let tokens = request.num_tokens();
        let held = self.leases.is_storing() || self.loading.len() > 0;
        let len = if held && request.preemptions() > 0 { len.max(tokens) } else { len };
        let len = if len > 0 { len.max(self.reserved_len(tokens)) } else { 0 };
        len.min(self.config.capacity() * self.config.block_size)
    }

    /// Admits a waiting request, with loaded blocks or without.
    fn try_begin(&mut self, key: u32, fits: usize, budget: &mut Budget) -> bool {
        match self.requests.at(key).status {
            Status::WaitingForKv => self.admit_arrived(key, fits, budget),
            Status::Waiting | Status::Running => self.admit(key, fits, budget),
        }
    }

    /// Admits a waiting request if there are a seat, tokens of the step and blocks for it. If not, nothing changes.
    pub(super) fn admit(&mut self, key: u32, fits: usize, budget: &mut Budget) -> bool {
        if self.free_seats() == 0 {
            return false;
        }
        let entry = self.requests.at(key);
        let resumed = entry.preemptions > 0;
        // exercise l5.admit
        // Cached tokens are not computed: the request shares their blocks, and wants the tokens behind them.
        let hit = match entry.reads_cache {
            true => self.blocks.lookup(&entry.chain),
            false => PrefixHit::default(),
        };
        let Some(len) = budget.waiting(entry.chain.len() - hit.tokens) else { return false };
        // The watermark does not apply to a request that runs alone.
        let alone = self.running.is_empty();
        let want = Admission {
            up_to_len: self.reserved_len(hit.tokens + len),
            must_fit_len: fits,
            keep_free: if alone { 0 } else { self.config.watermark_blocks() },
            resumed,
        };
        let Some(seq) = self.admit_blocks(key, &hit, want) else { return false };
        self.begin(key, seq, hit.tokens, len);
        budget.take(len);
        true
        // end of exercise
    }

    /// Takes a request's first blocks. If they are not free, leases are ended, provided that this frees enough.
    pub(super) fn admit_blocks(
        &mut self,
        key: u32,
        hit: &PrefixHit,
        want: Admission,
    ) -> Option<SeqId> {
        let needed = self.blocks.blocks_to_admit(hit, want.must_fit_len.max(want.up_to_len));
        if !self.free_up(key, needed + want.keep_free, hit) {
            return None;
        }
        match self.blocks.admit(&self.requests.at(key).chain, hit, want) {
            Ok(seq) => Some(seq),
            Err(e) => {
                debug_assert!(matches!(e, KvError::NoFreeBlocks { .. }), "{e}");
                None
            }
        }
    }

    /// Moves a request that has its first blocks from the queue to a seat, and plans a row of `len` tokens behind the
    /// `cached` ones.
    ///
    /// # Panics
    /// Without a free seat: fewer requests run than there are seats when one is admitted.
    pub(super) fn begin(&mut self, key: u32, seq: SeqId, cached: usize, len: usize) {
        let seat = self.seats.take(key).expect("a free seat for a request that is admitted");
        let now = self.now;
        self.leave_service(key);
        let entry = self.requests.at_mut(key);
        entry.asked = None;
        if entry.preemptions == 0 {
            entry.admitted = Some(now);
        }
        self.waiting.remove(entry.rank);
        // exercise l5.admit
        entry.status = Status::Running;
        entry.seat = Some(seat);
        entry.seq = Some(seq);
        entry.computed = cached;
        let resumed = entry.preemptions > 0;
        // This step fills these blocks, so requests that are admitted after this one can hit them.
        let end = cached + len;
        let complete = end == entry.chain.len();
        let registered = self.blocks.register(seq, &entry.chain, end);
        debug_assert!(registered.is_ok(), "{registered:?}");
        let row = StepRow {
            id: entry.id,
            seat,
            computed: cached,
            len,
            drafts: 0,
            samples: complete,
            awaits: false,
            admitted: if resumed { Admitted::Resumed } else { Admitted::Now },
            cached,
            blocks_before: 0,
        };
        self.running.push(key);
        self.stats.resumes += u64::from(resumed);
        self.stats.cached_tokens += cached as u64;
        self.push_row(row);
        // end of exercise
    }
}

//! Then the waiting: as long as there are tokens, seats and blocks.

use l3_paged_kv::{Admission, KvError, PrefixHit, SeqId};

use super::Scheduler;
use super::budget::Budget;
use crate::{Admit, Admitted, Composed, FinishReason, Rank, Status, StepRow};

/// What became of the request that was asked.
pub(super) enum Outcome {
    /// It takes part, or will when its keys and values are there.
    Admitted,
    /// It waits on, and who is behind it may be asked.
    Skipped,
    /// It waits on, and so does everybody behind it.
    Nobody,
    /// It has ended: no pool of this size holds its next token.
    Ended,
}

impl Scheduler {
    /// Admit who waits, in the order of the queue. Whoever does not fit holds up those behind: a small request never
    /// overtakes a large one for good.
    pub(super) fn plan_waiting(&mut self, budget: &mut Budget) {
        let held_up = self.plan_arrived(budget);
        let mut behind: Option<Rank> = None;
        self.held_up = held_up.is_some();
        // Without tokens nobody can begin, unless somebody who runs gives back what was planned for it.
        while budget.left() > 0 || self.policy.goes_on_after_preemption() {
            let Some((rank, place)) = self.waiting.next(behind) else { break };
            if held_up.is_some_and(|held_up| held_up < rank) {
                break;
            }
            match self.ask(place, budget) {
                Outcome::Admitted | Outcome::Ended => {}
                Outcome::Skipped => behind = Some(rank),
                Outcome::Nobody => {
                    self.held_up = true;
                    break;
                }
            }
        }
    }

    /// Whether a waiting request can begin now.
    pub(super) fn ask(&mut self, place: u32, budget: &mut Budget) -> Outcome {
        let entry = self.requests.at(place);
        let (request, tokens) = (entry.view(), entry.chain.len());
        if self.config.blocks(tokens) > self.config.capacity() {
            // It has grown up to the end of the pool, was preempted, and fits no more.
            self.end_while_planning(place, FinishReason::KvExhausted);
            return Outcome::Ended;
        }
        if request.preempted_now() {
            // It gave way to others, who come first.
            return Outcome::Nobody;
        }
        let so_far = Composed { requests: self.step.rows.len(), tokens: self.step.tokens };
        if !self.policy.compose(&request, &so_far) {
            return Outcome::Skipped;
        }
        let fits = match self.policy.admit(&request, &self.config) {
            Admit::NobodyNow => return Outcome::Nobody,
            Admit::NotNow => return Outcome::Skipped,
            Admit::WhenFits(len) => len.min(self.config.capacity() * self.config.block_size),
        };
        if self.begin_loading(place, fits) || self.let_in(place, fits, budget) {
            return Outcome::Admitted;
        }
        // Somebody who runs may give way to it.
        if !self.make_room(place, fits, budget) {
            return Outcome::Nobody;
        }
        let admitted = self.let_in(place, fits, budget);
        debug_assert!(admitted, "somebody gave way in vain");
        if admitted { Outcome::Admitted } else { Outcome::Nobody }
    }

    /// Begin with a request that waits, with blocks or without.
    fn let_in(&mut self, place: u32, fits: usize, budget: &mut Budget) -> bool {
        match self.requests.at(place).status {
            Status::WaitingForKv => self.admit_arrived(place, fits, budget),
            Status::Waiting | Status::Running => self.admit(place, fits, budget),
        }
    }

    /// Begin with a waiting request, if it fits: a seat, tokens of the step, and blocks. Without them nothing changes.
    pub(super) fn admit(&mut self, place: u32, fits: usize, budget: &mut Budget) -> bool {
        if self.running.len() >= self.config.seats() {
            return false;
        }
        let entry = self.requests.at(place);
        let resumed = entry.preemptions > 0;
        // exercise l5.admit
        // What is cached of it need not be computed: it is lent the blocks, and wants the tokens behind them.
        let hit = match entry.reads_cache {
            true => self.blocks.lookup(&entry.chain),
            false => PrefixHit::default(),
        };
        let Some(len) = budget.waiting(entry.chain.len() - hit.tokens) else { return false };
        // Who is alone needs no distance from others.
        let alone = self.running.is_empty();
        let want = Admission {
            up_to_len: self.reserved_len(hit.tokens + len),
            must_fit_len: fits,
            keep_free: if alone { 0 } else { self.config.watermark_blocks() },
            resumed,
        };
        let Some(seq) = self.admit_blocks(place, &hit, want) else { return false };
        self.begin(place, seq, hit.tokens, len);
        budget.take(len);
        true
        // end of exercise
    }

    /// Take a request's first blocks. If they are not there, leases end before it waits, as long as that can help.
    pub(super) fn admit_blocks(
        &mut self,
        place: u32,
        hit: &PrefixHit,
        want: Admission,
    ) -> Option<SeqId> {
        let needed = self.blocks.blocks_to_admit(hit, want.must_fit_len.max(want.up_to_len));
        if !self.free_up(needed + want.keep_free, hit) {
            return None;
        }
        match self.blocks.admit(&self.requests.at(place).chain, hit, want) {
            Ok(seq) => Some(seq),
            Err(e) => {
                debug_assert!(matches!(e, KvError::NoFreeBlocks { .. }), "{e}");
                None
            }
        }
    }

    /// A request that has its first blocks leaves the queue, takes a seat, and takes part with its first `len` tokens behind
    /// those it has `cached`.
    pub(super) fn begin(&mut self, place: u32, seq: SeqId, cached: usize, len: usize) {
        let entry = self.requests.at_mut(place);
        self.waiting.remove(entry.rank);
        // exercise l5.admit
        entry.status = Status::Running;
        entry.seq = Some(seq);
        entry.computed = cached;
        let resumed = entry.preemptions > 0;
        // The step fills these blocks: whoever asks next may count on what they will hold.
        let end = cached + len;
        let complete = end == entry.chain.len();
        let registered = self.blocks.register(seq, &entry.chain, end);
        debug_assert!(registered.is_ok(), "{registered:?}");
        let row = StepRow {
            id: entry.id,
            place,
            computed: cached,
            len,
            samples: complete,
            admitted: if resumed { Admitted::Resumed } else { Admitted::Now },
            cached,
            blocks_before: 0,
        };
        self.running.push(place);
        self.stats.resumes += u64::from(resumed);
        self.stats.cached_tokens += cached as u64;
        self.push_row(row);
        // end of exercise
    }
}

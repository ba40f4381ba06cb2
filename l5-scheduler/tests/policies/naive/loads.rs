//! Loads: keys and values that a waiting request gets from a second memory, instead of computing them.
//!
//! The rules, as documented:
//!
//! - A waiting request for which a seat is free is looked up before it is admitted.
//! - A seat is kept for each request that waits for an answer. If no other one is free, no request behind it is
//!   admitted, so a plan leaves no more requests waiting for an answer than there are free seats.
//! - The second memory is asked for whole blocks behind the cache hit, and never for the last token.
//! - If it does not know yet, the request waits, and those behind it may be admitted; after [`MAX_LOOKUP_SECONDS`] it
//!   is admitted like any other request.
//! - A load begins only if the pool has blocks for all tokens of its request, and for all that the other requests with
//!   loads will need beyond their own: for a token more than they have, and for the lookahead. It needs neither a seat
//!   nor tokens of the step.
//! - A request that was preempted does not load while a request runs that may preempt it.
//! - A request that has arrived is tried before all requests without blocks.
//! - Until the load has ended, its request keeps its blocks, even if it was aborted.

use l5_scheduler::{FinishReason, MAX_LOOKUP_SECONDS, Matched};

use super::{Naive, NaiveRequest};
use crate::second_memory::Question;

/// A load of a waiting request: tokens `from..to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NaiveLoad {
    pub(super) from: usize,
    to: usize,
    arrived: bool,
}

/// Answer to whether a waiting request loads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LookUp {
    /// It has begun to load.
    Loads,
    /// The second memory does not know yet.
    Asks,
    /// It does not load.
    Nothing,
}

/// Something that happened to a load; they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadEvent {
    Begins,
    BeginsBehindAHit,
    BeginsBesideAnother,
    /// There were blocks for it, but not beside those that other loads will need.
    LeavesBlocksToOthers,
    AskedAgain,
    TimedOut,
    /// It was not admitted, because all free seats are kept for requests that wait for an answer.
    SeatsAreKept,
    ArrivesWhole,
    ArrivesInPart,
    ArrivesEmpty,
    ArrivesAborted,
    /// Its request was admitted while others waited without blocks.
    ArrivedPrecedesOthers,
    ArrivedHoldsUpOthers,
    /// Its blocks were freed, because the prefix cache was reset.
    GivenUp,
}

impl LoadEvent {
    pub const ALL: [Self; 14] = [
        Self::Begins,
        Self::BeginsBehindAHit,
        Self::BeginsBesideAnother,
        Self::LeavesBlocksToOthers,
        Self::AskedAgain,
        Self::TimedOut,
        Self::SeatsAreKept,
        Self::ArrivesWhole,
        Self::ArrivesInPart,
        Self::ArrivesEmpty,
        Self::ArrivesAborted,
        Self::ArrivedPrecedesOthers,
        Self::ArrivedHoldsUpOthers,
        Self::GivenUp,
    ];
}

impl NaiveRequest {
    pub(super) fn is_loading(&self) -> bool {
        self.load.is_some_and(|load| !load.arrived)
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.load.is_some_and(|load| load.arrived)
    }
}

impl Naive {
    pub(super) fn saw(&mut self, event: LoadEvent) {
        *self.seen.entry(event).or_default() += 1;
    }

    /// The first waiting request whose load has arrived.
    pub(super) fn next_arrived(&self) -> Option<u64> {
        self.waiting.iter().find(|request| request.has_arrived()).map(|request| request.id)
    }

    /// Asks the second memory about a waiting request, and begins to load what it has.
    pub(super) fn look_up(&mut self, id: u64) -> LookUp {
        let at = self.waiting_at(id);
        let Some(memory) = self.memory.filter(|_| self.waiting[at].load.is_none()) else {
            return LookUp::Nothing;
        };
        let size = self.config.block_size;
        let request = &self.waiting[at];
        let hit = self.lookup(request);
        let from = hit.len() * size;
        let most = (request.tokens.len() - 1) / size * size;
        if most <= from || self.running.len() >= self.seats() {
            return LookUp::Nothing;
        }
        let urgent = |other: &NaiveRequest| self.strict() && other.priority < request.priority;
        if request.was_preempted && self.running.iter().any(urgent) {
            return LookUp::Nothing;
        }
        self.questions.push(Question { id, from });
        let answer = memory.answer(id, request.questions);
        self.waiting[at].questions += 1;
        match answer {
            Matched::AskAgain => self.wait_for_answer(at),
            Matched::Tokens(tokens) => {
                let to = from.saturating_add(tokens / size * size).min(most);
                if to > from && self.load(id, hit, to) { LookUp::Loads } else { LookUp::Nothing }
            }
        }
    }

    fn wait_for_answer(&mut self, at: usize) -> LookUp {
        let now = self.now;
        let request = &mut self.waiting[at];
        let asked = *request.asked.get_or_insert(now);
        if now - asked >= MAX_LOOKUP_SECONDS {
            self.saw(LoadEvent::TimedOut);
            return LookUp::Nothing;
        }
        self.asking.push(request.id);
        self.saw(LoadEvent::AskedAgain);
        LookUp::Asks
    }

    /// Begins a load behind a hit, if there are blocks for it. Returns whether it did.
    fn load(&mut self, id: u64, hit: Vec<usize>, to: usize) -> bool {
        let request = &self.waiting[self.waiting_at(id)];
        let all = self.blocks(self.with_drafts(request.tokens.len())).max(self.whole(request));
        let needed = all - hit.len() + self.idle(&hit) + self.kept_apart();
        let promised = self.promised();
        let would_fit = needed <= self.free.len();
        if !self.free_up(needed + promised, &hit) {
            if would_fit {
                self.saw(LoadEvent::LeavesBlocksToOthers);
            }
            return false;
        }
        let mut request = self.waiting.remove(self.waiting_at(id));
        let from = hit.len() * self.config.block_size;
        self.share(&mut request, hit);
        self.grow(&mut request, self.blocks(to));
        (request.computed, request.loaded) = (from, to);
        request.asked = None;
        request.load = Some(NaiveLoad { from, to, arrived: false });
        self.saw(LoadEvent::Begins);
        if from > 0 {
            self.saw(LoadEvent::BeginsBehindAHit);
        }
        if self.waiting.iter().any(|other| other.load.is_some()) {
            self.saw(LoadEvent::BeginsBesideAnother);
        }
        self.waiting.push(request);
        self.sort();
        true
    }

    /// Number of blocks that waiting requests with loads will need beyond their own.
    fn promised(&self) -> usize {
        let others = self.waiting.iter().filter(|request| request.load.is_some());
        let missing = |request: &NaiveRequest| {
            let tokens = request.tokens.len();
            let all = self.blocks((tokens + 1).max(self.with_drafts(tokens)));
            all.saturating_sub(request.table.len())
        };
        others.map(missing).sum()
    }

    /// Loads that have not ended: request id, and number of tokens that are there when all have arrived.
    pub fn loading(&self) -> Vec<(u64, usize)> {
        let loading = self.waiting.iter().filter(|request| request.is_loading());
        let loading = loading.filter_map(|request| Some((request.id, request.load?.to)));
        let mut loading: Vec<(u64, usize)> = loading.collect();
        loading.sort_unstable();
        loading
    }

    /// A load has ended, and the request's first `tokens` tokens are there.
    pub fn arrive(&mut self, id: u64, tokens: usize) {
        let at = self.waiting_at(id);
        if self.waiting[at].aborted {
            let mut request = self.waiting.remove(at);
            self.give_back(&mut request);
            self.end(&request, FinishReason::Aborted);
            self.saw(LoadEvent::ArrivesAborted);
            return;
        }
        let size = self.config.block_size;
        let request = &mut self.waiting[at];
        let load = request.load.as_mut().unwrap();
        load.arrived = true;
        // What was hit in the pool is there in any case.
        request.computed = load.from.max(tokens / size * size);
        let event = match request.computed {
            computed if computed == load.from => LoadEvent::ArrivesEmpty,
            computed if computed == load.to => LoadEvent::ArrivesWhole,
            _ => LoadEvent::ArrivesInPart,
        };
        self.saw(event);
    }

    /// Aborts a request that loads: it ends when the load has ended.
    pub(super) fn abort_load(&mut self, at: usize) {
        self.waiting[at].aborted = true;
    }

    /// Requests whose loads have arrived lose their blocks, and are as if they had never loaded.
    pub(super) fn give_up_loaded_blocks(&mut self) {
        while let Some(id) = self.next_arrived() {
            let mut request = self.waiting.remove(self.waiting_at(id));
            self.give_back(&mut request);
            request.load = None;
            self.waiting.push(request);
            self.sort();
            self.saw(LoadEvent::GivenUp);
        }
    }
}

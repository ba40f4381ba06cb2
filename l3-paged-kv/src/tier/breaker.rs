//! A circuit breaker around a tier.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{
    ChunkBytes, ChunkKey, Clock, KvTier, Presence, Ticket, Tickets, TierCompletion, TierError,
    TierOutcome, TierReport, TierStats,
};

/// Limits of a [`Breaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// Time after which an operation counts as failed, whatever becomes of it.
    pub timeout: Duration,
    /// Number of failures in a row that open the breaker; at least 1.
    pub failures: u32,
    /// Time that an open breaker waits before it tries the tier again.
    pub retry_after: Duration,
}

impl Default for BreakerOptions {
    /// Two seconds for an operation, three failures, five seconds until the next try.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(2), failures: 3, retry_after: Duration::from_secs(5) }
    }
}

/// State of a [`Breaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// The tier is used.
    Closed,
    /// The tier is not used: it has nothing, and refuses everything.
    Open {
        /// Moment when it opened.
        since: Duration,
    },
    /// One operation tries whether the tier works again. The others are refused until it has ended.
    HalfOpen {
        /// The tier's ticket of that operation; `None` until there is one.
        probe: Option<Ticket>,
    },
}

/// A tier that is left alone after some failures in a row, and tried again later.
///
/// Each operation ends within the timeout, also if the tier never answers: so a dead disk or server costs the engine a
/// bounded wait a few times, then nothing. A late answer is dropped. Hits and stored chunks are successes; errors,
/// timeouts and failed lookups are failures; a miss or a refusal says nothing about the tier's health.
///
/// A tier that cannot write, as on a full disk, can still be read. So after as many [`TierError::Write`]s in a row, only
/// puts are refused, for the same time.
pub struct Breaker<T> {
    tier: T,
    clock: Arc<dyn Clock>,
    options: BreakerOptions,
    state: BreakerState,
    /// Failures since the last success.
    in_a_row: u32,
    /// Writes that have failed since the last that has not, and when the last one did.
    failed_writes: (u32, Duration),
    /// Failed lookups that were counted.
    failed_lookups: u64,
    /// Operations under way: the tier's ticket, ours, and since when.
    pending: HashMap<Ticket, (Ticket, Duration)>,
    /// The same in order of their beginning; those that have ended are skipped.
    by_age: VecDeque<Ticket>,
    tickets: Tickets,
    /// Completions of the tier, to be translated.
    ended: Vec<TierCompletion>,
    refused: u64,
    timeouts: u64,
    opened: u64,
}

impl<T: KvTier> Breaker<T> {
    /// A closed breaker around a tier.
    pub fn new(tier: T, options: BreakerOptions, clock: Arc<dyn Clock>) -> Self {
        let (pending, by_age) = (HashMap::new(), VecDeque::new());
        let (tickets, ended) = (Tickets::default(), Vec::new());
        let state = BreakerState::Closed;
        let (refused, timeouts, opened, in_a_row) = (0, 0, 0, 0);
        Self {
            tier,
            clock,
            options,
            state,
            in_a_row,
            failed_writes: (0, Duration::ZERO),
            failed_lookups: 0,
            pending,
            by_age,
            tickets,
            ended,
            refused,
            timeouts,
            opened,
        }
    }

    /// State of the breaker.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// The tier.
    pub fn tier(&self) -> &T {
        &self.tier
    }

    /// The tier, for what is not in [`KvTier`]. Its `poll` must not be called, nor operations begun.
    pub fn tier_mut(&mut self) -> &mut T {
        &mut self.tier
    }

    /// The tier itself.
    pub fn into_tier(self) -> T {
        self.tier
    }

    /// Whether an operation may begin now.
    fn lets_through(&mut self) -> bool {
        // exercise l3.breaker
        if let BreakerState::Open { since } = self.state
            && self.clock.now().saturating_sub(since) >= self.options.retry_after
        {
            self.state = BreakerState::HalfOpen { probe: None };
        }
        matches!(self.state, BreakerState::Closed | BreakerState::HalfOpen { probe: None })
        // end of exercise
    }

    fn begin(&mut self, begin: impl FnOnce(&mut T) -> Ticket) -> Ticket {
        if !self.lets_through() {
            self.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        let (theirs, ours) = (begin(&mut self.tier), self.tickets.issue());
        self.pending.insert(theirs, (ours, self.clock.now()));
        self.by_age.push_back(theirs);
        if let BreakerState::HalfOpen { probe } = &mut self.state {
            *probe = Some(theirs);
        }
        ours
    }

    /// Ends an operation, and learns from its outcome.
    fn end(&mut self, theirs: Ticket, outcome: TierOutcome) {
        let Some((ours, _)) = self.pending.remove(&theirs) else { return };
        let probed = self.state == BreakerState::HalfOpen { probe: Some(theirs) };
        match &outcome {
            TierOutcome::Failed(TierError::Write(_)) => {
                self.failed_writes = (self.failed_writes.0.saturating_add(1), self.clock.now());
                if probed {
                    // It has answered. Whether it can be read, a read must show.
                    self.state = BreakerState::HalfOpen { probe: None };
                }
                return self.tickets.end(ours, outcome);
            }
            TierOutcome::Stored => self.failed_writes.0 = 0,
            _ => {}
        }
        // exercise l3.breaker
        match &outcome {
            TierOutcome::Hit(_) | TierOutcome::Stored => {
                self.in_a_row = 0;
                if probed {
                    self.state = BreakerState::Closed;
                }
            }
            TierOutcome::Failed(_) => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                let closed = self.state == BreakerState::Closed;
                if probed || closed && self.in_a_row >= self.options.failures.max(1) {
                    self.state = BreakerState::Open { since: self.clock.now() };
                    self.opened += 1;
                }
            }
            TierOutcome::Miss | TierOutcome::Refused if probed => {
                self.state = BreakerState::HalfOpen { probe: None };
            }
            TierOutcome::Miss | TierOutcome::Refused => {}
        }
        // end of exercise
        self.tickets.end(ours, outcome);
    }

    /// Whether a put may begin now, as far as earlier ones say.
    fn can_write(&self) -> bool {
        let (failures, last) = self.failed_writes;
        failures < self.options.failures.max(1)
            || self.clock.now().saturating_sub(last) >= self.options.retry_after
    }

    /// Counts lookups that have failed since the last time.
    fn learn_from_lookups(&mut self) {
        let failed = self.tier.failed_lookups();
        let new = failed - self.failed_lookups;
        self.failed_lookups = failed;
        if new == 0 {
            return;
        }
        self.in_a_row = self.in_a_row.saturating_add(u32::try_from(new).unwrap_or(u32::MAX));
        let opens = match self.state {
            BreakerState::Closed => self.in_a_row >= self.options.failures.max(1),
            BreakerState::HalfOpen { probe } => probe.is_none(),
            BreakerState::Open { .. } => false,
        };
        if opens {
            self.state = BreakerState::Open { since: self.clock.now() };
            self.opened += 1;
        }
    }

    /// Ends operations that have taken too long.
    fn expire(&mut self) {
        let (now, timeout) = (self.clock.now(), self.options.timeout);
        while let Some(theirs) = self.by_age.front().copied() {
            if let Some((_, since)) = self.pending.get(&theirs) {
                if now.saturating_sub(*since) < timeout {
                    break;
                }
                self.timeouts += 1;
                self.end(theirs, TierOutcome::Failed(TierError::TimedOut(timeout)));
            }
            self.by_age.pop_front();
        }
    }
}

impl<T: KvTier> KvTier for Breaker<T> {
    fn name(&self) -> &'static str {
        self.tier.name()
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        if self.lets_through() { self.tier.contains(key) } else { Presence::Absent }
    }

    fn needs(&mut self, key: &ChunkKey) -> bool {
        self.can_write() && self.lets_through() && self.tier.needs(key)
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        self.begin(|tier| tier.get(key))
    }

    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket {
        if !self.can_write() {
            self.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        self.begin(|tier| tier.put(key, bytes))
    }

    fn protect(&mut self, key: &ChunkKey, time: Duration) {
        self.tier.protect(key, time);
    }

    fn room(&self) -> u64 {
        self.tier.room()
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        let mut theirs = std::mem::take(&mut self.ended);
        self.tier.poll(&mut theirs);
        for TierCompletion { ticket, outcome } in theirs.drain(..) {
            self.end(ticket, outcome);
        }
        self.ended = theirs;
        self.learn_from_lookups();
        self.expire();
        ended.append(&mut self.tickets.ended);
    }

    /// Counters of the tier; timeouts are added to its failures, and what the breaker refused to what it refused.
    fn stats(&self) -> TierStats {
        let stats = self.tier.stats();
        TierStats {
            refused: stats.refused + self.refused,
            failed: stats.failed + self.timeouts,
            opened: stats.opened + self.opened,
            ..stats
        }
    }

    fn report(&self, reports: &mut Vec<TierReport>) {
        let breaker = Some(self.state);
        reports.push(TierReport { name: self.name(), stats: self.stats(), breaker });
    }

    /// Chunks that the tier has not written, also those whose time is over: the tier may still write them.
    fn num_unwritten(&self) -> usize {
        self.tier.num_unwritten()
    }
}

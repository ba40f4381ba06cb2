//! What waits for an adapter: one queue of requests, loads and unloads, in order of arrival.
//!
//! ```text
//! enter -> passes, until one of them grants what is wanted, or the time to wait is over
//!
//! a pass, in order of arrival:
//!   the adapter is in memory              -> granted, unless one before it has waited too long for room
//!   something else has the name           -> waits, and holds up nothing
//!   no room, or no thread that could read -> waits, and what comes later gets neither of them
//!   else                                  -> granted: the name, room and a thread. The read is outside of the queue
//! ```
//!
//! A pass decides with the time and nothing else of its own: it is run when something enters, when a read has ended,
//! and every [`ROOM_POLL`] by the first in the queue, since a request gives its adapter back on the engine's thread,
//! which must not look for what waits.
//!
//! **No wait is endless.** For room it is over after `max_wait`, for a name or a thread after the time of a read, or
//! `max_wait` if that is longer. A read ends its name and its room by its deadline, so what waits for reads alone gets
//! its turn. Requests for adapters in memory pass one that waits for room, for half of `max_wait`. Then they queue
//! behind it, so the requests that keep its room from it become fewer until it has it, or its time is over.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use l5_scheduler::adapters::{AdapterRead, Begun, ReadFor, RegistryError};
use l5_scheduler::{AdapterRegistry, RequestAdapter};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::background::{Background, LoadSeat};

/// Maximum number of requests and loads in the queue. Prompts are in memory meanwhile.
pub(super) const MAX_WAITING: usize = 512;

/// Maximum number of them for one name: an adapter whose files hang leaves places for others.
pub(super) const MAX_WAITING_FOR_ONE: usize = MAX_WAITING / 2;

/// Maximum number of all in the queue. Unloads need no room, so they are not refused for those who do.
const MAX_QUEUED: usize = 2 * MAX_WAITING;

/// Interval at which the first in the queue looks for room.
pub(super) const ROOM_POLL: Duration = Duration::from_millis(10);

/// What is wanted of an adapter.
#[derive(Debug)]
pub(super) enum Wanted {
    /// A request wants to run with it.
    Use,
    /// It is to be loaded.
    Load { path: PathBuf, load_inplace: bool },
    /// It is to be unloaded.
    Unload,
}

/// What a pass grants.
#[derive(Debug)]
pub(super) enum Grant {
    /// The adapter, which is in memory.
    Ready(RequestAdapter),
    /// The files may be read.
    Read(ReadGrant),
    /// Nothing reads the adapter while this is held: it may be unloaded.
    Name(NameTurn),
}

/// Everything that a read needs. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct ReadGrant {
    pub read: AdapterRead,
    pub seat: LoadSeat,
    pub turn: NameTurn,
}

/// Why nothing is granted.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one value for each wait that ends, and it is moved once
pub(super) enum Refusal {
    /// The registry refuses it, or the time for its name or its room is over.
    Registry(RegistryError),
    /// Others had all turns to read for this time.
    NoTurn(Duration),
    /// So many wait, for this adapter alone or for any.
    QueueFull { waiting: usize, own: bool },
}

/// What one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Name,
    Room,
    Seat,
}

/// The first in the queue that waits for room or for a seat: what comes later gets neither.
#[derive(Clone, Copy, Debug)]
struct Head {
    block: Block,
    since: Instant,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    name: String,
    wanted: Wanted,
    since: Instant,
    grant: oneshot::Sender<Result<Grant, Refusal>>,
}

#[allow(clippy::large_enum_variant)] // as of a refusal
enum Decision {
    Done(Result<Grant, Refusal>),
    Wait(Block),
}

#[derive(Debug, Default)]
struct State {
    waiters: VecDeque<Waiter>,
    entered: u64,
    /// Since when the head waits, if it waits for room.
    room_since: Option<Instant>,
}

/// The queue of a registry.
#[derive(Debug)]
pub(super) struct RoomQueue {
    registry: AdapterRegistry,
    background: Background,
    max_wait: Duration,
    names: NameTurns,
    state: Mutex<State>,
}

/// A place in the queue, until this is dropped.
pub(super) struct Waiting<'a> {
    queue: &'a RoomQueue,
    id: u64,
    granted: oneshot::Receiver<Result<Grant, Refusal>>,
}

/// The time, which tests may pause.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl RoomQueue {
    /// A queue in which one waits for at most `max_wait` for room.
    pub fn new(registry: AdapterRegistry, background: Background, max_wait: Duration) -> Self {
        let (names, state) = (NameTurns::default(), Mutex::default());
        Self { registry, background, max_wait, names, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests for adapters in memory have to queue.
    pub fn holds_back(&self, now: Instant) -> bool {
        self.lock().room_since.is_some_and(|since| self.is_long(since, now))
    }

    /// Whether what waits for room has waited for so long that nothing may pass it any more: half of the time that it
    /// has.
    fn is_long(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.max_wait / 2
    }

    /// Enters the queue. What can be granted at once is granted here.
    ///
    /// # Errors
    /// [`Refusal`] if the queue is full.
    pub fn enter(&self, name: &str, wanted: Wanted, now: Instant) -> Result<Waiting<'_>, Refusal> {
        let mut state = self.lock();
        let all = state.waiters.len();
        let own = state.waiters.iter().filter(|waiter| waiter.name == name).count();
        let (own_max, max) = match wanted {
            Wanted::Unload => (MAX_QUEUED, MAX_QUEUED),
            _ => (MAX_WAITING_FOR_ONE, MAX_WAITING),
        };
        if own >= own_max || all >= max {
            let (waiting, own) = if own >= own_max { (own, true) } else { (all, false) };
            return Err(Refusal::QueueFull { waiting, own });
        }
        let (grant, granted) = oneshot::channel();
        state.entered += 1;
        let id = state.entered;
        state.waiters.push_back(Waiter { id, name: name.to_owned(), wanted, since: now, grant });
        self.pass(&mut state, now);
        Ok(Waiting { queue: self, id, granted })
    }

    /// Grants what can be granted now.
    pub fn poll(&self, now: Instant) {
        self.pass(&mut self.lock(), now);
    }

    fn pass(&self, state: &mut State, now: Instant) {
        let mut head: Option<Head> = None;
        for waiter in std::mem::take(&mut state.waiters) {
            let block = match self.decide(&waiter, head, now) {
                Decision::Wait(block) => block,
                Decision::Done(done) => {
                    // If it is not there any more, this gives back what it was granted.
                    let _ = waiter.grant.send(done);
                    continue;
                }
            };
            let limit = self.limit(block);
            if now.saturating_duration_since(waiter.since) >= limit {
                let _ = waiter.grant.send(Err(self.refusal(&waiter.name, block, limit)));
                continue;
            }
            if block != Block::Name && head.is_none() {
                head = Some(Head { block, since: waiter.since });
            }
            state.waiters.push_back(waiter);
        }
        state.room_since = head.filter(|head| head.block == Block::Room).map(|head| head.since);
    }

    fn decide(&self, waiter: &Waiter, head: Option<Head>, now: Instant) -> Decision {
        let name = &waiter.name;
        let refused = |why| Decision::Done(Err(Refusal::Registry(why)));
        if matches!(waiter.wanted, Wanted::Use) {
            let is_long = |head: Head| head.block == Block::Room && self.is_long(head.since, now);
            if head.is_some_and(is_long) {
                return Decision::Wait(Block::Room);
            }
            match self.registry.get_resident(name) {
                Ok(Some(ready)) => return Decision::Done(Ok(Grant::Ready(ready))),
                Ok(None) => {}
                Err(why) => return refused(why),
            }
        }
        let Some(turn) = self.names.take(name) else { return Decision::Wait(Block::Name) };
        let what = match &waiter.wanted {
            Wanted::Use => ReadFor::Use,
            Wanted::Load { path, load_inplace } => {
                ReadFor::Load { path, load_inplace: *load_inplace }
            }
            Wanted::Unload => return Decision::Done(Ok(Grant::Name(turn))),
        };
        match self.registry.begin(name, what, head.is_none()) {
            Ok(Begun::Ready(ready)) => Decision::Done(Ok(Grant::Ready(ready))),
            Ok(Begun::NameBusy) => Decision::Wait(Block::Name),
            Ok(Begun::NoRoom) => Decision::Wait(head.map_or(Block::Room, |head| head.block)),
            Ok(Begun::Read(read)) => match self.background.try_load_seat() {
                Some(seat) => Decision::Done(Ok(Grant::Read(ReadGrant { read, seat, turn }))),
                None => Decision::Wait(Block::Seat),
            },
            Err(why) => refused(why),
        }
    }

    /// Maximum time in the queue of what waits for this.
    fn limit(&self, block: Block) -> Duration {
        match block {
            Block::Room => self.max_wait,
            Block::Name | Block::Seat => self.max_wait.max(self.registry.options().load_timeout),
        }
    }

    fn refusal(&self, name: &str, block: Block, limit: Duration) -> Refusal {
        let max = self.registry.options().max_cpu_loras;
        match block {
            Block::Name => {
                let (name, seconds) = (name.to_owned(), limit.as_secs_f64());
                Refusal::Registry(RegistryError::TimedOut { name, seconds })
            }
            Block::Room if self.registry.requests_use_all() => {
                Refusal::Registry(RegistryError::Full { max })
            }
            Block::Room | Block::Seat => Refusal::NoTurn(limit),
        }
    }
}

impl Waiting<'_> {
    /// Waits for what is wanted.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn granted(mut self) -> Result<Grant, Refusal> {
        loop {
            tokio::select! {
                biased;
                granted = &mut self.granted => {
                    // What is in the queue is granted or refused before it leaves.
                    return granted.unwrap_or(Err(Refusal::NoTurn(Duration::ZERO)));
                }
                () = sleep(ROOM_POLL) => self.poll_if_first(),
            }
        }
    }

    fn poll_if_first(&self) {
        let mut state = self.queue.lock();
        if state.waiters.front().is_some_and(|first| first.id == self.id) {
            self.queue.pass(&mut state, now());
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.waiters.retain(|waiter| waiter.id != self.id);
        if state.waiters.is_empty() {
            state.room_since = None;
        }
    }
}

/// Names that are read or unloaded. A thread whose read hangs keeps its name, so that a name has one thread.
#[derive(Clone, Debug, Default)]
struct NameTurns(Arc<Mutex<HashSet<String>>>);

/// The turn of a name, until this is dropped.
#[derive(Debug)]
pub(super) struct NameTurn {
    turns: NameTurns,
    name: String,
}

impl NameTurns {
    /// `None`: something else has the name.
    fn take(&self, name: &str) -> Option<NameTurn> {
        let taken = self.lock().insert(name.to_owned());
        taken.then(|| NameTurn { turns: self.clone(), name: name.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NameTurn {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests;

//! The queue under a clock that the test sets. Reads happen where the test does them.

use std::path::Path;

use l5_scheduler::adapters::AdapterOptions;

use super::super::fake_disk::{Directory, Disk};
use super::*;

const MAX_WAIT: Duration = Duration::from_secs(30);
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// A queue over adapters of these names, of which the last `max` are in memory.
fn queue(disk: &Disk, max: usize, names: &[&str]) -> RoomQueue {
    let options = AdapterOptions {
        max_cpu_loras: max,
        load_timeout: LOAD_TIMEOUT,
        ..AdapterOptions::default()
    };
    let registry = disk.registry(options);
    for name in names {
        drop(registry.load(name, Path::new(name), false).unwrap());
    }
    RoomQueue::new(registry, Background::default(), MAX_WAIT)
}

/// A queue whose room a request for `b` has, with that request's adapter. `a` is known, and evicted.
fn full() -> (RoomQueue, RequestAdapter) {
    let queue = queue(&Disk::default(), 1, &["a", "b"]);
    let b = queue.used("b");
    (queue, b)
}

fn load(path: &str) -> Wanted {
    Wanted::Load { path: path.into(), load_inplace: false }
}

impl RoomQueue {
    #[track_caller]
    fn used(&self, name: &str) -> RequestAdapter {
        self.registry.get_resident(name).unwrap().expect("the adapter is in memory")
    }

    fn waits(&self, name: &str, wanted: Wanted, now: Instant) -> Waiting<'_> {
        let mut waiting = self.enter(name, wanted, now).expect("the queue has room");
        assert!(waiting.result().is_none(), "{name} does not wait");
        waiting
    }

    #[track_caller]
    fn gets(&self, name: &str, wanted: Wanted, now: Instant) -> Grant {
        let mut waiting = self.enter(name, wanted, now).expect("the queue has room");
        waiting.grant()
    }
}

impl Waiting<'_> {
    fn result(&mut self) -> Option<Result<Grant, Refusal>> {
        self.granted.try_recv().ok()
    }

    #[track_caller]
    fn grant(&mut self) -> Grant {
        self.result().expect("it is decided").expect("it is granted")
    }

    #[track_caller]
    fn read(&mut self) -> ReadGrant {
        match self.grant() {
            Grant::Read(read) => read,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refusal(&mut self) -> Refusal {
        self.result().expect("it is decided").expect_err("it is refused")
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_read_that_hangs_holds_up_nothing_that_has_room_of_its_own() {
    let queue = queue(&Disk::default(), 2, &["x", "b", "c", "d"]);
    let (c, d, t) = (queue.used("c"), queue.used("d"), Instant::now());
    let mut x = queue.waits("x", Wanted::Use, t);
    let mut b = queue.waits("b", Wanted::Use, t);
    drop((c, d));
    queue.poll(t);
    // Nothing of the first read happens, and it is not over.
    let _hangs = x.read();
    let read = b.read();
    assert_eq!(read.read.read().unwrap().name, "b");
    assert!(matches!(queue.gets("d", Wanted::Use, t), Grant::Ready(_)), "it passes");
}

#[test]
fn loads_at_once_get_the_room_of_one_adapter_one_after_the_other_and_none_is_refused() {
    let queue = queue(&Disk::default(), 1, &[]);
    let t = Instant::now();
    let names = ["a", "b", "c", "d", "e"];
    let mut waiting: Vec<_> =
        names.iter().map(|name| queue.enter(name, load(name), t).unwrap()).collect();
    for (at, name) in names.iter().enumerate() {
        queue.poll(t + MAX_WAIT - seconds(1));
        let (first, later) = waiting[at..].split_first_mut().expect("it is there");
        assert!(later.iter_mut().all(|later| later.result().is_none()), "behind {name}");
        let ReadGrant { read, .. } = first.read();
        assert_eq!(read.read().unwrap().name, *name);
        assert_eq!(queue.registry.num_resident(), 1);
    }
}

#[test]
fn what_waits_for_reads_is_told_so_and_what_waits_for_requests_is_told_that() {
    let ((queue, used), t) = (full(), Instant::now());
    let mut waits = queue.waits("a", Wanted::Use, t);
    queue.poll(t + MAX_WAIT - seconds(1));
    assert!(waits.result().is_none());
    queue.poll(t + MAX_WAIT);
    let full = waits.refusal();
    assert!(matches!(full, Refusal::Registry(RegistryError::Full { max: 1 })), "{full:?}");
    drop(used);
    let _reads = queue.gets("a", Wanted::Use, t);
    let mut waits = queue.waits("c", load("c"), t);
    queue.poll(t + MAX_WAIT);
    assert!(matches!(waits.refusal(), Refusal::NoTurn(MAX_WAIT)));
}

#[test]
fn an_adapter_that_is_always_busy_passes_what_waits_for_half_of_its_time_and_then_queues() {
    let ((queue, used), t) = (full(), Instant::now());
    let mut a = queue.waits("a", Wanted::Use, t);
    let early = t + MAX_WAIT / 2 - seconds(1);
    queue.poll(early);
    assert!(!queue.holds_back(early));
    assert!(matches!(queue.gets("b", Wanted::Use, early), Grant::Ready(_)), "it passes");
    let late = t + MAX_WAIT / 2;
    assert!(queue.holds_back(late));
    let mut b = queue.waits("b", Wanted::Use, late);
    // The requests that ran before have ended.
    drop(used);
    queue.poll(late);
    let read = a.read();
    let Grant::Ready(other) = b.grant() else { panic!("the adapter is still in memory") };
    assert_eq!(read.read.read().unwrap().name, "a");
    assert!(!queue.holds_back(late + MAX_WAIT), "nothing waits for room");
    assert_eq!(queue.registry.num_resident(), 2, "one more for each read that was in flight");
    drop(other);
    let mut again = queue.enter("c", load("c"), late).unwrap();
    drop(again.read());
    assert_eq!(queue.registry.num_resident(), 1, "what is above the maximum goes when it is idle");
}

#[test]
fn a_request_that_was_held_back_runs_when_the_time_of_what_it_waited_for_is_over() {
    let ((queue, _used), t) = (full(), Instant::now());
    let mut a = queue.waits("a", Wanted::Use, t);
    let mut b = queue.waits("b", Wanted::Use, t + MAX_WAIT / 2);
    queue.poll(t + MAX_WAIT);
    assert!(matches!(a.refusal(), Refusal::Registry(RegistryError::Full { .. })));
    assert!(matches!(b.grant(), Grant::Ready(_)));
}

#[test]
fn a_name_has_one_turn_and_its_wait_is_that_of_a_read() {
    let queue = queue(&Disk::default(), 2, &["c", "a", "b"]);
    let t = Instant::now();
    let held = queue.gets("c", Wanted::Use, t);
    let mut second = queue.waits("c", Wanted::Unload, t);
    assert!(matches!(queue.gets("b", Wanted::Unload, t), Grant::Name(_)), "another name");
    queue.poll(t + LOAD_TIMEOUT - seconds(1));
    assert!(second.result().is_none(), "it does not wait for room");
    queue.poll(t + LOAD_TIMEOUT);
    let over = second.refusal();
    assert!(
        matches!(&over, Refusal::Registry(RegistryError::TimedOut { name, .. }) if name == "c")
    );
    drop(held);
    assert!(matches!(queue.gets("c", Wanted::Unload, t), Grant::Name(_)));
}

#[test]
fn reads_have_few_threads_and_what_waits_for_one_holds_back_no_adapter_in_memory() {
    let queue = queue(&Disk::default(), 4, &["a", "b", "c", "d", "e", "f", "g"]);
    let t = Instant::now();
    let first: Vec<_> = ["a", "b"].map(|name| queue.gets(name, Wanted::Use, t)).into();
    let mut third = queue.waits("c", Wanted::Use, t);
    let late = t + LOAD_TIMEOUT - seconds(1);
    queue.poll(late);
    assert!(third.result().is_none(), "longer than for room");
    assert!(!queue.holds_back(late));
    assert!(matches!(queue.gets("g", Wanted::Use, late), Grant::Ready(_)));
    drop(first);
    queue.poll(late);
    drop(third.read());
}

#[test]
fn what_nothing_takes_is_given_back_and_the_queue_is_bounded() {
    let queue = queue(&Disk::default(), 1, &["a", "b"]);
    let t = Instant::now();
    // Granted, and its client has gone.
    drop(queue.enter("a", Wanted::Use, t).unwrap());
    let used = queue.used("b");
    let mut waiting: Vec<_> =
        (0..MAX_WAITING_FOR_ONE).map(|_| queue.waits("a", Wanted::Use, t)).collect();
    let full = |name, wanted| match queue.enter(name, wanted, t) {
        Err(Refusal::QueueFull { waiting, own }) => Some((waiting, own)),
        Err(other) => panic!("{other:?}"),
        Ok(_) => None,
    };
    assert_eq!(full("a", Wanted::Use), Some((MAX_WAITING_FOR_ONE, true)));
    assert_eq!(full("c", load("c")), None, "others have places");
    waiting.extend((waiting.len()..MAX_WAITING).map(|_| queue.waits("c", load("c"), t)));
    assert_eq!(full("d", load("d")), Some((MAX_WAITING, false)));
    // It needs no room.
    assert!(matches!(queue.gets("b", Wanted::Unload, t), Grant::Name(_)));
    waiting.truncate(1);
    assert_eq!(queue.lock().waiters.len(), 1);
    drop(used);
    queue.poll(t);
    drop(waiting);
    assert!(queue.names.lock().is_empty());
    assert!(queue.registry.has_room() && queue.lock().waiters.is_empty());
    drop(queue.enter("a", Wanted::Use, t).unwrap().read());
}

#[test]
fn a_load_that_fails_evicts_nothing_and_its_turn_goes_on() {
    let disk = Disk::default();
    disk.set("bad", Directory::Bad);
    let queue = queue(&disk, 1, &["a"]);
    let t = Instant::now();
    let mut bad = queue.enter("bad", load("bad"), t).unwrap();
    let mut next = queue.waits("b", load("b"), t);
    let ReadGrant { read, .. } = bad.read();
    assert!(matches!(read.read(), Err(RegistryError::Load { .. })));
    drop(queue.used("a"));
    queue.poll(t);
    let ReadGrant { read, .. } = next.read();
    drop(read.read().unwrap());
    assert!(queue.registry.get_resident("a").unwrap().is_none(), "evicted for one that works");
}

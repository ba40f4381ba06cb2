//! Files that fail, a tier that fails, a clock that is moved by hand, and helpers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use l3_paged_kv::tier::{
    ChunkBytes, ChunkFiles, ChunkKey, Clock, DirectoryFiles, KvTier, ListedFile, Presence, Ticket,
    TierCompletion, TierError, TierOutcome, TierStats,
};

/// Key number `n`.
pub fn key(n: u64) -> ChunkKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&n.to_be_bytes());
    key[31] = 7;
    ChunkKey(key)
}

/// The bytes of chunk `n`, so many of them.
pub fn bytes(n: u64, len: usize) -> ChunkBytes {
    ChunkBytes::from(
        (0..len as u64).map(|i| (i * 31 + n * 17 + (i >> 8)) as u8).collect::<Vec<u8>>(),
    )
}

/// Polls until an operation has ended.
pub fn wait(tier: &mut dyn KvTier, ticket: Ticket) -> TierOutcome {
    let mut ended = Vec::new();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        tier.poll(&mut ended);
        if let Some(i) = ended.iter().position(|c| c.ticket == ticket) {
            return ended.swap_remove(i).outcome;
        }
        std::thread::yield_now();
    }
    panic!("{ticket:?} has not ended within 20 seconds");
}

pub fn put(tier: &mut dyn KvTier, n: u64, len: usize) -> TierOutcome {
    let ticket = tier.put(&key(n), bytes(n, len));
    wait(tier, ticket)
}

pub fn get(tier: &mut dyn KvTier, n: u64) -> TierOutcome {
    let ticket = tier.get(&key(n));
    wait(tier, ticket)
}

/// Chunks among `0..n` that a tier has.
pub fn present(tier: &mut dyn KvTier, n: u64) -> Vec<u64> {
    (0..n).filter(|n| tier.contains(&key(*n)) == Presence::Present).collect()
}

/// A clock that stands still until it is moved.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// What a directory does wrong.
#[derive(Default)]
pub struct Faults {
    /// Writes are an error when so many bytes are on the disk.
    pub disk_size: Option<u64>,
    pub reads_fail: bool,
    pub removals_fail: bool,
    /// Every operation waits as long as this is set.
    pub stopped: bool,
    /// Operations in order: `w`, `r`, `d` (deleted), and the first digits of the key.
    pub log: Vec<String>,
    /// Largest sum of the lengths of all files.
    pub most_bytes: u64,
}

/// A directory with faults that a test sets.
#[derive(Clone, Default)]
pub struct Disk(Arc<(Mutex<Faults>, Condvar)>);

impl Disk {
    pub fn set<R>(&self, f: impl FnOnce(&mut Faults) -> R) -> R {
        let result = f(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        result
    }

    pub fn files(&self, dir: &Path) -> Box<dyn ChunkFiles> {
        let inner = DirectoryFiles::open(dir).unwrap();
        Box::new(FaultyFiles { inner, disk: self.clone(), dir: dir.to_owned() })
    }
}

struct FaultyFiles {
    inner: DirectoryFiles,
    disk: Disk,
    dir: std::path::PathBuf,
}

/// Sum of the lengths of the chunks of a directory, as the tier counts them.
pub fn disk_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let chunks = files.filter(|e| e.file_name() != "lock");
    chunks.map(|e| e.metadata().unwrap().len().next_multiple_of(4096)).sum()
}

impl FaultyFiles {
    /// Waits while the disk is stopped, notes the operation, and returns whether it fails.
    fn enter(&self, what: &str, name: &str, fails: impl Fn(&Faults) -> bool) -> io::Result<()> {
        let (faults, changed) = &*self.disk.0;
        let mut faults = changed.wait_while(faults.lock().unwrap(), |f| f.stopped).unwrap();
        faults.log.push(format!("{what} {}", &name[..16]));
        if fails(&faults) { Err(io::Error::other("injected")) } else { Ok(()) }
    }
}

impl ChunkFiles for FaultyFiles {
    fn list(&mut self, visit: &mut dyn FnMut(ListedFile) -> bool) -> io::Result<()> {
        self.inner.list(visit)
    }

    fn read(&mut self, name: &str, head: usize) -> io::Result<(Vec<u8>, Vec<u8>)> {
        self.enter("r", name, |f| f.reads_fail)?;
        self.inner.read(name, head)
    }

    fn write(&mut self, name: &str, head: &[u8], rest: &[u8]) -> io::Result<()> {
        self.enter("w", name, |_| false)?;
        let size = self.disk.set(|f| f.disk_size);
        let free = size.map(|size| size.saturating_sub(disk_bytes(&self.dir)) as usize);
        if free.is_some_and(|free| free < head.len() + rest.len()) {
            // As a system does it: a part is written.
            self.inner.write(name, head, &rest[..rest.len() / 2])?;
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.inner.write(name, head, rest)?;
        let bytes = disk_bytes(&self.dir);
        self.disk.set(|f| f.most_bytes = f.most_bytes.max(bytes));
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.enter("d", name, |f| f.removals_fail)?;
        self.inner.remove(name)
    }
}

/// What a [`FaultyTier`] does with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Works,
    Fails,
    /// It ends when [`FaultyTier::release`] is called.
    Hangs,
}

/// A tier in memory that does what a script says, one entry for each operation, then works.
#[derive(Default)]
pub struct FaultyTier {
    pub script: VecDeque<Does>,
    chunks: HashMap<ChunkKey, ChunkBytes>,
    ended: Vec<TierCompletion>,
    hanging: Vec<TierCompletion>,
    pub operations: u64,
    pub failed_lookups: u64,
}

impl FaultyTier {
    pub fn new(script: impl IntoIterator<Item = Does>) -> Self {
        Self { script: script.into_iter().collect(), ..Self::default() }
    }

    /// Ends what hangs.
    pub fn release(&mut self) {
        self.ended.append(&mut self.hanging);
    }

    fn run(&mut self, outcome: TierOutcome) -> Ticket {
        self.operations += 1;
        let ticket = Ticket(1000 + self.operations);
        match self.script.pop_front().unwrap_or(Does::Works) {
            Does::Works => self.ended.push(TierCompletion { ticket, outcome }),
            Does::Hangs => self.hanging.push(TierCompletion { ticket, outcome }),
            Does::Fails => {
                let outcome = TierOutcome::Failed(TierError::Io("injected".into()));
                self.ended.push(TierCompletion { ticket, outcome });
            }
        }
        ticket
    }
}

impl KvTier for FaultyTier {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        if self.chunks.contains_key(key) { Presence::Present } else { Presence::Absent }
    }

    fn failed_lookups(&self) -> u64 {
        self.failed_lookups
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        let found = self.chunks.get(key).cloned();
        self.run(found.map_or(TierOutcome::Miss, TierOutcome::Hit))
    }

    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket {
        self.chunks.insert(*key, bytes);
        self.run(TierOutcome::Stored)
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        ended.append(&mut self.ended);
    }

    fn stats(&self) -> TierStats {
        TierStats { chunks: self.chunks.len(), ..TierStats::default() }
    }
}

//! Chunks on a disk.
//!
//! The caller's half knows which chunks there are and decides what is evicted; it touches no file but when the tier is
//! opened. A thread reads and writes. Reads go first, because a request waits for each; writes and removals keep their order,
//! so a chunk's room is free before the next one is written.

mod files;
mod names;
mod ops;

use std::collections::HashMap;

use super::header::HEADER_BYTES;
use super::lru::Lru;
use super::worker::Worker;
use super::{
    ChunkBytes, ChunkKey, KvTier, Presence, Ticket, Tickets, TierCompletion, TierError,
    TierOutcome, TierStats,
};
pub use files::{ChunkFiles, DirectoryFiles, ListedFile};
use names::FileName;
use ops::{Found, News, Op, WriteError};

/// Bytes in which a file system gives out room. A file counts whole units.
const UNIT: u64 = 4096;

/// Number of writes, after one that found the file system full, for which chunks are evicted. Then there may be room again.
const WRITES_IN_OWN_ROOM: u32 = 64;

/// Limits of a [`DiskTier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Maximum number of bytes of all files.
    pub capacity: u64,
    /// Maximum number of chunks: it bounds the memory of the index, and the scan of the directory.
    pub max_chunks: usize,
    /// Maximum number of bytes that wait to be written. A put beyond it is refused.
    pub max_queued_bytes: u64,
    /// Maximum number of chunks that wait to be read. A get beyond it is refused.
    pub max_queued_reads: usize,
}

impl DiskOptions {
    /// So many bytes in at most 2^20 chunks; 1 GiB may wait to be written and 1,024 chunks to be read.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, max_chunks: 1 << 20, max_queued_bytes: 1 << 30, max_queued_reads: 1024 }
    }
}

/// Why a [`DiskTier`] cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory cannot be made, read or locked.
    #[error("the directory of the disk tier cannot be used: {0}")]
    Io(#[from] std::io::Error),
    /// Another process has it.
    #[error("{0} is used by another process: give each engine a directory of its own")]
    InUse(std::path::PathBuf),
    /// The directory has too many files to look at.
    #[error(
        "the directory of the disk tier has more than {limit} files: give it an empty directory"
    )]
    TooManyFiles {
        /// Maximum number of files.
        limit: usize,
    },
}

/// A chunk that is being written.
struct Writing {
    size: u64,
    /// Those who put it: the first one, and others meanwhile.
    tickets: Vec<Ticket>,
}

/// A tier of one file per chunk. The chunk that was used longest ago is evicted first.
///
/// A file has a header with its length, a checksum and its key. It is written under another name and renamed, so a file with
/// a chunk's name is whole, or the machine has crashed; files are not synced, because the checksum finds what a crash has
/// damaged. A damaged chunk is a miss, and is removed. A write that fails is counted and reported, and the tier goes on; if
/// the file system is full, below the capacity, the next 64 writes evict the oldest chunks for their own room.
///
/// A file counts its length, rounded up to 4 KiB. The sum, files that are being written included, is never above the
/// capacity, unless the system refuses to delete a file: its bytes are then counted until the tier is opened again.
///
/// Chunks survive a restart. Their order of use does not: it begins with the order in which they were written.
pub struct DiskTier {
    options: DiskOptions,
    index: Lru<()>,
    writing: HashMap<ChunkKey, Writing>,
    /// Bytes of `writing` on the disk.
    reserved: u64,
    /// Bytes of files that could not be deleted.
    stuck: u64,
    /// Number of further writes that make their own room whatever the capacity, since the file system was full.
    own_room: u32,
    /// Bytes and reads that wait for the thread.
    queued_bytes: u64,
    queued_reads: usize,
    worker: Worker<Op, News>,
    tickets: Tickets,
    stats: TierStats,
}

impl DiskTier {
    /// Opens a directory, which is created if it is not there. Files of writes that were not finished are removed, and
    /// chunks that are too many for the limits, the oldest first. Other files are left alone.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(dir: &std::path::Path, options: DiskOptions) -> Result<Self, DiskError> {
        Self::over(Box::new(DirectoryFiles::open(dir)?), options)
    }

    /// Opens a tier over other files than those of a directory.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn over(mut files: Box<dyn ChunkFiles>, options: DiskOptions) -> Result<Self, DiskError> {
        let found = scan(&mut *files, options)?;
        let mut index = Lru::default();
        found.into_iter().for_each(|(key, size)| index.insert(key, (), size));
        let worker = Worker::start("kv-disk", move |op| ops::execute(&mut *files, op))?;
        Ok(Self {
            options,
            index,
            writing: HashMap::new(),
            reserved: 0,
            stuck: 0,
            own_room: 0,
            queued_bytes: 0,
            queued_reads: 0,
            worker,
            tickets: Tickets::default(),
            stats: TierStats::default(),
        })
    }

    /// Waits until everything is written, and ends the thread. A tier that is dropped instead gives up what waits, and
    /// waits for nothing.
    pub fn close(self) {
        self.worker.close();
    }

    /// Removes chunks until one of this size fits. Returns whether it does.
    fn make_room(&mut self, size: u64) -> bool {
        let kept = self.reserved.saturating_add(self.stuck).saturating_add(size);
        if kept > self.options.capacity || self.writing.len() >= self.options.max_chunks {
            return false;
        }
        let full = |index: &Lru<()>| {
            kept.saturating_add(index.bytes()) > self.options.capacity
                || index.len() + self.writing.len() >= self.options.max_chunks
        };
        let mut freed = 0;
        while full(&self.index) || self.own_room > 0 && freed < size && self.index.len() > 0 {
            let Some((key, size)) = self.index.pop_oldest() else { return false };
            freed += size;
            self.stats.evicted += 1;
            self.worker.queue().push(Op::Remove { key, size });
        }
        true
    }

    fn take_news(&mut self, news: News) {
        match news {
            News::Read { ticket, key, found } => {
                self.queued_reads -= 1;
                let outcome = match found {
                    Found::Bytes(bytes) => {
                        self.stats.hits += 1;
                        self.stats.loaded_bytes += bytes.len() as u64;
                        TierOutcome::Hit(ChunkBytes::from(bytes))
                    }
                    Found::Nothing { corrupt } => {
                        self.index.remove(&key);
                        self.stats.misses += 1;
                        self.stats.corrupt += u64::from(corrupt);
                        TierOutcome::Miss
                    }
                    Found::Error(why) => {
                        self.stats.failed += 1;
                        TierOutcome::Failed(TierError::Io(why))
                    }
                };
                self.tickets.end(ticket, outcome);
            }
            News::Written { key, bytes, result, left } => {
                self.queued_bytes -= bytes;
                let Some(Writing { size, tickets }) = self.writing.remove(&key) else { return };
                self.reserved -= size;
                self.stuck += if left { size } else { 0 };
                let outcome = match result {
                    Ok(()) => {
                        self.own_room = self.own_room.saturating_sub(1);
                        self.index.insert(key, (), size);
                        self.stats.stored += 1;
                        self.stats.stored_bytes += bytes;
                        TierOutcome::Stored
                    }
                    Err(WriteError { why, full }) => {
                        self.stats.failed += 1;
                        self.own_room = if full { WRITES_IN_OWN_ROOM } else { self.own_room };
                        TierOutcome::Failed(TierError::Write(why))
                    }
                };
                tickets.into_iter().for_each(|t| self.tickets.end(t, outcome.clone()));
            }
            News::Stuck { size } => {
                self.stats.failed += 1;
                self.stuck += size;
            }
        }
    }
}

impl KvTier for DiskTier {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        if self.index.contains(key) { Presence::Present } else { Presence::Absent }
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        if self.index.touch(key).is_none() {
            self.stats.misses += 1;
            return self.tickets.ended(TierOutcome::Miss);
        }
        if self.queued_reads >= self.options.max_queued_reads {
            self.stats.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        self.queued_reads += 1;
        let ticket = self.tickets.issue();
        self.worker.queue().push_urgent(Op::Read { ticket, key: *key });
        ticket
    }

    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket {
        if self.index.touch(key).is_some() {
            return self.tickets.ended(TierOutcome::Stored);
        }
        if self.writing.contains_key(key) {
            let ticket = self.tickets.issue();
            self.writing.entry(*key).and_modify(|writing| writing.tickets.push(ticket));
            return ticket;
        }
        let len = bytes.len() as u64;
        let size = (HEADER_BYTES as u64 + len).next_multiple_of(UNIT);
        if self.queued_bytes.saturating_add(len) > self.options.max_queued_bytes
            || !self.make_room(size)
        {
            self.stats.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        let ticket = self.tickets.issue();
        self.writing.insert(*key, Writing { size, tickets: vec![ticket] });
        self.reserved += size;
        self.queued_bytes += len;
        self.worker.queue().push(Op::Write { key: *key, bytes });
        ticket
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        while let Some(news) = self.worker.news() {
            self.take_news(news);
        }
        ended.append(&mut self.tickets.ended);
    }

    /// `bytes` has those of files that are being written, and of files that could not be deleted.
    fn stats(&self) -> TierStats {
        let bytes = self.index.bytes() + self.reserved + self.stuck;
        TierStats { chunks: self.index.len(), bytes, ..self.stats }
    }

    fn num_unwritten(&self) -> usize {
        self.writing.len()
    }
}

/// The chunks of a directory that fit the limits, the oldest first, with their sizes. Removes what is left over.
fn scan(
    files: &mut dyn ChunkFiles,
    options: DiskOptions,
) -> Result<Vec<(ChunkKey, u64)>, DiskError> {
    let limit = options.max_chunks.saturating_mul(2).saturating_add(1024);
    let (mut seen, mut chunks, mut remove) = (0, Vec::new(), Vec::new());
    files.list(&mut |file: ListedFile| {
        seen += 1;
        match FileName::parse(&file.name) {
            Some(FileName::Chunk(key)) => chunks.push((file.modified, key, file.len)),
            Some(FileName::Unfinished(_)) => remove.push(file.name),
            None => {}
        }
        seen <= limit
    })?;
    if seen > limit {
        return Err(DiskError::TooManyFiles { limit });
    }
    chunks.sort_unstable();
    let sized = |(_, key, len): (_, ChunkKey, u64)| (key, len.max(1).next_multiple_of(UNIT));
    let mut kept: Vec<(ChunkKey, u64)> = Vec::new();
    let mut bytes = 0u64;
    for (key, size) in chunks.into_iter().rev().map(sized) {
        bytes = bytes.saturating_add(size);
        if bytes > options.capacity || kept.len() >= options.max_chunks {
            remove.push(FileName::Chunk(key).to_string());
        } else {
            kept.push((key, size));
        }
    }
    for name in remove {
        files.remove(&name)?;
    }
    kept.reverse();
    Ok(kept)
}

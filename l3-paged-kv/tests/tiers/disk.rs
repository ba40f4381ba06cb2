//! The tier of files.

use std::path::{Path, PathBuf};

use l3_paged_kv::tier::{
    ChunkKey, DiskError, DiskOptions, DiskTier, KvTier, Presence, TierOutcome,
};
use tempfile::TempDir;

use crate::judge;
use crate::support::{Disk, bytes, disk_bytes, get, key, present, put, wait};

const LEN: usize = 5000;
/// What a file of a chunk of `LEN` bytes counts.
const SIZE: u64 = 8192;

fn options(chunks: u64) -> DiskOptions {
    DiskOptions::new(chunks * SIZE)
}

fn open(dir: &Path, chunks: u64) -> DiskTier {
    judge::works("opening a tier", DiskTier::open(dir, options(chunks)))
}

fn file(dir: &Path, key: &ChunkKey) -> PathBuf {
    dir.join(format!("{key}.kv"))
}

/// Gives a file another time, so that the order of two writes does not hang on the clock of the file system.
fn set_age(dir: &Path, n: u64, seconds: u64) {
    let file = std::fs::File::options().write(true).open(file(dir, &key(n))).unwrap();
    let now = std::time::SystemTime::now();
    file.set_modified(now - std::time::Duration::from_secs(seconds)).unwrap();
}

#[test]
fn chunks_survive_a_restart() {
    let dir = TempDir::new().unwrap();
    let mut tier = open(dir.path(), 10);
    for n in 0..3 {
        assert_eq!(put(&mut tier, n, LEN), TierOutcome::Stored);
        assert_eq!(get(&mut tier, n), TierOutcome::Hit(bytes(n, LEN)));
    }
    // What is queued is written before the tier is closed.
    tier.put(&key(3), bytes(3, LEN));
    tier.close();
    let mut tier = open(dir.path(), 10);
    assert_eq!(present(&mut tier, 10), [0, 1, 2, 3]);
    (0..4).for_each(|n| assert_eq!(get(&mut tier, n), TierOutcome::Hit(bytes(n, LEN))));
    let stats = tier.stats();
    assert_eq!((stats.chunks, stats.bytes, stats.hits), (4, 4 * SIZE, 4));
    assert_eq!(stats.bytes, disk_bytes(dir.path()));
}

#[test]
fn a_smaller_capacity_keeps_the_newest_chunks() {
    let dir = TempDir::new().unwrap();
    let mut tier = open(dir.path(), 10);
    (0..5).for_each(|n| _ = put(&mut tier, n, LEN));
    tier.close();
    for (n, age) in [(0, 10), (1, 50), (2, 20), (3, 40), (4, 30)] {
        set_age(dir.path(), n, age);
    }
    let mut tier = open(dir.path(), 3);
    assert_eq!(present(&mut tier, 10), [0, 2, 4]);
    assert_eq!(disk_bytes(dir.path()), 3 * SIZE, "bytes of files");
    // They go in the order in which they were written.
    put(&mut tier, 7, LEN);
    assert_eq!(present(&mut tier, 10), [0, 2, 7]);
    tier.close();
    let few = DiskOptions { max_chunks: 1, ..options(10) };
    let mut tier = DiskTier::open(dir.path(), few).unwrap();
    assert_eq!(present(&mut tier, 10), [7], "one chunk may stay");
    put(&mut tier, 8, LEN);
    assert_eq!(present(&mut tier, 10), [8]);
}

#[test]
fn the_chunk_used_longest_ago_goes_and_its_file_too() {
    let dir = TempDir::new().unwrap();
    let mut tier = open(dir.path(), 3);
    (0..3).for_each(|n| _ = put(&mut tier, n, LEN));
    get(&mut tier, 0);
    put(&mut tier, 3, LEN);
    assert_eq!(present(&mut tier, 10), [0, 2, 3]);
    assert_eq!(get(&mut tier, 1), TierOutcome::Miss);
    assert!(!file(dir.path(), &key(1)).exists());
    let stats = tier.stats();
    assert_eq!((stats.evicted, stats.bytes), (1, 3 * SIZE));
    assert_eq!(put(&mut tier, 9, 3 * SIZE as usize), TierOutcome::Refused, "larger than all");
    assert_eq!(present(&mut tier, 10), [0, 2, 3]);
}

/// Changes the file of a chunk. The tier must count it as damaged, miss it, and remove it.
fn damaged(what: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let dir = TempDir::new().unwrap();
    let mut tier = open(dir.path(), 10);
    put(&mut tier, 0, LEN);
    put(&mut tier, 1, LEN);
    let path = file(dir.path(), &key(0));
    let mut contents = std::fs::read(&path).unwrap();
    change(&mut contents);
    std::fs::write(&path, contents).unwrap();
    assert_eq!(get(&mut tier, 0), TierOutcome::Miss, "{what}");
    assert!(!path.exists(), "{what}: the file is removed");
    let stats = tier.stats();
    assert_eq!((stats.corrupt, stats.misses, stats.failed), (1, 1, 0), "{what}");
    assert_eq!((stats.chunks, stats.bytes), (1, SIZE), "{what}");
    assert_eq!(present(&mut tier, 2), [1], "{what}");
    // It can be stored again.
    assert_eq!(put(&mut tier, 0, LEN), TierOutcome::Stored, "{what}");
    assert_eq!(get(&mut tier, 0), TierOutcome::Hit(bytes(0, LEN)), "{what}");
}

#[test]
fn a_damaged_chunk_is_a_miss_and_is_removed() {
    damaged("an empty file", Vec::clear);
    damaged("half a header", |file| file.truncate(40));
    damaged("a header and nothing more", |file| file.truncate(88));
    damaged("a file without its last byte", |file| _ = file.pop());
    damaged("a file with a byte more", |file| file.push(0));
    for at in [0, 8, 12, 16, 24, 55, 56, 87, 88, LEN + 87] {
        damaged(&format!("another bit in byte {at}"), |file| file[at] ^= 0x10);
    }
}

#[test]
fn a_chunk_under_the_name_of_another_one_is_no_hit() {
    let dir = TempDir::new().unwrap();
    let mut tier = open(dir.path(), 10);
    put(&mut tier, 0, LEN);
    put(&mut tier, 1, LEN);
    std::fs::copy(file(dir.path(), &key(1)), file(dir.path(), &key(0))).unwrap();
    assert_eq!(get(&mut tier, 0), TierOutcome::Miss);
    assert_eq!(tier.stats().corrupt, 1);
}

#[test]
fn a_file_that_somebody_deleted_is_a_miss_and_not_damaged() {
    let dir = TempDir::new().unwrap();
    let mut tier = open(dir.path(), 10);
    put(&mut tier, 0, LEN);
    std::fs::remove_file(file(dir.path(), &key(0))).unwrap();
    assert_eq!(get(&mut tier, 0), TierOutcome::Miss);
    let stats = tier.stats();
    assert_eq!((stats.misses, stats.corrupt, stats.chunks, stats.bytes), (1, 0, 0, 0));
}

#[test]
fn unfinished_files_are_removed_and_those_of_others_are_left_alone() {
    let dir = TempDir::new().unwrap();
    open(dir.path(), 10).close();
    let capitals = format!("{}.kv", key(0xabcdef).to_string().to_uppercase());
    for name in ["notes.txt", "1234.kv", "x.tmp", &capitals] {
        std::fs::write(dir.path().join(name), "mine").unwrap();
    }
    std::fs::create_dir(file(dir.path(), &key(6))).unwrap();
    let unfinished = dir.path().join(format!("{}.tmp", key(5)));
    std::fs::write(&unfinished, "half").unwrap();
    let mut tier = open(dir.path(), 1);
    put(&mut tier, 0, LEN);
    put(&mut tier, 1, LEN);
    tier.close();
    assert!(!unfinished.exists(), "an unfinished chunk");
    for name in ["notes.txt", "1234.kv", "x.tmp", &capitals] {
        assert_eq!(std::fs::read_to_string(dir.path().join(name)).unwrap(), "mine", "{name}");
    }
}

#[test]
fn a_directory_of_another_process_or_with_too_many_files_is_refused() {
    let dir = TempDir::new().unwrap();
    let tier = open(dir.path(), 1);
    let again = DiskTier::open(dir.path(), options(1)).map(|_| ());
    judge::fails_with!("a directory that is in use", again, DiskError::InUse(_));
    tier.close();
    open(dir.path(), 1).close();
    let few = DiskOptions { max_chunks: 0, ..options(1) };
    (0..1024).for_each(|n| std::fs::write(dir.path().join(format!("{n}")), "").unwrap());
    let refused = DiskTier::open(dir.path(), few).map(|_| ());
    judge::fails_with!("1,025 files", refused, DiskError::TooManyFiles { limit: 1024 });
    let refused = DiskTier::open(&file(dir.path(), &key(0)).join("0"), few).map(|_| ());
    assert!(refused.is_ok(), "a directory that is not there is made");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let refused = DiskTier::open(&dir.path().join("file"), few).map(|_| ());
    judge::fails_with!("a file instead of a directory", refused, DiskError::Io(_));
}

#[test]
fn a_full_disk_is_a_counted_failure_and_then_its_own_chunks_make_room() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let mut tier = DiskTier::over(disk.files(dir.path()), options(10)).unwrap();
    put(&mut tier, 0, LEN);
    put(&mut tier, 1, LEN);
    disk.set(|f| f.disk_size = Some(2 * SIZE + 100));
    let outcome = put(&mut tier, 2, LEN);
    assert!(matches!(outcome, TierOutcome::Failed(_)), "{outcome:?}");
    let stats = tier.stats();
    assert_eq!((stats.failed, stats.chunks, stats.bytes), (1, 2, 2 * SIZE));
    assert_eq!(disk_bytes(dir.path()), 2 * SIZE, "nothing is left of what was not written");
    assert_eq!(get(&mut tier, 0), TierOutcome::Hit(bytes(0, LEN)), "reads go on");
    for n in 3..40 {
        assert_eq!(put(&mut tier, n, LEN), TierOutcome::Stored, "in place of the oldest");
    }
    assert_eq!(present(&mut tier, 40), [38, 39]);
    disk.set(|f| f.disk_size = None);
    (40..100).for_each(|n| _ = put(&mut tier, n, LEN));
    let stats = tier.stats();
    assert_eq!((stats.failed, stats.chunks), (1, 10), "there is room again, up to the capacity");
}

#[test]
fn a_pipe_in_the_place_of_a_chunk_stops_nothing() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let mut tier = DiskTier::over(disk.files(dir.path()), options(10)).unwrap();
    put(&mut tier, 0, LEN);
    let name = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    let chunk = name.into_iter().find(|path| path.file_name().unwrap() != "lock").unwrap();
    std::fs::remove_file(&chunk).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&chunk).status().unwrap();
    assert!(made.success());
    assert_eq!(get(&mut tier, 0), TierOutcome::Miss);
    assert_eq!((tier.stats().corrupt, chunk.exists()), (1, false));
}

#[test]
fn errors_of_reads_are_failures_and_keep_the_chunk() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let mut tier = DiskTier::over(disk.files(dir.path()), options(10)).unwrap();
    put(&mut tier, 0, LEN);
    disk.set(|f| f.reads_fail = true);
    assert!(matches!(get(&mut tier, 0), TierOutcome::Failed(_)));
    disk.set(|f| f.reads_fail = false);
    assert_eq!(get(&mut tier, 0), TierOutcome::Hit(bytes(0, LEN)));
    assert_eq!(tier.stats().failed, 1);
}

#[test]
fn a_file_that_cannot_be_deleted_keeps_its_bytes_counted() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let mut tier = DiskTier::over(disk.files(dir.path()), options(2)).unwrap();
    put(&mut tier, 0, LEN);
    put(&mut tier, 1, LEN);
    disk.set(|f| f.removals_fail = true);
    put(&mut tier, 2, LEN);
    let stats = tier.stats();
    assert_eq!((stats.bytes, stats.chunks, stats.failed), (3 * SIZE, 2, 1));
    assert_eq!(stats.bytes, disk_bytes(dir.path()));
    disk.set(|f| f.removals_fail = false);
    put(&mut tier, 3, LEN);
    assert_eq!(present(&mut tier, 10), [3], "there is room for one beside what is stuck");
    assert_eq!(tier.stats().bytes, 2 * SIZE);
}

#[test]
fn no_call_waits_for_a_disk_that_hangs_and_what_waits_is_bounded() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let limits =
        DiskOptions { max_queued_bytes: 3 * LEN as u64, max_queued_reads: 2, ..options(10) };
    let mut tier = DiskTier::over(disk.files(dir.path()), limits).unwrap();
    put(&mut tier, 0, LEN);
    disk.set(|f| f.stopped = true);
    let puts: Vec<_> = (1..5).map(|n| tier.put(&key(n), bytes(n, LEN))).collect();
    let gets: Vec<_> = (0..3).map(|_| tier.get(&key(0))).collect();
    let again = tier.put(&key(2), bytes(2, LEN));
    assert_eq!(tier.contains(&key(1)), Presence::Absent, "it is not written yet");
    let mut ended = Vec::new();
    tier.poll(&mut ended);
    let refused =
        |ticket| ended.iter().any(|c| c.ticket == ticket && c.outcome == TierOutcome::Refused);
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(refused(puts[3]), "a fourth chunk that waits to be written");
    assert!(refused(gets[2]), "a third chunk that waits to be read");
    disk.set(|f| f.stopped = false);
    assert_eq!(wait(&mut tier, again), TierOutcome::Stored, "the second put of a chunk");
    assert_eq!(put(&mut tier, 5, LEN), TierOutcome::Stored);
    let stats = tier.stats();
    assert_eq!((stats.stored, stats.hits, stats.refused), (5, 2, 2));
}

#[test]
fn reads_go_before_writes_that_came_earlier() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let mut tier = DiskTier::over(disk.files(dir.path()), options(10)).unwrap();
    put(&mut tier, 0, LEN);
    disk.set(|f| (f.stopped, f.log) = (true, Vec::new()));
    // The thread may have taken the first one already.
    (1..4).for_each(|n| _ = tier.put(&key(n), bytes(n, LEN)));
    let read = tier.get(&key(0));
    disk.set(|f| f.stopped = false);
    wait(&mut tier, read);
    put(&mut tier, 4, LEN);
    let log = disk.set(|f| std::mem::take(&mut f.log));
    let at = log.iter().position(|op| op.starts_with('r')).unwrap();
    assert!(at <= 1, "{log:?}");
    assert_eq!(log.len(), 5, "{log:?}");
}

#[test]
fn a_tier_that_is_dropped_waits_for_nothing() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let mut tier = DiskTier::over(disk.files(dir.path()), options(10)).unwrap();
    disk.set(|f| f.stopped = true);
    (0..4).for_each(|n| _ = tier.put(&key(n), bytes(n, LEN)));
    drop(tier);
    disk.set(|f| f.stopped = false);
}
